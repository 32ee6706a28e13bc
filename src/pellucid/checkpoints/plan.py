"""`Plan`: which tensor of a checkpoint goes where and what is left over, decided before any weights are read."""

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from pellucid.checkpoints.family_page import Family, HeadPage
from pellucid.checkpoints.names import TensorLocation, TensorNames
from pellucid.checkpoints.sorted_tensors import Duplicate, SortedTensors, extracted_shape, sort_tensors
from pellucid.checkpoints.weights import StoredTensor
from pellucid.config import Config
from pellucid.errors import CheckpointMismatchError, did_you_mean, format_count, join_names
from pellucid.models import assemble, tied_parameters

log = logging.getLogger("pellucid")


@dataclass(frozen=True)
class Plan:
    """The account of a checkpoint, made before any weights are read.

    locations: our name -> where its tensor is stored.  duplicates: second copies, to be compared.
    tied: our name -> the parameter that it shares.  zeros: our names that are absent from the file and set to zero.
    newly_initialized: our names that get random weights.
    dropped: the reference's names of tensors that are not used, each with the reason.
    other_heads: those of them that belong to a head that was not requested.
    """

    config: Config
    locations: dict[str, TensorLocation]
    duplicates: tuple[Duplicate, ...] = ()
    tied: dict[str, str] = field(default_factory=dict)
    zeros: tuple[str, ...] = ()
    newly_initialized: tuple[str, ...] = ()
    dropped: dict[str, str] = field(default_factory=dict)
    other_heads: tuple[str, ...] = ()

    def dtype(self, tensors: dict[str, StoredTensor]) -> torch.dtype:
        """The dtype that most of the weights have."""
        sizes: Counter[torch.dtype] = Counter()
        for tensor_name in {location.tensor_name for location in self.locations.values()}:
            sizes[tensors[tensor_name].dtype] += math.prod(tensors[tensor_name].shape)
        return sizes.most_common(1)[0][0]


def make_plan(
    family: Family,
    config: Config,
    tensors: dict[str, StoredTensor],
    facts_path: Path,
    new_head: bool,
    error_start: str = "",
    new_labels: bool = False,
) -> Plan:
    """The plan for reading a checkpoint as the model of `config`, correcting its pooler, head and tying by the tensors.

    tensors: by the reference's names.  facts_path: the config file, for errors.
    new_head: whether a head was requested by name; where the files hold none, it gets random weights, and so does the
        pooler that it reads.
    new_labels: a classifier that the files hold for another number of labels gets random weights, too.
    error_start: start of the sentence that lists mismatches; by default that the folder does not fit its `facts_path`.
    Raises CheckpointMismatchError, one sentence with all mismatches.
    """
    page = family.page(config.head)
    own = family.names_with(page, lambda: config)
    others = {one.architecture: family.names_with(one, lambda: config) for one in family.heads if one is not page}
    names = replace(own, prefix=_prefix_in_file([own, *others.values()], tensors))
    _check_layer_count(config, tensors, facts_path)
    _check_wrapper(tensors, error_start or str(facts_path.parent))
    found = sort_tensors(tensors, names, page, config.pools, others)
    config = _settled_by_tensors(config, page, found.locations)
    tied_names = tied_parameters(config)
    found.tie(tied_names)
    expected_shapes = _expected_shapes(config)
    reshaped = found.drop_other_labels(expected_shapes, tensors) if new_labels else ()
    missing = [name for name in expected_shapes if name not in found.locations]
    tied = {name: first for name, first in tied_names.items() if name in missing}
    zeros = tuple(name for name in missing if name in page.zeros)
    unset = [name for name in missing if name not in tied and name not in zeros]
    bare = any(name.startswith("head.") for name in unset) and not found.holds("head.")
    if bare and not new_head:  # often so for sentence encoders: the config of a head, the weights of a body
        log.warning("%s names %s, but the weights hold no head: opened without", facts_path, page.architecture)
        return make_plan(family, config.replace(head=None), tensors, facts_path, new_head, error_start)
    new_prefixes = ("head.",) if found.holds("pooler.") else ("head.", "pooler.")
    newly_initialized = tuple(name for name in unset if name in reshaped or (bare and name.startswith(new_prefixes)))
    unset = [name for name in unset if name not in newly_initialized]
    problems = _problems(names, expected_shapes, found, tensors, unset)
    if problems:
        raise CheckpointMismatchError(f"{error_start or _misfit(facts_path)}: {'; '.join(problems)}")
    dropped, other_heads = found.dropped | found.of_other_heads, tuple(found.of_other_heads)
    return Plan(config, found.locations, tuple(found.duplicates), tied, zeros, newly_initialized, dropped, other_heads)


def _settled_by_tensors(config: Config, page: HeadPage, locations: Collection[str]) -> Config:
    """The config with its pooler and its tying as the file has them. `locations`: our names that the file holds."""
    if config.head is None and not any(name.startswith("pooler.") for name in locations):
        config = config.replace(pooler=False)  # saved without one, as sentence encoders often are
    if page.tied_if_absent and "head.decoder.weight" not in locations:
        config = config.replace(tie_word_embeddings=True)
    untied = page.untied_if_present(config) and all(
        name in locations for name in ("head.decoder.weight", tied_parameters(config)["head.decoder.weight"])
    )
    return config.replace(tie_word_embeddings=False) if untied else config


def _misfit(facts_path: Path) -> str:
    """The start of the sentence that lists mismatches."""
    is_gguf = facts_path.suffix.lower() == ".gguf"
    whole, facts = (facts_path, "own facts") if is_gguf else (facts_path.parent, facts_path.name)
    return f"{whole} does not fit its {facts}"


_WRAPPER_PREFIXES = {"module.": "DataParallel", "_orig_mod.": "torch.compile"}


def _check_wrapper(tensors: Collection[str], error_start: str) -> None:
    for prefix, wrapper in _WRAPPER_PREFIXES.items():
        if tensors and all(tensor_name.startswith(prefix) for tensor_name in tensors):
            why = f"every name begins with {prefix!r}, as of a model inside {wrapper}: save its .{prefix.rstrip('.')}"
            raise CheckpointMismatchError(f"{error_start}: {why}")


_MIN_CHECKED_LAYERS = 50
"""Number of layers that is never refused: they build in no time, and missing tensors can then be listed by name."""


def _check_layer_count(config: Config, tensors: Sized, facts_path: Path) -> None:
    """Refuses more layers than there are tensors, since every layer is built before its tensors are looked for."""
    decoder = config.decoder.num_decoder_layers if config.decoder else 0
    layers = max(decoder, config.num_hidden_groups or config.num_hidden_layers)
    if layers > max(len(tensors), _MIN_CHECKED_LAYERS):
        raise CheckpointMismatchError(
            f"{facts_path} says {layers} layers, and the weights hold {format_count(len(tensors), 'tensor')} in all"
        )


def _expected_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(p.shape) for name, p in assemble(config).named_parameters()}


def _prefix_in_file(all_names: Sequence[TensorNames], tensors: Iterable[str]) -> str:
    """The first of these prefixes that occurs in a file, since a body may have been saved under a head with another
    prefix; the first of all where none occurs."""
    prefixes = [names.prefix for names in all_names]
    return next(
        (prefix for prefix in prefixes if prefix and any(one.startswith(prefix) for one in tensors)), prefixes[0]
    )


def _problems(
    names: TensorNames,
    expected_shapes: dict[str, tuple[int, ...]],
    found: SortedTensors,
    tensors: dict[str, StoredTensor],
    missing: list[str],
) -> list[str]:
    """All mismatches at once, in the file's own names."""
    prefixed = any(tensor_name.startswith(names.prefix) for tensor_name in tensors) if names.prefix else False
    located = [*found.locations.items(), *((one.parameter, one.location) for one in found.duplicates)]
    problems = []
    if missing:
        tensor_names = list(dict.fromkeys(names.location_of(name, prefixed=prefixed).tensor_name for name in missing))
        decoder_names = {name for name in expected_shapes if name.startswith("decoder.layers.")}
        note = (
            ", and an encoder without its decoder is not read" if decoder_names and decoder_names <= {*missing} else ""
        )
        problems.append(f"{len(missing)} missing ({join_names(tensor_names, 3)}){note}")
    surplus = list(
        dict.fromkeys(location.tensor_name for parameter, location in located if parameter not in expected_shapes)
    )
    if extra := found.unexpected + surplus:
        expected = [names.location_of(name, prefixed=prefixed).tensor_name for name in expected_shapes]
        hint = did_you_mean(extra[0].rpartition(".")[0] or extra[0], expected, max_hits=1) if missing else ""
        if found.unexpected and all(name.startswith("network.") for name in found.unexpected):
            hint = ": a state dict of pellucid.compat, whose save_pretrained(folder) writes a checkpoint"
        problems.append(f"{format_count(len(extra), 'unexpected tensor')} ({join_names(extra, 3)}){hint}")
    for parameter, location in located:
        if (shape := expected_shapes.get(parameter)) is None:
            continue
        stored = tensors[location.tensor_name]
        if extracted_shape(location, stored) != shape:
            problems.append(
                f"{location.tensor_name} has shape {list(stored.shape)}, "
                f"expected {list(location.layout.file_shape(shape, location.parts))}"
            )
        elif not stored.dtype.is_floating_point:
            problems.append(
                f"{location.tensor_name} holds {str(stored.dtype).removeprefix('torch.')}, expected real numbers"
            )
    problems = list(dict.fromkeys(problems))
    return problems[:4] + ([f"and {len(problems) - 4} more"] if len(problems) > 4 else [])
