"""Opens a checkpoint: build empty, fill in place, and account for everything. Nothing half-loads."""

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from pellucid.checkpoints.facts import read_json
from pellucid.checkpoints.families import family_of
from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.page import Family, HeadPage
from pellucid.checkpoints.sentence import read_pooling
from pellucid.checkpoints.source import Source, locate
from pellucid.checkpoints.weights import Stored, stored
from pellucid.config import Config, Head, head_named
from pellucid.errors import CheckpointMismatchError, CorruptFileError, InputError, near, several
from pellucid.machine import choose_device, choose_dtype, require_memory
from pellucid.models import Encoder, assemble, initialise
from pellucid.models.assemble import TIES, allocate, tie
from pellucid.text import Tokenizer
from pellucid.text.files import open_tokenizer

OWN_HEAD = "own"
"""The head that the checkpoint was saved with."""


def open_checkpoint(
    name: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    head: str | Head | None = OWN_HEAD,
    attention: str = "fused",
    revision: str | None = None,
    token: str | None = None,
    local_files_only: bool = False,
    seed: int = 0,
) -> Loaded:
    """A checkpoint by name. See `pellucid.load` for the arguments."""
    source = locate(name, revision=revision, token=token, local_files_only=local_files_only)
    raw = read_json(source.folder / "config.json")
    family = _family(raw, source.folder / "config.json")
    config = family.read(raw, source.folder / "config.json")
    if head != OWN_HEAD:
        config = config.replace(head=head_named(head) if isinstance(head, str) else head)
    tensors = stored(source.folder)
    plan = _plan(family, config, tensors, source, new_head=head not in (OWN_HEAD, None))
    module = _fill(plan, tensors, choose_device(device), choose_dtype(dtype, plan.dtype(tensors)), attention, seed)
    return Loaded(
        module=module,
        config=plan.config,
        family=family,
        tokenizer=_tokenizer(plan.config, source.folder),
        pooling=read_pooling(source.folder),
        source=source,
        untrained=("head",) if plan.fresh else (),
    )


def _family(raw: dict[str, object], path: Path) -> Family:
    try:
        return family_of(raw.get("model_type"), str(path))
    except InputError as error:
        raise CheckpointMismatchError(str(error)) from error


def _tokenizer(config: Config, folder: Path) -> Tokenizer | None:
    length = getattr(config.position, "max_position_embeddings", None)
    tokenizer = open_tokenizer(folder, max_length=length, token_types=config.type_vocab_size > 0)
    if tokenizer is not None and tokenizer.largest_id >= config.vocab_size:
        raise CheckpointMismatchError(
            f"{folder}: the tokenizer gives ids up to {tokenizer.largest_id}, the model's table of tokens has "
            f"{config.vocab_size} rows; they do not belong together"
        )
    return tokenizer


# -- which tensor goes where -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Plan:
    """The whole account, before a single number is read.

    placed: our name -> the file's name.  doubled: (file's name, our name) told twice, to be compared.
    tied: our names that share another's numbers.  fresh: our names that get random numbers.
    """

    config: Config
    placed: dict[str, str]
    doubled: tuple[tuple[str, str], ...] = ()
    tied: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    dropped: dict[str, str] = field(default_factory=dict)

    def dtype(self, tensors: dict[str, Stored]) -> torch.dtype:
        """What most numbers of the file are."""
        sizes: dict[torch.dtype, int] = {}
        for theirs in self.placed.values():
            held = tensors[theirs]
            sizes[held.dtype] = sizes.get(held.dtype, 0) + torch.Size(held.shape).numel()
        return max(sizes, key=lambda dtype: sizes[dtype])


def _plan(family: Family, config: Config, tensors: dict[str, Stored], source: Source, new_head: bool) -> Plan:
    page = family.page(config.head)
    placed: dict[str, str] = {}
    doubled: list[tuple[str, str]] = []
    dropped: dict[str, str] = {}
    strange: list[str] = []
    for theirs in tensors:
        ours = family.names.ours(theirs, page.rows)
        reason = family.names.drop_reason(theirs) or _other_head(family, page, theirs)
        if ours is not None and ours.startswith("pooler.") and not config.pools:
            dropped[theirs] = "the pooled first token is not read by this head"
        elif ours is not None and ours in placed:
            doubled.append((theirs, ours))
        elif ours is not None:
            placed[ours] = theirs
        elif reason is not None:
            dropped[theirs] = reason
        else:
            strange.append(theirs)
    if config.head is None and config.pooler and not any(name.startswith("pooler.") for name in placed):
        config = config.replace(pooler=False)  # saved without one, as sentence encoders often are
    if config.tie_word_embeddings:  # one table under two names: the second copy must equal the first
        doubled += [(placed.pop(name), source) for name, source in TIES.items() if name in placed and source in placed]
    wanted = _wanted(config)
    missing = [name for name in wanted if name not in placed]
    tied = tuple(n for n in missing if n in TIES and config.tie_word_embeddings)
    lost = [name for name in missing if name not in tied]
    fresh = tuple(n for n in lost if n.startswith("head.")) if new_head and not _any_head(placed) else ()
    problems = _problems(family, page, wanted, placed, tensors, strange, [n for n in lost if n not in fresh])
    if problems:
        raise CheckpointMismatchError(f"{source.folder} does not fit its config.json: {'; '.join(problems)}")
    return Plan(config, placed, tuple(doubled), tied, fresh, dropped)


def _wanted(config: Config) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(p.shape) for name, p in assemble(config).named_parameters()}


def _any_head(placed: Iterable[str]) -> bool:
    return any(name.startswith("head.") for name in placed)


def _other_head(family: Family, page: HeadPage, theirs: str) -> str | None:
    for other in family.heads:
        if other is not page and family.names.ours(theirs, other.rows) is not None:
            return f"belongs to {other.architecture}, which was not asked for"
    return None


def _problems(
    family: Family,
    page: HeadPage,
    wanted: dict[str, tuple[int, ...]],
    placed: dict[str, str],
    tensors: dict[str, Stored],
    strange: list[str],
    lost: list[str],
) -> list[str]:
    """Everything that does not fit, all at once, in the file's own names."""
    prefixed = any(theirs.startswith(family.names.prefix) for theirs in tensors) if family.names.prefix else False
    problems = []
    if lost:
        theirs = [family.names.theirs(name, page.rows, prefixed=prefixed) for name in lost]
        problems.append(f"{len(lost)} missing ({several(theirs, 3)})")
    beyond = [theirs for ours, theirs in placed.items() if ours not in wanted]
    if extra := strange + beyond:
        expected = [family.names.theirs(name, page.rows, prefixed=prefixed) for name in wanted]
        hint = near(extra[0].rpartition(".")[0] or extra[0], expected, most=1) if lost else ""
        problems.append(f"{len(extra)} that belong nowhere ({several(extra, 3)}){hint}")
    for ours, shape in wanted.items():
        held = tensors.get(placed.get(ours, ""))
        if held is not None and held.shape != shape:
            problems.append(f"{placed[ours]} has shape {list(held.shape)}, expected {list(shape)}")
        elif held is not None and not held.dtype.is_floating_point:
            problems.append(f"{placed[ours]} holds {str(held.dtype).removeprefix('torch.')}, expected real numbers")
    return problems[:4] + ([f"and {len(problems) - 4} more"] if len(problems) > 4 else [])


# -- the numbers -------------------------------------------------------------------------------------------------------


def _fill(
    plan: Plan, tensors: dict[str, Stored], device: torch.device, dtype: torch.dtype, attention: str, seed: int
) -> Encoder:
    with torch.device("meta"):
        module = assemble(plan.config, attention=attention)
    require_memory(sum(p.numel() for p in module.parameters()) * dtype.itemsize, device)
    allocate(module, device, dtype)
    if plan.fresh:
        initialise(module, plan.config.initializer_range, seed)
    parameters = dict(module.named_parameters())
    with torch.no_grad():
        for ours, theirs in plan.placed.items():
            parameters[ours].copy_(_read(theirs, tensors[theirs]))
        for theirs, ours in plan.doubled:
            if not torch.equal(parameters[ours], _read(theirs, tensors[theirs]).to(parameters[ours])):
                raise CheckpointMismatchError(f"{theirs} and {plan.placed[ours]} should be the same table and differ")
    if plan.tied:
        tie(module)
    return module.eval()


def _read(name: str, held: Stored) -> Tensor:
    numbers = held.read()
    if not math.isfinite(numbers.sum(dtype=torch.float64)):  # one pass; NaN and infinity survive a sum
        raise CorruptFileError(f"{name} holds NaN or infinite numbers: the file is damaged or its training had failed")
    return numbers
