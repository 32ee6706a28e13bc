"""Adapters of low rank, in the format of the library PEFT: opened over their base, as if its files held their numbers.

    table of the file  =  table of the base + scale x B A          (Hu et al., 2021, arXiv:2106.09685)

A holds [rank, in] numbers and B [out, rank]. What else an adapter holds, such as a head, stands in place of the base's.
"""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.adapter_facts import FILE
from pellucid.checkpoints.adapter_head import Adapter, facts_of, ours_of, standing
from pellucid.checkpoints.contents import Contents, read_contents, tokenizer_in
from pellucid.checkpoints.moves import AS_IT_IS
from pellucid.checkpoints.names import Names, Place
from pellucid.checkpoints.page import HeadPage
from pellucid.checkpoints.sentence import read_pooling
from pellucid.checkpoints.source import Source
from pellucid.checkpoints.weights import Stored, one_file
from pellucid.config import Config
from pellucid.config.pooling import Pooling
from pellucid.errors import CheckpointMismatchError, near, several
from pellucid.lazy import cached_property
from pellucid.machine import no_grad
from pellucid.text import Tokenizer

_LEARN_OTHER = "one table has no numbers for that; learn an adapter that leaves it out"

PREFIX = "base_model.model."
"""Stands before every name of the format."""

_HEAD = "head.decoder.weight"

_COPY = re.compile(r"\.(modules_to_save|original_module)\.")

_LOW = re.compile(r"(?P<module>[\w.]+)\.lora_(?P<kind>embedding_|)(?P<side>[AB])(?:\.weight)?")


@dataclass(frozen=True)
class _Low:
    """What is added to one table. flipped: the file has it as [in, out]."""

    down: Stored
    up: Stored
    scale: float
    flipped: bool

    def added_to(self, base: Stored, least: torch.dtype) -> Stored:
        """The sum, not read yet.  least: the narrowest kind in which it may be computed."""

        def read() -> Tensor:
            table = base.read()
            kind = torch.promote_types(table.dtype, least)
            with no_grad():
                change = self.scale * (self.up.read().to(kind) @ self.down.read().to(kind))
            return table.to(kind) + (change.T if self.flipped else change)

        return Stored(base.dtype, base.shape, read)


def _among(up: Stored, place: Place | None) -> Stored:
    """The numbers of one map, with zeros for the others that the file joins with it to one table."""
    if place is None or place.parts == 1 or len(up.shape) != 2:
        return up
    rows, rank = up.shape

    def read() -> Tensor:
        own = up.read()
        every = own.new_zeros(rows * place.parts, rank)
        every[place.part * rows : (place.part + 1) * rows] = own
        return every

    return Stored(up.dtype, (rows * place.parts, rank), read)


def read_source(source: Source, least: torch.dtype = torch.float32) -> Contents:
    """What the files of a checkpoint say; of an adapter, what those of its base say with its own numbers in place.

    least: the narrowest kind in which these are added.
    Raises CheckpointMismatchError where the two do not belong together.
    """
    if source.base is None:
        return read_contents(source)
    return _Over(Adapter(source.folder, read_contents(source.base), source.base.name), least)


class _Over(Contents):
    """An adapter over the contents of its base."""

    def __init__(self, adapter: Adapter, least: torch.dtype) -> None:
        self.adapter, self.base, self.wrong, self.said_in = adapter, adapter.base, adapter.wrong, adapter.base.said_in
        self.least = least

    @cached_property
    def known(self) -> "_Known":
        page, names = self.adapter.page(self.facts)
        return _Known(names, page, self.base.tensors)

    @cached_property
    def facts(self) -> dict[str, Any]:
        return facts_of(self.adapter, self._held[1])

    @cached_property
    def tensors(self) -> dict[str, Stored]:
        pairs, whole = self._held
        tensors = dict(self.base.tensors)
        for name, numbers in whole.items():  # first: beside what is added to a table may stand that table itself
            tensors[self._replaced(name)] = numbers
        self._check_words(tensors)
        for module, pair in pairs.items():
            theirs, low = self._low(module, pair, tensors)
            tensors[theirs] = low.added_to(tensors[theirs], self.least)
        return tensors

    def tokenizer(self, config: Config) -> Tokenizer | None:
        """The adapter's own, where it has one."""
        own = tokenizer_in(self.adapter.folder, config, self.base.facts.get("tokenizer_class"))
        return own or self.base.tokenizer(config)

    @property
    def target_tokenizer(self) -> Tokenizer | None:
        return self.base.target_tokenizer

    @cached_property
    def pooling(self) -> Pooling | None:
        """The adapter's own, where its folder says one."""
        own = read_pooling(self.adapter.folder)
        return self.base.pooling if own is None else own

    @property
    def generation(self) -> dict[str, Any]:
        return self.base.generation

    @property
    def untrained(self) -> tuple[str, ...]:
        """The base's, but for what the adapter holds."""
        own = {f"{ours}." for theirs in self._held[1] for ours in self.known.places(theirs)}
        return tuple(part for part in self.base.untrained if not any(one.startswith(f"{part}.") for one in own))

    # -- what the file holds ------------------------------------------------------------------------------------------

    @cached_property
    def _held(self) -> tuple[dict[str, dict[str, Stored]], dict[str, Stored]]:
        """Pairs of tables by the path of their module, and whole tensors by name."""
        pairs: dict[str, dict[str, Stored]] = {}
        whole: dict[str, Stored] = {}
        held = one_file(self.adapter.path)
        for name, numbers in held.items():
            bare = name.removeprefix(PREFIX)
            if (own := _COPY.sub(".", name)) != name and own in held:
                continue  # where the words were resized, the library writes the wrapping of a table beside the table
            if bare == name:
                raise self.wrong(f"{name!r} does not begin with {PREFIX!r}, as the names of the format do")
            if not numbers.dtype.is_floating_point:
                raise self.wrong(f"{name} holds {str(numbers.dtype).removeprefix('torch.')}, expected real numbers")
            if found := _LOW.fullmatch(bare):
                pairs.setdefault(found["module"], {})[found["kind"] + found["side"]] = numbers
            elif "lora_" in bare:
                raise self.wrong(f"{name} is of a kind of adapter that is not read")
            else:
                whole[bare.replace(".base_layer.", ".")] = numbers
        return pairs, whole

    def _check_words(self, tensors: dict[str, Stored]) -> None:
        """Refuses more tokens, or fewer, where the table of the head has as many rows as before."""
        rows = self.facts.get("vocab_size")
        if rows == self.base.facts.get("vocab_size", rows):
            return
        for name, numbers in tensors.items():
            if _HEAD in self.known.places(name) and numbers.shape[:1] != (rows,):
                raise self.wrong(
                    f"it has a table of {rows} tokens, and no {name}, which has {[*numbers.shape]} numbers in "
                    f"{self.adapter.base_name}: save it with both (save_embedding_layers=True)"
                )

    def _low(self, module: str, pair: dict[str, Stored], tensors: dict[str, Stored]) -> tuple[str, _Low]:
        """Which of the tensors a pair changes, and how."""
        known = self.known
        theirs, place = known.table(module)
        if place is None:
            hint = near(module, (name.rpartition(".")[0] for name in known.tensors), most=1)
            raise self.wrong(f"{module} is nothing in a {known.page.architecture}{hint}")
        if theirs is None and not known.tied_head(place):
            raise self.wrong(f"it adds to {module}, of which {self.adapter.base_name} holds no numbers")
        if theirs is None or known.shared(place):
            raise self._twice(module, self._way_apart(place))
        embedding = "embedding_A" in pair or "embedding_B" in pair
        sides = ("embedding_A", "embedding_B") if embedding else ("A", "B")
        if set(pair) != set(sides):
            there = several(f"lora_{side}" for side in sorted(pair))
            raise self.wrong(f"{module} has {there} alone, expected a pair")
        low = _Low(
            pair[sides[0]],
            _among(pair[sides[1]], known.own(f"{module}.weight")),
            self.adapter.facts.scale_of(module),
            embedding or place.move.flipped,
        )
        self._check(module, low, tensors[theirs].shape)
        return theirs, low

    def _check(self, module: str, low: _Low, shape: tuple[int, ...]) -> None:
        if key := self.adapter.facts.targets.leaving_out(module):
            raise self.wrong(
                f"it adds to {module}, which {key} in {FILE} leaves out: change that key, or take the tensors out"
            )
        rank, wide = self.adapter.facts.rank_of(module), shape[::-1] if low.flipped else shape
        if low.down.shape[:1] != (rank,):
            found = low.down.shape[0] if low.down.shape else 0
            raise self.wrong(f"{module} has rank {found}, and {FILE} says {rank}")
        if len(shape) != 2 or low.down.shape != (rank, wide[1]) or low.up.shape != (wide[0], rank):
            added = f"{[*low.up.shape]} x {[*low.down.shape]}"
            raise self.adapter.stranger(f"at {module} it adds {added} to a table of {[*shape]}")

    def _replaced(self, name: str) -> str:
        """The name under which a whole tensor goes: that of the base's, where there is one."""
        known = self.known
        places = known.places(name)
        if not places:
            raise self.wrong(
                f"{name} is nothing in a {known.page.architecture}; task_type in {FILE} says which head there is"
            )
        place, own = next(iter(places.values())), known.own(name)
        if own is not None and (own.parts > 1 or own.move is not AS_IT_IS):
            raise self.wrong(
                f"{name} is no tensor of {self.adapter.base_name} as it stands: take merge_and_unload() of the model "
                "that was learned, and save_pretrained(folder) of that"
            )
        if (known.shared(place) or known.tied_head(place)) and self._is_copy(name):
            raise self._twice(name, _LEARN_OTHER if known.one_for_both else "merge it with the library that made it")
        return known.theirs.get(frozenset(places), place.theirs)

    def _is_copy(self, name: str) -> bool:
        """Whether the library puts a module of its own in place of this one, or of one around it, and leaves the base's
        table as it is; else it writes into that table."""
        words = name.split(".")[:-1]
        paths = [".".join(words[: i + 1]) for i in range(len(words))]
        return any(path.endswith(one) for path in paths for one in self.adapter.facts.whole)

    def _way_apart(self, place: Place) -> str:
        """What to do about a pair in one place of a table that serves twice. The library adds it there alone, and where
        it merges, in both: other numbers, and no word."""
        if self.adapter.facts.tied or (self.known.one_for_both and not self.known.tied_head(place)):
            return _LEARN_OTHER
        return (
            "merging would change both places; save that model with a copy of the table as its head and "
            f"tie_word_embeddings false, and name it as base_model_name_or_path in {FILE}"
        )

    def _twice(self, what: str, advice: str) -> CheckpointMismatchError:
        return self.wrong(f"it changes {what}, whose table serves twice in {self.adapter.base_name}: {advice}")


class _Known:
    """The tensors of the base by the names of ours that they fill, however its file spells them."""

    def __init__(self, names: Names, page: HeadPage, tensors: dict[str, Stored]) -> None:
        self.names, self.page, self.tensors = names, page, tensors
        self.theirs = {frozenset(ours): name for name in tensors if (ours := names.ours(name))}

    def places(self, name: str) -> dict[str, Place]:
        return ours_of(self.names, name)

    def own(self, name: str) -> Place | None:
        """Where numbers stand that go by our own name."""
        return standing(self.names, name)

    def table(self, module: str) -> tuple[str | None, Place | None]:
        """The base's name of a module's table, and how it lies."""
        places = self.places(f"{module}.weight")
        return self.theirs.get(frozenset(places)), next(iter(places.values()), None)

    def shared(self, place: Place) -> bool:
        """Whether a table is that of the tokens and serves twice, as the file of the base has it: a head reads it too,
        or encoder and decoder do."""
        reads = self.page.head is not None and self.page.head.answers == "vocabulary"
        twice = (reads and _HEAD not in self._held) or self.one_for_both
        return twice and any(name.endswith("embeddings.token.weight") for name in self.places(place.theirs))

    def tied_head(self, place: Place) -> bool:
        """Whether a table is that of a head, for which the base has the table of the tokens."""
        return _HEAD in self.places(place.theirs) and _HEAD not in self._held

    @cached_property
    def _held(self) -> set[str]:
        return {name for names in self.theirs for name in names}

    @cached_property
    def one_for_both(self) -> bool:
        """Whether encoder and decoder read one table."""
        return len({name for name in self._held if name.endswith("coder.embeddings.token.weight")}) == 1
