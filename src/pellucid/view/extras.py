"""What a page may hold besides attention: the predictions after each layer (a lens), and recorded tensors."""

import fnmatch
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from pellucid.config.checks import require_names
from pellucid.errors import InputError, did_you_mean, format_count
from pellucid.text.spelling import token_text
from pellucid.trace import Trace, axes_of
from pellucid.trace.aliases import matching_points, unavailable_message, warn_of_omitted
from pellucid.trace.points import Axes
from pellucid.view.store import BlockStore
from pellucid.view.subject import Subject

AUTO_BYTES = 2_000_000
"""The size limit of `tensors="auto"`, as float32."""

_PRIORITY = ("*residual.*", "*embeddings.*", "*norm.output", "pooled", "*feed_forward.*", "*attention.*")
"""The order in which tensors are chosen while they fit; weights and scores are shown elsewhere."""


def with_extras(subject: Subject, trace: Trace | None, tensors: str | Sequence[str], lens: Any) -> Subject:
    """The subject with its tensors and its lens. Raises InputError for what does not exist.

    trace: the source of the tensors; None where weights were given.  tensors: names, globs or "auto".
    lens: a result of the logit lens, or None.
    """
    patterns = require_names("tensors", tensors, "names of recorded numbers, or patterns")
    if patterns and trace is None:
        raise InputError("tensors come from a trace, but weights of attention were given instead of one")
    chosen = []
    if trace is not None:
        chosen = [(name, trace[name], axes_of(name, trace.config)) for name in _matching_names(trace, patterns)]
    if lens is not None:
        _check_lens(lens, len(subject.sequences[-1]["tokens"]))
    if lens is not None and trace is not None:
        _check_tokens(lens, trace)
    return replace(subject, tensors=chosen, lens=lens)


def store_extras(subject: Subject, store: BlockStore) -> dict[str, Any]:
    """Stores the tensors and the lens of a subject, and returns their part of the manifest."""
    tensors = [_tensor_entry(store, name, tensor, axes) for name, tensor, axes in subject.tensors]
    return {"tensors": tensors, "lens": None if subject.lens is None else _lens_entry(store, subject.lens)}


def _matching_names(trace: Trace, patterns: Sequence[str]) -> list[str]:
    """The names of the trace that match names and globs."""
    if patterns == ("auto",):
        return _names_within_budget(trace)
    found: dict[str, None] = {}
    for pattern in patterns:
        hits = [name for name in matching_points(pattern, trace.config) if name in trace.points]
        if not hits:
            has = f"this trace has no {pattern!r}{did_you_mean(pattern, trace)}; names() lists what it has"
            raise InputError(unavailable_message(pattern, trace.config) or has)
        found |= dict.fromkeys(hits)
    for pattern in patterns:
        warn_of_omitted(pattern, trace.config, found)
    return list(found)


def _names_within_budget(trace: Trace) -> list[str]:
    """As many names as fit, by priority; returned in the order of the trace."""
    left, taken = AUTO_BYTES, set()
    for pattern in _PRIORITY:
        for name in trace:
            size = trace[name].numel() * 4
            is_drawn_elsewhere = name.endswith((".weights", ".scores"))
            if not is_drawn_elsewhere and name not in taken and fnmatch.fnmatchcase(name, pattern) and size <= left:
                left -= size
                taken.add(name)
    return [name for name in trace if name in taken]


def _tensor_entry(store: BlockStore, name: str, tensor: Tensor, axes: Axes) -> dict[str, Any]:
    """Stores a tensor of a trace of one text."""
    numbers = tensor[0].detach().cpu().float().numpy()
    return {
        "name": name,
        "axes": list(axes[1:]),
        "block": store.add(f"tensor/{name}", numbers, "float32", deflate=True),
    }


def _check_lens(lens: Any, tokens: int) -> None:
    """Raises InputError for anything but a result of the lens, and for one with another number of tokens."""
    fields = ("kind", "points", "ids", "log_probabilities", "tokens_by_id", "by_bytes")
    missing = [name for name in fields if not hasattr(lens, name)]
    if missing:
        raise InputError(
            f"lens is {type(lens).__name__} without {missing[0]!r}, expected the result of model.explain.logit_lens"
        )
    if not isinstance(lens.ids, Tensor) or lens.ids.dim() != 3 or lens.ids.shape != lens.log_probabilities.shape:
        raise InputError("lens has no ids and log_probabilities of one shape [points, tokens, k]")
    if lens.ids.shape[1] != tokens:
        raise InputError(
            f"lens has {format_count(lens.ids.shape[1], 'token')} and the page {tokens}: compute the lens of the "
            "same text"
        )


def _check_tokens(lens: Any, trace: Trace) -> None:
    """Raises InputError for a lens of another text with equally many tokens."""
    tokens = trace.target_tokens if trace.config.decoder is not None else trace.tokens
    for i, (one, two) in enumerate(zip(getattr(lens, "tokens", ()), tokens)):
        if one != two:
            raise InputError(f"lens has {one!r} at token {i}, and the page {two!r}: compute the lens of the same text")


def _lens_entry(store: BlockStore, lens: Any) -> dict[str, Any]:
    logs = lens.log_probabilities.float().cpu().numpy()
    return {
        "kind": lens.kind,
        "points": list(lens.points),
        "ids": store.add("lens/ids", lens.ids.to(torch.int32).cpu().numpy(), "int32", deflate=True),
        "log_probabilities": store.add("lens/log_probabilities", logs, "float32", deflate=True),
        "tokens_by_id": {str(i): token_text(token, lens.by_bytes) for i, token in lens.tokens_by_id.items()},
    }
