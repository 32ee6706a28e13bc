"""WordPiece from `vocab.txt`, the format of BERT and its relatives (Devlin et al., 2018)."""

from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from pellucid.errors import CorruptFileError
from pellucid.files import read_text
from pellucid.text.assembly import add_tokens_and_template, with_default_roles
from pellucid.text.layouts import LAYOUTS, layout_of
from pellucid.text.settings import token_content


def open_wordpiece(
    path: Path, settings: dict[str, Any], model_type: str | None
) -> tuple[tokenizers.Tokenizer, dict[str, Any]]:
    """The tokenizer of a vocabulary with one token per line, and its settings with all roles filled in."""
    vocabulary = _read_vocabulary(path)
    layout = layout_of(model_type, settings, "wordpiece") or LAYOUTS["bert"]
    stated, settings = settings, with_default_roles(layout.roles, settings)
    unknown = token_content(settings["unk_token"]) or layout.roles["unk"]
    needed = [unknown, *(layout.roles[role] for role in ("cls", "sep") if stated.get(f"{role}_token") is None)]
    if missing := [token for token in needed if token not in vocabulary]:
        raise CorruptFileError(f"{path} lacks {', '.join(missing)}, needed for unknown words or around every text")
    settings = {
        role: token
        for role, token in settings.items()
        if not role.endswith("_token") or token not in layout.roles.values() or token in vocabulary
    }
    normalizer = normalizers.BertNormalizer(
        lowercase=settings.get("do_lower_case", True),
        strip_accents=settings.get("strip_accents"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
    )
    backend = wordpiece(vocabulary, unknown, normalizer)
    add_tokens_and_template(backend, layout, settings, path)
    return backend, settings


def wordpiece(vocabulary: dict[str, int], unknown: str, normalizer: Any) -> tokenizers.Tokenizer:
    """WordPiece with a vocabulary in which `##` begins tokens that continue a word; without special tokens."""
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece(prefix="##")
    return backend


def _read_vocabulary(path: Path) -> dict[str, int]:
    tokens = read_text(path).removesuffix("\n").split("\n")  # splitlines would split at U+2028 too
    return {token: i for i, token in enumerate(tokens)}
