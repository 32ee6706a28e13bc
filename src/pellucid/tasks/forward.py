"""One forward pass over ids or texts."""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from pellucid.blocks import Observer
from pellucid.checkpoints.batch import as_batch
from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import as_list
from pellucid.errors import Argument, InputError, Item
from pellucid.models import Output
from pellucid.text.truncation import check_has_tokens


def forward(
    loaded: Loaded,
    inputs: Tensor | str | Sequence[str] | Sequence[Sequence[int]],
    attention_mask: Tensor | None = None,
    token_type_ids: Tensor | None = None,
    decoder_input_ids: Tensor | None = None,
    *,
    decoder_attention_mask: Tensor | None = None,
    observer: Observer | None = None,
) -> Output:
    """One pass over ids, one text or several texts. See `Model.__call__`.  observer: an observer."""
    target = {"decoder_input_ids": decoder_input_ids, "decoder_attention_mask": decoder_attention_mask}
    if isinstance(inputs, Mapping):
        raise InputError(
            "input_ids are a mapping, expected numbers or texts: give its columns by name, model(**columns)"
        )
    if (texts := _as_texts(inputs)) is not None:
        for name, rows in (("attention_mask", attention_mask), ("token_type_ids", token_type_ids)):
            if rows is not None:
                raise InputError(
                    f"{name} was given beside texts, which bring their own: leave ", Argument(name), " out"
                )
        return _run_module(loaded, observer, **_encode_texts(loaded, texts), **target)
    ids = _as_tensor("input_ids", inputs)
    if attention_mask is None:
        _warn_of_padding(ids, loaded.config.pad_token_id, loaded.config.bos_token_id)
    return _run_module(
        loaded, observer, input_ids=ids, attention_mask=attention_mask, token_type_ids=token_type_ids, **target
    )


def _as_texts(inputs: Any) -> list[str] | None:
    """One text, or several in any list-like; None for ids."""
    if isinstance(inputs, str):
        return [inputs]
    found = (None if isinstance(inputs, Tensor) else as_list(inputs)) or []
    return found if any(isinstance(one, str) for one in found) else None


def _run_module(loaded: Loaded, observer: Observer | None, **inputs: Tensor | None) -> Output:
    """Runs the module; refuses inputs that it does not take."""
    for name, rows in inputs.items():
        if rows is not None and name not in loaded.module.input_names:
            raise InputError(f"{name} were given, and a model of kind {loaded.config.kind!r} does not read them")
    try:
        device = loaded.module.device
        tensors = {name: _as_tensor(name, rows).to(device) for name, rows in inputs.items() if rows is not None}
        return loaded.module(**tensors, observer=observer)
    except (AttributeError, TypeError) as error:
        if (part := _peft_part(loaded.module)) is None:
            raise
        raise InputError(
            f"{part}, which lacks what a pass needs there: put adapters on linear layers alone, as "
            "target_modules=['query', 'value'], and train a layer of the head whole by its own name"
        ) from error


def _peft_part(module: nn.Module) -> str | None:
    """The part that PEFT has replaced in the embeddings or as the whole head, as "head is a ..."; None for none."""
    for path, part in module.named_modules():
        kind = type(part)
        if (path == "head" or path.rpartition(".")[0].endswith("embeddings")) and kind.__module__.startswith("peft."):
            return f"{path} is a {kind.__name__} of PEFT"
    return None


def _encode_texts(loaded: Loaded, texts: list[str]) -> dict[str, Tensor]:
    rows = loaded.required_tokenizer.encode(texts)
    for i, row in enumerate(rows):
        check_has_tokens(row.ids, Item(i, "text"))
    return as_batch(loaded, [row.ids for row in rows], [row.type_ids for row in rows])


def _as_tensor(name: str, rows: Tensor | Sequence[object]) -> Tensor:
    if isinstance(rows, Tensor):
        if rows.is_meta or rows.is_nested or rows.layout != torch.strided:
            reason = " on 'meta', which holds no numbers" if rows.is_meta else ", sparse or nested"
            raise InputError(f"{name} is a tensor{reason}: give a dense one of shape [batch, seq]")
        return rows
    if isinstance(rows, list | tuple) and not rows:
        raise InputError(f"{name} holds no rows: give one for each text")
    try:
        return torch.tensor(rows, device="cpu")
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(f"{name} must be rows of whole numbers of one length: pad them, or give texts") from error


def _warn_of_padding(ids: Tensor, pad: int | None, bos: int | None) -> None:
    if pad is None or ids.dim() != 2 or not ids.shape[1]:
        return
    real = ids != pad
    full = real[:, -1]
    if len(ids) > 1:  # a single text is not padded on the left
        full = full & (real[:, 0] if pad != bos else real[:, :2].any(dim=1))  # the first may begin the text
    if not bool(full.all()):
        warnings.warn(
            f"input_ids begin or end in {pad}, the id of padding, and no attention_mask was given: every position "
            "counts "
            "as real; pass the tokenizer's attention_mask",
            stacklevel=4,
        )
