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
from pellucid.checkpoints.converted import convert_once
from pellucid.checkpoints.links import check_no_loop, refuse_links_of_folder
from pellucid.checkpoints.location import DEFAULT_OPTIONS, HubOptions
from pellucid.checkpoints.model_files import form_of_folder, lacks_weights
from pellucid.errors import (
    CheckpointMismatchError,
    InputError,
    NotFoundError,
    ResourceError,
    UnsafeFileError,
    join_names,
    shorten,
)
from pellucid.files import digest_of, path_text

log = logging.getLogger("pellucid")

FileStamp = tuple[int, ...]
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
    file_stamps: dict[Path, FileStamp] = field(default_factory=dict, compare=False, repr=False)
    """Its files, and those of its base, as they were when it was read; see `unchanged.py`."""


def locate(name: str | os.PathLike[str], where: HubOptions = DEFAULT_OPTIONS) -> Source:
    """The folder that `name` stands for.

    name: a folder, a `.gguf` file, a hub id ("owner/model") or the short name of an installed package.

    An adapter stands over its base, which is looked for in the same way.
    """
    found = _resolve(name, where)
    refuse_links(found)
    if found.file is not None or not (form := form_of_folder(found.folder)).adapter:
        return found
    if form.kind == "checkpoint":  # a whole checkpoint with an adapter inside, as the format has it
        return replace(found, base=found)
    facts = read_adapter_facts(found.folder)
    try:
        base = _resolve(facts.base, replace(where, revision=facts.revision))
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


def _resolve(name: str | os.PathLike[str], where: HubOptions) -> Source:
    """What a name stands for, whatever it is: looked at, and with what the cache lacks of it."""
    text = _checked_name(name)
    if (found := _find_path(text)) is not None:
        return found
    sought, package = _hub_name_and_package(text)
    found = _find_package_or_cached(sought, package, where)
    if found is None:
        return _download(sought, where)
    if found.kind == "hub":
        _complete_snapshot(found, where)
    elif package is not None:
        _verify_package(package, found.folder)
        return replace(found, folder=convert_once(package, found.folder)) if package.needs_conversion else found
    return found


def find_local(name: str | os.PathLike[str], where: HubOptions) -> Source | None:
    """What a name stands for as it lies here, which is not looked at; None for one on the hub of which nothing does."""
    text = _checked_name(name)
    return _find_path(text) or _find_package_or_cached(*_hub_name_and_package(text), where)


def _find_path(text: str) -> Source | None:
    """The folder or file at a path; None where nothing is there and the text can be a name on the hub."""
    folder = _checked_path(text)
    if folder.is_dir():
        cache.check_no_repository(folder.resolve())
        return Source(text, folder.resolve(), "folder", file=_gguf_in(folder))
    packed = folder.suffix.lower() == ".gguf"
    if packed and folder.is_file():
        return Source(text, folder.parent.resolve(), "file", file=folder.resolve())
    if folder.exists():
        raise InputError(f"{text} is a file, expected a folder with config.json and the weights, or a .gguf file")
    if not hub.is_hub_id(text) or (packed and "/" not in text):
        kind = f"file {shorten(text)!r}{hub.near_names(text)}" if packed else f"folder {shorten(text)!r}"
        raise NotFoundError(f"there is no {kind}, and it is not a name on the hub (owner/model) either")
    return None


def _hub_name_and_package(text: str) -> tuple[str, installed.Packaged | None]:
    """The name on the hub that a text stands for, and the package of it, where one is known."""
    package = installed.find_package(text)
    return package.name if package else text, package


def _find_package_or_cached(name: str, package: installed.Packaged | None, where: HubOptions) -> Source | None:
    """What goes by a name on the hub as it lies here, installed or in the hub's cache."""
    where.check_revision()
    if package is not None and where.revision is None and (home := package.path()) is not None:
        return Source(name, home, "package", file=_gguf_in(home))
    _refuse_foreign(package, where)
    cached = cache.cached_snapshot(name, where)
    return None if cached is None else _hub_source(name, cached)


def pull(name: str, where: HubOptions = DEFAULT_OPTIONS) -> Source:
    """Fetches a checkpoint from the hub into the hub's own cache, or brings the copy there up to date."""
    if not hub.is_hub_id(name):
        raise InputError(f"{shorten(name)!r} is not a name on the hub, expected owner/model")
    where.check_revision()
    sought, package = _hub_name_and_package(name)
    if package is not None and where.revision is None and package.path() is not None:
        return locate(name)
    _refuse_foreign(package, where)
    if where.offline:
        switch = "HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") else "TRANSFORMERS_OFFLINE"
        raise NotFoundError(f"{switch} switches the network off: unset it to fetch {name!r} from the hub")
    asked = time.time_ns()
    found = _hub_source(sought, hub.download(sought, where, require_weights=True))
    adds = form_of_folder(found.folder).kind == "adapter"
    cache.update_ref(where.revision or "main", found.folder, asked, first=adds)
    if adds:  # its base comes with it
        found = locate(sought, replace(where, revision=found.revision))
        cache.update_ref(where.revision or "main", found.folder, asked)
    return found


def refuse_links(source: Source) -> None:
    """Refuses a checkpoint in which a file that may be opened is a link out of its folder, as `path_inside` does."""
    if source.kind != "file":  # of which one file alone is opened, and its path was given
        refuse_links_of_folder(source.folder)


def _refuse_foreign(package: installed.Packaged | None, where: HubOptions) -> None:
    """Refuses what the hub holds in a foreign format only: its package is the way."""
    if package is not None and package.needs_conversion and where.revision is None:
        raise NotFoundError(hub.not_found_message(package.name, "where its files are of another format", where))


def _checked_name(name: object) -> str:
    if not isinstance(name, str | os.PathLike):
        raise InputError(f"the model is {shorten(repr(name))}, expected the name of one, a folder or a path")
    return path_text(name)


def _checked_path(text: str) -> Path:
    if not text:
        raise InputError("the name of the model is empty, expected a folder or a name on the hub (owner/model)")
    try:
        path = Path(text).expanduser()
        path.exists()
    except (OSError, RuntimeError) as error:  # too long, in a closed folder, or the home of nobody
        raise NotFoundError(f"there is no folder {shorten(text)!r} that can be read") from error
    check_no_loop(path)
    return path


def _download(name: str, where: HubOptions) -> Source:
    if where.offline:
        raise NotFoundError(hub.not_found_message(name, "and the network is switched off", where))
    asked = time.time_ns()
    try:
        folder = hub.download(name, where)
    except hub.UnreachableError as error:
        raise NotFoundError(hub.not_found_message(name, f"and {error.reason}", where)) from error
    cache.update_ref(where.revision or "main", folder, asked)
    return _hub_source(name, folder)


def _hub_source(name: str, folder: Path) -> Source:
    return Source(name, folder, "hub", revision=folder.name, file=_gguf_in(folder))


def _complete_snapshot(found: Source, where: HubOptions) -> None:
    """Fetches what a snapshot lacks, of the commit that is there: what is loaded does not change because it is loaded.
    Where nothing can be fetched it stays as it is, and that is said."""
    name, folder, offline = found.name, found.folder, where.offline
    if cache.is_complete(folder):
        return
    asked = (folder, offline or _token(where))
    if _can_open(folder) and time.monotonic() - _FAILED_FETCHES.get(asked, -math.inf) < _RETRY_AFTER:
        return  # which was said
    told, wrong = [], []
    try:
        if not offline:
            hub.download(name, replace(where, revision=folder.name), snapshot=folder)
    except (InputError, ResourceError) as error:
        why = error.reason if isinstance(error, hub.UnreachableError) else error
        told.append(f"{name} is taken from the hub's cache as it stands there: {why}")
    if cache.is_complete(folder):
        return
    _FAILED_FETCHES[asked] = time.monotonic()
    if lost := cache.missing_files(folder):
        wrong.append(f"is not whole in the hub's cache, which lacks {join_names(lost)}")
    if odd := cache.mismatched_model_files(folder):
        wrong.append(f"has {join_names(odd)} in another size than the hub lists")
    if not lost and (offline or told) and not cache.has_listing(folder):
        wrong.append("is in the hub's cache without a list of what belongs to it")
    told += [f"{name} {what}: it may answer otherwise{cache.fetch_advice(folder)}" for what in wrong]
    for line in told:
        log.warning("%s", line)


def _can_open(folder: Path) -> bool:
    """Whether what is there can be opened at all: where it cannot, whoever tries again wants it to be fetched."""
    return form_of_folder(folder).kind == "adapter" or not lacks_weights(folder)


def _token(where: HubOptions) -> str | bool | None:
    try:
        return where.resolve_token()
    except InputError:  # which is said once the hub is to be asked
        return None


_FAILED_FETCHES: dict[tuple[Path, str | bool | None], float] = {}
"""When this process was last given no more of a snapshot, by its folder and the token; True where nobody was asked."""

_RETRY_AFTER = 60.0
"""Seconds after which it asks, and says so, once more."""


def _gguf_in(folder: Path) -> Path | None:
    """The GGUF file that is all of a folder's model. Raises InputError where several could be."""
    form = form_of_folder(folder)
    if form.kind == "gguf" and form.gguf_file is None:
        there = f"{join_names(form.gguf_files, 3)}: give the path of one, such as {folder / form.gguf_files[0]}"
        raise InputError(f"{folder} holds {there}")
    return folder / form.gguf_file if form.gguf_file else None


def _verify_package(package: installed.Packaged, home: Path) -> None:
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
