"""From a name to a folder of files: a path, an installed package, the hub's cache, the hub, in this order."""

import logging
import math
import os
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from pellucid.checkpoints import cache, hub, installed
from pellucid.checkpoints.adapter_facts import FILE, read_adapter_facts
from pellucid.checkpoints.converted import converted
from pellucid.checkpoints.links import refuse_links_of_folder
from pellucid.checkpoints.location import USUAL, Where
from pellucid.checkpoints.model_files import form_of_folder, lacks_weights
from pellucid.errors import (
    CheckpointMismatchError,
    InputError,
    NotFoundError,
    ResourceError,
    UnsafeFileError,
    several,
    short,
)
from pellucid.files import digest_of, name_of

log = logging.getLogger("pellucid")

Mark = tuple[int, ...]
"""By which it is known that a file is another one, or was written again."""


@dataclass(frozen=True)
class Source:
    """Where a checkpoint was found."""

    name: str
    folder: Path
    kind: Literal["folder", "file", "package", "hub"]
    revision: str | None = None
    file: Path | None = None
    """The one file that holds everything (GGUF); None where the folder's several files do."""
    base: "Source | None" = None
    """Of an adapter, the checkpoint that it changes; None for a whole checkpoint."""
    marks: dict[Path, Mark] = field(default_factory=dict, compare=False, repr=False)
    """Its files, and those of its base, as they were when it was read; see `unchanged.py`."""


def locate(name: str | os.PathLike[str], where: Where = USUAL) -> Source:
    """The folder that `name` stands for.

    name: a folder, a `.gguf` file, a hub id ("owner/model") or the short name of an installed package.

    An adapter stands over its base, which is looked for in the same way.
    """
    found = _located(name, where)
    refuse_links(found)
    if found.file is not None or not (form := form_of_folder(found.folder)).adapter:
        return found
    if form.kind == "checkpoint":  # a whole checkpoint with an adapter inside, as the format has it
        return replace(found, base=found)
    facts = read_adapter_facts(found.folder)
    try:
        base = _located(facts.base, replace(where, revision=facts.revision))
    except InputError as error:
        moved = f"; where it lies now is to stand in {found.folder / FILE} as base_model_name_or_path"
        told = moved if Path(facts.base).is_absolute() else ""
        raise NotFoundError(f"{name} is an adapter, and its base is not here: ", error, told) from error
    refuse_links(base)
    if base.file is None and form_of_folder(base.folder).adapter:
        raise CheckpointMismatchError(
            f"{found.folder / FILE} names {facts.base} as its base, which is an adapter itself"
        )
    return replace(found, base=base)


def _located(name: str | os.PathLike[str], where: Where) -> Source:
    """What a name stands for, whatever it is: looked at, and with what the cache lacks of it."""
    text = _named(name)
    if (found := _of_path(text)) is not None:
        return found
    sought, package = _sought(text)
    found = _at_hand(sought, package, where)
    if found is None:
        return _fetched(sought, where)
    if found.kind == "hub":
        _make_whole(found, where)
    elif package is not None:
        _verify(package, found.folder)
        return replace(found, folder=converted(package, found.folder)) if package.foreign else found
    return found


def lying(name: str | os.PathLike[str], where: Where) -> Source | None:
    """What a name stands for as it lies here, which is not looked at; None for one on the hub of which nothing does."""
    text = _named(name)
    return _of_path(text) or _at_hand(*_sought(text), where)


def _of_path(text: str) -> Source | None:
    """The folder or file at a path; None where nothing is there and the text can be a name on the hub."""
    folder = _path(text)
    if folder.is_dir():
        cache.check_no_repository(folder.resolve())
        return Source(text, folder.resolve(), "folder", file=_gguf_of(folder))
    packed = folder.suffix.lower() == ".gguf"
    if packed and folder.is_file():
        return Source(text, folder.parent.resolve(), "file", file=folder.resolve())
    if folder.exists():
        raise InputError(f"{text} is a file, expected a folder with config.json and the weights, or a .gguf file")
    if not hub.is_hub_id(text) or (packed and "/" not in text):
        kind = f"file {short(text)!r}{hub.near_names(text)}" if packed else f"folder {short(text)!r}"
        raise NotFoundError(f"there is no {kind}, and it is not a name on the hub (owner/model) either")
    return None


def _sought(text: str) -> tuple[str, installed.Packaged | None]:
    """The name on the hub that a text stands for, and the package of it, where one is known."""
    package = installed.find(text)
    return package.name if package else text, package


def _at_hand(name: str, package: installed.Packaged | None, where: Where) -> Source | None:
    """What goes by a name on the hub as it lies here, installed or in the hub's cache."""
    where.check_revision()
    if package is not None and where.revision is None and (home := package.path()) is not None:
        return Source(name, home, "package", file=_gguf_of(home))
    _refuse_foreign(package, where)
    cached = cache.cached(name, where)
    return None if cached is None else _of_hub(name, cached)


def pull(name: str, where: Where = USUAL) -> Source:
    """Fetches a checkpoint from the hub into the hub's own cache, or brings the copy there up to date."""
    if not hub.is_hub_id(name):
        raise InputError(f"{short(name)!r} is not a name on the hub, expected owner/model")
    where.check_revision()
    sought, package = _sought(name)
    if package is not None and where.revision is None and package.path() is not None:
        return locate(name)
    _refuse_foreign(package, where)
    if where.offline:
        switch = "HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") else "TRANSFORMERS_OFFLINE"
        raise NotFoundError(f"{switch} switches the network off: unset it to fetch {name!r} from the hub")
    asked = time.time_ns()
    found = _of_hub(sought, hub.download(sought, where, whole=True))
    adds = form_of_folder(found.folder).kind == "adapter"
    cache.stands_for(where.revision or "main", found.folder, asked, first=adds)
    if adds:  # its base comes with it
        found = locate(sought, replace(where, revision=found.revision))
        cache.stands_for(where.revision or "main", found.folder, asked)
    return found


def refuse_links(source: Source) -> None:
    """Refuses a checkpoint in which a file that may be opened is a link out of its folder, as `inside` does."""
    if source.kind != "file":  # of which one file alone is opened, and its path was given
        refuse_links_of_folder(source.folder)


def _refuse_foreign(package: installed.Packaged | None, where: Where) -> None:
    """Refuses what the hub holds in a foreign format only: its package is the way."""
    if package is not None and package.foreign and where.revision is None:
        raise NotFoundError(hub.nowhere(package.name, "where its files are of another format", where))


def _named(name: object) -> str:
    if not isinstance(name, str | os.PathLike):
        raise InputError(f"the model is {short(repr(name))}, expected the name of one, a folder or a path")
    return name_of(name)


def _path(text: str) -> Path:
    if not text:
        raise InputError("the name of the model is empty, expected a folder or a name on the hub (owner/model)")
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError) as error:  # too long, in a closed folder, or the home of nobody
        raise NotFoundError(f"there is no folder {short(text)!r} that can be read") from error
    return path


def _fetched(name: str, where: Where) -> Source:
    if where.offline:
        raise NotFoundError(hub.nowhere(name, "and the network is switched off", where))
    asked = time.time_ns()
    try:
        folder = hub.download(name, where)
    except hub.UnreachableError as error:
        raise NotFoundError(hub.nowhere(name, f"and {error.reason}", where)) from error
    cache.stands_for(where.revision or "main", folder, asked)
    return _of_hub(name, folder)


def _of_hub(name: str, folder: Path) -> Source:
    return Source(name, folder, "hub", revision=folder.name, file=_gguf_of(folder))


def _make_whole(found: Source, where: Where) -> None:
    """Fetches what a snapshot lacks, of the commit that is there: what is loaded does not change because it is loaded.
    Where nothing can be fetched it stays as it is, and that is said."""
    name, folder, offline = found.name, found.folder, where.offline
    if cache.is_whole(folder):
        return
    asked = (folder, offline or _token(where))
    if _opens(folder) and time.monotonic() - _IN_VAIN.get(asked, -math.inf) < _AGAIN:
        return  # which was said
    told, wrong = [], []
    try:
        if not offline:
            hub.download(name, replace(where, revision=folder.name), there=folder)
    except (InputError, ResourceError) as error:
        why = error.reason if isinstance(error, hub.UnreachableError) else error
        told.append(f"{name} is taken from the hub's cache as it stands there: {why}")
    if cache.is_whole(folder):
        return
    _IN_VAIN[asked] = time.monotonic()
    if lost := cache.lost(folder):
        wrong.append(f"is not whole in the hub's cache, which lacks {several(lost)}")
    if odd := cache.wrong(folder):
        wrong.append(f"has {several(odd)} in another size than the hub lists")
    if not lost and (offline or told) and not cache.is_known(folder):
        wrong.append("is in the hub's cache without a list of what belongs to it")
    told += [f"{name} {what}: it may answer otherwise{cache.brings(folder)}" for what in wrong]
    for line in told:
        log.warning("%s", line)


def _opens(folder: Path) -> bool:
    """Whether what is there can be opened at all: where it cannot, whoever tries again wants it to be fetched."""
    return form_of_folder(folder).kind == "adapter" or not lacks_weights(folder)


def _token(where: Where) -> str | bool | None:
    try:
        return where.token_sent()
    except InputError:  # which is said once the hub is to be asked
        return None


_IN_VAIN: dict[tuple[Path, str | bool | None], float] = {}
"""When this process was last given no more of a snapshot, by its folder and the token; True where nobody was asked."""

_AGAIN = 60.0
"""Seconds after which it asks, and says so, once more."""


def _gguf_of(folder: Path) -> Path | None:
    """The GGUF file that is all of a folder's model. Raises InputError where several could be."""
    form = form_of_folder(folder)
    if form.kind == "gguf" and form.model is None:
        there = f"{several(form.models, 3)}: give the path of one, such as {folder / form.models[0]}"
        raise InputError(f"{folder} holds {there}")
    return folder / form.model if form.model else None


def _verify(package: installed.Packaged, home: Path) -> None:
    """Refuses a package whose weights are not the ones that were looked at."""
    if package.digest is None:
        return
    weights = home / package.weights
    if not weights.is_file():
        raise NotFoundError(f"{weights} is missing: reinstall the package {package.distribution}")
    found = digest_of(weights)
    if found != package.digest:
        raise UnsafeFileError(
            f"the package {package.distribution} holds other weights than {package.name} (sha256 {found[:12]}…, "
            f"expected {package.digest[:12]}…): reinstall it, or give its folder {home} as the name if you trust it"
        )
