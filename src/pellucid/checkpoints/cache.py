"""The hub's cache: what lies there of a repository, whether that is all of it, and what brings the rest."""

import shlex
from pathlib import Path

from pellucid.checkpoints.hub import (
    SMALL,
    Cache,
    any_of,
    client,
    is_adapter_repository,
    name_of,
    wanted_of,
)
from pellucid.errors import InputError

_ODD = (ValueError, TypeError, AttributeError, KeyError)
"""What the hub's client raises where its own notes are damaged; bytes that are no text are ValueErrors."""


def cached(name: str, revision: str | None, cache_dir: Cache = None) -> Path | None:
    """What the hub's cache holds of a repository, whole or not: a folder with a config, an adapter or a GGUF file; None
    where there is no such thing."""
    hub = client()
    try:
        found = Path(hub.snapshot_download(name, revision=revision, local_files_only=True, allow_patterns=[],
                                           cache_dir=cache_dir))  # fmt: skip
        names = [path.name for path in found.iterdir() if path.exists()]
    except hub.errors.LocalEntryNotFoundError:
        return None
    except (OSError, *_ODD) as error:  # a folder in place of a file, one that is closed, bytes for text
        place = Path(cache_dir or hub.constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
        raise InputError(f"{name!r} cannot be read in the hub's cache ({error}): mend or delete {place}") from error
    return found if "config.json" in names or any_of(names, ("*.gguf",)) or is_adapter_repository(names) else None


def is_whole(folder: Path) -> bool:
    """Whether a snapshot holds all that is wanted of its repository. Other tools fetch less, and some leave no list of
    what there is: then that is not known, and this is False; but a GGUF file is all that there is to it."""
    if not (folder / "config.json").exists() and any(folder.glob("*.gguf")):
        return True
    listed = _listed(folder)
    return listed is not None and all((folder / file).exists() for file in wanted_of(listed, folder))


def lost(folder: Path) -> list[str]:
    """The files of a repository that change what its model makes and are not in its snapshot; not the weights, which
    whoever needs them asks for."""
    listed = [file for file in _listed(folder) or () if any_of([file], SMALL)]
    return [file for file in listed if not (folder / file).exists()]


def is_known(folder: Path) -> bool:
    """Whether somebody noted what there is beside what a snapshot holds."""
    return _listed(folder) is not None


def _listed(folder: Path) -> list[str] | None:
    """The files of a repository, as the hub's client noted them when it fetched a snapshot; None where it did not."""
    if not _is_snapshot(folder):
        return None
    hub, repository = client(), folder.parent.parent
    try:
        tree = hub.get_cached_repo_tree(name_of(repository), revision=folder.name, cache_dir=repository.parent)
    except (hub.errors.CachedRepoTreeNotFoundError, *_ODD):
        return None
    return [file.path for file in tree]


def brings(folder: Path, patterns: tuple[str, ...]) -> str:
    """What brings the files that a snapshot lacks, as the end of a sentence; nothing for a folder of another kind, and
    where its repository has no such file."""
    folder = folder.absolute()
    listed, repository = _listed(folder), folder.parent.parent
    if not _is_snapshot(folder) or (listed is not None and not any_of(listed, patterns)):
        return ""
    main, cache, own = repository / "refs" / "main", repository.parent, client().constants.HF_HUB_CACHE
    place = "" if cache.resolve() == Path(own).resolve() else f"HF_HUB_CACHE={shlex.quote(str(cache))} "
    other = "" if main.exists() and main.read_text() == folder.name else f" and revision {folder.name}"
    return f"; run: {place}pellucid pull {name_of(repository)}, with network{other}"


def _is_snapshot(folder: Path) -> bool:
    return folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--")
