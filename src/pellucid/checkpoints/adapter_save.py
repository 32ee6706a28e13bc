"""Saves low-rank adapters in PEFT's format: folders that PEFT, `transformers` and pellucid open over the base."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pellucid.checkpoints.adapter import PREFIX
from pellucid.checkpoints.adapter_facts import (
    FILE,
    TASKS,
    WEIGHTS_FILES,
    AdapterFacts,
    adapter_config_keys,
    saved_module,
)
from pellucid.checkpoints.adapter_head import CONFIG_KEY, HEAD_KEYS
from pellucid.checkpoints.folder import atomic_folder, check_target, write_tensors
from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.names import TensorLocation, gather_tensors
from pellucid.checkpoints.sentence_transformers import write_pooling
from pellucid.errors import Argument, InputError, join_names
from pellucid.files import file_errors
from pellucid.models import tied_parameters
from pellucid.paths import path_of
from pellucid.text.files import write_tokenizer

_WHOLE_MODEL_ADVICE = (", or pass ", Argument("adapter_only", False), ", by which the whole model is written")


@dataclass(frozen=True)
class LowRankUpdate:
    """An update of a linear layer's weight: scale x up @ down.

    down: Float[Tensor, "rank in"].  up: Float[Tensor, "out rank"].
    """

    down: Tensor
    up: Tensor
    scale: float


def save_adapter(
    loaded: Loaded,
    changes: Mapping[str, LowRankUpdate],
    trained_whole: Iterable[str],
    name: str | os.PathLike[str],
    *,
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
) -> Path:
    """Saves an adapter that was trained over a base as the folder `name`.

    loaded: the model with all updates merged; its source is the base.
    changes: by the path of the linear layer.  trained_whole: names of other trained parameters, which are stored whole.
    dtype: of the tensors in the file; None to keep theirs.
    Raises InputError for a base that could not be found again, for the base's own folder, and for parameters that the
    format cannot express.
    """
    target = path_of(name)
    check_target(target, overwrite=overwrite)
    check_not_base_folder(target, loaded)
    base, file_tensors = base_name(loaded), _FileTensors(loaded)
    updates, replaced = _updates_and_replacements(file_tensors, changes, trained_whole)
    numbers: dict[str, Tensor] = {}
    for tensor_name, update in updates.items():
        path = _module_path(tensor_name)
        numbers |= {f"{PREFIX}{path}.lora_A.weight": update.down, f"{PREFIX}{path}.lora_B.weight": update.up}
    numbers |= {f"{PREFIX}{tensor_name}": one for tensor_name, one in replaced.items()}
    if dtype is not None:
        numbers = {one: tensor.to(dtype) for one, tensor in numbers.items()}
    head = loaded.config.head
    head_name = head.name if head else None
    facts = AdapterFacts(
        base=base,
        task=next((task for task, one in TASKS.items() if one == head_name), None),
        modules_to_save=tuple(
            sorted(file_tensors.shorten_modules(set(replaced)) if head else _outermost(map(_module_path, replaced)))
        ),
        **_rank_facts({_module_path(tensor_name): update for tensor_name, update in updates.items()}),
    )
    transposed = any(file_tensors.is_transposed(tensor_name) for tensor_name in updates)
    with atomic_folder(target) as folder:
        write_tensors(numbers, folder / WEIGHTS_FILES[0], {CONFIG_KEY: json.dumps(_config_note(loaded))})
        config_keys = adapter_config_keys(
            facts, [_module_path(tensor_name) for tensor_name in updates], transposed=transposed
        )
        (folder / FILE).write_text(json.dumps(config_keys, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        if loaded.pooling is not None:  # it may differ from the base's
            write_pooling(loaded.pooling, loaded.config.hidden_size, folder)
            if loaded.tokenizer is not None:  # sentence-transformers looks for it only here
                write_tokenizer(loaded.tokenizer, folder, token_types=loaded.config.type_vocab_size > 1)
    return target


def check_expressible(loaded: Loaded, changes: Mapping[str, LowRankUpdate], trained_whole: Iterable[str]) -> None:
    """Raises InputError where `save_adapter` would refuse these parameters, whatever their values."""
    base_name(loaded)
    _updates_and_replacements(_FileTensors(loaded), changes, trained_whole)


def check_not_base_folder(target: Path, loaded: Loaded, needs: str = "the adapter needs to be there") -> None:
    """Refuses the base's folder as the target, which would overwrite it, and an unreadable base.  needs: who needs the
    base's files, and for what."""
    source = loaded.source
    with file_errors():
        same = source is not None and target.exists() and source.folder.exists() and target.samefile(source.folder)
    if same:
        raise InputError(f"{target} holds the base, which {needs}: choose another folder")


def base_name(loaded: Loaded) -> str:
    """The name by which the base can be loaded again. Raises InputError where there is none."""
    source = loaded.source
    if source is None:
        raise InputError("an adapter names its base, and this model was built, not loaded: save it and load it first")
    if source.base is not None:
        raise InputError(f"{source.name} is an adapter itself, and an adapter needs a whole checkpoint as its base")
    if source.kind in ("folder", "file"):
        return str(source.file or source.folder)
    return source.name


def _updates_and_replacements(
    file_tensors: "_FileTensors", changes: Mapping[str, LowRankUpdate], trained_whole: Iterable[str]
) -> tuple[dict[str, LowRankUpdate], dict[str, Tensor]]:
    """Low-rank updates and whole tensors by the file's names. Where a part of a module is stored whole, everything in
    and below that module is, since PEFT replaces modules as a whole."""
    replaced = file_tensors.tensors_below(trained_whole)
    updates = {
        tensor_name: update
        for tensor_name, update in file_tensors.join_updates(changes).items()
        if tensor_name not in replaced
    }
    if changes and not updates:
        raise InputError(
            f"the adapter format writes a module whole where a part of it is trained, and nothing else of "
            f"{join_names(changes, 2)} is left: name less in ",
            Argument("lora_beside"),
            *_WHOLE_MODEL_ADVICE,
        )
    return updates, replaced


def _unsupported_error(why: str) -> InputError:
    return InputError(f"{why}, and the adapter format cannot express that: leave it untrained", *_WHOLE_MODEL_ADVICE)


class _FileTensors:
    """The tensors of the whole model by the reference's names."""

    def __init__(self, loaded: Loaded) -> None:
        self.module, self.config, self.family = loaded.module, loaded.config, loaded.family
        self.page = self.family.page(self.config.head)
        self.names = self.family.names_with(self.page, lambda: self.config)

    def location(self, parameter: str) -> TensorLocation:
        """Where one of our parameters is stored."""
        return self.names.location_of(parameter, prefixed=self.config.head is not None)

    def tensors_below(self, parameters: Iterable[str]) -> dict[str, Tensor]:
        """Every tensor of the file in the modules of these parameters, and below them; also in those whose path ends as
        theirs, since PEFT replaces "input_layernorm" where "norm" is to be saved."""
        modules = {_module_path(self.location(one).tensor_name): one for one in parameters}
        if "" in modules:
            raise _unsupported_error(f"{modules['']} belongs to no module of the file")
        tied_names = {name for tie in tied_parameters(self.config).items() for name in tie}
        located: list[tuple[TensorLocation, Tensor]] = []
        for parameter, value in self.module.state_dict().items():
            location = self.location(parameter)
            module = saved_module(location.tensor_name, modules)
            if module is not None:
                if parameter in tied_names:
                    raise _unsupported_error(
                        f"{modules[module]} is written with all of {module}, which holds a shared table"
                    )
                located.append((location, value))
        found = gather_tensors(located)
        return found | {twin: found[name] for name, twin in self.page.duplicate_names.items() if name in found}

    def shorten_modules(self, tensor_names: set[str]) -> set[str]:
        """The modules of whole tensors, reduced to the first part of their path where everything below it is whole."""
        every = {self.location(parameter).tensor_name for parameter in self.module.state_dict()}
        others = {tensor_name.partition(".")[0] for tensor_name in every - tensor_names}
        first_parts = {tensor_name: tensor_name.partition(".")[0] for tensor_name in tensor_names}
        return _outermost(
            _module_path(tensor_name) if first_part in others else first_part
            for tensor_name, first_part in first_parts.items()
        )

    def is_transposed(self, tensor_name: str) -> bool:
        """Whether the file stores this matrix as [in, out]."""
        first = next(iter(self.names.parameters_of(tensor_name).values()))
        return first.layout.transposed

    def join_updates(self, changes: Mapping[str, LowRankUpdate]) -> dict[str, LowRankUpdate]:
        """The updates of the file's matrices. For layers that share one, A's are stacked and B's are block-diagonal:

                 [ up_q         ]   [ down_q ]
        change = [        up_k  ] x [ down_k ]
                 [ (nothing: v) ]
        """
        parts: dict[str, dict[str, LowRankUpdate]] = {}
        for path, change in changes.items():
            location = self.location(f"{path}.weight")
            if not location.tensor_name.endswith(".weight"):
                raise _unsupported_error(f"{path} is in {location.tensor_name}")
            parts.setdefault(location.tensor_name, {})[f"{path}.weight"] = change
        return {tensor_name: self._join_update(tensor_name, part) for tensor_name, part in parts.items()}

    def _join_update(self, tensor_name: str, parts: dict[str, LowRankUpdate]) -> LowRankUpdate:
        names = list(self.names.parameters_of(tensor_name))
        if len(names) == 1:
            return parts[names[0]]
        present = [parts[name] for name in names if name in parts]
        scale, blocks = present[0].scale, []
        for name in names:
            if name in parts:
                blocks.append(parts[name].up * (parts[name].scale / scale))
            else:
                blocks.append(present[0].up.new_zeros(self.module.get_parameter(name).shape[0], 0))
        return LowRankUpdate(torch.cat([one.down for one in present]), torch.block_diag(*blocks), scale)


def _module_path(tensor_name: str) -> str:
    return tensor_name.rpartition(".")[0]


def _outermost(modules: Iterable[str]) -> set[str]:
    """The modules that are not inside another one."""
    every = set(modules)
    return {one for one in every if not any(one.startswith(f"{other}.") for other in every)}


def _rank_facts(updates: dict[str, LowRankUpdate]) -> dict[str, Any]:
    """Rank and alpha of most modules, and the patterns for those that differ, as fields of `AdapterFacts`."""
    ranks_and_alphas = {
        path: (update.down.shape[0], _as_integer(update.scale * update.down.shape[0]))
        for path, update in updates.items()
    }
    if not ranks_and_alphas:
        return {}
    (rank, alpha), _ = Counter(ranks_and_alphas.values()).most_common(1)[0]
    return {
        "rank": rank,
        "alpha": alpha,
        "rank_pattern": {path: one for path, (one, _) in ranks_and_alphas.items() if one != rank},
        "alpha_pattern": {path: one for path, (_, one) in ranks_and_alphas.items() if one != alpha},
    }


def _as_integer(number: float) -> float:
    """As an int where it is integral, as in the format's own files."""
    return round(number) if abs(number - round(number)) < 1e-9 else number


def _config_note(loaded: Loaded) -> dict[str, Any]:
    """The model's config.json, without keys that do not affect its body."""
    config = loaded.config
    return {
        key: value for key, value in loaded.family.write(config).items() if key not in config.inert or key in HEAD_KEYS
    }
