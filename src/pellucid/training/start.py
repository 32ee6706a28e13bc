"""Prepares the model of a training run: a copy of the base with the head that the objective needs."""

import logging
from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.parametrize import is_parametrized

from pellucid.checkpoints.fill import require_finite
from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.network import check_network
from pellucid.config import Config, Dropout, Head, SequenceClassification
from pellucid.errors import InputError, join_names
from pellucid.models import Network, attention_of, freeze, tied_parameters, untrained_network
from pellucid.training.low_rank import attach_adapters
from pellucid.training.objective import Objective
from pellucid.training.settings import Settings

log = logging.getLogger("pellucid")

_LAYERS_LEFT_OUT = ("encoder_layerdrop", "decoder_layerdrop")
"""Keys of a checkpoint by which the reference drops whole layers at random in training (LayerDrop)."""


def model_for_training(base: Loaded, objective: Objective, settings: Settings) -> Loaded:
    """A new model to train: the weights of `base`, which is unchanged, with the objective's head.

    A head that is new or has other labels, and a pooler that the file lacks, are initialised at random from the seed;
    `untrained` names them. What is frozen in `base`, or named by `settings.freeze`, is not trained.
    """
    base.module.check_trainable()
    _check_no_parametrization(base.module)
    check_network(base, "trained")
    check_finite(base)
    config = _config(base, objective, settings)
    for key in _LAYERS_LEFT_OUT:
        if config.inert.get(key):
            log.warning("%s is %s, and no layer is dropped in training here", key, config.inert[key])
    device = base.module.device
    module = untrained_network(config, settings.seed, device, torch.float32, attention_of(base.module), {})
    reused = _reused_weights(base, config)
    fresh = _load_weights(module, reused, config, base)
    _freeze_parameters(module, base.module, settings.freeze)
    pooling = base.pooling if config.head is None else None  # with a head it is no sentence embedding model
    loaded = replace(base, module=module, config=config, pooling=pooling, untrained=tuple(sorted(fresh)))
    return loaded if settings.lora is None else attach_adapters(loaded, settings)


def mark_trained(loaded: Loaded) -> Loaded:
    """The model after training: `untrained` keeps only random parameters that were not trained."""
    parameters = dict(loaded.module.named_parameters(remove_duplicate=False))
    left = tuple(name for name in loaded.untrained if name in parameters and not parameters[name].requires_grad)
    return replace(loaded, untrained=left)


def check_finite(loaded: Loaded) -> None:
    """Raises CorruptFileError for a model with weights that are not finite, as `load` does for a file."""
    for name, numbers in loaded.module.named_parameters():
        if not numbers.is_meta:
            require_finite(name, numbers.detach())


def _check_no_parametrization(module: Network) -> None:
    """Raises InputError for a parametrized weight, which would not be copied and would start at random."""
    for path, part in module.named_modules():
        if is_parametrized(part):
            raise InputError(
                f"{path} has a table that is computed (torch.nn.utils.parametrize), which training would reset: "
                "take the computation away first (remove_parametrizations)"
            )


# -- config -----------------------------------------------------------------------------------------------------------


def _config(base: Loaded, objective: Objective, settings: Settings) -> Config:
    own, head = base.config, objective.head(base)
    dropout = _dropout(own.dropout, settings)
    inert = {key: value for key, value in own.inert.items() if key != "problem_type"} | objective.facts()
    pooler = _has_pooler(base, head)
    config = own.replace(head=head, pooler=pooler, labels=objective.labels(base), dropout=dropout, inert=inert)
    if isinstance(head, SequenceClassification) and head.pool == "last" and config.pad_token_id is None:
        config = config.replace(pad_token_id=_padding_token_id(base))  # by which a text's last token is found
    return config


def _dropout(own: Dropout, settings: Settings) -> Dropout:
    """The checkpoint's probabilities; `settings.dropout` replaces positive ones, and hidden and classifier dropout."""
    always, attention = ("hidden_dropout_prob", "classifier_dropout"), "attention_probs_dropout_prob"
    names = [name for name, probability in vars(own).items() if name != attention and (probability or name in always)]
    shares: dict[str, float] = {} if settings.dropout is None else dict.fromkeys(names, settings.dropout)
    if settings.attention_dropout is not None:
        shares[attention] = settings.attention_dropout
    return replace(own, **shares)


def _has_pooler(base: Loaded, head: Head | None) -> bool:
    """Whether the model gets a pooler: with a head that reads it, as the family has it; without one, as the file."""
    if head is None:
        return any(name.startswith("pooler.") for name in base.module.state_dict())
    return base.family.defaults.pooler if head.pooled else base.config.pooler


def _padding_token_id(base: Loaded) -> int | None:
    """The tokenizer's padding token; where it has none, as in many decoders, the first end token."""
    own = base.tokenizer.pad_token_id if base.tokenizer else None
    return own if own is not None else next(iter(base.config.end_tokens), None)


# -- weights ----------------------------------------------------------------------------------------------------------


def _reused_weights(base: Loaded, config: Config) -> dict[str, Tensor]:
    """The weights of the base to reuse: all but those of a head of another kind, or with other labels."""
    before, now = (base.config.head, base.config.labels), (config.head, config.labels)
    labelled = config.head is not None and config.head.answers == "labels"
    same = before == now if labelled else before[0] == now[0]
    if labelled and not same and before[0] == now[0]:
        names = [join_names(labels) for labels in (base.config.labels, config.labels)]
        log.warning("the model's labels are %s, those to be learned %s: its head starts with new weights", *names)
    return {name: one for name, one in base.module.state_dict().items() if same or not name.startswith("head.")}


def _load_weights(module: Network, reused: Mapping[str, Tensor], config: Config, base: Loaded) -> set[str]:
    """Copies the reused weights. ->  the names of parameters that are new, or were random in the base"""
    own = module.state_dict()
    module.load_state_dict({name: numbers for name, numbers in reused.items() if name in own}, strict=False)
    parameters = {name for name, _ in module.named_parameters(remove_duplicate=False)}
    same = tied_parameters(config)
    fresh = {name for name in parameters - reused.keys() if same.get(name) not in reused}
    return fresh | {name for name in parameters if base.is_untrained(name)}


def _freeze_parameters(module: Network, base: Network, patterns: tuple[str, ...]) -> None:
    before = {name for name, one in base.named_parameters(remove_duplicate=False) if not one.requires_grad}
    for name, one in module.named_parameters(remove_duplicate=False):
        one.requires_grad_(one.requires_grad and name not in before)
    freeze(module, *patterns)
    if not any(one.requires_grad for one in module.parameters()):
        raise InputError("everything is frozen, so nothing would be trained: freeze less")
