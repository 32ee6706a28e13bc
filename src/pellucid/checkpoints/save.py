"""Writes a checkpoint that the reference opens."""

import json
import os
from pathlib import Path

import torch
from torch import Tensor, nn

from pellucid.checkpoints.facts import tell_of_states
from pellucid.checkpoints.folder import beside, check_target, write_tensors
from pellucid.checkpoints.generation import write_generation
from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.moves import Move
from pellucid.checkpoints.names import Names, Rows
from pellucid.checkpoints.sentence import write_pooling
from pellucid.errors import InputError, several
from pellucid.files import path_of
from pellucid.models import assemble, ties
from pellucid.text.files import write_target_tokenizer, write_tokenizer


def save_checkpoint(loaded: Loaded, name: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Weights, config, tokenizer and pooling as the folder `name`.

    overwrite: replace the files of a folder that already holds some; without it such a folder is refused.
    """
    target = path_of(name)
    if loaded.module.onlooker is not None:
        raise InputError(
            "an edited model is not saved, since its edits are of passes and not of numbers: take the model that it "
            "was made from"
        )
    if loaded.pooling is not None:
        tell_of_states(loaded.config, target)
    loaded.module.real("saving")
    loaded.family.check_sayable(loaded.config)
    check_network(loaded, "saved")
    check_target(target, overwrite=overwrite)
    with beside(target) as folder:
        _write(loaded, folder)
    return target


def check_network(loaded: Loaded, done: str) -> None:
    """Refuses a network that is no longer the one that its config describes: nobody could open its files, and what
    learns in its place would be another. done: what cannot be done with it."""
    with torch.device("meta"):
        as_said = assemble(loaded.config)
    held, described = loaded.module.state_dict(), as_said.state_dict()
    odd = [name for name in {**held, **described} if name not in held or name not in described]
    odd += [name for name in held if name in described and held[name].shape != described[name].shape]
    if odd:
        raise InputError(
            f"this model cannot be {done}: its parts were changed, and {several(sorted(odd), 2)} no longer fit its "
            "config; put them back, or merge what was hung on them"
        )
    parts = dict(as_said.named_modules())
    for path, part in loaded.module.named_modules():
        if path in parts and (other := _differs(part, parts[path])):
            raise InputError(
                f"this model cannot be {done}: {other} of {path} is not what its config says, and would be lost; put "
                "it back"
            )
    for name, source in ties(loaded.config).items():
        if name in held and not torch.equal(held[name], held[source]):
            raise InputError(
                f"this model cannot be {done}: {name} and {source} are one table by its config, and their numbers "
                "differ"
            )


def _differs(part: nn.Module, said: nn.Module) -> str | None:
    """The first fact of a part, a scale or a function, that is another than the config says."""
    facts = {name: fact for name, fact in vars(said).items() if type(fact) is float or name == "activation"}
    return next((name for name, fact in facts.items() if getattr(part, name, fact) != fact), None)


def _write(loaded: Loaded, folder: Path) -> None:
    config, family = loaded.config, loaded.family
    page = family.page(config.head)
    names = family.names_with(page, lambda: config)
    tensors = _tensors(loaded, names, page.rows)
    if not config.tie_word_embeddings:  # where they are tied, the reference finds one by the other
        before = names.prefix if config.head is not None else ""
        copies = {f"{before}{copy}": f"{before}{name}" for copy, name in names.copies.items()}
        copies |= {twin: name for name, twin in page.twins.items() if name in tensors}
        tensors |= {copy: tensors[name] for copy, name in copies.items()}
    write_tensors(tensors, folder / "model.safetensors")
    facts = family.write(config)
    facts["dtype"] = facts["torch_dtype"] = str(next(loaded.module.parameters()).dtype).removeprefix("torch.")
    (folder / "config.json").write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    write_generation(loaded.generation, config.inert, folder)
    if loaded.tokenizer is not None:
        write_tokenizer(loaded.tokenizer, folder, token_types=loaded.config.type_vocab_size > 1)
    if loaded.target_tokenizer is not None:
        write_target_tokenizer(loaded.target_tokenizer, folder)
    if loaded.pooling is not None:
        write_pooling(loaded.pooling, config.hidden_size, folder)


def _tensors(loaded: Loaded, names: Names, rows: Rows) -> dict[str, Tensor]:
    """Every tensor of the file by the reference's name; what is one table under two names comes once."""
    module, same = loaded.module, ties(loaded.config)
    groups: dict[str, dict[int, Tensor]] = {}
    moves: dict[str, Move] = {}
    for ours, value in module.state_dict().items():
        if ours in same and module.get_parameter(same[ours]) is module.get_parameter(ours):
            continue
        place = names.theirs(ours, rows, prefixed=loaded.config.head is not None)
        groups.setdefault(place.theirs, {})[place.part] = value
        moves[place.theirs] = place.move
    return {theirs: moves[theirs].give([parts[i] for i in sorted(parts)]) for theirs, parts in groups.items()}
