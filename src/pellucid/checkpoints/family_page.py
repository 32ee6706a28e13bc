"""The types that a family's page is made of."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pellucid.checkpoints.facts import Keys
from pellucid.checkpoints.names import Rows, TensorNames
from pellucid.config import HEADS, Config, Dropout, Head, head_named
from pellucid.errors import InputError, PellucidError

_TRAINING_FACTS = {"initializer_range", "bos_token_id", *(part.name for part in fields(Dropout))}
"""Facts that do not affect evaluation; families that generate from a first token have a key for `bos_token_id`."""


@dataclass(frozen=True)
class HeadPage:
    """One head of a family: the reference's class name for it and its tensor names.

    duplicate_names: tensor names, each with the one that the reference uses where a file holds both. For untied tables
        the reference writes both, and reports whichever is absent as missing.
    zeros: our names of tensors that are zero where a file does not hold them.
    tied_if_absent: whether the head's table is the token table where a file holds none, whatever the config says.
    untied_if_present: whether a file that holds both tables counts as untied although such a config says tied.
    """

    architecture: str
    head: Head | None
    rows: Rows = ()
    prefix: str | None = None
    """Prefix of the body's names in files of this head, where it differs from the family's."""
    duplicate_names: dict[str, str] = field(default_factory=dict)
    zeros: tuple[str, ...] = ()
    tied_if_absent: bool = False
    untied_if_present: Callable[[Config], bool] = lambda config: False


@dataclass(frozen=True)
class Family:
    """A family on one page: facts and names, no arithmetic.

    defaults: the reference's default facts.
    keys, names: the two-way tables; the names may depend on the facts.
    heads: the model without a head first.
    prompts_with_languages: whether translation prompts name both languages (T5); else a token names the target.
    encoder_states_only: whether sentence-transformers takes vectors from the encoder of this family's encoder-decoders,
        as pellucid always does.
    is_native: whether `transformers` lacks this architecture and cannot open its files.
    """

    defaults: Config
    keys: Keys
    names: TensorNames | Callable[[Config], TensorNames]
    heads: tuple[HeadPage, ...]
    prompts_with_languages: bool = False
    encoder_states_only: bool = False
    is_native: bool = False

    @property
    def model_type(self) -> str:
        """The value of `model_type` in `config.json` for this family."""
        return self.defaults.family

    def read(self, raw: dict[str, Any], path: Path) -> Config:
        """`config.json` to `Config`."""
        return self.keys.read(raw, self.defaults, {page.architecture: page.head for page in self.heads}, path)

    def write(self, config: Config) -> dict[str, Any]:
        """`Config` to `config.json`."""
        return self.keys.write(config, self.model_type, self.page(config.head).architecture)

    def check_expressible(self, config: Config) -> None:
        """Raises InputError where `config.json` cannot express a fact, so that it would be read back as another one."""
        written = self.write(config.replace(inert={}))
        try:
            read = self.read(written, Path("config.json")).facts()
        except PellucidError as error:
            raise InputError("this model cannot be saved: ", error) from error
        read["pooler"] = read["pooler"] and config.pooler  # a missing pooler is detected from the tensors
        for name, value in config.facts().items():
            if name not in _TRAINING_FACTS and (name not in read or read[name] != value):
                raise InputError(
                    f"this model cannot be saved: its {name} is {value!r}, and a config.json of {self.model_type} "
                    f"would be read as {read.get(name)!r}"
                )

    def head_named(self, name: str) -> Head:
        """The head called `name`, with this family's settings."""
        for page in self.heads:
            if page.head is not None and page.head.name == name:
                return page.head
        return head_named(name)

    def names_with(self, page: HeadPage, config: Callable[[], Config]) -> TensorNames:
        """The tensor names of a file with this head.  config: called only where the names depend on the facts."""
        names = self.names if isinstance(self.names, TensorNames) else self.names(config())
        return replace(names, head=page.rows, prefix=names.prefix if page.prefix is None else page.prefix)

    def page(self, head: Head | None) -> HeadPage:
        """The head page of `head`, matched by type, not by settings. Raises InputError where there is none."""
        for page in self.heads:
            if type(page.head) is type(head):
                return page
        names = list(dict.fromkeys(page.head.name for page in self.heads if page.head is not None))
        if not isinstance(head, HEADS):  # None has the first page
            raise InputError(f"head is {str(head)[:80]!r}, expected one of {', '.join(names)}, or None")
        raise InputError(f"{self.model_type} has no head {head.name!r}; it has {', '.join(names)}")
