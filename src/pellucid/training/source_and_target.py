"""The source text and the target text of a row."""

from collections.abc import Mapping, Sequence

from pellucid.errors import Argument, InputError, Placeholder, did_you_mean, join_names
from pellucid.training.data import Record, column_texts, row_location
from pellucid.training.objective import Fields

BY_LANGUAGE = "translation"
"""The column that holds a text in several languages by language code, as in translation datasets."""


def source_and_target_texts(
    rows: Sequence[Fields], source: str | None, target: str | None
) -> tuple[list[str], list[str]]:
    """The source and target texts, from `text` and `target`, or from {"translation": {"en": ..., ...}}.

    source, target: the language codes. Raises InputError, which names the row, for a missing value or one of no text.
    """
    plain = [
        _with_text_and_target(row, source, target) if BY_LANGUAGE in row and "target" not in row else row
        for row in rows
    ]
    return column_texts(plain, "text"), column_texts(plain, "target")


def _with_text_and_target(row: Fields, source: str | None, target: str | None) -> Fields:
    texts, location = row[BY_LANGUAGE], row_location(row)
    if not isinstance(texts, Mapping):
        raise InputError(f"{location}: {BY_LANGUAGE!r} is {type(texts).__name__}, expected texts by language")
    if source is None or target is None:
        raise InputError(
            f"{location}: {BY_LANGUAGE!r} holds {join_names(texts)}: say which are meant with ",
            Argument("src_lang", Placeholder("CODE")),
            " and ",
            Argument("tgt_lang", Placeholder("CODE")),
        )
    for language in (source, target):
        if language not in texts:
            hint = did_you_mean(language, texts)
            raise InputError(f"{location}: {BY_LANGUAGE!r} has no {language!r}{hint}; it has {join_names(texts)}")
    return Record({"text": texts[source], "target": texts[target]}, location)
