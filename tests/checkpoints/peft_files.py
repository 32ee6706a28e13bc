"""The PEFT library as the oracle of its format: it opens what pellucid writes, and writes what pellucid opens."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

CLASSES = {
    "sequence-classification": ("AutoModelForSequenceClassification", "SEQ_CLS"),
    "token-classification": ("AutoModelForTokenClassification", "TOKEN_CLS"),
    "question-answering": ("AutoModelForQuestionAnswering", "QUESTION_ANS"),
    "causal-lm": ("AutoModelForCausalLM", "CAUSAL_LM"),
    "sequence-to-sequence-lm": ("AutoModelForSeq2SeqLM", "SEQ_2_SEQ_LM"),
    "masked-lm": ("AutoModelForMaskedLM", None),
    None: ("AutoModel", "FEATURE_EXTRACTION"),
}
"""By head, the reference's class and PEFT's name of the task."""


@contextmanager
def quiet_peft() -> Iterator[ModuleType]:
    """The library, with its warnings suppressed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import peft

        yield peft


def reference(base: Path, head: str | None, **options: Any) -> Any:
    """The base as the reference opens it."""
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return getattr(transformers, CLASSES[head][0]).from_pretrained(base, attn_implementation="eager", **options)


def open_adapter(base: Path, adapter: Path, head: str | None, *, trainable: bool = False, **options: Any) -> Any:
    """An adapter over its base, opened by the library."""
    with quiet_peft() as peft:
        model = peft.PeftModel.from_pretrained(reference(base, head, **options), adapter, is_trainable=trainable)
    return model.train(trainable)


def write_adapter(
    base: Path, folder: Path, head: str | None, *, labels: int = 2, tokens: int = 0, **config: Any
) -> Any:
    """Attaches an adapter with random weights to a base and saves it.  ->  the model, to compare with

    tokens: its vocabulary size, where it differs from the base's.
    """
    options = {"num_labels": labels, "ignore_mismatched_sizes": True} if labels != 2 else {}
    with quiet_peft() as peft:
        settings = peft.LoraConfig(**({"task_type": CLASSES[head][1], "r": 4, "lora_alpha": 6} | config))
        bare = reference(base, head, **options)
        if tokens:
            bare.resize_token_embeddings(tokens)
        model = peft.get_peft_model(bare, settings).eval()
        generator = torch.Generator().manual_seed(5)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.requires_grad:
                    parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
        model.save_pretrained(folder)
    return model


@torch.no_grad()
def model_output(model: Any, ids: Tensor, head: str | None) -> Tensor:
    """The logits of the library's model, or its hidden states where there is no head."""
    inputs = {"decoder_input_ids": ids} if head == "sequence-to-sequence-lm" else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = model(input_ids=ids, **inputs)
    if head == "question-answering":
        return torch.stack((found.start_logits, found.end_logits), dim=-1)
    return found.last_hidden_state if head is None else found.logits
