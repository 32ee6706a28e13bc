"""A sentencepiece model converted to `tokenizers`: the plain model, and how the families use it."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from pellucid.errors import CorruptFileError
from pellucid.text.assembly import add_tokens_and_template, with_default_roles
from pellucid.text.layouts import Layout, layout_of
from pellucid.text.piece_offsets import SPACE, cuts_of, piece_decoder
from pellucid.text.settings import token_content
from pellucid.text.spm import PieceKind, SentencePieceModel, read_sentencepiece
from pellucid.text.truncation import panics_as_errors
from pellucid.text.user_defined_pieces import normalizers_sparing, piece_splitter, unmerged_piece_splitters

FILES = ("spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
_NUMBER_COMMA = re.compile(r".*\d,\Z")
"""ALBERT was trained with the comma after a number as a separate token; its vocabulary has them joined too."""
_MAX_SPLITS = 8_000_000
_MAX_LEADING_SPACES = 1_000_000
"""More spaces than any text begins with: all are removed where the model was trained on texts without them."""


def open_sentencepiece(
    path: Path, settings: dict[str, Any], model_type: str | None
) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The tokenizer of a `.model` file as its family uses it, and its settings with all roles filled in.

    An unknown family gets the plain model, without special tokens around the text.
    """
    model = read_sentencepiece(path)
    known = layout_of(model_type, settings, "sentencepiece")
    layout = known or Layout(_plain_roles(model))
    settings = with_default_roles(layout.roles, settings)
    model = _with_family_ids(model, layout, settings)
    if len(set(model.pieces)) != len(model.pieces):
        raise CorruptFileError(f"{path} holds a piece that its family puts elsewhere: it belongs to another family")
    backend = plain_tokenizer(model)
    with panics_as_errors(f"{path} cannot be used by the tokenizers library"):
        backend.encode("Ⅷ ﷺ é", add_special_tokens=False)  # raises for a table that the library cannot use
        _compose_accents(backend, model)
    if known is not None and known.splits_words:
        _split_into_words(backend, model, layout, settings)
    elif known is not None:
        _space_as_llama(backend, settings, model_type)
    if model.is_bpe:
        _add_user_pieces(backend, model, plain=known is None)
    backend.add_special_tokens(
        [AddedToken(p, normalized=False, special=True) for p in model.pieces_of_kind(PieceKind.CONTROL)]
    )
    add_tokens_and_template(backend, layout, settings, path)
    return backend, settings


def plain_tokenizer(model: SentencePieceModel) -> tokenizers.Tokenizer:
    """The tokenizer that returns the ids of the sentencepiece library itself, without special tokens."""
    unigram = list(zip(model.pieces, _unigram_scores(model))), model.unknown, model.byte_fallback
    backend = tokenizers.Tokenizer(_bpe_model(model) if model.is_bpe else models.Unigram(*unigram))
    backend.normalizer = _normalizer(model)
    if not any(SPACE in piece[1:] for piece in model.pieces_of_kind(PieceKind.NORMAL, PieceKind.USER)):
        # No piece crosses a space, so words can be tokenized one by one, with the same result and cached.
        backend.pre_tokenizer = pre_tokenizers.Split(SPACE, behavior="merged_with_next")
    backend.decoder = piece_decoder(
        _MAX_LEADING_SPACES if model.remove_extra_whitespaces else int(model.add_dummy_prefix)
    )
    return backend


def _compose_accents(backend: tokenizers.Tokenizer, model: SentencePieceModel) -> None:
    """Composes a letter and its accents, where the model's table does: `tokenizers` leaves those of six bytes or more
    apart (kana, Hangul), and drops all accents of a letter but the first (Vietnamese). Not for models with user-defined
    pieces, which stay as they are."""
    if not model.charsmap or model.pieces_of_kind(PieceKind.USER):
        return
    if normalizers.Precompiled(model.charsmap).normalize_str("e\u0301") == "\u00e9":
        steps = [] if backend.normalizer is None else [backend.normalizer]
        backend.normalizer = normalizers.Sequence([normalizers.NFC(), *steps, normalizers.NFC()])


def _add_user_pieces(backend: tokenizers.Tokenizer, model: SentencePieceModel, plain: bool) -> None:
    """Makes a BPE model match its user-defined pieces anywhere in a text."""
    user_pieces, normalizer = model.pieces_of_kind(PieceKind.USER), backend.normalizer
    if not plain or normalizer is None or all(normalizer.normalize_str(piece) == piece for piece in user_pieces):
        backend.add_tokens([AddedToken(piece, normalized=True) for piece in user_pieces])
        return
    # Added tokens are matched in their normalised form, such as after a space: so they are split off afterwards.
    word_split = [] if backend.pre_tokenizer is None else [backend.pre_tokenizer]
    splits: list[Any] = [piece_splitter(user_pieces), *word_split, *unmerged_piece_splitters(backend.model, model)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(splits)
    backend.model.ignore_merges = True


def _unigram_scores(model: SentencePieceModel) -> list[float]:
    """The scores as the library uses them: a user-defined piece wins over any other segmentation."""
    worst = min((score for score, kind in zip(model.scores, model.kinds) if kind is PieceKind.NORMAL), default=0.0)
    scores = []
    for piece, score, kind in zip(model.pieces, model.scores, model.kinds):
        bonus = 0.1 * (len(piece.encode()) - 1)  # older libraries scored long pieces below their parts
        # `worst` for the rest: the library derives the penalty of an unknown character from the lowest score.
        scores.append(score if kind is PieceKind.NORMAL else bonus if kind is PieceKind.USER else worst)
    return scores


def _bpe_model(model: SentencePieceModel) -> models.BPE:
    ids = {piece: i for i, piece in enumerate(model.pieces)}
    return models.BPE(
        ids,
        _merges(model, ids),
        unk_token=model.pieces[model.unknown],
        fuse_unk=True,
        byte_fallback=model.byte_fallback,
    )


def _merges(model: SentencePieceModel, ids: dict[str, int]) -> list[tuple[str, str]]:
    """All ways to merge two pieces into a third, best score first.

    The file has only scores. Control pieces are not text: `</s>` in a text must never be merged.
    """
    if sum(map(len, model.pieces)) > _MAX_SPLITS:
        raise CorruptFileError(f"a model of merges with pieces of {sum(map(len, model.pieces)):,} characters in all")
    usable = {piece for piece, kind in zip(model.pieces, model.kinds) if kind is PieceKind.NORMAL}
    ranked = []
    for piece, score, kind in zip(model.pieces, model.scores, model.kinds):
        if kind is PieceKind.NORMAL:
            ranked += [(-score, len(a), len(b), ids[a], ids[b], a, b) for a, b in cuts_of(piece, usable)]
    return [rank[5:] for rank in sorted(ranked)]


def _normalizer(model: SentencePieceModel) -> normalizers.Normalizer:
    steps = (
        normalizers_sparing(model.pieces_of_kind(PieceKind.USER), normalizers.Precompiled(model.charsmap))
        if model.charsmap
        else []
    )
    if model.remove_extra_whitespaces:
        ends = Regex(rf"\A +|[ {SPACE}]+\z")  # only spaces: a newline at the end of a text is a piece
        steps += [normalizers.Replace(ends, ""), normalizers.Replace(Regex(" {2,}"), " ")]
    space = SPACE if model.escape_whitespaces else " "
    if model.add_dummy_prefix:
        steps += [normalizers.Prepend(space)]
    if model.escape_whitespaces:
        steps += [normalizers.Replace(" ", SPACE)]
    return normalizers.Sequence(steps)


# -- the families -----------------------------------------------------------------------------------------------------


def _plain_roles(model: SentencePieceModel) -> dict[str, str]:
    defaults = {"bos": "<s>", "eos": "</s>", "pad": "<pad>"}
    control = set(model.pieces_of_kind(PieceKind.CONTROL))
    return {"unk": model.pieces[model.unknown]} | {role: t for role, t in defaults.items() if t in control}


def _with_family_ids(model: SentencePieceModel, layout: Layout, settings: dict[str, Any]) -> SentencePieceModel:
    """The model with the ids of the family: fairseq's four leading tokens, T5's sentinels at the end."""
    dropped, leading = layout.leading_pieces
    role_tokens = {role: _role_token(layout, settings, role) for role in layout.roles}
    first = [token.format(**role_tokens) for token in leading]
    count = settings.get("extra_ids", layout.extra_ids)
    last = [f"<extra_id_{i}>" for i in reversed(range(count))] + ([role_tokens["mask"]] if leading else [])
    kept = slice(dropped, len(model.pieces))
    pieces = (*first, *model.pieces[kept], *(token for token in last if token not in model.pieces))
    more = len(pieces) - len(first) - len(model.pieces[kept])
    kinds = ((PieceKind.CONTROL,) * len(first)) + model.kinds[kept] + (PieceKind.CONTROL,) * more
    scores = ((0.0,) * len(first)) + model.scores[kept] + (0.0,) * more
    unknown = pieces.index(role_tokens["unk"]) if leading else model.unknown
    if layout.cleans_texts:
        scores = tuple(s - 100 if _NUMBER_COMMA.search(p) else s for p, s in zip(pieces, scores))
    return dataclasses.replace(model, pieces=pieces, kinds=kinds, scores=scores, unknown=unknown)


def _role_token(layout: Layout, settings: dict[str, Any], role: str) -> str:
    return token_content(settings.get(f"{role}_token")) or layout.roles[role]


def _split_into_words(
    backend: tokenizers.Tokenizer, model: SentencePieceModel, layout: Layout, settings: dict[str, Any]
) -> None:
    """As in the reference: spaces are removed before words are tokenized, so token offsets exclude them."""
    steps: list[Any] = _albert_normalizers(settings) if layout.cleans_texts else []
    steps += [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    backend.normalizer = normalizers.Sequence(steps)
    scheme = "always" if settings.get("add_prefix_space", True) else "never"
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(SPACE, scheme)]
    )
    backend.decoder = decoders.Metaspace(SPACE, scheme)


def _albert_normalizers(settings: dict[str, Any]) -> list[Any]:
    """ALBERT's own normalisation (Lan et al., 2019)."""
    steps: list[Any] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    return [*steps, normalizers.Lowercase()] if settings.get("do_lower_case", True) else steps


def _space_as_llama(backend: tokenizers.Tokenizer, settings: dict[str, Any], model_type: str | None) -> None:
    """Llama's spacing: a space before the text, or in its legacy form before each part between special tokens. The
    latter is sentencepiece's, and is added to an existing space too; Llama's own class never adds a second one."""
    spaced = settings.get("add_prefix_space") in (None, True)
    own = settings.get("tokenizer_class") in ("LlamaTokenizer", "LlamaTokenizerFast") and model_type in (None, "llama")
    legacy = settings.get("legacy", not own)
    before = [normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)] if legacy and spaced and not own else []
    scheme = "never" if not spaced else "always" if legacy else "first"
    backend.normalizer = normalizers.Sequence(before)
    backend.pre_tokenizer = None if before else pre_tokenizers.Metaspace(SPACE, scheme, split=False)
    backend.decoder = piece_decoder(int(spaced))
