"""The generation settings of a checkpoint: `generation_config.json`, or the same keys in an older `config.json`."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pellucid.checkpoints.model_files import GENERATION
from pellucid.errors import InputError, blaming, shorten
from pellucid.integers import as_integer

FILE = GENERATION
MAX_ENTRIES = 100_000
"""Maximum number of entries of one list, nested ones included."""


@dataclass(frozen=True)
class _KeyGroup:
    """Keys by name, the types allowed for their values, and those for list entries at any depth."""

    keys: str
    types: tuple[type, ...]
    inner: tuple[type, ...]
    expected: str

    def fits(self, value: Any) -> bool:
        """Whether a value has the allowed types."""
        return type(value) in self.types and all(type(one) in self.inner for one in _entries(value))


_KINDS = (
    _KeyGroup(
        """max_length max_new_tokens min_length min_new_tokens num_beams num_return_sequences top_k
        no_repeat_ngram_size encoder_no_repeat_ngram_size num_beam_groups""",
        (int,),
        (),
        "a whole number",
    ),
    _KeyGroup(
        """max_time temperature top_p min_p top_h typical_p epsilon_cutoff eta_cutoff repetition_penalty
        encoder_repetition_penalty length_penalty diversity_penalty""",
        (int, float),
        (),
        "a number",
    ),
    _KeyGroup(
        "do_sample remove_invalid_values renormalize_logits force_bos_token_to_be_generated",
        (bool,),
        (),
        "true or false",
    ),
    _KeyGroup("early_stopping", (bool, str), (), "true, false or 'never'"),
    _KeyGroup("forced_bos_token_id forced_eos_token_id", (int, list), (int,), "the id of a token, or a list of ids"),
    _KeyGroup(
        "bad_words_ids suppress_tokens begin_suppress_tokens exponential_decay_length_penalty sequence_bias",
        (list,),
        (list, int, float),
        "a list of numbers",
    ),
)
LEGACY_KEYS = frozenset(key for kind in _KINDS for key in kind.keys.split())
"""Generation keys in older `config.json` files; they do not affect a forward pass."""

_NEW = (
    _KeyGroup("eos_token_id decoder_start_token_id", (int, list), (int,), "the id of a token, or a list of ids"),
    _KeyGroup("stop_strings", (str, list), (str,), "a text, or a list of texts"),
)
_EXPECTED = {key: kind for kind in (*_KINDS, *_NEW) for key in kind.keys.split()}


def check_generation(settings: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """`check_settings` of a file; raises CorruptFileError, which names the file and the key."""
    with blaming(path):
        return check_settings(settings)


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a caller gave, as a file would hold them: tuples, ranges, arrays and tensors as lists, NumPy's
    numbers as Python's, and the biases of sequences, which JSON has no keys for, as pairs."""
    found = {}
    for name, value in settings.items():
        try:
            found[name] = _plain([*value.items()] if name == "sequence_bias" and isinstance(value, Mapping) else value)
        except RecursionError as error:
            raise InputError(
                f"{shorten(name)} holds lists within lists too deeply, or a list that holds itself"
            ) from error
    return found


def _plain(value: Any) -> Any:
    if hasattr(type(value), "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple | range):
        return [*map(_plain, value)]
    return value if (number := as_integer(value)) is None else number


def check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that are set, with their types checked; ranges are checked on use. Raises InputError, which names the
    key."""
    found = {key: value for key, value in settings.items() if value is not None}
    for key, value in found.items():
        if len(list(islice(_entries(value), MAX_ENTRIES + 1))) > MAX_ENTRIES:
            raise InputError(f"{shorten(key)} holds more than {MAX_ENTRIES:,} entries")
        kind = _EXPECTED.get(key)
        if kind is not None and not kind.fits(value):
            shown = type(value).__name__ if isinstance(value, list | dict) else shorten(ascii(value))
            raise InputError(f"{key} is {shown}, expected {kind.expected}")
    return found


def legacy_generation(facts: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """The generation settings of an older `config.json`."""
    return check_generation({key: facts[key] for key in facts if key in LEGACY_KEYS}, path)


def generation_file_name(generation: Mapping[str, Any], inert: Mapping[str, Any]) -> str:
    """The file that these settings came from: `config.json` where all of them are among the keys that it keeps."""
    return "config.json" if generation.items() <= inert.items() else FILE


def generation_path(generation: Mapping[str, Any], inert: Mapping[str, Any], folder: Path | None) -> Path:
    """The path of that file; its bare name for a model that came from no folder."""
    path = (folder or Path()) / generation_file_name(generation, inert)
    if folder is None or path.exists():
        return path
    return folder / "config.json"  # the caller may have added settings to those of config.json


def write_generation(generation: Mapping[str, Any], inert: Mapping[str, Any], folder: Path) -> None:
    """Writes `generation_config.json`, unless `config.json` has all of it."""
    if generation_file_name(generation, inert) == FILE:
        (folder / FILE).write_text(json.dumps(generation, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _entries(value: Any) -> Iterator[Any]:
    """The entries of a list or an object, at any depth."""
    pending = [value]
    while pending:
        one = pending.pop()
        inner = list(one.values()) if isinstance(one, dict) else one if isinstance(one, list) else []
        yield from inner
        pending += inner
