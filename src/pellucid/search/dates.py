"""Dates and times in a canonical spelling."""

import re
from datetime import UTC, datetime
from typing import Any

_DATE = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ]([0-9]{2}(?::[0-9]{2}){0,2})(?:(?<=:..:..)[.,]([0-9]+))?([Zz]|[+-][0-9:]+)?)?"
)
_IN_UTC = "+00:00"


def canonical_date(value: Any, zoned: bool | None = None) -> str | None:
    """A date in ISO 8601's extended form, 2026-01-02, with or without a time, spelled so that equal ones are equal as
    text and earlier ones sort first; a day is its midnight. None for anything else.

    zoned: True for the time in UTC, which is assumed where no zone is stated; False for the local time; by default True
        where a zone is stated.
    """
    found = _DATE.fullmatch(str(value))
    if found is None:
        return None
    day, time, fraction, zone = found.groups(default="")
    zoned = bool(zone) if zoned is None else bool(zoned)
    try:
        moment = datetime.fromisoformat(f"{day}T{time or '00'}{zone.upper() or _IN_UTC}")
        moment = moment.astimezone(UTC) if zoned else moment
    except (ValueError, OverflowError):
        return None
    fraction = fraction.rstrip("0")
    clock = moment.replace(tzinfo=None).isoformat() + (f".{fraction}" if fraction else "")
    return f"{clock}{_IN_UTC}" if zoned else clock.removesuffix("T00:00:00")


def is_zoned(date: str) -> bool:
    """Whether a result of `canonical_date` is in UTC."""
    return date.endswith(_IN_UTC)
