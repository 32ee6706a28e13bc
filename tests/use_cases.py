"""Uses of pellucid, each a function of how checkpoints are loaded and of a folder to write to."""

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pellucid
from pellucid import compat, edits
from pellucid.tasks.verify import verify

LoadModel = Callable[..., "pellucid.Model"]
UseCase = Callable[[LoadModel, Path], Any]

TEXT, OTHER, LONG = "The film was good.", "time flies like an arrow", "a good book and a long story . " * 40
ROWS = [{"text": f"{word} story", "label": label} for word, label in (("good", "a"), ("bad", "b"), ("high", "a"))] * 4
SENTIMENTS = [{"text": TEXT, "label": "positive"}, {"text": OTHER, "label": "negative"}]
PAIRS = [
    {"sentence1": f"good {word}", "sentence2": f"bad {word}", "score": i / 3}
    for i, word in enumerate("sea book dog".split())
]


def generation(name: str, **options: Any) -> UseCase:
    return lambda load, out: load(name).generate([TEXT, OTHER], max_new_tokens=6, **options)


def low_bit_generation(name: str, dtype: str) -> UseCase:
    return lambda load, out: load(name, dtype=dtype).generate([TEXT, OTHER], max_new_tokens=6)


def pipeline_answers(name: str, task: str, *arguments: Any, **options: Any) -> UseCase:
    return lambda load, out: pellucid.pipeline(task, model=load(name), **options)(*arguments)


def training(name: str, objective: str, rows: list[dict[str, Any]], **options: Any) -> UseCase:
    def use_case(load: LoadModel, out: Path) -> Any:
        report = pellucid.train(load(name), rows, objective, out=out, epochs=1, **options).report
        return report.scores, pellucid.load(out).module.state_dict()

    return use_case


def edited_logits(model: pellucid.Model) -> Any:
    before = model.trace(OTHER)
    with model.edit(
        {"layers.0.*.post": edits.patch(before, position=slice(3)), "layers.1.attention.output": edits.mean(before)}
    ) as edited_model:
        return edited_model.trace(TEXT)["logits"]


def trained_adapter(load: LoadModel, out: Path) -> pellucid.Model:
    base = load("bert-body").save(out.with_suffix(".base"))
    pellucid.train(base, ROWS, "text-classification", out=out, epochs=1, lora=2, adapter_only=True)
    return pellucid.load(out)


def search_results(index: pellucid.Index) -> Any:
    hits = index.search("a good film", k=3)
    return [(hit["id"], hit["score"]) for hit in hits], index.why("a good film", hits[0]).similarity


def explanation(name: str, what: str, *arguments: Any, **options: Any) -> UseCase:
    return lambda load, out: getattr(load(name).explain, what)(*arguments, **options)


USE_CASES: dict[str, UseCase] = {
    "embed": lambda load, out: load("bert-body").embed([TEXT, OTHER, LONG]),
    "embed-int8": lambda load, out: load("bert-body", dtype="int8").embed([TEXT, OTHER]),
    "greedy": generation("gpt2"),
    "sample": generation("llama", do_sample=True, seed=1, bad_words_ids=[[5], [6, 7]]),
    "beams": generation("bart", num_beams=3),
    "beams-gpt2": generation("gpt2", num_beams=2, logit_bias={5: -2.0}),
    "int8": low_bit_generation("llama", "int8"),
    "int4": low_bit_generation("llama", "int4"),
    "complete": lambda load, out: load("gpt2").complete(TEXT, max_new_tokens=4, alternatives=2),
    "stream": lambda load, out: list(load("t5-tied").stream(TEXT, max_new_tokens=4)),
    "chat": lambda load, out: load("llama-chat").chat([{"role": "user", "content": TEXT}], max_new_tokens=4),
    "score": lambda load, out: load("gpt2").score([TEXT, OTHER]),
    "score-pair": lambda load, out: load("bart").score(TEXT, OTHER),
    "sentiment": pipeline_answers("bert-feelings", "sentiment-analysis", [TEXT, LONG], long="windows"),
    "tag": pipeline_answers("bert-people", "token-classification", [TEXT, LONG], long="windows"),
    "answer": pipeline_answers(
        "bert-reader", "question-answering", {"question": "Who?", "context": LONG}, long="windows"
    ),
    "fill": pipeline_answers("bert-filler", "fill-mask", "a [MASK] story", targets=["good", "bad"]),
    "similarity": pipeline_answers("bert-body", "sentence-similarity", {"source_sentence": TEXT, "sentences": [OTHER]}),
    "zero-shot": pipeline_answers("bert-nli", "zero-shot-classification", TEXT, candidate_labels=["film", "sea"]),
    "features": pipeline_answers("bert-body", "feature-extraction", TEXT),
    "translate": pipeline_answers("t5-tasks", "translation_en_to_de", TEXT, max_new_tokens=4),
    "verify": lambda load, out: [(c.name, c.passed) for c in verify(load("bert-feelings").save(out))],
    "sentiment-explained": pipeline_answers("bert-feelings", "sentiment-analysis", TEXT, explain=True),
    "trace": lambda load, out: load("bert-body").trace([TEXT, OTHER], keep="view"),
    "gradients": lambda load, out: load("gpt2").trace(TEXT, gradients_of=lambda o: o.logits[0, -1, 1]).gradients,
    "trace-writing": lambda load, out: load("gpt2").trace_writing(TEXT, max_new_tokens=2).steps[1]["logits"],
    "edit": lambda load, out: edited_logits(load("gpt2")),
    "sweep": lambda load, out: load("gpt2").sweep(TEXT, lambda o: o.logits[0, -1, 1]),
    "page": lambda load, out: pellucid.view(load("bart").trace(TEXT)).save(out.with_suffix(".html")).read_text(),
    "logit-lens": explanation("gpt2", "logit_lens", TEXT),
    "direct-logit-attribution": explanation("llama", "direct_logit_attribution", TEXT, 5),
    "rollout": explanation("bert-body", "attention_rollout", TEXT),
    "gradient-x-input": explanation("gpt2", "gradient_x_input", TEXT),
    "integrated-gradients": explanation("gpt2", "integrated_gradients", TEXT, steps=8),
    "heads": explanation("gpt2", "head_scores", TEXT),
    "repeated-heads": explanation("gpt2", "head_scores"),
    "classify": training("bert-body", "text-classification", ROWS),
    "adapters": training("bert-body", "text-classification", ROWS, lora=2, dropout=0.1),
    "pairs": training("bert-body", "sentence-similarity", PAIRS),
    "opened-adapter": lambda load, out: trained_adapter(load, out).module.state_dict(),
    "masked": training("bert-filler", "fill-mask", ROWS),
    "evaluate": lambda load, out: pellucid.evaluate(load("bert-feelings"), SENTIMENTS),
    "index": lambda load, out: search_results(
        pellucid.Index.build(load("bert-body"), [TEXT, OTHER, "a good book"], out)
    ),
    "build": lambda load, out: pellucid.build(load("gpt2").config, seed=1).module.state_dict(),
    "compat-tokenizer": lambda load, out: dict(
        compat.AutoTokenizer.from_pretrained(str(load("bert-body").save(out)))([TEXT], return_tensors="pt")
    ),
    "compat": lambda load, out: compat.pipeline("text2text-generation", model=str(load("bart").save(out)))(TEXT),
}


def assert_equal(actual: Any, expected: Any, *, within: float = 0) -> None:
    """Asserts equality: of tensors, arrays and floats bit for bit or `within` a tolerance; of mappings, sequences and
    dataclasses element by element."""
    assert type(actual) is type(expected)
    if isinstance(expected, torch.Tensor | np.ndarray | float):
        ours, theirs = torch.as_tensor(actual).cpu(), torch.as_tensor(expected)
        torch.testing.assert_close(ours, theirs, rtol=within, atol=within, equal_nan=True)
    elif isinstance(expected, Mapping):
        assert actual.keys() == expected.keys()
        assert_equal(list(actual.values()), list(expected.values()), within=within)
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for actual_item, expected_item in zip(actual, expected):
            assert_equal(actual_item, expected_item, within=within)
    elif is_dataclass(expected):
        assert_equal(vars(actual), vars(expected), within=within)
    else:
        assert actual == expected
