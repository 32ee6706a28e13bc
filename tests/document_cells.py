"""The calls of the study documents, as functions of a library: the reference, or `pellucid.compat` in its place.

    python -m tests.document_cells pellucid.compat FILE

runs all of them and writes their results to FILE.
"""

import importlib
import math
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn import functional

BERT = "bert-base-uncased"
SENTIMENT = "distilbert-base-uncased-finetuned-sst-2-english"
NLI = "FacebookAI/roberta-large-mnli"
QUESTIONS = "sentence-transformers/multi-qa-mpnet-base-dot-v1"
PAIR = ("time flies like an arrow", "fruit flies like a banana")
COURSE = ["I've been waiting for a HuggingFace course my whole life.", "I hate this so much!"]
EAGLES = ["The Philadelpha Eagles won the Superbowl.", "The Philadelpha Eagles lost the Superbowl."]
GAMES = ["I love the intro", "I hated the game"]

CellResult = dict[str, Any]
CELLS: dict[str, Callable[[ModuleType], CellResult]] = {}


def cell(function: Callable[[ModuleType], CellResult]) -> Callable[[ModuleType], CellResult]:
    """Registers a cell under the name of its function."""
    CELLS[function.__name__] = function
    return function


@cell
def encode_and_decode(library: ModuleType) -> CellResult:
    tokenizer = library.AutoTokenizer.from_pretrained(BERT)
    inputs = tokenizer(["the bark of a palm tree is very rough of"], return_tensors="pt", add_special_tokens=False)
    alike = tokenizer(["a b c", "c a b"], return_tensors="pt", add_special_tokens=False)
    single = tokenizer("Time flies like an arrow.", return_tensors="pt", add_special_tokens=False)
    return {
        "ids": inputs.input_ids,
        "nested": inputs.input_ids.is_nested,
        "text": tokenizer.decode(inputs["input_ids"].tolist()[0]),
        "alike": alike.input_ids.size(),
        "single": dict(single),
    }


@cell
def attention_by_hand(library: ModuleType) -> CellResult:
    tokenizer = library.AutoTokenizer.from_pretrained(BERT, cache_dir="./cache")
    config = library.AutoConfig.from_pretrained(BERT, cache_dir="./cache")
    torch.manual_seed(3)
    table = nn.Embedding(config.vocab_size, config.hidden_size)
    query = key = value = table(tokenizer(PAIR[0], return_tensors="pt", add_special_tokens=False).input_ids)
    weights = functional.softmax(torch.bmm(query, key.transpose(1, 2)) / math.sqrt(key.size(-1)), dim=-1)
    facts = ("num_attention_heads", "intermediate_size", "max_position_embeddings", "num_hidden_layers", "num_labels")
    return {
        "output": torch.bmm(weights, value).detach(),
        "facts": [getattr(config, name) for name in facts],
        "dropout": config.hidden_dropout_prob,
    }


@cell
def own_classifier(library: ModuleType) -> CellResult:
    config = library.AutoConfig.from_pretrained(BERT)
    before = config.num_labels
    config.num_labels = 3
    torch.manual_seed(5)
    classifier = nn.Sequential(nn.Dropout(config.hidden_dropout_prob), nn.Linear(config.hidden_size, config.num_labels))
    answer = classifier.eval()(torch.ones(2, config.hidden_size)).detach()
    return {"labels": (before, config.num_labels, config.id2label), "answer": answer}


@cell
def first_token_vectors_of_company_names(library: ModuleType) -> CellResult:
    tokenizer, model = library.AutoTokenizer.from_pretrained(QUESTIONS), library.AutoModel.from_pretrained(QUESTIONS)
    names = ["Apple Inc.", "Taiwan Semiconductor Manufacturing Co Ltd", "Exxon Mobil Corp"]
    plain = tokenizer(names, return_tensors="pt", padding=True, add_special_tokens=False)
    encoded = tokenizer(names, padding=True, truncation=True, return_tensors="pt")
    encoded = {name: tensor.to(torch.device("cpu")) for name, tensor in encoded.items()}
    vectors = model(**encoded).last_hidden_state[:, 0].cpu().detach().numpy()
    return {"plain": plain.input_ids, "vectors": torch.from_numpy(vectors)}


@cell
def attentions_of_a_pair(library: ModuleType) -> CellResult:
    tokenizer = library.AutoTokenizer.from_pretrained(BERT)
    model = library.AutoModel.from_pretrained(BERT, output_attentions=True)
    inputs = tokenizer(*PAIR, return_tensors="pt")
    output = model(**inputs)
    return {
        "attentions": [one.detach() for one in output.attentions],
        "states": output.last_hidden_state.detach(),
        "first": output[0].detach(),
        "pooled": output.pooler_output.detach(),
        "second": (inputs.token_type_ids == 0).sum(dim=1),
        "tokens": tokenizer.convert_ids_to_tokens(inputs.input_ids[0]),
    }


@cell
def attentions_requested_in_a_call(library: ModuleType) -> CellResult:
    tokenizer = library.AutoTokenizer.from_pretrained(BERT)
    model = library.AutoModel.from_pretrained(BERT, cache_dir="./cache", attn_implementation="eager")
    inputs = tokenizer(*PAIR, return_tensors="pt")
    output = model(**inputs, output_attentions=True, output_hidden_states=True)
    return {name: [one.detach() for one in output[name]] for name in ("attentions", "hidden_states")}


@cell
def sentiment_hidden_states(library: ModuleType) -> CellResult:
    tokenizer = library.AutoTokenizer.from_pretrained(SENTIMENT)
    inputs = tokenizer(GAMES, padding=True, truncation=True, return_tensors="pt")
    outputs = library.AutoModel.from_pretrained(SENTIMENT)(**inputs)
    return {"inputs": dict(inputs), "states": outputs.last_hidden_state.detach(), "attentions": outputs.attentions}


@cell
def sentiment_logits(library: ModuleType) -> CellResult:
    tokenizer = library.AutoTokenizer.from_pretrained(SENTIMENT)
    model = library.AutoModelForSequenceClassification.from_pretrained(SENTIMENT)
    results: CellResult = {"labels": model.config.id2label}
    for i, texts in enumerate((COURSE, EAGLES, GAMES)):
        outputs = model(**tokenizer(texts, padding=True, truncation=True, return_tensors="pt"))
        results[f"logits {i}"] = outputs.logits.detach()
        results[f"shares {i}"] = functional.softmax(outputs.logits, dim=-1).detach()
        results[f"loss {i}"] = outputs.loss
    return results


@cell
def untrained_architecture(library: ModuleType) -> CellResult:
    facts = library.BertConfig().to_dict()
    names = "hidden_size num_hidden_layers num_attention_heads vocab_size layer_norm_eps type_vocab_size pad_token_id"
    small = library.BertConfig(hidden_size=48, num_hidden_layers=2, num_attention_heads=4, vocab_size=90)
    model = library.BertModel(small)
    pretrained = library.BertModel.from_pretrained(BERT)
    return {
        "facts": {name: facts[name] for name in names.split()},
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "shape": model(torch.arange(6)[None]).last_hidden_state.shape,
        "names": (type(model).__name__, type(small).__name__, type(pretrained).__name__),
    }


@cell
def pipelines(library: ModuleType) -> CellResult:
    classifier = library.pipeline("sentiment-analysis")
    unmasker = library.pipeline("fill-mask", model="bert-base-cased")
    jobs = {who: unmasker(f"The {who} works as a [MASK].") for who in ("man", "woman")}
    return {
        "course": floats_as_tensors(classifier(COURSE)),
        "eagles": floats_as_tensors(classifier(EAGLES)),
        "one": floats_as_tensors(classifier("I'm doing really really good")),
        "nli": floats_as_tensors(library.pipeline("text-classification", model=NLI)("This restaurant is awesome")),
        "jobs": {who: [one["token_str"] for one in predictions] for who, predictions in jobs.items()},
        "whole": floats_as_tensors(jobs["man"]),
    }


def floats_as_tensors(output: Any) -> Any:
    """An answer with its floats as tensors, so that they are compared with a tolerance."""
    if isinstance(output, list):
        return [floats_as_tensors(one) for one in output]
    if isinstance(output, dict):
        return {name: torch.tensor(one) if isinstance(one, float) else one for name, one in output.items()}
    return output


def run(library: ModuleType) -> dict[str, CellResult]:
    """The result of every cell, by name."""
    return {name: function(library) for name, function in CELLS.items()}


if __name__ == "__main__":
    torch.save(run(importlib.import_module(sys.argv[1])), sys.argv[2])
