"""Opens a checkpoint: builds an empty model, fills it in place and accounts for every tensor. Nothing half-loads."""

import logging
import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from pellucid.checkpoints.adapter import read_source
from pellucid.checkpoints.contents import Contents
from pellucid.checkpoints.facts import named_architecture, warn_of_encoder_states
from pellucid.checkpoints.families import family_of_config, mismatched_family
from pellucid.checkpoints.family_page import Family
from pellucid.checkpoints.fill import BITS, check_not_meta, fill, fill_packed
from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.location import DEFAULT_OPTIONS, HubOptions
from pellucid.checkpoints.plan import Plan, make_plan
from pellucid.checkpoints.source import Source
from pellucid.checkpoints.unchanged import unchanged_source
from pellucid.checkpoints.weights import StoredTensor
from pellucid.config import Config, Head
from pellucid.config.checks import check_one_of, is_one_of
from pellucid.errors import Argument, CheckpointMismatchError, InputError, join_names
from pellucid.machine import NARROWER, choose_device, choose_dtype
from pellucid.models import ATTENTION, Network
from pellucid.streams import use_threads
from pellucid.text import Tokenizer
from pellucid.text.expansion import check_template
from pellucid.text.files import TARGET_TOKENIZER_FILE, lower_cased, open_tokenizer, without_tokens_beyond

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
    hub_options: HubOptions = DEFAULT_OPTIONS,
    config: Config | None = None,
    seed: int = 0,
    alternatives: Mapping[str, int] = NARROWER,
    new_labels: bool = False,
) -> Loaded:
    """Loads a checkpoint by name, or from a `Source` found before. See `pellucid.load` for the arguments.

    config: used instead of the checkpoint's own facts, for example with other labels or without dropout.
    alternatives: dtypes that an error may suggest where memory is short; {} where the caller has no choice.
    new_labels: give a classifier that the files hold for another number of labels new random weights.
    """
    use_threads()
    is_own_head = is_one_of(head, OWN_HEAD)
    check_one_of("attention", attention, ATTENTION)
    with unchanged_source(name, hub_options) as source:
        is_float64 = dtype is torch.float64 or is_one_of(dtype, "float64")
        contents = read_source(source, torch.float64 if is_float64 else torch.float32)
        family = _family(contents)
        config = config or family.read(contents.facts, contents.facts_path)
        if not is_own_head:
            requested_head = family.head_named(head) if isinstance(head, str) else head
            family.page(requested_head)  # refuses a head that the family does not have
            config = config.replace(head=requested_head)
        tensors = contents.tensors
        new_head = not is_own_head and head is not None
        plan = make_plan(family, config, tensors, contents.facts_path, new_head, new_labels=new_labels)
        if is_own_head:
            _warn_of_unread(plan, family, contents)
        if contents.pooling is not None:
            warn_of_encoder_states(plan.config, family.encoder_states_only, contents.facts_path.parent)
        _check_width(contents, plan.config.hidden_size)
        tokenizer = contents.tokenizer(plan.config)
        if tokenizer is not None and contents.pooling is not None and contents.pooling.do_lower_case:
            tokenizer = lower_cased(tokenizer)
        parts = {
            "tokenizer": _fit_tokenizer(tokenizer, plan.config, contents),
            "target_tokenizer": _fit_tokenizer(contents.target_tokenizer, plan.config, contents, decoder=True),
            "pooling": contents.pooling,
            "generation": contents.generation,
        }
        if source.base is not None and is_one_of(dtype, "int4"):
            log.warning("%s: 4 bits round away much of what an adapter adds; 8 bits (int8) keep it", source.name)
        untrained = {_new_part(name, plan) for name in plan.newly_initialized} | _parts_present(
            contents.untrained, plan
        )
        del contents  # the vocabulary of a GGUF file takes ten megabytes and is no longer needed
        module = _build_network(plan, tensors, device, dtype, attention, seed, alternatives)
        return Loaded(
            module=module,
            config=plan.config,
            family=family,
            source=source,
            untrained=tuple(sorted(untrained)),
            **parts,
        )


def _new_part(name: str, plan: Plan) -> str:
    """The part of a new weight: head or pooler, or its module alone where the file holds the rest of that part."""
    part = name.partition(".")[0]
    return name.rpartition(".")[0] if any(one.startswith(f"{part}.") for one in plan.locations) else part


def _parts_present(untrained: Iterable[str], plan: Plan) -> set[str]:
    """Those of these parts that this model has."""
    present = {"all", *(name.partition(".")[0] for name in (*plan.locations, *plan.newly_initialized))}
    return {part for part in untrained if part.partition(".")[0] in present}


def _warn_of_unread(plan: Plan, family: Family, contents: Contents) -> None:
    """Warns of heads that are not read: of an unnamed architecture, or beside the one that is read."""
    if plan.other_heads and not contents.facts.get("architectures"):
        message = "%s names no architecture: its body is read without a head, and %s left out; name the head to load it"
        log.warning(message, contents.facts_path, join_names(plan.other_heads, 3))
    named_class, read_class = named_architecture(contents.facts), family.page(plan.config.head).architecture
    is_known = any(one.architecture == named_class and one.head == plan.config.head for one in family.heads)
    unread = [name for name in plan.dropped if name.endswith((".weight", ".bias"))]
    if unread and is_known and named_class != read_class:
        message = "%s names %s, which is read as %s: %s are not read, nor kept where it is saved"
        log.warning(message, contents.facts_path, named_class, read_class, join_names(sorted(unread), 4))


def _build_network(
    plan: Plan,
    tensors: dict[str, StoredTensor],
    device: str | torch.device,
    dtype: str | torch.dtype | None,
    attention: str,
    seed: int,
    alternatives: Mapping[str, int],
) -> Network:
    device = choose_device(device)
    check_not_meta(device)
    if isinstance(dtype, str) and dtype in BITS:
        if device.type != "cpu":
            message = f"dtype is {dtype!r}, which runs on the processor alone: load with "
            raise InputError(message, Argument("device", "cpu"))
        return fill_packed(plan, tensors, BITS[dtype], attention)
    kind = choose_dtype(dtype, plan.dtype(tensors), device, more=BITS)
    return fill(plan, tensors, device, kind, attention, seed, alternatives)


def read_plan(name: str | os.PathLike[str]) -> Plan:
    """Which tensor of a checkpoint goes where, with the head that it was saved with; no weights are read.

    Raises CheckpointMismatchError where a tensor is missing or unexpected.
    """
    with unchanged_source(name) as source:
        contents = read_source(source)
        family = _family(contents)
        config = family.read(contents.facts, contents.facts_path)
        return make_plan(family, config, contents.tensors, contents.facts_path, new_head=False)


def read_config(name: str | os.PathLike[str], hub_options: HubOptions = DEFAULT_OPTIONS) -> Config:
    """The config of a checkpoint; its weights are not read."""
    with unchanged_source(name, hub_options) as source:
        contents = read_source(source)
        return _family(contents).read(contents.facts, contents.facts_path)


def read_generation(name: str | os.PathLike[str], hub_options: HubOptions = DEFAULT_OPTIONS) -> dict[str, Any]:
    """The generation settings of a checkpoint, or of a folder with that file alone."""
    with unchanged_source(name, hub_options) as source:
        return read_source(source).generation


def read_tokenizer(
    name: str | os.PathLike[str], hub_options: HubOptions = DEFAULT_OPTIONS, *, config: Config | None = None
) -> Tokenizer | None:
    """The tokenizer of a checkpoint, whose weights are not read, or of a folder with a tokenizer alone.

    config: the model that it is for; by default the checkpoint's own.
    ->  None where there is none
    """
    with unchanged_source(name, hub_options) as source:
        bare = source.kind == "folder" and source.file is None and source.base is None
        if config is None and bare and not (source.folder / "config.json").exists():
            return open_tokenizer(source.folder, max_length=None)
        contents = read_source(source)
        config = config or _family(contents).read(contents.facts, contents.facts_path)
        return _fit_tokenizer(contents.tokenizer(config), config, contents)


def _family(contents: Contents) -> Family:
    facts = contents.facts
    try:
        family = family_of_config(facts, str(contents.facts_path))
    except InputError as error:
        raise CheckpointMismatchError(str(error)) from error
    architecture = named_architecture(facts)
    if (other_family := mismatched_family(family, architecture)) is not None:
        raise CheckpointMismatchError(
            f"{contents.facts_path}: model_type is {family.model_type!r} and {architecture} belongs to "
            f"{other_family.model_type!r}; correct the one that is wrong"
        )
    return family


def _check_width(contents: Contents, hidden: int) -> None:
    width = contents.pooling.hidden if contents.pooling else None
    if width not in (None, hidden):
        raise CheckpointMismatchError(
            f"{contents.facts_path.parent}: the pooling is for states of {width} numbers, the model's have {hidden}; "
            "they do not belong together"
        )


def _fit_tokenizer(
    tokenizer: Tokenizer | None, config: Config, contents: Contents, *, decoder: bool = False
) -> Tokenizer | None:
    """The tokenizer without added tokens that have no row in the model. Raises CheckpointMismatchError where other ids
    have none.

    decoder: whether it is the tokenizer of the decoder's output.
    """
    if tokenizer is None:
        return None
    folder, rows = contents.facts_path.parent, config.vocab_size
    if config.decoder and not decoder:
        rows = config.decoder.source_vocab_size or rows
    what, file = ("tokenizer of the decoder", TARGET_TOKENIZER_FILE) if decoder else ("tokenizer", "tokenizer.json")
    if tokenizer.largest_id >= rows:
        tokenizer, removed_tokens = without_tokens_beyond(tokenizer, rows)
        if tokenizer.largest_id >= rows:
            raise CheckpointMismatchError(
                f"{folder}: the {what} gives ids up to {tokenizer.largest_id}, the model's table of "
                f"tokens has {rows} rows; they do not belong together"
            )
        message = "%s: the model's table of tokens has no row for %s, which the %s added: they are read as plain text"
        log.warning(message, folder, join_names(map(ascii, removed_tokens)), what)
    check_template(tokenizer, folder / file, rows, config.type_vocab_size)
    return tokenizer
