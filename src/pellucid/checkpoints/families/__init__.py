"""One page per family, found by listing this folder."""

import copyreg
import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from pellucid.checkpoints.facts import named_architecture
from pellucid.checkpoints.family_page import Family
from pellucid.config import Config as Config
from pellucid.config import register
from pellucid.errors import InputError, did_you_mean, join_names, shorten


@functools.cache
def families() -> dict[str, Family]:
    """Every family by its `model_type`."""
    found: dict[str, Family] = {}
    for entry in pkgutil.iter_modules(__path__):
        page = importlib.import_module(f"{__name__}.{entry.name}")
        for family in getattr(page, "families", None) or (page.family,):
            found[family.model_type] = family
    return found


def family_of(model_type: object, location: str) -> Family:
    """The family of `model_type`; `location` is the file that named it, for the error."""
    known = families()
    if model_type is None:
        raise InputError(
            f"{location} has no model_type, which names the architecture: add one of {', '.join(sorted(known))}"
        )
    if not isinstance(model_type, str) or model_type not in known:
        shown, hint = shorten(repr(model_type)), did_you_mean(str(model_type)[:80], known)
        raise InputError(f"{location}: model_type {shown} is not known{hint}; known: {join_names(sorted(known), 40)}")
    return known[model_type]


def family_of_config(facts: Mapping[str, Any], location: str) -> Family:
    """The family of a `config.json` by its `model_type`, or by its architecture in files older than that key
    (ProtBERT); `location` is the file, for the error."""
    model_type = facts.get("model_type")
    found = _family_of_architecture(named_architecture(facts)) if model_type is None else None
    return found or family_of(model_type, location)


def _family_of_architecture(architecture: str | None) -> Family | None:
    for family in families().values():
        if any(page.architecture == architecture for page in family.heads):
            return family
    return None


def mismatched_family(family: Family, architecture: str | None) -> Family | None:
    """Another family that this architecture belongs to, where its tensor names differ; else None."""
    other = _family_of_architecture(architecture)
    return None if other is None or other.names is family.names else other


def _reduce_family(family: Family) -> tuple[Callable[..., Family], tuple[str, str]]:
    return family_of, (family.model_type, "the pickled model")


copyreg.pickle(Family, _reduce_family)  # a page is code: a pickled model refers to it by name
for _family in families().values():
    register(_family.defaults)
