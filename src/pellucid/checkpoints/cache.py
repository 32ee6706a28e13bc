"""The hub's cache: what it holds of a repository, whether that is complete, and which command fetches the rest."""

import logging
import os
import shlex
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from pellucid.checkpoints.location import HubOptions, hub_client
from pellucid.checkpoints.model_files import FILES_WITHOUT_WEIGHTS, any_matches, form_of, form_of_folder, required_files
from pellucid.errors import InputError, NotFoundError, PellucidError
from pellucid.files import write_atomically

log = logging.getLogger("pellucid")

_ODD = (ValueError, TypeError, AttributeError, KeyError)
"""What the hub's client raises where its own records are damaged; a UnicodeDecodeError is a ValueError."""


# -- what is cached ----------------------------------------------------------------------------------------------------


def cached_names() -> dict[Path, str]:
    """The repository folders of the hub's cache, and their hub names."""
    return {
        folder: _repository_name(folder)
        for folder in sorted(Path(hub_client().constants.HF_HUB_CACHE).glob("models--*"))
    }


def _repository_name(repository: Path) -> str:
    """The hub name of a repository folder in the cache."""
    return repository.name.removeprefix("models--").replace("--", "/")


def _repository_of_snapshot(folder: Path) -> Path:
    """The repository folder of a snapshot."""
    return folder.parent.parent


def repository_folder(name: str, hub_options: HubOptions) -> Path:
    """The repository folder of a hub name, existing or not. Raises InputError where the cache folder is impossible."""
    cache_dir = Path(hub_options.cache_dir or hub_client().constants.HF_HUB_CACHE)
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            cache_dir.stat()
    except OSError as error:  # such as a circular link
        raise InputError(f"{cache_dir} cannot be a cache of the hub: {error}; set HF_HUB_CACHE to a folder") from error
    return cache_dir.resolve() / f"models--{name.replace('/', '--')}"


def cached_snapshot(name: str, hub_options: HubOptions) -> Path | None:
    """The cached snapshot of a repository, complete or not, that holds a config, an adapter or a GGUF file; else
    None."""
    hub = hub_client()
    try:
        options: dict[str, Any] = {"revision": hub_options.revision, "cache_dir": hub_options.cache_dir}
        found = Path(hub.snapshot_download(name, **options, local_files_only=True, allow_patterns=[]))
        kind = form_of_folder(found).kind
    except hub.errors.LocalEntryNotFoundError:
        return None
    except (OSError, RuntimeError, *_ODD) as error:  # a folder in place of a file, unreadable or damaged records
        repository = repository_folder(name, hub_options)
        if (
            hub_options.revision is not None and (repository / "refs" / hub_options.revision).is_dir()
        ):  # other refs begin with its name
            return None
        raise InputError(
            f"{name!r} cannot be read in the hub's cache ({error}): repair or delete {repository}"
        ) from error
    return found if kind else None


def check_no_repository(folder: Path) -> None:
    """Raises NotFoundError for a folder of the hub's cache that contains snapshots, with what to give instead."""
    for repository in (folder, folder.parent):
        snapshots = repository / "snapshots"
        if repository.name.startswith("models--") and folder in (repository, snapshots) and snapshots.is_dir():
            name = _repository_name(repository)
            raise NotFoundError(
                f"{folder} is not a checkpoint: the hub's cache keeps those of {name} in folders of {snapshots}; "
                "give the "
                "name, or one of these folders"
            )


def is_complete(folder: Path) -> bool:
    """Whether a snapshot holds all required files of its repository in their sizes. Other tools fetch less, and some
    leave no listing: then this is unknown and False. A single GGUF file is complete by itself."""
    listed = _read_listing(folder)
    if listed is not None and mismatched_model_files(folder, listed):
        return False
    if form_of_folder(folder).kind == "gguf":
        return True
    return listed is not None and all((folder / file).exists() for file in required_files(listed, folder))


def mismatched_model_files(folder: Path, listed: Mapping[str, int | None] | None = None) -> list[str]:
    """The model's files in a snapshot whose size differs from the hub's listing.

    listed: the hub's files and their sizes; None for the listing stored beside the snapshot.
    """
    sizes: Mapping[str, int | None] = (_read_listing(folder) or {}) if listed is None else listed
    present = [file for file in sizes if (folder / file).exists()]
    model = form_of(present).gguf_file
    model_files = dict.fromkeys([*required_files(present), *([model] if model else ())])
    return mismatched_files(folder, {file: sizes[file] for file in model_files})


def mismatched_files(folder: Path, listed: Mapping[str, int | None]) -> list[str]:
    """The files of a snapshot whose size differs from the listed one."""
    sizes = {file: size for file, size in listed.items() if size is not None and (folder / file).exists()}
    return [file for file, size in sizes.items() if (folder / file).stat().st_size != size]


def missing_files(folder: Path) -> list[str]:
    """The files that affect the model's output and are listed but missing in its snapshot; not the weights, which are
    checked where they are needed."""
    return [
        file
        for file in _read_listing(folder) or ()
        if any_matches([file], FILES_WITHOUT_WEIGHTS) and not (folder / file).exists()
    ]


def has_listing(folder: Path) -> bool:
    """Whether the cache has a listing of all files of a snapshot's commit."""
    return _read_listing(folder) is not None


def _read_listing(folder: Path) -> dict[str, int] | None:
    """A repository's files and sizes in bytes, as stored by the hub's client when it fetched a snapshot, else None."""
    if not _is_snapshot(folder):
        return None
    hub, repository = hub_client(), _repository_of_snapshot(folder)
    try:
        if not _listing_path(folder).is_file():
            return None
        tree = hub.get_cached_repo_tree(_repository_name(repository), revision=folder.name, cache_dir=repository.parent)
    except (OSError, hub.errors.CachedRepoTreeNotFoundError, *_ODD):
        return None
    return {file.path: file.size for file in tree}


# -- how the rest is fetched -------------------------------------------------------------------------------------------


def pull_command(name: str, hub_options: HubOptions) -> str:
    """The command that fetches a repository into the hub's own cache, or into another one."""
    command = (
        f"pellucid pull --revision {hub_options.revision} {name}" if hub_options.revision else f"pellucid pull {name}"
    )
    return f"{_cache_variable(hub_options)}{command}, with network"


def download_command(name: str, file: str, hub_options: HubOptions) -> str:
    """The command of the hub's own client that fetches one file."""
    arguments = f"{name} {shlex.quote(file)}"
    command = (
        f"hf download --revision {hub_options.revision} {arguments}"
        if hub_options.revision
        else f"hf download {arguments}"
    )
    return f"{_cache_variable(hub_options)}{command}"


def _cache_variable(hub_options: HubOptions) -> str:
    """The variable before a fetch command that selects another cache than the hub's own."""
    default_cache, cache_dir = Path(hub_client().constants.HF_HUB_CACHE).resolve(), hub_options.cache_dir
    if cache_dir is None or Path(cache_dir).resolve() == default_cache:
        return ""
    return f"HF_HUB_CACHE={shlex.quote(os.fspath(cache_dir))} "


def fetch_advice(folder: Path, patterns: tuple[str, ...] = ("*",)) -> str:
    """How to fetch the files that a snapshot lacks, as the end of a sentence; empty for a folder of another kind, and
    where its repository has no such file."""
    folder = folder.absolute()
    listed, repository = _read_listing(folder), _repository_of_snapshot(folder)
    if not _is_snapshot(folder) or (listed is not None and not any_matches(listed, patterns)):
        return ""
    hub_options = HubOptions(None if _ref_points_to(folder, "main") else folder.name, cache_dir=repository.parent)
    return f"; run: {pull_command(_repository_name(repository), hub_options)}"


def update_ref(revision: str, folder: Path, requested_at: int, *, first: bool = False) -> None:
    """Points a branch or tag at a snapshot, in the hub client's format. Called only once the snapshot is complete:
    until then the ref keeps its previous commit. Failures are only logged.

    requested_at: when the hub was asked for the commit, in nanoseconds, which becomes the ref's time. The ref stays
        where another process has asked later and finished earlier.
    first: only where the ref does not exist yet.
    """
    repository = _repository_of_snapshot(folder)
    name, ref = _repository_name(repository), repository / "refs" / revision
    if revision == folder.name or _ref_points_to(folder, revision) or (first and ref.exists()):
        return
    if _requested_later(ref, requested_at):
        message = "another process has asked the hub more recently for %s of %s: it is not set to %s"
        log.warning(message, revision, name, folder.name)
        return

    def note(file: IO[bytes]) -> None:
        file.write(folder.name.encode())
        file.flush()
        os.utime(file.name, ns=(requested_at, requested_at))

    try:
        ref.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(ref, note)
    except (OSError, PellucidError) as error:
        log.warning("%s of %s cannot be noted in the hub's cache: %s", revision, name, error)


def _ref_points_to(folder: Path, revision: str) -> bool:
    """Whether a branch or a tag points to a snapshot."""
    try:
        return (_repository_of_snapshot(folder) / "refs" / revision).read_bytes() == folder.name.encode()
    except OSError:  # absent or unreadable
        return False


def _requested_later(ref: Path, requested_at: int) -> bool:
    """Whether a ref was written after a later request to the hub; times in the future are ignored as clock errors."""
    try:
        return requested_at < ref.stat().st_mtime_ns <= time.time_ns()
    except OSError:  # never written
        return False


def drop_damaged_listing(folder: Path) -> None:
    """Deletes an unreadable listing of a snapshot, so that the hub's client fetches it again."""
    if not has_listing(folder):
        _listing_path(folder).unlink(missing_ok=True)


def _listing_path(folder: Path) -> Path:
    return _repository_of_snapshot(folder) / "trees" / f"{folder.name}.json"


def share_listing(folder: Path) -> None:
    """Copies the permissions of the snapshot to its listing, which the hub's client makes private: other users of the
    cache could not tell whether the snapshot is complete."""
    snapshot_file = next((path for path in folder.iterdir() if path.is_file()), None)
    with suppress(OSError):
        if snapshot_file is not None:
            shutil.copymode(snapshot_file, _listing_path(folder))


def _is_snapshot(folder: Path) -> bool:
    is_commit, is_repository = folder.name.isalnum(), _repository_of_snapshot(folder).name.startswith("models--")
    return is_commit and is_repository and folder.parent.name == "snapshots"
