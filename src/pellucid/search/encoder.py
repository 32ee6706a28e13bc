"""Embeds texts for an index, and identifies the model: vectors of two models are never compared."""

import hashlib
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pellucid.checkpoints.load import open_checkpoint
from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.location import HubOptions
from pellucid.checkpoints.network import files_mismatch
from pellucid.config.checks import require_names
from pellucid.config.pooling import Pooling
from pellucid.errors import Argument, InputError, NotFoundError, Placeholder, format_count
from pellucid.files import digest_of, file_errors
from pellucid.search.corpus import SpanFunction
from pellucid.search.manifest import Encoder
from pellucid.tasks.embed import embed
from pellucid.text import Window, windows
from pellucid.text.fingerprint import fingerprint
from pellucid.text.truncation import start_without_marks, visible_span

log = logging.getLogger("pellucid")

_PARTS = (
    "*.safetensors",
    "*.bin",
    "*.gguf",
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "*.model",
    "adapter_config.json",
)
"""The files on which a checkpoint's vectors depend, besides its config and the behaviour of its tokenizer."""

_UNSAVED_MODEL = "a model that came from no files"
"""The prefix of the name of a model that cannot be loaded by name."""


def encoder_of(loaded: Loaded, prompt: str = "") -> Encoder:
    """The facts of the model that makes the vectors, as an index stores them.

    prompt: a prefix of every text of the corpus.
    Raises InputError for a model with random weights, whose vectors could not be reproduced, and for an edited one,
    which would be taken for the plain one.
    """
    name = f"{_UNSAVED_MODEL} ({loaded.config.family})"
    if (source := loaded.source) is not None:
        locations = {"folder": source.folder, "file": source.file}  # absolute: the working directory may change
        name = str(locations.get(source.kind, source.name))
    reading = fingerprint(loaded.required_tokenizer)
    if loaded.untrained_body:
        raise InputError(f"{name} is not trained: its vectors are random, and a search in them finds nothing")
    own = loaded.pooling or Pooling()
    return Encoder(
        name=name,
        digest=_fingerprint(loaded),
        dimension=own.width(loaded.config.hidden_size),
        pooling=tuple(own.modes),
        normalize=own.normalize,
        max_length=loaded.pooling_length(),
        prompt=prompt,
        revision=loaded.source.revision if loaded.source else None,
        reading=reading,
        bits=loaded.module.bits or 0,
    )


def check_encoder(encoder: Encoder, loaded: Loaded) -> None:
    """Raises InputError for a model other than the one that made the vectors of an index."""
    _check_has_model(encoder)
    found = encoder_of(loaded, encoder.prompt)
    for fact in ("dimension", "pooling", "normalize", "max_length", "digest"):
        recorded, actual = getattr(encoder, fact), getattr(found, fact)
        if recorded != actual:
            raise InputError(
                f"this index was built with {encoder.name} ({fact} {str(recorded)[:16]}), and {found.name} has {fact} "
                f"{str(actual)[:16]}: search with the model that built it, or build it again"
            )
    if encoder.bits not in (None, found.bits):
        dtype_name = f"int{encoder.bits}" if encoder.bits else "float32"
        raise InputError(
            f"this index was built with {encoder.name} as {dtype_name}, and {found.name} is {loaded.module.kind} "
            "here, which makes other vectors: load it with ",
            Argument("dtype", dtype_name),
            ", or build the index again",
        )
    side = loaded.required_tokenizer.truncation_side
    same = found.reading == encoder.reading if encoder.reading else side == "right"  # as in all older indexes
    if not same:
        details = "its case, its special tokens, or the side that it truncates"
        difference = details if encoder.reading else f"it truncates on the {side}"
        raise InputError(
            f"this index was built with {encoder.name}, and the tokenizer of {found.name} splits texts differently "
            f"from the one that built it ({difference}): search with that one, or build it again"
        )


def load_encoder(encoder: Encoder) -> Loaded:
    """Loads the model of an index by its name, and checks that it is the same."""
    _check_has_model(encoder)
    if encoder.name.startswith(_UNSAVED_MODEL):
        raise InputError(
            f"this index was built with {encoder.name}: give that one as ",
            Argument("model", Placeholder("MODEL")),
            ", or save it, and build the index again with what is loaded from there",
        )
    kind = f"int{encoder.bits}" if encoder.bits else None
    options: dict[str, Any] = {"head": None, "dtype": kind}
    try:
        loaded = open_checkpoint(encoder.name, **options, hub_options=HubOptions(encoder.revision))
    except NotFoundError as error:
        if encoder.revision is None:
            at = " (", Argument("model", Placeholder("FOLDER")), " gives its present path): "
            raise NotFoundError("the model of this index was not found", *at, error) from error
        loaded = open_checkpoint(encoder.name, **options)  # another revision with the same files may be cached
    check_encoder(encoder, loaded)
    return loaded


def _check_has_model(encoder: Encoder) -> None:
    """Raises InputError where an index was built from vectors, whose model is unknown."""
    if not encoder.digest:
        raise InputError(
            "this index was built from vectors that were given, and no model reads texts for it: search with "
            "vectors, or "
            "build it again, from texts or from all vectors"
        )


def check_files(loaded: Loaded) -> None:
    """Raises InputError for an edited model, and for one whose files have changed since it was loaded, or whose weights
    differ from them."""
    if loaded.module.observer is not None:
        raise InputError(f"{loaded.name} is edited: an index is built, changed and opened outside of the block")
    if message := files_mismatch(loaded, _affects_vectors, "an index"):
        raise InputError(message)


def embed_texts(
    loaded: Loaded,
    texts: Sequence[str],
    prompt: str = "",
    *,
    dtype: str | torch.dtype | None = None,
    on_progress: Callable[[int], object] | None = None,
) -> np.ndarray:
    """Embeds texts: Float32[ndarray, "texts dimension"]  on_progress: called with the number of further texts done."""
    prompted = [prompt + text for text in require_names("texts", texts, "texts")]
    return embed(loaded, prompted, dtype=dtype, progress=on_progress or False).numpy()


def passage_span_function(loaded: Loaded, tokens: int | None, prompt: str) -> SpanFunction:
    """The function that splits a text into passages: of the tokens that the model reads after the prompt, or fewer.

    Raises InputError where the prompt, or so few tokens, leave no room.
    """
    max_tokens, added = loaded.pooling_length(), loaded.required_tokenizer.added_tokens(pair=False)
    if tokens is not None and tokens <= added:
        raise InputError(
            Argument("passage_tokens", tokens), f" leaves no room beside {format_count(added, 'special token')}"
        )
    if max_tokens and prompt:
        taken = len(loaded.required_tokenizer.encode_raw([prompt], False, "prompt")[0])
        if (max_tokens := max_tokens - taken) <= added:
            raise InputError(
                Argument("prompt"), f" has {format_count(taken, 'token')}, which leaves no room for a text"
            )
    if max_tokens and tokens and tokens > max_tokens:
        log.warning("passages have %d tokens, as many as the model reads at once, instead of %d", max_tokens, tokens)
    window_length = min((n for n in (max_tokens, tokens) if n), default=None)

    def spans(text: str, number: int) -> list[tuple[int, int]]:
        if (
            window_length is None or 4 * len(text) + 8 <= window_length
        ):  # a character is four bytes, and so four tokens, at most
            return []
        found = windows(loaded.required_tokenizer, text, index=number, rule="windows", max_length=window_length)
        return [
            (start_without_marks(text, first, last), visible_span(text, first, last)[1])
            for first, last in map(Window.span, found)
        ]

    return spans


def _fingerprint(loaded: Loaded) -> str:
    """sha256 of a model's config and files, or of its weights where it has no files. Raises InputError where the files
    have changed since it was loaded."""
    ignored_facts = {"hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1, "classifier_dropout": None}
    digest = hashlib.sha256(loaded.config_bytes(head=None, labels=("none",), **ignored_facts))
    with file_errors(loaded.name):
        for path in _files(loaded):
            digest.update(f"{path.name} {digest_of(path)}\n".encode())
    check_files(loaded)
    if loaded.pooling is not None and loaded.pooling.do_lower_case:  # which none of these files states
        digest.update(b"lower case")
    if loaded.source is None:
        for name, parameter in loaded.module.named_parameters():
            digest.update(name.encode() + parameter.detach().float().cpu().numpy().tobytes())
    return digest.hexdigest()


def _files(loaded: Loaded) -> list[Path]:
    sources = [] if loaded.source is None else [loaded.source, loaded.source.base]
    folders = [one.folder for one in sources if one is not None and one.file is None]
    files = [one.file for one in sources if one is not None and one.file is not None]
    inside = (path for folder in folders for path in folder.iterdir())  # `glob` ignores what it may not read
    return sorted({path for path in inside if _affects_vectors(path) and not path.is_dir()}) + files


def _affects_vectors(path: Path) -> bool:
    return any(map(path.match, _PARTS))
