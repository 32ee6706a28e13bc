"""Dates and times, in one spelling for all that are equal."""

import re
from datetime import UTC, datetime
from typing import Any

_DATE = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})(?:[Tt ]([0-9]{2}(?::[0-9]{2}){0,2})(?:(?<=:..:..)[.,]([0-9]+))?([Zz]|[+-][0-9:]+)?)?"
)
_IN_UTC = "+00:00"


def canonical_date(value: Any, zoned: bool | None = None) -> str | None:
    """A date of ISO 8601's extended form, 2026-01-02, with or without a time, so that equal ones are equal as texts and
    what is earlier comes first; a day is its midnight. None for what is none.

    zoned: True for its time in UTC, in which what names no zone is taken to be; False for what its own clock says; by
        default whichever of these it says itself.
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
    """Whether what `canonical_date` wrote is in UTC."""
    return date.endswith(_IN_UTC)
