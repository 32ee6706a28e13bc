"""Where dropout acts in training, and with which probability: at the same places as in the reference."""

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import pellucid
from pellucid.blocks.training_copy import TrainingContext
from pellucid.config import Dropout
from pellucid.training.causal import TextGeneration
from pellucid.training.classification import TextClassification
from pellucid.training.settings import Settings
from pellucid.training.start import model_for_training
from pellucid.training.writing import TextToText
from tests.parity.reference import tiny

ATTENTION = "attention_probs_dropout_prob"

DropoutCalls = Counter[tuple[float, tuple[int, ...]]]

_BERT = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2, "classifier_dropout": 0.3}
_DISTILBERT = {"dropout": 0.1, "attention_dropout": 0.2, "seq_classif_dropout": 0.3, "qa_dropout": 0.4}
_GPT2 = {"embd_pdrop": 0.1, "attn_pdrop": 0.2, "resid_pdrop": 0.3}
_BART = {"dropout": 0.1, "attention_dropout": 0.2, "activation_dropout": 0.3, "classifier_dropout": 0.4}
PROBABILITIES: dict[str, dict[str, Any]] = {
    "BertForSequenceClassification": _BERT,
    "RobertaForSequenceClassification": _BERT,
    "ElectraForSequenceClassification": _BERT,
    "AlbertForTokenClassification": {"hidden_dropout_prob": 0.1, "classifier_dropout_prob": 0.3},
    "MPNetForSequenceClassification": {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.2},
    "DistilBertForSequenceClassification": _DISTILBERT,
    "DistilBertForTokenClassification": _DISTILBERT,
    "DistilBertForQuestionAnswering": _DISTILBERT | {"num_labels": 2},
    "GPT2LMHeadModel": _GPT2,
    "GPT2ForSequenceClassification": _GPT2,
    "GPT2ForTokenClassification": _GPT2,
    "LlamaForTokenClassification": {"attention_dropout": 0.2},
    "BartForConditionalGeneration": _BART,
    "BartForSequenceClassification": _BART,
    "T5ForConditionalGeneration": {"dropout_rate": 0.3},
}
IDS = torch.tensor([[5, 9, 17, 31, 40, 8, 2], [5, 11, 40, 8, 3, 9, 2]])


def reference_dropout(model: Any, inputs: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> DropoutCalls:
    calls, original = DropoutCalls(), torch.nn.functional.dropout

    def dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
        calls.update([(round(p, 3), tuple(x.shape))] if training and p else [])
        return original(x, p, training, inplace)

    with monkeypatch.context() as patched:
        patched.setattr(torch.nn.functional, "dropout", dropout)
        model.train()(**inputs)
    return calls


def our_dropout(
    folder: Path, inputs: dict[str, torch.Tensor], monkeypatch: pytest.MonkeyPatch, *, logits: bool = False
) -> DropoutCalls:
    calls, context = DropoutCalls(), TrainingContext(torch.float32)
    original = context.dropout_masks.mask

    def mask(shape: Any, share: float) -> torch.Tensor:
        calls.update([(round(share, 3), tuple(shape))])
        return original(shape, share)

    monkeypatch.setattr(context.dropout_masks, "mask", mask)
    training_copy: Any = pellucid.load(folder).loaded.module.training_copy(context)
    _ = training_copy.logits(**inputs) if logits else training_copy(**inputs)
    return calls


@pytest.mark.parametrize("architecture", PROBABILITIES)
def test_dropout_calls_equal_the_reference_s(
    architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(
        tmp_path / "model", architecture, dtype=torch.float32, attention="eager", **PROBABILITIES[architecture]
    )
    inputs = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS)}
    inputs |= {"decoder_input_ids": IDS[:, :5]} if "ConditionalGeneration" in architecture else {}
    expected = reference_dropout(model, inputs, monkeypatch)
    assert our_dropout(tmp_path / "model", inputs, monkeypatch) == expected
    logits_only = our_dropout(
        tmp_path / "model", inputs, monkeypatch, logits=True
    )  # the last layer has fewer positions
    assert _without_positions(logits_only) == _without_positions(expected)


def _without_positions(calls: DropoutCalls) -> DropoutCalls:
    """The counts without the number of positions, which differs for the last layer."""
    counts = DropoutCalls()
    for (share, shape), count in calls.items():
        counts[share, (len(shape), shape[-1])] += count
    return counts


@pytest.mark.parametrize(
    ("name", "objective", "share"),
    [
        ("distilbert-body", TextClassification(classes=("a", "b")), 0.0),
        ("gpt2", TextGeneration(), 0.0),
        ("bart", TextToText(), 0.0),
        ("t5-tied", TextToText(), 0.3),
        ("gpt2", TextGeneration(), 0.3),
    ],
)
def test_dropout_setting_applies_to_every_dropout_in_use(
    checkpoint: Callable[[str], Path], name: str, objective: Any, share: float
) -> None:
    base = pellucid.load(checkpoint(name)).loaded
    loaded = model_for_training(base, objective, Settings(dropout=share, attention_dropout=share))
    before, after = base.config.dropout, loaded.config.dropout
    for fact in vars(Dropout()):
        unused = vars(before)[fact] == 0.0 and fact not in ("hidden_dropout_prob", "classifier_dropout", ATTENTION)
        assert after.probability(fact) == (0.0 if unused else share)


def test_layerdrop_of_a_checkpoint_is_reported(
    checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    base = pellucid.load(checkpoint("bart")).loaded
    with caplog.at_level(logging.WARNING):
        model_for_training(base, TextToText(), Settings())
        assert "layer" not in caplog.text
        object.__setattr__(base, "config", base.config.replace(inert={"encoder_layerdrop": 0.1}))
        model_for_training(base, TextToText(), Settings())
    assert "encoder_layerdrop is 0.1, and no layer is dropped in training here" in caplog.text
