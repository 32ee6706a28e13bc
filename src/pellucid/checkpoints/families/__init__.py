"""One page per family, found by listing this folder."""

import copyreg
import functools
import importlib
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any

from pellucid.checkpoints.page import Family
from pellucid.config import Config as Config
from pellucid.config import register
from pellucid.errors import InputError, near, several, short


@functools.cache
def families() -> dict[str, Family]:
    """Every family by the `model_type` that names it."""
    found: dict[str, Family] = {}
    for entry in pkgutil.iter_modules(__path__):
        page = importlib.import_module(f"{__name__}.{entry.name}")
        for family in getattr(page, "families", None) or (page.family,):
            found[family.model_type] = family
    return found


def family_of(model_type: object, where: str) -> Family:
    """The family that answers to `model_type`; `where` is the file that named it, for the error."""
    known = families()
    if model_type is None:
        raise InputError(
            f"{where} has no model_type, which names the architecture: add one of {', '.join(sorted(known))}"
        )
    if not isinstance(model_type, str) or model_type not in known:
        said, hint = short(repr(model_type)), near(str(model_type)[:80], known)
        raise InputError(f"{where}: model_type {said} is not known{hint}; known: {several(sorted(known), 40)}")
    return known[model_type]


def family_in(facts: Mapping[str, Any], where: str) -> Family:
    """The family of a `config.json`, by its `model_type`, or by its architecture in files from before there was one
    (ProtBERT); `where` is the file, for the error."""
    named, said = facts.get("model_type"), facts.get("architectures")
    if named is None and isinstance(said, list) and said and (found := _whose(said[0])) is not None:
        return found
    return family_of(named, where)


def _whose(architecture: object) -> Family | None:
    for family in families().values():
        if any(page.architecture == architecture for page in family.heads):
            return family
    return None


def stranger(family: Family, architecture: object) -> Family | None:
    """Another family that this architecture belongs to, where its tensors go by other names."""
    other = _whose(architecture)
    return None if other is None or other.names is family.names else other


def _by_name(family: Family) -> tuple[Callable[..., Family], tuple[str, str]]:
    return family_of, (family.model_type, "the pickled model")


copyreg.pickle(Family, _by_name)  # a page is code: a model that goes to another process names it
for _family in families().values():
    register(_family.defaults)
