"""Downloads from the hub: which files are fetched, with every failure as one sentence."""

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
from pellucid.checkpoints.hub_answers import TIMEOUT, AnswerGuard, StrangeAnswerError, check_model_info
from pellucid.checkpoints.installed import find_package, packaged_checkpoints
from pellucid.checkpoints.location import HubOptions, hub_client
from pellucid.checkpoints.model_files import DESCRIPTION_FILES, WEIGHTS, any_matches, form_of, required_files
from pellucid.errors import Argument, NotFoundError, PellucidError, Placeholder, ResourceError, did_you_mean, join_names
from pellucid.files import FULL

_ID = re.compile(r"(?=.{1,96}$)[A-Za-z0-9]([\w.-]*\w)?(/[A-Za-z0-9]([\w.-]*\w)?)?(?<!\.git)")
_TOKEN = Argument("token", Placeholder("TOKEN"))
_UNREADABLE = (JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError)
"""What the hub's client raises on an answer that is not from a hub."""


class UnreachableError(NotFoundError):
    """The hub cannot be reached, or gives unusable answers.  reason: the cause alone, for other sentences."""

    reason = ""


def is_hub_id(text: str) -> bool:
    """Whether this can be a hub id, by the hub's rules: one or two parts of 96 characters in all, without `--` or `..`,
    punctuation at their ends, or a final `.git`."""
    return bool(_ID.fullmatch(text)) and "--" not in text and ".." not in text


def download(
    name: str, hub_options: HubOptions, *, require_weights: bool = False, snapshot: Path | None = None
) -> Path:
    """Fetches the required files of one commit that the cache lacks: all of them, or an error. The caller moves the
    branch or tag (`cache.update_ref`).

    require_weights: refuse a repository without weights, of which otherwise the tokenizer may be wanted.
    snapshot: the cached copy so far.
    """
    hub = hub_client()
    hub_options.resolve_token()  # an invalid token gives our error, not the client's
    with _hub_errors(name, hub_options.revision or "main"):
        guard = AnswerGuard()
        api = hub.HfApi(token=hub_options.token, headers=guard.headers)
        model_info = guard.run(
            lambda: api.model_info(name, revision=hub_options.revision, timeout=TIMEOUT, files_metadata=True)
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
    card_files = (file for file in files if file in DESCRIPTION_FILES)
    required = {*card_files, *([form.gguf_file] if form.gguf_file else required_files(files, snapshot))}
    repository = cache.repository_folder(name, hub_options)
    folder = repository / "snapshots" / model_info.sha
    with _hub_errors(name, model_info.sha, name_known=True):
        cache.drop_damaged_listing(folder)
        required.update(cache.mismatched_model_files(folder, {file: one.size for file, one in hub_files.items()}))
        listed = {file: hub_files[file] for file in required}
        missing = _missing_or_mismatched(folder, listed)
        if missing or not cache.has_listing(folder):
            suppressed = () if missing else (OSError,)  # only the listing is missing, which is optional
            missing_files = [hub_files[file] for file in missing]
            with suppress(*suppressed), commit_lock(name, repository, model_info.sha, missing_files):
                _fetch_missing(name, replace(hub_options, revision=model_info.sha), folder, listed)
        remove_stale_downloads(repository)
    return folder


def _missing_or_mismatched(folder: Path, listed: Mapping[str, Any]) -> list[str]:
    """The files that a snapshot lacks, or has in another size than the hub lists."""
    missing = [file for file in sorted(listed) if not (folder / file).exists()]
    return missing + cache.mismatched_files(folder, {file: one.size for file, one in listed.items()})


def _fetch_missing(name: str, commit: HubOptions, folder: Path, listed: Mapping[str, Any]) -> None:
    """Fetches the files that a snapshot lacks, or has in another size than the hub lists. New files are verified once,
    while still in the page cache; those that differ from the listing are removed and raise UnreachableError. Files that
    are replaced are deleted only after their replacement has come.

    listed: the hub client's record of each required file.
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
    """Advice for a repository that holds GGUF files."""
    if not found:
        return ""
    fetch = download_command(name, found[0], hub_options)
    return f"; it holds {join_names(found, 3)}: fetch one by `{fetch}`, and give its path"


def _rename_advice(files: Iterable[str]) -> str:
    """Advice for weights under other names."""
    found = sorted(file for file in files if file.endswith(".safetensors"))
    if not found:
        return ""
    return f"; it holds {join_names(found, 3)}, which are read by those names alone: fetch and rename them"


class _StoppedError(Exception):
    """Raised in the download thread once nobody waits for it any more."""


def _fetch(name: str, commit: HubOptions, sizes: Mapping[str, int | None]) -> None:
    """Fetches files of a commit, with their listed sizes, into its snapshot. Runs in a thread, since in the main one
    Ctrl-C would wait for the hub client's threads until all is fetched. On Ctrl-C the client's connections, all of this
    process, are closed, as the client does on an error. Its threads then end with the next bytes, with the first answer
    where they retry, or when the client times out ten seconds later.
    """
    hub, done, stopped = hub_client(), Future[None](), threading.Event()

    class Bar(hub.utils.tqdm):
        def refresh(self, nolock: bool = False, lock_args: Any = None) -> bool | None:  # at a file's first answer
            if stopped.is_set() and not nolock:  # tqdm's own thread calls with nolock, long afterwards
                raise _StoppedError
            return super().refresh(nolock, lock_args)

        def update(self, n: float | None = 1) -> bool | None:  # every ten million bytes of a file
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
        while not done.done():  # in steps of a second: Ctrl-C delivered to another thread interrupts no wait
            wait([done], 1)
        done.result()
    finally:
        if not done.done():  # Ctrl-C
            stopped.set()
            hub.close_session()


def not_found_message(name: str, why: str, hub_options: HubOptions) -> str:
    """The error for a name that resolves to nothing, with the command that would fetch it."""
    package = find_package(name)
    hint, advice = ("", package.install_command) if package else (near_names(name), pull_command(name, hub_options))
    run = "otherwise run" if hint else "run"
    at = f" at revision {hub_options.revision}" if hub_options.revision else ""
    return f"{name!r}{hint} is no folder, no installed package and not in the hub's cache{at}, {why}; {run}: {advice}"


def near_names(name: str) -> str:
    """` (did you mean a, b?)` with similar names of packaged and cached checkpoints; empty where there are none."""
    return did_you_mean(name, _known_names(name))


def _known_names(name: str) -> Iterator[str]:
    """Names of packaged and cached checkpoints, without `name`, of which a broken-off download may be in the cache."""
    for package in packaged_checkpoints():
        yield from (package.short_name, package.name, *package.aliases)
    yield from (other for other in cached_names().values() if other != name)


@contextmanager
def _hub_errors(name: str, revision: str, *, name_known: bool = False) -> Iterator[None]:
    """Turns errors of a download into one sentence each.

    name_known: whether the repository is known to exist, since the hub has described it.
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
    except Exception as error:  # the disk, the network, and whatever the hub's HTTP client may raise
        offline = isinstance(error, errors.LocalEntryNotFoundError)  # which the client raises for any refusal
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
    if status == 401 and not name_known and "Invalid credentials" not in str(error):  # as for unknown names
        return _unknown_error(name)
    if status in (401, 403):
        return _refused_error(name)
    if isinstance(error, hub_client().errors.LocalTokenNotFoundError):
        return NotFoundError("token=True is the token that `hf auth login` stores, and none is stored")
    if isinstance(error, (*_UNREADABLE, hub_client().errors.FileMetadataError)):
        return _unreachable_error(name, "the server that answers is not the hub")
    if status is not None:  # only the path, since a signed URL is a secret
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
