"""What a family's page consists of."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pellucid.checkpoints.facts import Keys
from pellucid.checkpoints.names import Names, Rows
from pellucid.config import Config, Head
from pellucid.errors import InputError


@dataclass(frozen=True)
class HeadPage:
    """One head of a family: what the reference calls the model with it, and how it calls its tensors."""

    architecture: str
    head: Head | None
    rows: Rows = ()


@dataclass(frozen=True)
class Family:
    """A family on one page: facts and names, no arithmetic.

    model_types: the values of `model_type` in `config.json` that mean this family.
    defaults: the reference's default facts.
    keys, names: the two-way tables.
    heads: the model without a head first.
    """

    model_types: tuple[str, ...]
    defaults: Config
    keys: Keys
    names: Names
    heads: tuple[HeadPage, ...] = field(default=())

    def read(self, raw: dict[str, Any], path: Path) -> Config:
        """`config.json` to `Config`."""
        return self.keys.read(raw, self.defaults, {page.architecture: page.head for page in self.heads}, path)

    def write(self, config: Config) -> dict[str, Any]:
        """`Config` to `config.json`."""
        return self.keys.write(config, self.model_types[0], self.page(config.head).architecture)

    def page(self, head: Head | None) -> HeadPage:
        """The head page of `head`; heads are told apart by kind, not by settings."""
        for page in self.heads:
            if type(page.head) is type(head):
                return page
        names = [page.head.name for page in self.heads if page.head is not None]
        raise InputError(f"{self.defaults.family} has no head {head.name!r}; it has {', '.join(names)}" if head else "")
