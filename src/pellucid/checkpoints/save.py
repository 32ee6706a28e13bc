"""Writes a checkpoint that the reference opens."""

import json
import os
from pathlib import Path

from torch import Tensor

from pellucid.checkpoints.facts import warn_of_encoder_states
from pellucid.checkpoints.folder import atomic_folder, check_target, write_tensors
from pellucid.checkpoints.generation import write_generation
from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.names import TensorNames, gather_tensors
from pellucid.checkpoints.network import check_network
from pellucid.checkpoints.sentence_transformers import write_pooling
from pellucid.checkpoints.weights import UNTRAINED
from pellucid.errors import InputError
from pellucid.machine import dtype_name
from pellucid.models import tied_parameters
from pellucid.paths import path_of
from pellucid.text.files import write_target_tokenizer, write_tokenizer


def save_checkpoint(loaded: Loaded, name: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Saves weights, config, tokenizer and pooling as the folder `name` and returns its path.

    overwrite: replace the files of a folder that already holds some; without it such a folder is refused.
    """
    target = path_of(name)
    if loaded.module.observer is not None:
        raise InputError(
            "an edited model cannot be saved, since edits change passes and not weights: save the model that it "
            "was made from"
        )
    if loaded.pooling is not None:
        warn_of_encoder_states(loaded.config, loaded.family.encoder_states_only, target)
    loaded.module.require_float("saving")
    loaded.family.check_expressible(loaded.config)
    check_network(loaded, "saved")
    check_target(target, overwrite=overwrite)
    with atomic_folder(target) as folder:
        _write(loaded, folder)
    return target


def _write(loaded: Loaded, folder: Path) -> None:
    config, family = loaded.config, loaded.family
    page = family.page(config.head)
    names = family.names_with(page, lambda: config)
    tensors = _tensors(loaded, names)
    if not config.tie_word_embeddings:  # for tied tables the reference derives one from the other
        prefix = names.prefix if config.head is not None else ""
        copies = {f"{prefix}{copy}": f"{prefix}{name}" for copy, name in names.copies.items()}
        copies |= {twin: name for name, twin in page.duplicate_names.items() if name in tensors}
        tensors |= {copy: tensors[name] for copy, name in copies.items()}
    untrained = loaded.still_untrained
    note = {UNTRAINED: json.dumps(untrained)} if untrained else None
    write_tensors(tensors, folder / "model.safetensors", note)
    facts = family.write(config)
    facts["dtype"] = facts["torch_dtype"] = dtype_name(loaded.module.dtype)
    (folder / "config.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    write_generation(loaded.generation, config.inert, folder)
    if loaded.tokenizer is not None:
        write_tokenizer(loaded.tokenizer, folder, token_types=loaded.config.type_vocab_size > 1)
    if loaded.target_tokenizer is not None:
        write_target_tokenizer(loaded.target_tokenizer, folder)
    if loaded.pooling is not None:
        write_pooling(loaded.pooling, config.hidden_size, folder)


def _tensors(loaded: Loaded, names: TensorNames) -> dict[str, Tensor]:
    """Every tensor of the file by the reference's name; tied tables come once."""
    module, tied = loaded.module, tied_parameters(loaded.config)
    return gather_tensors(
        (names.location_of(parameter, prefixed=loaded.config.head is not None), value)
        for parameter, value in module.state_dict().items()
        if parameter not in tied or module.get_parameter(tied[parameter]) is not module.get_parameter(parameter)
    )
