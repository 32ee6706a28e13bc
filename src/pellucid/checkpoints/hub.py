"""The hub: which files are fetched, and what goes wrong on the way as one sentence."""

import glob
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from json import JSONDecodeError
from pathlib import Path
from typing import Any

from pellucid.checkpoints import cache
from pellucid.checkpoints.cache import cached_names, download_command, pull_command
from pellucid.checkpoints.downloaded import (
    commit_lock,
    listing_mismatch,
    remove_from_snapshot,
    remove_stale_downloads,
    set_aside,
)
from pellucid.checkpoints.hub_answers import PATIENCE, AnswerGuard, StrangeAnswerError, check_model_info
from pellucid.checkpoints.installed import find_package, packaged_checkpoints
from pellucid.checkpoints.location import HubOptions, hub_client
from pellucid.checkpoints.model_files import ABOUT, WEIGHTS, any_matches, form_of, required_files
from pellucid.errors import Argument, NotFoundError, PellucidError, Placeholder, ResourceError, did_you_mean, join_names
from pellucid.files import FULL

_ID = re.compile(r"(?=.{1,96}$)[A-Za-z0-9]([\w.-]*\w)?(/[A-Za-z0-9]([\w.-]*\w)?)?(?<!\.git)")
_TOKEN = Argument("token", Placeholder("TOKEN"))
_UNREADABLE = (JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError)
"""What the hub's client raises over an answer that is not the hub's."""


class UnreachableError(NotFoundError):
    """Nobody answers where the hub should be, or what answers cannot.  reason: that alone."""

    reason = ""


def is_hub_id(text: str) -> bool:
    """Whether this can be a name on the hub, as the hub has it: one word or two of 96 letters in all, neither `--` nor
    `..` in them, no sign at their ends, and no `.git`."""
    return bool(_ID.fullmatch(text)) and "--" not in text and ".." not in text


def download(
    name: str, hub_options: HubOptions, *, require_weights: bool = False, snapshot: Path | None = None
) -> Path:
    """Fetches what is wanted of one commit of a repository, and not yet in the cache: all of it, or an error. What the
    revision stands for is the caller's to say (`cache.update_ref`).

    require_weights: refuse one without weights, of which a tokenizer alone may be wanted.
    snapshot: what the cache holds of it.
    """
    hub = hub_client()
    hub_options.resolve_token()  # what is none is refused by its sentence, not by the client's
    with _hub_errors(name, hub_options.revision or "main"):
        guard = AnswerGuard()
        api = hub.HfApi(token=hub_options.token, headers=guard.headers)
        model_info = guard.run(
            lambda: api.model_info(name, revision=hub_options.revision, timeout=PATIENCE, files_metadata=True)
        )
        check_model_info(model_info)
    hub_files = {file.rfilename: file for file in model_info.siblings or []}
    files = list(hub_files)
    form = form_of(files)
    gguf_advice = _gguf_advice(name, form.gguf_files, hub_options)
    if form.kind in ("gguf", None) and form.gguf_file is None:
        why = f"has no config.json, so it is not a checkpoint pellucid can open{gguf_advice}"
        raise NotFoundError(f"{name!r} on the hub {why}")
    if require_weights and form.kind == "checkpoint" and not any_matches(files, WEIGHTS):
        why = "holds no weights: expected model.safetensors, its shards, or pytorch_model.bin"
        raise NotFoundError(f"{name!r} on the hub {why}{gguf_advice or _rename_advice(files)}")
    card_files = (file for file in files if file in ABOUT)
    required = {*card_files, *([form.gguf_file] if form.gguf_file else required_files(files, snapshot))}
    repository = cache.repository_folder(name, hub_options)
    folder = repository / "snapshots" / model_info.sha
    with _hub_errors(name, model_info.sha, name_known=True):
        cache.drop_damaged_listing(folder)
        required.update(cache.mismatched_model_files(folder, {file: one.size for file, one in hub_files.items()}))
        listed = {file: hub_files[file] for file in required}
        missing = _missing_or_mismatched(folder, listed)
        if missing or not cache.has_listing(folder):
            suppressed = () if missing else (OSError,)  # the list alone is missing, and need not be written
            missing_files = [hub_files[file] for file in missing]
            with suppress(*suppressed), commit_lock(name, repository, model_info.sha, missing_files):
                _fetch_missing(name, replace(hub_options, revision=model_info.sha), folder, listed)
        remove_stale_downloads(repository)
    return folder


def _missing_or_mismatched(folder: Path, listed: Mapping[str, Any]) -> list[str]:
    """The files that a snapshot has not, or has in another size than the hub lists."""
    missing = [file for file in sorted(listed) if not (folder / file).exists()]
    return missing + cache.mismatched_files(folder, {file: one.size for file, one in listed.items()})


def _fetch_missing(name: str, commit: HubOptions, folder: Path, listed: Mapping[str, Any]) -> None:
    """Fetches what a snapshot lacks, and what it has in another size than the hub lists. What came is read once, while
    it is still in memory; what is not what the hub lists is taken away, and UnreachableError says so. What was there
    before goes once the other has come.

    listed: what the hub's client says of each file that is wanted.
    """
    to_fetch = _missing_or_mismatched(folder, listed)
    with set_aside(folder, {file: listed[file] for file in to_fetch}):
        _fetch(name, commit, {file: listed[file].size for file in sorted(listed)})
        if missing := [
            file
            for file in _missing_or_mismatched(folder, listed)
            if file not in to_fetch or not (folder / file).exists()
        ]:
            raise _unreachable_error(name, f"the hub did not give {join_names(missing, 3)}")
        cache.share_listing(folder)
        mismatches = {file: why for file in to_fetch if (why := listing_mismatch(folder / file, listed[file]))}
        for file in mismatches:
            remove_from_snapshot(folder / file)
        if mismatches:
            problems = (f"{file} came with {why}, and was removed" for file, why in list(mismatches.items())[:3])
            raise _unreachable_error(name, "; ".join(problems))


def _gguf_advice(name: str, found: Sequence[str], hub_options: HubOptions) -> str:
    """What to do with the GGUF files that a repository does hold."""
    if not found:
        return ""
    fetch = download_command(name, found[0], hub_options)
    return f"; it holds {join_names(found, 3)}: fetch one by `{fetch}`, and give its path"


def _rename_advice(files: Iterable[str]) -> str:
    """What to do with weights by other names."""
    found = sorted(file for file in files if file.endswith(".safetensors"))
    return (
        f"; it holds {join_names(found, 3)}, which are read by those names alone: fetch and rename them"
        if found
        else ""
    )


class _StoppedError(Exception):
    """Nobody waits any more for what is being fetched."""


def _fetch(name: str, commit: HubOptions, sizes: Mapping[str, int | None]) -> None:
    """Files of a commit, by the sizes that are listed, into its snapshot, in a thread of its own: in the main one
    Ctrl-C would wait for the hub's threads, which do not hear of it, until all is fetched. They end with the next bytes
    that come, for the client's connections are closed, all of this process, as it does itself when one fails; with the
    first answer, where they ask again after that; or once the client gives up waiting for either, ten seconds later.
    """
    hub, done, stopped = hub_client(), Future[None](), threading.Event()

    class Bar(hub.utils.tqdm):
        def refresh(self, nolock: bool = False, lock_args: Any = None) -> bool | None:  # at a file's first answer
            if stopped.is_set() and not nolock:  # which tqdm's own thread asks with, long afterwards
                raise _StoppedError
            return super().refresh(nolock, lock_args)

        def update(self, n: float | None = 1) -> bool | None:  # at every ten million bytes of it
            if stopped.is_set():
                raise _StoppedError
            return super().update(n)

    def run() -> None:
        guard = AnswerGuard(commit.revision, sizes)
        try:
            guard.run(
                lambda: hub.snapshot_download(
                    name,
                    revision=commit.revision,
                    token=commit.token,
                    cache_dir=commit.cache_dir,
                    allow_patterns=[glob.escape(file) for file in sizes],
                    tqdm_class=Bar,
                    headers=guard.headers,
                )
            )
            done.set_result(None)
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            done.set_exception(error)

    threading.Thread(target=run, name="pellucid-fetch", daemon=True).start()
    try:
        while not done.done():  # a second at a time, as a Ctrl-C that another thread is told of wakes nobody
            wait([done], 1)
        done.result()
    finally:
        if not done.done():  # Ctrl-C
            stopped.set()
            hub.close_session()


def not_found_message(name: str, why: str, hub_options: HubOptions) -> str:
    """The sentence for a name that leads to no files, with the command that would bring them."""
    package = find_package(name)
    hint, advice = ("", package.install_command) if package else (near_names(name), pull_command(name, hub_options))
    run = "otherwise run" if hint else "run"
    at = f" at revision {hub_options.revision}" if hub_options.revision else ""
    return f"{name!r}{hint} is no folder, no installed package and not in the hub's cache{at}, {why}; {run}: {advice}"


def near_names(name: str) -> str:
    """` (did you mean a, b?)` of what is packaged and of what lies in the cache; nothing where no name is near."""
    return did_you_mean(name, _known_names(name))


def _known_names(name: str) -> Iterator[str]:
    """Names of what is packaged and of what lies in the cache, where a download of `name` may have been broken off."""
    for package in packaged_checkpoints():
        yield from (package.short_name, package.name, *package.aliases)
    yield from (other for other in cached_names().values() if other != name)


@contextmanager
def _hub_errors(name: str, revision: str, *, name_known: bool = False) -> Iterator[None]:
    """Turns what goes wrong on the way into one sentence.

    name_known: the hub knows the name, since it has said what goes by it.
    """
    errors = hub_client().errors
    try:
        yield
    except PellucidError:
        raise
    except errors.GatedRepoError as error:
        advice = "accept its terms on the hub, then set HF_TOKEN or pass "
        raise NotFoundError(f"{name!r} is gated: {advice}", _TOKEN) from error
    except errors.RepositoryNotFoundError as error:
        raise _refused_error(name) if name_known else _unknown_error(name) from error
    except errors.RevisionNotFoundError as error:
        raise NotFoundError(f"{name!r} has no revision {revision!r} on the hub") from error
    except Exception as error:  # the disk, the network, and whatever else the hub's HTTP client may raise
        offline = isinstance(error, errors.LocalEntryNotFoundError)  # for which it takes any refusal
        raise _translate_error(error.__cause__ if offline and error.__cause__ else error, name, name_known) from error


def _translate_error(error: BaseException, name: str, name_known: bool) -> PellucidError:
    if isinstance(error, OSError) and error.errno in FULL:
        return ResourceError(f"{FULL[error.errno]} while fetching {name!r} into the hub's cache")
    if isinstance(error, OSError) and error.filename is not None:
        return NotFoundError(f"the hub's cache cannot be read or written: {error}")
    if isinstance(error, StrangeAnswerError):
        return _unreachable_error(name, str(error), *error.advice)
    response: Any = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status == 401 and not name_known and "Invalid credentials" not in str(error):  # so it answers strangers
        return _unknown_error(name)
    if status in (401, 403):
        return _refused_error(name)
    if isinstance(error, hub_client().errors.LocalTokenNotFoundError):
        return NotFoundError("token=True is the token that `hf auth login` stores, and none is stored")
    if isinstance(error, (*_UNREADABLE, hub_client().errors.FileMetadataError)):
        return _unreachable_error(name, "the server that answers is not the hub")
    if status is not None:  # of what was asked for the path alone, since a link that was signed is a secret
        return _unreachable_error(name, f"the hub answered {status} to {response.url.path[:200]}", "try again later")
    return _unreachable_error(name, f"the hub could not be reached ({_first_line(error)})")


def _refused_error(name: str) -> NotFoundError:
    return NotFoundError(f"the hub refused {name!r}: check HF_TOKEN, or pass ", _TOKEN)


def _unreachable_error(name: str, reason: str, advice: str = "try again with network") -> UnreachableError:
    if package := find_package(name):
        advice = f"otherwise run: {package.install_command}"
    error = UnreachableError(f"{name!r} was not fetched: {reason}; {advice}")
    error.reason = reason
    return error


def _unknown_error(name: str) -> NotFoundError:
    package = find_package(name)
    hint, advice = ("", f"; run: {package.install_command}") if package else (near_names(name), "")
    check = "check the name (owner/model), or set HF_TOKEN if it is private"
    return NotFoundError(f"the hub does not know {name!r}{hint}: {check}{advice}")


def _first_line(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
    return re.sub("Bearer .*", "Bearer …", first)
