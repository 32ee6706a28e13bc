"""The two sides of a row: the text that is read, and the one that is to be written."""

from collections.abc import Mapping, Sequence

from pellucid.errors import Argument, Blank, InputError, near, several
from pellucid.training.data import Record, place, texts
from pellucid.training.objective import Fields

BY_LANGUAGE = "translation"
"""The column that holds the same text in several languages, by their codes, as in collections of translations."""


def sides(rows: Sequence[Fields], source: str | None, target: str | None) -> tuple[list[str], list[str]]:
    """What is read, and what is to be written, from `text` and `target`, or from {"translation": {"en": ..., ...}}.

    source, target: the languages. Raises InputError, which names the row, for what is not there or is no text.
    """
    plain = [_plain(row, source, target) if BY_LANGUAGE in row and "target" not in row else row for row in rows]
    return texts(plain, "text"), texts(plain, "target")


def _plain(row: Fields, source: str | None, target: str | None) -> Fields:
    said, where = row[BY_LANGUAGE], place(row)
    if not isinstance(said, Mapping):
        raise InputError(f"{where}: {BY_LANGUAGE!r} is {type(said).__name__}, expected texts by language")
    if source is None or target is None:
        raise InputError(
            f"{where}: {BY_LANGUAGE!r} holds {several(said)}: say which are meant with ",
            Argument("src_lang", Blank("CODE")),
            " and ",
            Argument("tgt_lang", Blank("CODE")),
        )
    for language in (source, target):
        if language not in said:
            raise InputError(
                f"{where}: {BY_LANGUAGE!r} has no {language!r}{near(language, said)}; it has {several(said)}"
            )
    return Record({"text": said[source], "target": said[target]}, where)
