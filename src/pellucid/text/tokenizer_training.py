"""Trains a tokenizer on texts: the public function and its arguments."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tokenizers import Regex, normalizers

from pellucid.config.checks import check_bool, check_choice, check_count, require_names
from pellucid.errors import InputError, did_you_mean, shorten
from pellucid.text.assembly import add_tokens_and_template
from pellucid.text.corpus import FilePaths, corpus_of
from pellucid.text.layouts import LAYOUTS, ROLES, Layout
from pellucid.text.tokenizer import Tokenizer
from pellucid.text.trainers import TRAINERS, TokenizerSpec, train_backend

UNICODE_FORMS = ("NFC", "NFD", "NFKC", "NFKD")

_DEFAULT_LAYOUTS: Mapping[str, Layout] = {
    "bpe": LAYOUTS["gpt2"],
    "wordpiece": LAYOUTS["bert"],
    "unigram": LAYOUTS["mt5"],
    "characters": Layout({}),
}
"""The special tokens of each kind and their template, unless others are passed."""


def train_tokenizer(
    files: FilePaths = None,
    kind: str = "bpe",
    vocab_size: int | None = None,
    *,
    texts: Iterable[str] | None = None,
    column: str | Sequence[str] = (),
    special_tokens: Mapping[str, str] | None = None,
    extra_tokens: Sequence[str] = (),
    add_bos: bool = False,
    add_eos: bool = False,
    lowercase: bool = False,
    strip_accents: bool = False,
    normalization: str | None = None,
    min_frequency: int = 2,
    max_length: int | None = None,
    encoding: str = "utf-8",
) -> Tokenizer:
    """Trains a tokenizer on texts; the same texts give the same tokenizer.

    files: one or several: plain text, or tables whose `column` (or several) holds the texts.
    texts: the texts themselves, instead of files.
    kind: "bpe", byte-level byte-pair encoding, to which no text is unknown; "wordpiece", words and `##` parts of words;
        "unigram", pieces by their probability; "characters", single characters.
    vocab_size: number of tokens, special tokens included; None for 8,000, or for all single characters.
    special_tokens: tokens by role, {"pad": "<pad>", "eos": "</s>", ...}, in the order of their ids, from 0. By default
        those of GPT-2, BERT and mT5 with their templates, though not their ids: `[UNK]` is 0 here, `[SEP]` 1, `[PAD]`
        2; and none for characters. Where both "cls" and "sep" are given, they are added to each text, as in BERT.
    extra_tokens: further special tokens, such as those of languages.
    add_bos, add_eos: whether the tokens in these roles are added to each text.
    lowercase, strip_accents, normalization: normalisation of the texts; the last is a Unicode form: "NFC", "NFD",
        "NFKC" or "NFKD".
    min_frequency: pairs that occur less often are not merged ("bpe", "wordpiece").
    max_length: maximum number of tokens of a text, for calls that truncate.
    Raises InputError for texts without content, and for a vocabulary that is too small for them.
    """
    check_choice("kind", kind, tuple(TRAINERS))
    min_frequency = check_count("min_frequency", min_frequency, maximum=1_000_000_000)
    vocab_size = None if vocab_size is None else check_count("vocab_size", vocab_size)
    max_length = None if max_length is None else check_count("max_length", max_length)
    flags = {"add_bos": add_bos, "add_eos": add_eos, "lowercase": lowercase, "strip_accents": strip_accents}
    for name, flag in flags.items():
        check_bool(name, flag)
    if normalization is not None:
        check_choice("normalization", normalization, UNICODE_FORMS)
    layout = _layout(kind, special_tokens, add_bos=add_bos, add_eos=add_eos)
    extra = _checked_extra_tokens(extra_tokens)
    special = tuple(dict.fromkeys((*layout.roles.values(), *extra)))
    normalizer = _normalizer(kind, lowercase, strip_accents, normalization)
    corpus = corpus_of(files, texts, column, encoding)
    spec = TokenizerSpec(corpus, vocab_size, special, layout.roles.get("unk"), min_frequency, normalizer)
    backend, settings = train_backend(kind, spec), _settings(layout, extra)
    settings |= {} if max_length is None else {"model_max_length": max_length}
    add_tokens_and_template(backend, layout, settings, Path(corpus.name))
    return Tokenizer(backend, settings=settings, max_length=max_length, token_types=kind == "wordpiece")


def _layout(kind: str, special_tokens: Mapping[str, str] | None, *, add_bos: bool, add_eos: bool) -> Layout:
    """The special tokens and their template."""
    default = _DEFAULT_LAYOUTS[kind]
    roles = _checked_roles(default.roles if special_tokens is None else special_tokens)
    if kind in ("wordpiece", "unigram") and "unk" not in roles:
        raise InputError(f"special_tokens has no 'unk', and kind {kind!r} needs one for unknown words")
    for name, role, is_added in (("add_bos", "bos", add_bos), ("add_eos", "eos", add_eos)):
        if is_added and role not in roles:
            raise InputError(f"{name} is true and no token has the role {role!r}: name it in special_tokens")
    if add_bos or add_eos:
        return Layout(roles, adds_bos=add_bos, adds_eos=add_eos)
    if special_tokens is None:
        return default
    return replace(LAYOUTS["bert"], roles=roles) if {"cls", "sep"} <= roles.keys() else Layout(roles)


def _checked_roles(special_tokens: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(special_tokens, Mapping):
        raise InputError(
            f"special_tokens is {type(special_tokens).__name__}, expected tokens by role, such as {{'eos': '</s>'}}"
        )
    for role, token in special_tokens.items():
        if role not in ROLES:
            raise InputError(
                f"special_tokens has the role {role!r}{did_you_mean(role, ROLES)}: one of {', '.join(ROLES)}"
            )
        if not isinstance(token, str) or not token.strip():
            raise InputError(f"special_tokens[{role!r}] is {shorten(repr(token))}, expected a token")
    return dict(special_tokens)


def _checked_extra_tokens(tokens: Sequence[str]) -> Sequence[str]:
    found = () if isinstance(tokens, str) else require_names("extra_tokens", tokens, "a list of tokens")
    if isinstance(tokens, str) or not all(token.strip() for token in found):
        raise InputError(f"extra_tokens is {shorten(repr(tokens))}, expected a list of tokens")
    return found


def _settings(layout: Layout, extra: Sequence[str]) -> dict[str, Any]:
    """The contents of `tokenizer_config.json`."""
    settings: dict[str, Any] = {f"{role}_token": token for role, token in layout.roles.items()}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False}
    return settings | ({"additional_special_tokens": list(extra)} if extra else {})


def _normalizer(kind: str, lowercase: bool, strip_accents: bool, form: str | None) -> Any:
    """The normalizer, as a component of the library; None for no normalisation."""
    steps: list[Any] = [getattr(normalizers, form)()] if form else []
    if kind == "wordpiece":
        steps.append(normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents))
    else:
        steps += [normalizers.NFD(), normalizers.StripAccents()] if strip_accents else []
        steps += [normalizers.Lowercase()] if lowercase else []
    if kind == "unigram":
        steps = [*([] if form else [normalizers.NFKC()]), *steps, normalizers.Replace(Regex(r"\s+"), " ")]
        steps.append(normalizers.Strip())
    return normalizers.Sequence(steps) if len(steps) > 1 else steps[0] if steps else None
