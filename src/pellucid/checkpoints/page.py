"""What a family's page consists of."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from pellucid.checkpoints.facts import Keys
from pellucid.checkpoints.names import Rows, TensorNames
from pellucid.config import HEADS, Config, Dropout, Head, head_named
from pellucid.errors import InputError, PellucidError

_TRAINING_FACTS = {"initializer_range", "bos_token_id", *(part.name for part in fields(Dropout))}
"""Facts that no number of an evaluating pass comes from; who writes from a first token has a key for it."""


@dataclass(frozen=True)
class HeadPage:
    """One head of a family: what the reference calls the model with it, and how it calls its tensors.

    twins: names of tensors, each with the one that the reference computes with where a file holds both; of tables that
        are not tied it writes both, and misses either.
    zeros: our names of tensors that are zeros where a file does not hold them.
    tied_if_absent: whether the table of this head is that of the tokens where a file holds none, whatever it says.
    untied_if_present: whether a file of such facts that holds the table of this head beside that of the tokens has
        two, though it says that they are one.
    """

    architecture: str
    head: Head | None
    rows: Rows = ()
    prefix: str | None = None
    """Before the body's names in files of this head, where it is not the family's."""
    twins: dict[str, str] = field(default_factory=dict)
    zeros: tuple[str, ...] = ()
    tied_if_absent: bool = False
    untied_if_present: Callable[[Config], bool] = lambda config: False


@dataclass(frozen=True)
class Family:
    """A family on one page: facts and names, no arithmetic.

    defaults: the reference's default facts.
    keys, names: the two-way tables; the names may depend on the facts.
    heads: the model without a head first.
    prompts_with_languages: of a translation it is told both languages in words before the text (T5); else the one to
        write, by a token there.
    encoder_states_only: of its encoder-decoders sentence-transformers reads the encoder alone, as everything does here.
    is_native: `transformers` has no such architecture, and does not open its files.
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
        """The value of `model_type` in `config.json` that means this family."""
        return self.defaults.family

    def read(self, raw: dict[str, Any], path: Path) -> Config:
        """`config.json` to `Config`."""
        return self.keys.read(raw, self.defaults, {page.architecture: page.head for page in self.heads}, path)

    def write(self, config: Config) -> dict[str, Any]:
        """`Config` to `config.json`."""
        return self.keys.write(config, self.model_type, self.page(config.head).architecture)

    def check_expressible(self, config: Config) -> None:
        """Raises InputError where `config.json` has no words for a fact, so that it would be read as another one."""
        written = self.write(config.replace(inert={}))
        try:
            read = self.read(written, Path("config.json")).facts()
        except PellucidError as error:
            raise InputError("this model cannot be saved: ", error) from error
        read["pooler"] = read["pooler"] and config.pooler  # that there is none is seen by the tensors
        for name, value in config.facts().items():
            if name not in _TRAINING_FACTS and (name not in read or read[name] != value):
                raise InputError(
                    f"this model cannot be saved: its {name} is {value!r}, and a config.json of {self.model_type} "
                    f"would be read as {read.get(name)!r}"
                )

    def head_named(self, name: str) -> Head:
        """The head that goes by `name`, in the form that this family has it."""
        for page in self.heads:
            if page.head is not None and page.head.name == name:
                return page.head
        return head_named(name)

    def names_with(self, page: HeadPage, config: Callable[[], Config]) -> TensorNames:
        """How the tensors of a file with this head are called.  config: asked only where the names depend on facts."""
        names = self.names if isinstance(self.names, TensorNames) else self.names(config())
        return replace(names, head=page.rows, prefix=names.prefix if page.prefix is None else page.prefix)

    def page(self, head: Head | None) -> HeadPage:
        """The head page of `head`; heads are told apart by kind, not by settings."""
        for page in self.heads:
            if type(page.head) is type(head):
                return page
        names = list(dict.fromkeys(page.head.name for page in self.heads if page.head is not None))
        if not isinstance(head, HEADS):  # None has the first page
            raise InputError(f"head is {str(head)[:80]!r}, expected one of {', '.join(names)}, or None")
        raise InputError(f"{self.model_type} has no head {head.name!r}; it has {', '.join(names)}")
