"""Low-rank adapters in PEFT's format, opened over their base as if the base's files held the adapted weights.

    adapted matrix  =  base matrix + scale x B A          (Hu et al., 2021, arXiv:2106.09685)

A is [rank, in] and B is [out, rank]. An adapter's other tensors, such as a head, replace the base's.
"""

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.adapter_facts import FILE, saved_module
from pellucid.checkpoints.adapter_head import Adapter, adapted_facts, locations_in, own_location
from pellucid.checkpoints.contents import Contents, read_contents, tokenizer_in
from pellucid.checkpoints.family_page import HeadPage
from pellucid.checkpoints.names import TensorLocation, TensorNames
from pellucid.checkpoints.sentence_transformers import read_pooling
from pellucid.checkpoints.source import Source
from pellucid.checkpoints.tensor_layouts import UNCHANGED
from pellucid.checkpoints.weights import StoredTensor, tensors_in_file
from pellucid.config import Config
from pellucid.config.pooling import Pooling
from pellucid.errors import CheckpointMismatchError, did_you_mean, join_names
from pellucid.lazy import cached_property
from pellucid.machine import dtype_name, no_grad
from pellucid.text import Tokenizer

_RETRAIN_ADVICE = "one shared table cannot hold two updates; train an adapter that leaves it out"

PREFIX = "base_model.model."
"""Prefix of every tensor name in the format."""

_HEAD = "head.decoder.weight"
_WRAPPER_PART = re.compile(r"\.(modules_to_save|original_module)\.")
_LORA_NAME = re.compile(r"(?P<module>[\w.]+)\.lora_(?P<kind>embedding_|)(?P<side>[AB])(?:\.weight)?")


@dataclass(frozen=True)
class _StoredUpdate:
    """A low-rank update of one matrix. transposed: whether the file stores the matrix as [in, out]."""

    down: StoredTensor
    up: StoredTensor
    scale: float
    transposed: bool

    def added_to(self, base: StoredTensor, min_dtype: torch.dtype) -> StoredTensor:
        """The updated matrix, not read yet.  min_dtype: the narrowest dtype in which the sum may be computed."""

        def read() -> Tensor:
            weight = base.read()
            dtype = torch.promote_types(weight.dtype, min_dtype)
            with no_grad():
                change = self.scale * (self.up.read().to(dtype) @ self.down.read().to(dtype))
            return weight.to(dtype) + (change.T if self.transposed else change)

        return StoredTensor(base.dtype, base.shape, read)


def _pad_joined_rows(up: StoredTensor, location: TensorLocation | None) -> StoredTensor:
    """One layer's `up`, padded with zeros for the other layers that the file stores in the same matrix."""
    if location is None or location.parts == 1 or len(up.shape) != 2:
        return up
    rows, rank = up.shape

    def read() -> Tensor:
        own = up.read()
        padded = own.new_zeros(rows * location.parts, rank)
        padded[location.part * rows : (location.part + 1) * rows] = own
        return padded

    return StoredTensor(up.dtype, (rows * location.parts, rank), read)


def read_source(source: Source, min_dtype: torch.dtype = torch.float32) -> Contents:
    """The contents of a checkpoint; of an adapter, those of its base with the adapter applied.

    min_dtype: the narrowest dtype in which updates are added.
    Raises CheckpointMismatchError where adapter and base do not fit each other.
    """
    if source.base is None:
        return read_contents(source)
    return _AdaptedContents(Adapter(source.folder, read_contents(source.base), source.base.name), min_dtype)


class _AdaptedContents(Contents):
    """An adapter over the contents of its base."""

    def __init__(self, adapter: Adapter, min_dtype: torch.dtype) -> None:
        self.adapter, self.base, self.facts_path = adapter, adapter.base, adapter.base.facts_path
        self.mismatch_error, self.min_dtype = adapter.mismatch_error, min_dtype

    @cached_property
    def base_tensors(self) -> "_BaseTensors":
        page, names = self.adapter.head_page(self.facts)
        return _BaseTensors(names, page, self.base.tensors)

    @cached_property
    def facts(self) -> dict[str, Any]:
        return adapted_facts(self.adapter, self._pairs_and_replacements[1])

    @cached_property
    def tensors(self) -> dict[str, StoredTensor]:
        pairs, replacements = self._pairs_and_replacements
        tensors = dict(self.base.tensors)
        for name, numbers in replacements.items():  # first, since a replaced matrix may also be updated
            tensors[self._replaced_name(name)] = numbers
        self._check_vocabulary(tensors)
        for module, pair in pairs.items():
            tensor_name, update = self._stored_update(module, pair, tensors)
            tensors[tensor_name] = update.added_to(tensors[tensor_name], self.min_dtype)
        return tensors

    def tokenizer(self, config: Config) -> Tokenizer | None:
        """The adapter's own tokenizer where it has one, else the base's."""
        own = tokenizer_in(self.adapter.folder, config, self.base.facts.get("tokenizer_class"))
        return own or self.base.tokenizer(config)

    @property
    def target_tokenizer(self) -> Tokenizer | None:
        return self.base.target_tokenizer

    @cached_property
    def pooling(self) -> Pooling | None:
        """The adapter's own pooling where its folder has one, else the base's."""
        return read_pooling(self.adapter.folder) or self.base.pooling

    @property
    def generation(self) -> dict[str, Any]:
        return self.base.generation

    @property
    def untrained(self) -> tuple[str, ...]:
        """The base's untrained parts, without those that the adapter replaces."""
        stored = {
            f"{name}." for stored in self._pairs_and_replacements[1] for name in self.base_tensors.locations_in(stored)
        }
        return tuple(part for part in self.base.untrained if not any(one.startswith(f"{part}.") for one in stored))

    # -- the adapter's tensors ----------------------------------------------------------------------------------------

    @cached_property
    def _pairs_and_replacements(self) -> tuple[dict[str, dict[str, StoredTensor]], dict[str, StoredTensor]]:
        """Low-rank pairs by the path of their module, and whole tensors by name."""
        pairs: dict[str, dict[str, StoredTensor]] = {}
        replacements: dict[str, StoredTensor] = {}
        stored = tensors_in_file(self.adapter.path)
        for name, numbers in stored.items():
            bare = name.removeprefix(PREFIX)
            if (unwrapped := _WRAPPER_PART.sub(".", name)) != name and unwrapped in stored:
                continue  # where the vocabulary was resized, PEFT stores a table both wrapped and unwrapped
            if bare == name:
                raise self.mismatch_error(f"{name!r} does not begin with {PREFIX!r}, as names in this format do")
            if not numbers.dtype.is_floating_point:
                kind = dtype_name(numbers.dtype)
                raise self.mismatch_error(f"{name} holds {kind}, expected real numbers")
            if found := _LORA_NAME.fullmatch(bare):
                pairs.setdefault(found["module"], {})[found["kind"] + found["side"]] = numbers
            elif "lora_" in bare:
                raise self.mismatch_error(f"{name} is of a kind of adapter that is not read")
            else:
                replacements[bare.replace(".base_layer.", ".")] = numbers
        return pairs, replacements

    def _check_vocabulary(self, tensors: dict[str, StoredTensor]) -> None:
        """Refuses a changed vocabulary size where the head's table keeps the old one."""
        rows = self.facts.get("vocab_size")
        if rows == self.base.facts.get("vocab_size", rows):
            return
        for name, numbers in tensors.items():
            if _HEAD in self.base_tensors.locations_in(name) and numbers.shape[:1] != (rows,):
                raise self.mismatch_error(
                    f"it has a table of {rows} tokens, and no {name}, which has {[*numbers.shape]} numbers in "
                    f"{self.adapter.base_name}: save it with both (save_embedding_layers=True)"
                )

    def _stored_update(
        self, module: str, pair: dict[str, StoredTensor], tensors: dict[str, StoredTensor]
    ) -> tuple[str, _StoredUpdate]:
        """Which tensor a pair updates, and how."""
        base_tensors = self.base_tensors
        tensor_name, location = base_tensors.table_location(module)
        if location is None:
            hint = did_you_mean(module, (name.rpartition(".")[0] for name in base_tensors.tensors), max_hits=1)
            raise self.mismatch_error(f"{module} is not a module of a {base_tensors.page.architecture}{hint}")
        if tensor_name is None and not base_tensors.is_tied_head(location):
            raise self.mismatch_error(f"it adds to {module}, for which {self.adapter.base_name} holds no weights")
        if tensor_name is None or base_tensors.is_shared(location):
            raise self._tied_error(module, self._tied_advice(location))
        embedding = "embedding_A" in pair or "embedding_B" in pair
        sides = ("embedding_A", "embedding_B") if embedding else ("A", "B")
        if set(pair) != set(sides):
            present = join_names(f"lora_{side}" for side in sorted(pair))
            raise self.mismatch_error(f"{module} has {present} alone, expected a pair")
        update = _StoredUpdate(
            pair[sides[0]],
            _pad_joined_rows(pair[sides[1]], base_tensors.own_location(f"{module}.weight")),
            self.adapter.facts.scale_of(module),
            embedding or location.layout.transposed,
        )
        self._check_update(module, update, tensors[tensor_name].shape)
        return tensor_name, update

    def _check_update(self, module: str, update: _StoredUpdate, shape: tuple[int, ...]) -> None:
        if key := self.adapter.facts.targets.excluding_key(module):
            raise self.mismatch_error(
                f"it adds to {module}, which {key} in {FILE} leaves out: change that key, or take the tensors out"
            )
        rank, table_shape = self.adapter.facts.rank_of(module), shape[::-1] if update.transposed else shape
        if update.down.shape[:1] != (rank,):
            found = update.down.shape[0] if update.down.shape else 0
            raise self.mismatch_error(f"{module} has rank {found}, and {FILE} says {rank}")
        if len(shape) != 2 or update.down.shape != (rank, table_shape[1]) or update.up.shape != (table_shape[0], rank):
            added = f"{[*update.up.shape]} x {[*update.down.shape]}"
            raise self.adapter.other_base_error(f"at {module} it adds {added} to a table of {[*shape]}")

    def _replaced_name(self, name: str) -> str:
        """The name under which a whole tensor is stored: the base's name where it has one."""
        base_tensors = self.base_tensors
        locations = base_tensors.locations_in(name)
        if not locations:
            raise self.mismatch_error(
                f"{name} is not a tensor of a {base_tensors.page.architecture}; task_type in {FILE} names the head"
            )
        location, base_location = next(iter(locations.values())), base_tensors.own_location(name)
        if base_location is not None and (base_location.parts > 1 or base_location.layout is not UNCHANGED):
            raise self.mismatch_error(
                f"{name} is not a tensor of {self.adapter.base_name} itself: take merge_and_unload() of the model "
                "that was trained, and save_pretrained(folder) of that"
            )
        if (base_tensors.is_shared(location) or base_tensors.is_tied_head(location)) and self._is_saved_module(name):
            advice = _RETRAIN_ADVICE if base_tensors.shares_embeddings else "merge it with the library that made it"
            raise self._tied_error(name, advice)
        return base_tensors.names_by_parameters.get(frozenset(locations), location.tensor_name)

    def _is_saved_module(self, name: str) -> bool:
        """Whether PEFT puts a copy in place of this module, or of one around it, and leaves the base's weights alone;
        otherwise it overwrites those weights."""
        return saved_module(name, self.adapter.facts.modules_to_save) is not None

    def _tied_advice(self, location: TensorLocation) -> str:
        """What to do about an update of one use of a shared table. PEFT applies it to that use only, but on merging to
        both, which silently gives other results."""
        if self.adapter.facts.ensure_weight_tying or (
            self.base_tensors.shares_embeddings and not self.base_tensors.is_tied_head(location)
        ):
            return _RETRAIN_ADVICE
        return (
            "merging would change both places; save that model with a copy of the table as its head and "
            f"tie_word_embeddings false, and name it as base_model_name_or_path in {FILE}"
        )

    def _tied_error(self, what: str, advice: str) -> CheckpointMismatchError:
        return self.mismatch_error(f"it changes {what}, whose table is shared in {self.adapter.base_name}: {advice}")


class _BaseTensors:
    """The tensors of the base by the parameters of ours that they fill, however its file names them."""

    def __init__(self, names: TensorNames, page: HeadPage, tensors: dict[str, StoredTensor]) -> None:
        self.names, self.page, self.tensors = names, page, tensors
        self.names_by_parameters = {frozenset(found): name for name in tensors if (found := names.parameters_of(name))}

    def locations_in(self, name: str) -> dict[str, TensorLocation]:
        return locations_in(self.names, name)

    def own_location(self, name: str) -> TensorLocation | None:
        """The file location of a parameter given by our own name."""
        return own_location(self.names, name)

    def table_location(self, module: str) -> tuple[str | None, TensorLocation | None]:
        """The base's name of a module's weight matrix, and its location."""
        locations = self.locations_in(f"{module}.weight")
        return self.names_by_parameters.get(frozenset(locations)), next(iter(locations.values()), None)

    def is_shared(self, location: TensorLocation) -> bool:
        """Whether a matrix is the token table and is shared in the base's file: with the head, or between encoder and
        decoder."""
        has_vocabulary_head = self.page.head is not None and self.page.head.answers == "vocabulary"
        twice = (has_vocabulary_head and _HEAD not in self._filled_parameters) or self.shares_embeddings
        return twice and any(one.endswith("embeddings.token.weight") for one in self.locations_in(location.tensor_name))

    def is_tied_head(self, location: TensorLocation) -> bool:
        """Whether a matrix is a head's, for which the base uses the token table."""
        return _HEAD in self.locations_in(location.tensor_name) and _HEAD not in self._filled_parameters

    @cached_property
    def _filled_parameters(self) -> set[str]:
        return {name for names in self.names_by_parameters for name in names}

    @cached_property
    def shares_embeddings(self) -> bool:
        """Whether encoder and decoder share one token table."""
        return len({name for name in self._filled_parameters if name.endswith("coder.embeddings.token.weight")}) == 1
