"""A tokenizer from the vocabulary inside a GGUF file: byte-level BPE, SentencePiece's BPE or WordPiece.

The file holds the pieces, their kinds and the merges; of how texts are split before merging it has only a name.
"""

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from pellucid.errors import CheckpointMismatchError, CorruptFileError, join_names
from pellucid.text.gguf_vocabulary import Vocabulary
from pellucid.text.gguf_wordpiece import bert_tokens, build_wordpiece
from pellucid.text.piece_offsets import SPACE, cuts_of, piece_decoder
from pellucid.text.spm import PieceKind
from pellucid.text.tokenizer import Tokenizer
from pellucid.text.truncation import panics_as_errors

log = logging.getLogger("pellucid")

_DIGIT = r"\p{N}"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}"
    r"| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3, _QWEN2 = _WORDS.format(digits="{1,3}"), _WORDS.format(digits="")

_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", _DIGIT)

SPLITS: dict[str, tuple[tuple[str, ...], bool]] = {
    **dict.fromkeys(("gpt-2", "phi-2", "exaone4", "mpt", "olmo", "jais"), ((), True)),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), ((_DIGIT,), True)
    ),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "smaug-bpe", "dbrx"), ((_LLAMA3,), False)),
    **dict.fromkeys(("qwen2", "stablelm2", "deepseek-r1-qwen", "megrez"), ((_QWEN2,), False)),
    "deepseek-coder": (_DEEPSEEK_CODER, False),
}
"""The pre-tokenizer of a byte-level vocabulary, by its name in the file: patterns to split by in order, and whether
GPT-2's follows."""

_IGNORE_MERGES = ("llama-bpe", "llama3", "llama-v3", "falcon3")
"""Vocabularies that look up a word whole before merging; Llama 3's also begin every text with bos."""

_NFC_FIRST = ("qwen2", "deepseek-r1-qwen")
"""Vocabularies whose texts are normalised to Unicode NFC first."""


def build_tokenizer(vocabulary: Vocabulary, *, max_length: int | None) -> Tokenizer:
    """The tokenizer of a vocabulary.

    max_length: the model's own limit in tokens.
    Raises CheckpointMismatchError for an unknown kind of vocabulary or pre-tokenizer.
    """
    if vocabulary.model not in _BUILDERS:
        kinds = ", ".join(_BUILDERS)
        raise CheckpointMismatchError(
            f"{vocabulary.source}: tokenizer.ggml.model is {vocabulary.model[:40]!r}, expected one of {kinds}"
        )
    if vocabulary.model == "bert":
        vocabulary = replace(vocabulary, tokens=bert_tokens(vocabulary))
    with panics_as_errors(f"{vocabulary.source} holds no vocabulary that works"):
        backend = _BUILDERS[vocabulary.model](vocabulary)
        _add_special(backend, vocabulary)
        _add_template(backend, vocabulary)
    settings: dict[str, Any] = {f"{role}_token": vocabulary.token_of_role(role) for role in vocabulary.special}
    if vocabulary.chat_template is not None:
        settings["chat_template"] = vocabulary.chat_template
    return Tokenizer(backend, settings=settings, max_length=max_length, token_types=False)


# -- the three kinds ---------------------------------------------------------------------------------------------------


def _byte_level(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """Byte-level BPE (Radford et al., 2019)."""
    split = vocabulary.pre_tokenizer_name
    if split is None:
        log.warning("%s: tokenizer.ggml.pre is missing; texts are split as GPT-2 splits them", vocabulary.source)
        split = "gpt-2"
    if split not in SPLITS:
        raise CheckpointMismatchError(
            f"{vocabulary.source}: tokenizer.ggml.pre is {split[:40]!r}, expected one of {', '.join(SPLITS)}"
        )
    patterns, gpt2_too = SPLITS[split]
    backend = tokenizers.Tokenizer(
        models.BPE(vocabulary.token_ids(), _merge_pairs(vocabulary.merges), ignore_merges=split in _IGNORE_MERGES)
    )
    if split in _NFC_FIRST:
        backend.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=gpt2_too)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, byte_level])
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(vocabulary: Vocabulary) -> tokenizers.Tokenizer:
    """SentencePiece's BPE (Kudo and Richardson, 2018): spaces are `▁`, and unknown characters are byte tokens."""
    if len(vocabulary.scores) != len(vocabulary.tokens) and not vocabulary.merges:
        raise CorruptFileError(f"{vocabulary.source} has neither tokenizer.ggml.scores nor tokenizer.ggml.merges")
    merges = _merge_pairs(vocabulary.merges) or _merges_by_score(vocabulary)
    model = models.BPE(
        vocabulary.token_ids(),
        merges,
        unk_token=vocabulary.token_of_role("unk"),
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    prefix = _begins_with_space(vocabulary)
    blanks = [normalizers.Prepend("▁")] if prefix else []
    backend.normalizer = normalizers.Sequence([*blanks, normalizers.Replace(" ", "▁")])
    backend.decoder = piece_decoder(int(prefix))
    return backend


_BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece, "bert": build_wordpiece}


def _merge_pairs(merges: Sequence[str]) -> list[tuple[str, str]]:
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    if not all(left and right and " " not in right for left, right in pairs):
        raise ValueError("a merge is not two pieces with a blank between them")
    return list(dict.fromkeys(pairs))  # of duplicates llama.cpp keeps the first rank


def _begins_with_space(vocabulary: Vocabulary) -> bool:
    """Whether a space is inserted before each text."""
    return vocabulary.flags.get("add_space_prefix", True)


def _merges_by_score(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """The merges that the scores imply: all pairs of pieces that form a third, by the score of the third."""
    known = vocabulary.token_ids()
    scored = [
        (score, piece, kind, cuts_of(piece, known))
        for score, (piece, kind) in zip(vocabulary.scores, vocabulary.tokens_and_kinds())
    ]
    # User-defined tokens with a space, which here follows another space, are merged as in llama.cpp.
    spaced = _begins_with_space(vocabulary)
    made = [
        one for one in scored if one[2] == PieceKind.NORMAL or (one[2] == PieceKind.USER and SPACE in one[1] and spaced)
    ]
    plain = [(score, piece) for score, piece, kind, cuts in made if cuts and kind == PieceKind.NORMAL]
    counts = Counter(score for score, _ in plain)
    if tied := [piece for score, piece in plain if counts[score] > 1]:
        log.warning(
            "%s: tokenizer.ggml.scores are the same for %s: of these the one with the smaller id is made first, where "
            "llama.cpp makes the leftmost in a text",
            vocabulary.source,
            join_names(map(ascii, tied), 3),
        )
    if unused := [piece for _, piece, kind, cuts in scored if kind == PieceKind.UNUSED and cuts]:
        log.warning(
            "%s: tokenizer.ggml.token_type calls %s unused, and they are never made; sentencepiece makes them on its "
            "way to other pieces, so it may split their texts differently",
            vocabulary.source,
            join_names(map(ascii, unused), 3),
        )
    return [cut for one in sorted(made, key=lambda one: _merge_order(*one[:3])) for cut in one[3]]


def _merge_order(score: float, piece: str, kind: int) -> tuple[float, int]:
    """The sort key: the best score first; of user-defined blanks, whose scores are equal, the longest, so that the
    leftmost grow before others begin, as in llama.cpp."""
    return -score, -len(piece) if kind == PieceKind.USER and not piece.strip(SPACE) else 0


# -- special tokens ----------------------------------------------------------------------------------------------------


def _add_special(backend: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Adds the tokens that are matched whole, before a text is split."""
    kinds = vocabulary.kinds
    own = {i for i, kind in enumerate(kinds) if kind in (PieceKind.CONTROL, PieceKind.UNKNOWN)}
    special = own | set(vocabulary.special.values())
    plain = {i for i, kind in enumerate(kinds) if kind == PieceKind.USER} - special
    names = list(vocabulary.token_names())
    backend.add_special_tokens([AddedToken(names[i], normalized=False, special=True) for i in sorted(special)])
    normalized = vocabulary.model == "llama" and not _begins_with_space(vocabulary)
    backend.add_tokens([AddedToken(names[i], normalized=normalized and SPACE in names[i]) for i in sorted(plain)])


def _add_template(backend: tokenizers.Tokenizer, vocabulary: Vocabulary) -> None:
    """Adds the tokens before and after every text: bos and eos, or cls and sep."""
    bert = vocabulary.model == "bert"
    begins = bert or vocabulary.model == "llama" or vocabulary.pre_tokenizer_name in _IGNORE_MERGES
    first = _template_token(vocabulary, "cls" if bert else "bos", "add_bos_token", begins)
    last = _template_token(vocabulary, "sep" if bert else "eos", "add_eos_token", bert)
    if not first and not last:
        return
    again = [] if bert else first  # BERT's second text has no token before it
    backend.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *(f"{token}:1" for token in again), "$B:1", *(f"{token}:1" for token in last)],
        special_tokens=[(token, backend.token_to_id(token)) for token in {*first, *last}],
    )


def _template_token(vocabulary: Vocabulary, role: str, flag: str, default: bool) -> list[str]:
    token = vocabulary.token_of_role(role)
    return [token] if token is not None and vocabulary.flags.get(flag, default) else []
