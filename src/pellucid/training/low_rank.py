"""Low-rank adapters: a weight matrix is frozen, and the product of two small trained matrices is added to it.

    x --+--> table [in -> out] -----------------------------------(+)--> y
        '--> down [in -> rank] --> up [rank -> out] --> x scale ---'

(Hu et al., 2021, arXiv:2106.09685.) `up` starts as zeros, so the model starts as its base. Here the product is added to
the weight matrix, not to the output, so that the `weight` of a linear layer is the sum.
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
"""Selects every linear layer but those of the head."""

_ATTACHED = ".parametrizations.weight."


class LowRank(nn.Module):
    """The parametrization of an adapted weight matrix: table + scale x up @ down.

    down: Float[Tensor, "rank in"], uniform in +-1 / sqrt(in) as in PEFT.  up: Float[Tensor, "out rank"], zeros.
    """

    def __init__(self, weight: Tensor, rank: int, scale: float, generator: torch.Generator) -> None:
        super().__init__()
        out, wide = weight.shape
        drawn = (2 * torch.rand(rank, wide, generator=generator, dtype=torch.float32, device="cpu") - 1) / math.sqrt(
            wide
        )
        self.down = nn.Parameter(drawn.to(weight))
        self.up = nn.Parameter(weight.new_zeros(out, rank))
        self.scale = scale

    @property
    def change(self) -> LowRankUpdate:
        """The update that it adds."""
        return LowRankUpdate(self.down.detach(), self.up.detach(), self.scale)

    def forward(self, table: Tensor) -> Tensor:
        """Float[Tensor, "out in"]  ->  the same shape"""
        return table + self.scale * (self.up @ self.down)


def attach_adapters(loaded: Loaded, settings: Settings) -> Loaded:
    """Adds adapters to the linear layers that `settings.lora_targets` names, in place. ->  the same model

    Also trained are the head unless it predicts tokens, new parameters, and those that `lora_beside` names; all others
    are frozen. Raises InputError for names of no linear layer, where nothing can be adapted, and where the adapter is
    to be saved alone and its format cannot express it.
    """
    assert settings.lora is not None
    module, generator = loaded.module, torch.Generator().manual_seed(settings.seed)
    trainable = [name for name, p in module.named_parameters() if p.requires_grad]
    head = loaded.config.head
    trains_head = head is not None and head.answers != "vocabulary"
    whole = [name for name in trainable if loaded.is_untrained(name) or (trains_head and name.startswith("head."))]
    freeze(module, "*")
    fully_trained = freeze(module, *whole, *settings.lora_beside, frozen=False)
    alpha = 2.0 * settings.lora if settings.lora_alpha is None else settings.lora_alpha
    chosen = target_paths(module, settings.lora_targets)
    adapters = {
        path: LowRank(_linear(module, path).weight.detach(), settings.lora, alpha / settings.lora, generator)
        for path in chosen
        if f"{path}.weight" in trainable and f"{path}.weight" not in fully_trained  # else frozen or fully trained
    }
    if not adapters:
        raise InputError(f"an adapter needs trained weights, and {join_names(chosen, 2)} are random or frozen")
    if settings.adapter_only:  # fails before the training, not after it
        check_expressible(loaded, {path: low.change for path, low in adapters.items()}, _parameters_to_save(loaded))
    for path, low in adapters.items():
        parametrize.register_parametrization(_linear(module, path), "weight", low)
    return loaded


def check_base(loaded: Loaded) -> None:
    """Raises InputError unless a model has the weights of the base that its adapter would name, which is loaded again.

    Parameters that the base does not have, such as a new head, are saved with the adapter.
    """
    loaded.module.require_float("training")
    name, own = base_name(loaded), loaded.module.state_dict()
    hub_options = HubOptions(loaded.source.revision if loaded.source else None)
    base = open_checkpoint(name, hub_options=hub_options, alternatives={})
    for one, numbers in base.module.state_dict().items():
        if one in own and not base.is_untrained(one) and not torch.equal(own[one].to(numbers), numbers):
            raise InputError(
                f"an adapter changes {name}, and {one} of this model holds other numbers than the base: save the "
                "model and load it first, or give the name of the base"
            )


def target_paths(module: nn.Module, names: Iterable[str]) -> list[str]:
    """The paths of the linear layers that match.

    names: "all-linear", paths, the ends of paths ("query", "feed_forward.up"), or either with `*` for anything.
    Raises InputError for a name that matches nothing, and for a layer that shares the token embeddings.
    """
    linear_paths = [path for path, part in module.named_modules() if isinstance(part, nn.Linear)]
    embedding_ids = {id(p) for name, p in module.named_parameters() if name.endswith("embeddings.token.weight")}
    known = [*dict.fromkeys(path.rpartition(".")[2] for path in linear_paths), *linear_paths]
    found: dict[str, None] = {}
    for name in names:
        if name == ALL:
            fits = [path for path in linear_paths if not path.startswith("head.")]
        else:
            fits = [
                path
                for path in linear_paths
                if fnmatch.fnmatchcase(path, name) or fnmatch.fnmatchcase(path, f"*.{name}")
            ]
        if not fits:
            raise InputError(
                f"no linear map is called {name!r}{did_you_mean(name, known)}; {ALL!r} stands for every one"
            )
        found |= dict.fromkeys(fits)
    for path in found:
        if id(module.get_submodule(path).weight) in embedding_ids:
            raise InputError(f"{path} holds the token embeddings: an adapter there would change the input as well")
    return list(found)


def adapter_changes(module: nn.Module) -> dict[str, LowRankUpdate]:
    """The updates of all adapters by the path of their linear layer; {} where there are none."""
    found = {}
    for path, part in module.named_modules():
        if parametrize.is_parametrized(part, "weight"):
            low = part.get_submodule("parametrizations.weight.0")
            assert isinstance(low, LowRank)
            found[path] = low.change
    return found


@no_grad()
def merge_adapters(loaded: Loaded) -> Loaded:
    """A new plain model with the adapters added to its weights; the same model where it has none."""
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
    """Saves the trained weights, without the base, as an adapter folder that PEFT can load.

    loaded: the model as trained, with the base as its source.
    """
    kind, trained_whole = DTYPES[settings.adapter_dtype], _parameters_to_save(loaded)
    return save_adapter(
        merge_adapters(loaded), adapter_changes(loaded.module), trained_whole, folder, dtype=kind, overwrite=overwrite
    )


def _parameters_to_save(loaded: Loaded) -> list[str]:
    """Parameters that are saved whole: those fully trained, and those that the base does not have."""
    named = [(name, p) for name, p in loaded.module.named_parameters() if _ATTACHED not in name]
    return [name for name, p in named if p.requires_grad or loaded.is_untrained(name)]


def _linear(module: nn.Module, path: str) -> nn.Linear:
    part = module.get_submodule(path)
    assert isinstance(part, nn.Linear)  # `target_paths` chose it
    return part
