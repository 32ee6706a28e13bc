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
from pellucid.files import digest_of
from pellucid.paths import path_text

log = logging.getLogger("pellucid")

FileStamp = tuple[int, ...]
"""Identifies one state of a file: it differs once the file was replaced or rewritten."""


@dataclass(frozen=True)
class Source:
    """Where a checkpoint was found."""

    name: str
    folder: Path
    kind: Literal["folder", "file", "package", "hub"]
    revision: str | None = None
    file: Path | None = None
    """The single file that holds everything (GGUF); None for a folder of several files."""
    base: "Source | None" = None
    """For an adapter, the checkpoint that it modifies; None for a whole checkpoint."""
    file_stamps: dict[Path, FileStamp] = field(default_factory=dict, compare=False, repr=False)
    """Its files, and those of its base, as they were when it was read; see `unchanged.py`."""


def locate(name: str | os.PathLike[str], hub_options: HubOptions = DEFAULT_OPTIONS) -> Source:
    """The source that `name` stands for.

    name: a folder, a `.gguf` file, a hub id ("owner/model") or the short name of an installed package.

    The base of an adapter is located in the same way. Raises NotFoundError where nothing is found.
    """
    found = _resolve(name, hub_options)
    refuse_links(found)
    if found.file is not None or not (form := form_of_folder(found.folder)).adapter:
        return found
    if form.kind == "checkpoint":  # the format allows an adapter inside a whole checkpoint
        return replace(found, base=found)
    facts = read_adapter_facts(found.folder)
    try:
        base = _resolve(facts.base, replace(hub_options, revision=facts.revision))
    except InputError as error:
        moved_advice = f"; write its present path into {found.folder / FILE} as base_model_name_or_path"
        advice = moved_advice if Path(facts.base).is_absolute() else ""
        raise NotFoundError(f"{name} is an adapter, and its base is not here: ", error, advice) from error
    refuse_links(base)
    if base.file is None and form_of_folder(base.folder).adapter:
        raise CheckpointMismatchError(
            f"{found.folder / FILE} names {facts.base} as its base, which is an adapter itself"
        )
    return replace(found, base=base)


def _resolve(name: str | os.PathLike[str], hub_options: HubOptions) -> Source:
    """Resolves a name of any kind; completes a cached snapshot, and verifies and converts a package."""
    text = _checked_name(name)
    if (found := _find_path(text)) is not None:
        return found
    hub_name, package = _hub_name_and_package(text)
    found = _find_package_or_cached(hub_name, package, hub_options)
    if found is None:
        return _download(hub_name, hub_options)
    if found.kind == "hub":
        _complete_snapshot(found, hub_options)
    elif package is not None:
        _verify_package(package, found.folder)
        return replace(found, folder=convert_once(package, found.folder)) if package.needs_conversion else found
    return found


def find_local(name: str | os.PathLike[str], hub_options: HubOptions) -> Source | None:
    """What a name resolves to locally, without checks; None for a hub name of which nothing is here."""
    text = _checked_name(name)
    return _find_path(text) or _find_package_or_cached(*_hub_name_and_package(text), hub_options)


def _find_path(text: str) -> Source | None:
    """The folder or file at a path; None where nothing is there and the text could be a hub name."""
    folder = _checked_path(text)
    if folder.is_dir():
        cache.check_no_repository(folder.resolve())
        return Source(text, folder.resolve(), "folder", file=_gguf_in(folder))
    is_gguf = folder.suffix.lower() == ".gguf"
    if is_gguf and folder.is_file():
        return Source(text, folder.parent.resolve(), "file", file=folder.resolve())
    if folder.exists():
        raise InputError(f"{text} is a file, expected a folder with config.json and the weights, or a .gguf file")
    if not hub.is_hub_id(text) or (is_gguf and "/" not in text):
        kind = f"file {shorten(text)!r}{hub.near_names(text)}" if is_gguf else f"folder {shorten(text)!r}"
        raise NotFoundError(f"there is no {kind}, and it is not a name on the hub (owner/model) either")
    return None


def _hub_name_and_package(text: str) -> tuple[str, installed.Packaged | None]:
    """The hub name that a text stands for, and its package where one is known."""
    package = installed.find_package(text)
    return package.name if package else text, package


def _find_package_or_cached(name: str, package: installed.Packaged | None, hub_options: HubOptions) -> Source | None:
    """The local copy of a hub name: installed, or in the hub's cache."""
    if (found := _find_installed(package, hub_options)) is not None:
        return found
    cached = cache.cached_snapshot(name, hub_options)
    return None if cached is None else _hub_source(name, cached)


def _find_installed(package: installed.Packaged | None, hub_options: HubOptions) -> Source | None:
    """The installed package; None where its hub name is looked for on the hub. Raises NotFoundError for a package that
    is not installed and that the hub has only in a foreign format."""
    hub_options.check_revision()
    if package is None or hub_options.revision is not None:
        return None
    if (folder := package.path()) is not None:
        return Source(package.name, folder, "package", file=_gguf_in(folder))
    if package.needs_conversion:
        raise NotFoundError(hub.not_found_message(package.name, "where its files are of another format", hub_options))
    return None


def pull(name: str, hub_options: HubOptions = DEFAULT_OPTIONS) -> Source:
    """Fetches a checkpoint from the hub into the hub's own cache, or updates the copy there."""
    if not hub.is_hub_id(name):
        raise InputError(f"{shorten(name)!r} is not a name on the hub, expected owner/model")
    hub_name, package = _hub_name_and_package(name)
    if _find_installed(package, hub_options) is not None:
        return locate(name)
    if hub_options.offline:
        switch = "HF_HUB_OFFLINE" if os.environ.get("HF_HUB_OFFLINE") else "TRANSFORMERS_OFFLINE"
        raise NotFoundError(f"{switch} switches the network off: unset it to fetch {name!r} from the hub")
    requested_at = time.time_ns()
    found = _hub_source(hub_name, hub.download(hub_name, hub_options, require_weights=True))
    is_adapter = form_of_folder(found.folder).kind == "adapter"
    cache.update_ref(hub_options.revision or "main", found.folder, requested_at, first=is_adapter)
    if is_adapter:  # its base is fetched with it
        found = locate(hub_name, replace(hub_options, revision=found.revision))
        cache.update_ref(hub_options.revision or "main", found.folder, requested_at)
    return found


def refuse_links(source: Source) -> None:
    """Refuses a checkpoint in which a file that may be opened is a link out of its folder, as `path_inside` does."""
    if source.kind != "file":  # only that one file is opened, and the user gave its path
        refuse_links_of_folder(source.folder)


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
    except (OSError, RuntimeError) as error:  # too long, in an unreadable folder, or ~ without a home directory
        raise NotFoundError(f"there is no folder {shorten(text)!r} that can be read") from error
    check_no_loop(path)
    return path


def _download(name: str, hub_options: HubOptions) -> Source:
    if hub_options.offline:
        raise NotFoundError(hub.not_found_message(name, "and the network is switched off", hub_options))
    requested_at = time.time_ns()
    try:
        folder = hub.download(name, hub_options)
    except hub.UnreachableError as error:
        raise NotFoundError(hub.not_found_message(name, f"and {error.reason}", hub_options)) from error
    cache.update_ref(hub_options.revision or "main", folder, requested_at)
    return _hub_source(name, folder)


def _hub_source(name: str, folder: Path) -> Source:
    return Source(name, folder, "hub", revision=folder.name, file=_gguf_in(folder))


def _complete_snapshot(found: Source, hub_options: HubOptions) -> None:
    """Fetches the files that a snapshot lacks, of the same commit: loading never changes the version. Where fetching
    fails, the snapshot stays as it is, with a warning."""
    name, folder, offline = found.name, found.folder, hub_options.offline
    if cache.is_complete(folder):
        return
    attempt = (folder, offline or _token(hub_options))
    if _can_open(folder) and time.monotonic() - _FAILED_FETCHES.get(attempt, -math.inf) < _RETRY_AFTER:
        return  # a warning was given then
    messages, problems = [], []
    try:
        if not offline:
            hub.download(name, replace(hub_options, revision=folder.name), snapshot=folder)
    except (InputError, ResourceError) as error:
        why = error.reason if isinstance(error, hub.UnreachableError) else error
        messages.append(f"{name} is read from the hub's cache as it is there: {why}")
    if cache.is_complete(folder):
        return
    _FAILED_FETCHES[attempt] = time.monotonic()
    if missing := cache.missing_files(folder):
        problems.append(f"is not whole in the hub's cache, which lacks {join_names(missing)}")
    if mismatched := cache.mismatched_model_files(folder):
        problems.append(f"has {join_names(mismatched)} in another size than the hub lists")
    if not missing and (offline or messages) and not cache.has_listing(folder):
        problems.append("is in the hub's cache without a list of what belongs to it")
    messages += [f"{name} {problem}: its answers may differ{cache.fetch_advice(folder)}" for problem in problems]
    for message in messages:
        log.warning("%s", message)


def _can_open(folder: Path) -> bool:
    """Whether what is there can be opened at all; if not, every attempt fetches again."""
    return form_of_folder(folder).kind == "adapter" or not lacks_weights(folder)


def _token(hub_options: HubOptions) -> str | bool | None:
    try:
        return hub_options.resolve_token()
    except InputError:  # reported once the hub is contacted
        return None


_FAILED_FETCHES: dict[tuple[Path, str | bool | None], float] = {}
"""When fetching last left a snapshot incomplete, by its folder and the token; True in its place means offline."""

_RETRY_AFTER = 60.0
"""Seconds after which a failed fetch is tried, and reported, again."""


def _gguf_in(folder: Path) -> Path | None:
    """The GGUF file that is the folder's whole model. Raises InputError where several could be."""
    form = form_of_folder(folder)
    if form.kind == "gguf" and form.gguf_file is None:
        choices = f"{join_names(form.gguf_files, 3)}: give the path of one, such as {folder / form.gguf_files[0]}"
        raise InputError(f"{folder} holds {choices}")
    return folder / form.gguf_file if form.gguf_file else None


def _verify_package(package: installed.Packaged, folder: Path) -> None:
    """Refuses a package whose weights do not have the known digest."""
    if package.digest is None:
        return
    weights = folder / package.weights
    if not weights.is_file():
        raise NotFoundError(f"{weights} is missing: reinstall the package {package.distribution}")
    found = digest_of(weights)
    if found != package.digest:
        raise UnsafeFileError(
            f"the package {package.distribution} holds other weights than {package.name} (sha256 {found[:12]}…, "
            f"expected {package.digest[:12]}…): reinstall it, or give its folder {folder} as the name if you trust it"
        )
