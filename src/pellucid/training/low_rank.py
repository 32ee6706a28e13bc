"""Adapters of low rank: a table stays as it is, and a product of two small ones is added to it and learns instead.

    x --+--> table [in -> out] -----------------------------------(+)--> y
        '--> down [in -> rank] --> up [rank -> out] --> x scale ---'

(Hu et al., 2021, arXiv:2106.09685.) `up` begins as zeros, so the model begins as its base. Here the product is added to
the table, not to the answer, so that whoever asks a linear map for its `weight` sees the sum.
"""

import fnmatch
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from pellucid.checkpoints.adapter_save import LowRankUpdate, base_name, check_expressible, save_adapter
from pellucid.checkpoints.load import open_checkpoint
from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.location import HubOptions
from pellucid.errors import InputError, did_you_mean, join_names
from pellucid.machine import DTYPES, no_grad
from pellucid.models import attention_of, freeze, untrained_network
from pellucid.training.settings import Settings

ALL = "all-linear"
"""Every linear map but those of the head."""

_ATTACHED = ".parametrizations.weight."


class LowRank(nn.Module):
    """What a table becomes: table + scale x up @ down.

    down: Float[Tensor, "rank in"], evenly drawn up to 1 / sqrt(in) as PEFT draws it.  up: Float[Tensor, "out rank"], 0.
    """

    def __init__(self, table: Tensor, rank: int, scale: float, generator: torch.Generator) -> None:
        super().__init__()
        out, wide = table.shape
        drawn = (2 * torch.rand(rank, wide, generator=generator, dtype=torch.float32, device="cpu") - 1) / math.sqrt(
            wide
        )
        self.down = nn.Parameter(drawn.to(table))
        self.up = nn.Parameter(table.new_zeros(out, rank))
        self.scale = scale

    @property
    def change(self) -> LowRankUpdate:
        """What it adds."""
        return LowRankUpdate(self.down.detach(), self.up.detach(), self.scale)

    def forward(self, table: Tensor) -> Tensor:
        """Float[Tensor, "out in"]  ->  the same shape"""
        return table + self.scale * (self.up @ self.down)


def attach_adapters(loaded: Loaded, settings: Settings) -> Loaded:
    """The same model with adapters on the tables that `settings.lora_targets` name, in place.

    Beside them learn the head that tells labels, whatever has no numbers of a base yet, and what `lora_beside` names;
    all else stays. Raises InputError for names that are no linear map, and where the adapter is to be written alone and
    cannot be.
    """
    assert settings.lora is not None
    module, generator = loaded.module, torch.Generator().manual_seed(settings.seed)
    trainable = {name for name, p in module.named_parameters() if p.requires_grad}
    fully_trained = [name for name in trainable if _trains_fully(name, loaded)]
    freeze(module, "*")
    if fully_trained:
        freeze(module, *fully_trained, frozen=False)
    if settings.lora_beside:
        fully_trained += freeze(module, *settings.lora_beside, frozen=False)
    alpha = 2.0 * settings.lora if settings.lora_alpha is None else settings.lora_alpha
    chosen = target_paths(module, settings.lora_targets)
    adapters = {
        path: LowRank(_linear(module, path).weight.detach(), settings.lora, alpha / settings.lora, generator)
        for path in chosen
        if f"{path}.weight" in trainable and f"{path}.weight" not in fully_trained  # else it stays, or learns, as it is
    }
    if not adapters:
        raise InputError(f"an adapter needs trained weights, and {join_names(chosen, 2)} are random or frozen")
    if settings.adapter_only:  # told before the work, not after it
        check_expressible(loaded, {path: low.change for path, low in adapters.items()}, _parameters_to_save(loaded))
    for path, low in adapters.items():
        parametrize.register_parametrization(_linear(module, path), "weight", low)
    return loaded


def check_base(loaded: Loaded) -> None:
    """Raises InputError unless a model has the numbers of the base that its adapter would name, which is opened again.

    Those that the base does not hold, such as a new head, are written with the adapter.
    """
    loaded.module.require_float("training")
    name, own = base_name(loaded), loaded.module.state_dict()
    hub_options = HubOptions(loaded.source.revision if loaded.source else None)
    base = open_checkpoint(name, hub_options=hub_options, narrower={})
    for one, numbers in base.module.state_dict().items():
        if one in own and not is_untrained(one, base) and not torch.equal(own[one].to(numbers), numbers):
            raise InputError(
                f"an adapter changes {name}, and {one} of this model holds other numbers than the base: save the "
                "model and load it first, or give the name of the base"
            )


def target_paths(module: nn.Module, names: Iterable[str]) -> list[str]:
    """The paths of the linear maps that fit.

    names: "all-linear", paths, the ends of paths ("query", "feed_forward.up"), or either with `*` for anything.
    """
    maps = [path for path, part in module.named_modules() if isinstance(part, nn.Linear)]
    tables = {id(p) for name, p in module.named_parameters() if name.endswith("embeddings.token.weight")}
    known = [*dict.fromkeys(path.rpartition(".")[2] for path in maps), *maps]
    found: dict[str, None] = {}
    for name in names:
        if name == ALL:
            fits = [path for path in maps if not path.startswith("head.")]
        else:
            fits = [path for path in maps if fnmatch.fnmatchcase(path, name) or fnmatch.fnmatchcase(path, f"*.{name}")]
        if not fits:
            raise InputError(
                f"no linear map is called {name!r}{did_you_mean(name, known)}; {ALL!r} stands for every one"
            )
        found |= dict.fromkeys(fits)
    for path in found:
        if id(module.get_submodule(path).weight) in tables:
            raise InputError(f"{path} holds the token embeddings: an adapter there would change the input as well")
    return list(found)


def adapter_changes(module: nn.Module) -> dict[str, LowRankUpdate]:
    """What was attached, by the path of its linear map; nothing where nothing was."""
    found = {}
    for path, part in module.named_modules():
        if isinstance(part, nn.Linear) and parametrize.is_parametrized(part, "weight"):
            low = part.get_submodule("parametrizations.weight.0")
            assert isinstance(low, LowRank)
            found[path] = low.change
    return found


@no_grad()
def merge_adapters(loaded: Loaded) -> Loaded:
    """A plain model of its own with the adapters in its tables; the same one where it has none."""
    module = loaded.module
    adapted = adapter_changes(module)
    if not adapted:
        return loaded
    numbers = {name: p for name, p in module.state_dict().items() if _ATTACHED not in name}
    numbers |= {f"{path}.weight": module.get_submodule(path).weight for path in adapted}
    like = module.embeddings.token.like
    plain = untrained_network(loaded.config, 0, like.device, like.dtype, attention_of(module), {})
    plain.load_state_dict(numbers)
    return replace(loaded, module=plain)


def save(loaded: Loaded, settings: Settings, folder: Path, *, overwrite: bool = False) -> Path:
    """Writes what was learned, and not the base, as a folder that PEFT opens.

    loaded: as it learned, its source still the base.
    """
    kind, whole = DTYPES[settings.adapter_dtype], _parameters_to_save(loaded)
    return save_adapter(
        merge_adapters(loaded), adapter_changes(loaded.module), whole, folder, dtype=kind, overwrite=overwrite
    )


def _parameters_to_save(loaded: Loaded) -> list[str]:
    """What is written as it is: what learns so, and what the base has no numbers of, whether it learned or not."""
    named = [(name, p) for name, p in loaded.module.named_parameters() if _ATTACHED not in name]
    return [name for name, p in named if p.requires_grad or is_untrained(name, loaded)]


def _linear(module: nn.Module, path: str) -> nn.Linear:
    part = module.get_submodule(path)
    assert isinstance(part, nn.Linear)  # `target_paths` chose it
    return part


def _trains_fully(name: str, loaded: Loaded) -> bool:
    """Whether a parameter learns as it is, beside the adapters."""
    head = loaded.config.head
    labels = head is not None and head.answers != "vocabulary"
    return is_untrained(name, loaded) or (labels and name.startswith("head."))


def is_untrained(name: str, loaded: Loaded) -> bool:
    """Whether a parameter is random, by itself or with the part that it is of."""
    return any(part in ("all", name) or name.startswith(f"{part}.") for part in loaded.untrained)
