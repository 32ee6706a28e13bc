"""The manifest of a page (format `pellucid-view`): its contents, and how its numbers are stored."""

from typing import Any

import torch

from pellucid import __version__
from pellucid.view.subject import AttentionData, Subject

FORMAT, VERSION = "pellucid-view", 3


def manifest_of(
    subject: Subject,
    parts: dict[str, Any],
    blocks: dict[str, dict[str, Any]],
    show: dict[str, Any],
    other: dict[str, Any] | None,
) -> dict[str, Any]:
    """Plain JSON values. parts: "attentions", "lens" and "tensors"; blocks: dtype, shape and coding of each."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "model": subject.model,
        "texts": subject.texts,
        **({"edits": [*subject.edits]} if subject.edits else {}),
        "sequences": subject.sequences,
        **parts,
        "other": other,
        "blocks": blocks,
        "show": show,
        "made_by": {"pellucid": __version__, "torch": torch.__version__},
    }


def attention_entry(attention: AttentionData, stored: dict[str, Any]) -> dict[str, Any]:
    """The entry of one attention: its sequences of tokens, and the blocks that its weights come from."""
    return {
        "name": attention.name,
        "layer": attention.layer,
        "kind": attention.kind,
        "side": attention.side,
        "queries": attention.queries,
        "keys": attention.keys,
        "heads": attention.heads,
        "key_heads": attention.key_heads,
        **stored,
    }
