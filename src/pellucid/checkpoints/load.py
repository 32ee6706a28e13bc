"""Opens a checkpoint: build empty, fill in place, and account for everything. Nothing half-loads."""

import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from pellucid.checkpoints.adapter import read_source
from pellucid.checkpoints.contents import Contents
from pellucid.checkpoints.facts import named_architecture, tell_of_states
from pellucid.checkpoints.families import family_in, stranger
from pellucid.checkpoints.fill import BITS, check_holds, fill, fill_packed
from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.location import USUAL, Where
from pellucid.checkpoints.page import Family
from pellucid.checkpoints.plan import Plan, make_plan
from pellucid.checkpoints.source import Source
from pellucid.checkpoints.unchanged import located
from pellucid.checkpoints.weights import Stored
from pellucid.config import Config, Head
from pellucid.config.checks import among, is_word
from pellucid.errors import Argument, CheckpointMismatchError, InputError, several
from pellucid.machine import NARROWER, choose_device, choose_dtype
from pellucid.models import ATTENTION, Network
from pellucid.streams import use_threads
from pellucid.text import Tokenizer
from pellucid.text.files import lower_cased, open_tokenizer, within

log = logging.getLogger("pellucid")

OWN_HEAD = "own"
"""The head that the checkpoint was saved with."""


def open_checkpoint(
    name: str | os.PathLike[str] | Source,
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    head: str | Head | None = OWN_HEAD,
    attention: str = "fused",
    where: Where = USUAL,
    config: Config | None = None,
    seed: int = 0,
    narrower: Mapping[str, int] = NARROWER,
) -> Loaded:
    """A checkpoint by name, or where it was found before. See `pellucid.load` for the arguments.

    config: what it is to be, in place of what its own facts say: with other labels, or without dropout.
    narrower: kinds of number that may be advised in the place of `dtype` where there is no room: {} for a caller who
        leaves nobody the choice.
    """
    use_threads()
    own = is_word(head, OWN_HEAD)
    among("attention", attention, ATTENTION)
    with located(name, where) as source:
        wide = dtype is torch.float64 or is_word(dtype, "float64")
        contents = read_source(source, torch.float64 if wide else torch.float32)
        family = _family(contents)
        config = config or family.read(contents.facts, contents.said_in)
        if not own:
            wanted = family.head_named(head) if isinstance(head, str) else head
            family.page(wanted)  # refuses a head that the family does not have
            config = config.replace(head=wanted)
        tensors = contents.tensors
        plan = make_plan(family, config, tensors, contents.said_in, new_head=not own and head is not None)
        if own and plan.others and not contents.facts.get("architectures"):
            told = "%s names no architecture: its body is read without head, and %s left out; name the head to have it"
            log.warning(told, contents.said_in, several(plan.others, 3))
        if own:
            _tell_of_unread(plan, family, contents)
        if contents.pooling is not None:
            tell_of_states(plan.config, family.encoder_alone, contents.said_in.parent)
        reads, writes = _tables(plan.config)
        _check_width(contents, plan.config.hidden_size)
        words = contents.tokenizer(plan.config)
        if words is not None and contents.pooling is not None and contents.pooling.do_lower_case:
            words = lower_cased(words)
        parts = {
            "tokenizer": _fitting(words, reads, contents, "tokenizer"),
            "target_tokenizer": _fitting(contents.target_tokenizer, writes, contents, "tokenizer of the decoder"),
            "pooling": contents.pooling,
            "generation": contents.generation,
        }
        if source.base is not None and is_word(dtype, "int4"):
            log.warning("%s: 4 bits round away much of what an adapter adds; 8 bits (int8) keep it", source.name)
        random = {name.partition(".")[0] for name in plan.fresh} | _still(contents.untrained, plan)
        del contents  # a vocabulary of GGUF takes ten megabytes, and is not needed beside the tokenizer
        module = _numbers(plan, tensors, device, dtype, attention, seed, narrower)
        return Loaded(
            module=module,
            config=plan.config,
            family=family,
            source=source,
            untrained=tuple(sorted(random)),
            **parts,
        )


def _still(random: Iterable[str], plan: Plan) -> set[str]:
    """Those parts that this model has."""
    there = {"all", *(name.partition(".")[0] for name in (*plan.placed, *plan.fresh))}
    return {part for part in random if part.partition(".")[0] in there}


def _tell_of_unread(plan: Plan, family: Family, contents: Contents) -> None:
    """Says what is lost of an architecture with more heads than one, which is read as another with less."""
    named, read = named_architecture(contents.facts), family.page(plan.config.head).architecture
    known = any(one.architecture == named and one.head == plan.config.head for one in family.heads)
    lost = [name for name in plan.dropped if name.endswith((".weight", ".bias"))]
    if lost and known and named != read:
        told = "%s names %s, which is read as %s: %s are not read, nor kept where it is saved"
        log.warning(told, contents.said_in, named, read, several(sorted(lost), 4))


def _numbers(
    plan: Plan,
    tensors: dict[str, Stored],
    device: str | torch.device,
    dtype: str | torch.dtype | None,
    attention: str,
    seed: int,
    narrower: Mapping[str, int],
) -> Network:
    place = choose_device(device)
    check_holds(place)
    if isinstance(dtype, str) and dtype in BITS:
        if place.type != "cpu":
            alone = f"dtype is {dtype!r}, which runs on the processor alone: load with "
            raise InputError(alone, Argument("device", "cpu"))
        return fill_packed(plan, tensors, BITS[dtype], attention)
    kind = choose_dtype(dtype, plan.dtype(tensors), place, more=BITS)
    return fill(plan, tensors, place, kind, attention, seed, narrower)


def account(name: str | os.PathLike[str]) -> Plan:
    """Which tensor of a checkpoint goes where, with the head that it was saved with; no number is read.

    Raises CheckpointMismatchError where a tensor is missing or strange.
    """
    with located(name) as source:
        contents = read_source(source)
        family = _family(contents)
        config = family.read(contents.facts, contents.said_in)
        return make_plan(family, config, contents.tensors, contents.said_in, new_head=False)


def read_config(name: str | os.PathLike[str], where: Where = USUAL) -> Config:
    """The facts of a checkpoint; its weights are not looked at."""
    with located(name, where) as source:
        contents = read_source(source)
        return _family(contents).read(contents.facts, contents.said_in)


def read_generation(name: str | os.PathLike[str], where: Where = USUAL) -> dict[str, Any]:
    """What a checkpoint, or a folder with that file alone, says of how it writes."""
    with located(name, where) as source:
        return read_source(source).generation


def read_tokenizer(
    name: str | os.PathLike[str], where: Where = USUAL, *, config: Config | None = None
) -> Tokenizer | None:
    """The tokenizer of a checkpoint, whose weights are not looked at, or of a folder with a tokenizer alone.

    config: the model that it is for; by default what the checkpoint says.
    ->  None where there is none
    """
    with located(name, where) as source:
        bare = source.kind == "folder" and source.file is None and source.base is None
        if config is None and bare and not (source.folder / "config.json").exists():
            return open_tokenizer(source.folder, max_length=None)
        contents = read_source(source)
        config = config or _family(contents).read(contents.facts, contents.said_in)
        return _fitting(contents.tokenizer(config), _tables(config)[0], contents, "tokenizer")


def _family(contents: Contents) -> Family:
    facts = contents.facts
    try:
        family = family_in(facts, str(contents.said_in))
    except InputError as error:
        raise CheckpointMismatchError(str(error)) from error
    said = facts.get("architectures")
    if isinstance(said, list) and said and (other := stranger(family, said[0])) is not None:
        raise CheckpointMismatchError(
            f"{contents.said_in}: model_type is {family.model_type!r} and {said[0]} belongs to "
            f"{other.model_type!r}; correct the one that is wrong"
        )
    return family


def _tables(config: Config) -> tuple[int, int]:
    """Rows of the table of tokens that are read, and of those that are written."""
    source = config.decoder.source_vocab_size if config.decoder else None
    return source or config.vocab_size, config.vocab_size


def _check_width(contents: Contents, hidden: int) -> None:
    said = contents.pooling.hidden if contents.pooling else None
    if said not in (None, hidden):
        raise CheckpointMismatchError(
            f"{contents.said_in.parent}: the pooling is of vectors of {said} numbers, the model's have {hidden}; "
            "they do not belong together"
        )


def _fitting(tokenizer: Tokenizer | None, rows: int, contents: Contents, what: str) -> Tokenizer | None:
    if tokenizer is None or tokenizer.largest_id < rows:
        return tokenizer
    tokenizer, beyond = within(tokenizer, rows)
    if tokenizer.largest_id >= rows:
        raise CheckpointMismatchError(
            f"{contents.said_in.parent}: the {what} gives ids up to {tokenizer.largest_id}, the model's table of "
            f"tokens has {rows} rows; they do not belong together"
        )
    plain = "%s: the model's table of tokens ends before %s, which the %s added: they are read as plain text"
    log.warning(plain, contents.said_in.parent, several(map(ascii, beyond)), what)
    return tokenizer
