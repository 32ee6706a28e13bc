"""The whole account of a checkpoint before a single number is read: which tensor goes where, and what is left over."""

import logging
import math
from collections import Counter
from collections.abc import Iterable, Sequence, Sized
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from pellucid.checkpoints.names import Names, Place
from pellucid.checkpoints.page import Family
from pellucid.checkpoints.weights import Stored
from pellucid.config import Config
from pellucid.errors import CheckpointMismatchError, near, several
from pellucid.models import assemble, ties

log = logging.getLogger("pellucid")


@dataclass(frozen=True)
class Doubled:
    """Numbers that a file holds a second time.

    place: where they stand.  ours: our name, whose numbers stand in another place.  overruled: whether it is known that
    these are not computed with, so that they may be others; else both must be the same.  tied: the fact that makes one
    table of two, where it is one that a file may also deny.
    """

    place: Place
    ours: str
    overruled: bool = False
    tied: str = ""


@dataclass(frozen=True)
class Plan:
    """The whole account, before a single number is read.

    placed: our name -> where its numbers stand.  doubled: told twice, to be compared.
    tied: our names that share another's numbers.  zeros: our names that are zero for want of others.
    fresh: our names that get random numbers.
    dropped: the reference's names that nothing is read of, each with the reason.  others: those of them that are of a
        head which was not asked for.
    """

    config: Config
    placed: dict[str, Place]
    doubled: tuple[Doubled, ...] = ()
    tied: dict[str, str] = field(default_factory=dict)
    zeros: tuple[str, ...] = ()
    fresh: tuple[str, ...] = ()
    dropped: dict[str, str] = field(default_factory=dict)
    others: tuple[str, ...] = ()

    def dtype(self, tensors: dict[str, Stored]) -> torch.dtype:
        """What most numbers of the file are."""
        sizes: Counter[torch.dtype] = Counter()
        for held in (tensors[theirs] for theirs in {place.theirs for place in self.placed.values()}):
            sizes[held.dtype] += math.prod(held.shape)
        return max(sizes, key=sizes.__getitem__)


def make_plan(
    family: Family, config: Config, tensors: dict[str, Stored], said_in: Path, new_head: bool, misfit: str = ""
) -> Plan:
    """The account of a checkpoint as the model of `config`, whose last guesses it may put right (pooler, head).

    tensors: by the reference's names.  said_in: the file that says what it is, for errors.
    new_head: a head was asked for by name; where the files hold none, it gets random numbers, and so does the pooler
        that it reads.
    misfit: how the sentence begins that names what does not fit; by default the folder does not fit its `said_in`.
    Raises CheckpointMismatchError, one sentence with all that does not fit.
    """
    page = family.page(config.head)
    own = family.names_with(page, lambda: config)
    others = {one.architecture: family.names_with(one, lambda: config) for one in family.heads if one is not page}
    names = replace(own, prefix=_prefix([own, *others.values()], tensors))
    _check_depth(config, tensors, said_in)
    for prefix, wrapper in _WRAPPED.items():
        if tensors and all(theirs.startswith(prefix) for theirs in tensors):
            why = f"every name begins with {prefix!r}, as of a model within {wrapper}: save its .{prefix.rstrip('.')}"
            raise CheckpointMismatchError(f"{misfit or said_in.parent}: {why}")
    placed: dict[str, Place] = {}
    doubled: list[Doubled] = []
    dropped: dict[str, str] = {}
    unasked: dict[str, str] = {}
    strange: list[str] = []
    for theirs in tensors:
        found = names.ours(theirs)
        if any(ours.startswith("pooler.") for ours in found) and not config.pools:
            dropped[theirs] = "the pooled first token is not read by this head"
        elif found:
            overruled = page.twins.get(theirs) in tensors
            again = {ours: place for ours, place in found.items() if overruled or ours in placed}
            doubled += [Doubled(place, ours, overruled) for ours, place in again.items()]
            placed |= {ours: place for ours, place in found.items() if ours not in again}
        elif (reason := names.drop_reason(theirs)) is not None:
            dropped[theirs] = reason
        elif (other := next((one for one in others if others[one].ours(theirs)), None)) is not None:
            unasked[theirs] = f"belongs to {other}, which was not asked for"
        else:
            strange.append(theirs)
    if config.head is None and config.pooler and not any(name.startswith("pooler.") for name in placed):
        config = config.replace(pooler=False)  # saved without one, as sentence encoders often are
    if page.joined and "head.decoder.weight" not in placed:
        config = config.replace(tie_word_embeddings=True)
    same = ties(config)
    if page.apart(config) and all(name in placed for name in ("head.decoder.weight", same["head.decoder.weight"])):
        config = config.replace(tie_word_embeddings=False)
        same = ties(config)
    for name, first in same.items():  # one table under two names: the second copy must equal the first
        if name in placed and first in placed:
            fact = "tie_word_embeddings" if name == "head.decoder.weight" else ""
            doubled.append(Doubled(placed.pop(name), first, tied=fact))
        elif name in placed:
            placed[first] = placed.pop(name)
    doubled = [replace(one, ours=same.get(one.ours, one.ours)) for one in doubled]
    wanted = _wanted(config)
    missing = [name for name in wanted if name not in placed]
    tied = {name: first for name, first in same.items() if name in missing}
    zeros = tuple(name for name in missing if name in page.zeros)
    lost = [name for name in missing if name not in tied and name not in zeros]
    bare = any(name.startswith("head.") for name in lost) and not any(name.startswith("head.") for name in placed)
    if bare and not new_head:  # sentence encoders are often saved so: the config of a head, the weights of a body
        log.warning("%s names %s, but the weights hold no head: opened without", said_in, page.architecture)
        return make_plan(family, config.replace(head=None), tensors, said_in, new_head, misfit)
    begins_anew = ("head.",) if any(name.startswith("pooler.") for name in placed) else ("head.", "pooler.")
    fresh = tuple(name for name in lost if name.startswith(begins_anew)) if bare else ()
    told = [*placed.items(), *((one.ours, one.place) for one in doubled)]
    problems = _problems(names, wanted, told, tensors, strange, [n for n in lost if n not in fresh])
    if problems:
        whole, facts = (said_in, "own facts") if said_in.suffix.lower() == ".gguf" else (said_in.parent, said_in.name)
        misfit = misfit or f"{whole} does not fit its {facts}"
        raise CheckpointMismatchError(f"{misfit}: {'; '.join(problems)}")
    return Plan(config, placed, tuple(doubled), tied, zeros, fresh, dropped | unasked, tuple(unasked))


_WRAPPED = {"module.": "DataParallel", "_orig_mod.": "torch.compile"}

_FEW_LAYERS = 50
"""Built in no time, so that what is missing can be named one by one."""


def _check_depth(config: Config, tensors: Sized, said_in: Path) -> None:
    """Every layer is built before its tensors are looked for: refused where there cannot be one for each."""
    decoder = config.decoder.num_decoder_layers if config.decoder else 0
    layers = max(decoder, config.num_hidden_groups or config.num_hidden_layers)
    if layers > max(len(tensors), _FEW_LAYERS):
        raise CheckpointMismatchError(
            f"{said_in} speaks of {layers} layers, and the weights hold {len(tensors)} tensors in all"
        )


def _wanted(config: Config) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        return {name: tuple(p.shape) for name, p in assemble(config).named_parameters()}


def _prefix(every: Sequence[Names], tensors: Iterable[str]) -> str:
    """The first of these prefixes that stands in a file: a body that is read alone may have been saved under a head
    that calls it otherwise. The first of all, where none does."""
    said = [names.prefix for names in every]
    return next((prefix for prefix in said if prefix and any(one.startswith(prefix) for one in tensors)), said[0])


def _problems(
    names: Names,
    wanted: dict[str, tuple[int, ...]],
    told: list[tuple[str, Place]],
    tensors: dict[str, Stored],
    strange: list[str],
    lost: list[str],
) -> list[str]:
    """Everything that does not fit, all at once, in the file's own names."""
    prefixed = any(theirs.startswith(names.prefix) for theirs in tensors) if names.prefix else False
    problems = []
    if lost:
        theirs = list(dict.fromkeys(names.theirs(name, prefixed=prefixed).theirs for name in lost))
        side = {name for name in wanted if name.startswith("decoder.layers.")}
        alone = ", and an encoder without its decoder is not read" if side and side <= {*lost} else ""
        problems.append(f"{len(lost)} missing ({several(theirs, 3)}){alone}")
    beyond = list(dict.fromkeys(place.theirs for ours, place in told if ours not in wanted))
    if extra := strange + beyond:
        expected = [names.theirs(name, prefixed=prefixed).theirs for name in wanted]
        hint = near(extra[0].rpartition(".")[0] or extra[0], expected, most=1) if lost else ""
        if strange and all(name.startswith("network.") for name in strange):
            hint = ": a state dict of pellucid.compat, whose save_pretrained(folder) writes a checkpoint"
        problems.append(f"{len(extra)} that belong nowhere ({several(extra, 3)}){hint}")
    for ours, place in told:
        if (shape := wanted.get(ours)) is None:
            continue
        held = tensors[place.theirs]
        if _shape(place, held) != shape:
            problems.append(
                f"{place.theirs} has shape {list(held.shape)}, expected {list(place.move.shape(shape, place.parts))}"
            )
        elif not held.dtype.is_floating_point:
            problems.append(f"{place.theirs} holds {str(held.dtype).removeprefix('torch.')}, expected real numbers")
    problems = list(dict.fromkeys(problems))
    return problems[:4] + ([f"and {len(problems) - 4} more"] if len(problems) > 4 else [])


def _shape(place: Place, held: Stored) -> tuple[int, ...]:
    """The shape that our part of a tensor has, without reading it."""
    try:
        return tuple(place.take(torch.empty(held.shape, device="meta")).shape)
    except (IndexError, RuntimeError):
        return ()  # such a tensor cannot be moved at all
