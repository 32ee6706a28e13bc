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
from pellucid.checkpoints.cache import cached_names, downloads, pulls
from pellucid.checkpoints.downloaded import difference, forget, one_at_a_time, set_aside, sweep
from pellucid.checkpoints.hub_answers import PATIENCE, Answers, StrangeAnswerError, check_told
from pellucid.checkpoints.installed import find, packaged
from pellucid.checkpoints.location import Where, client
from pellucid.checkpoints.model_files import ABOUT, WEIGHTS, any_of, form_of, wanted_of
from pellucid.errors import Argument, Blank, NotFoundError, PellucidError, ResourceError, near, several
from pellucid.files import FULL

_ID = re.compile(r"(?=.{1,96}$)[A-Za-z0-9]([\w.-]*\w)?(/[A-Za-z0-9]([\w.-]*\w)?)?(?<!\.git)")
_TOKEN = Argument("token", Blank("TOKEN"))
_UNREADABLE = (JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError)
"""What the hub's client raises over an answer that is not the hub's."""


class UnreachableError(NotFoundError):
    """Nobody answers where the hub should be, or what answers cannot.  reason: that alone."""

    reason = ""


def is_hub_id(text: str) -> bool:
    """Whether this can be a name on the hub, as the hub has it: one word or two of 96 letters in all, neither `--` nor
    `..` in them, no sign at their ends, and no `.git`."""
    return bool(_ID.fullmatch(text)) and "--" not in text and ".." not in text


def download(name: str, where: Where, *, whole: bool = False, there: Path | None = None) -> Path:
    """Fetches what is wanted of one commit of a repository, and not yet in the cache: all of it, or an error. What the
    revision stands for is the caller's to say (`cache.stands_for`).

    whole: refuse one without weights, of which a tokenizer alone may be wanted.  there: what the cache holds of it.
    """
    hub = client()
    where.token_sent()  # what is none is refused by its sentence, not by the client's
    with _asking(name, where.revision or "main"):
        answers = Answers()
        api = hub.HfApi(token=where.token, headers=answers.headers)
        about = answers.of(lambda: api.model_info(name, revision=where.revision, timeout=PATIENCE, files_metadata=True))
        check_told(about)
    every = {file.rfilename: file for file in about.siblings or []}
    files = list(every)
    form = form_of(files)
    other = _as_gguf(name, form.models, where)
    if form.kind in ("gguf", None) and form.model is None:
        why = f"has no config.json, so it is not a checkpoint pellucid can open{other}"
        raise NotFoundError(f"{name!r} on the hub {why}")
    if whole and form.kind == "checkpoint" and not any_of(files, WEIGHTS):
        why = "holds no weights: expected model.safetensors, its shards, or pytorch_model.bin"
        raise NotFoundError(f"{name!r} on the hub {why}{other or _renamed(files)}")
    about_it = (file for file in files if file in ABOUT)
    wanted = {*about_it, *([form.model] if form.model else wanted_of(files, there))}
    repository = cache.repository_of(name, where)
    folder = repository / "snapshots" / about.sha
    with _asking(name, about.sha, described=True):
        cache.drop_damaged_list(folder)
        wanted.update(cache.wrong(folder, {file: one.size for file, one in every.items()}))
        listed = {file: every[file] for file in wanted}
        lacking = _lacking(folder, listed)
        if lacking or not cache.is_known(folder):
            passed_over = () if lacking else (OSError,)  # the list alone is missing, and need not be written
            absent = [every[file] for file in lacking]
            with suppress(*passed_over), one_at_a_time(name, repository, about.sha, absent):
                _bring(name, replace(where, revision=about.sha), folder, listed)
        sweep(repository)
    return folder


def _lacking(folder: Path, listed: Mapping[str, Any]) -> list[str]:
    """The files that a snapshot has not, or has in another size than the hub lists."""
    absent = [file for file in sorted(listed) if not (folder / file).exists()]
    return absent + cache.unlike(folder, {file: one.size for file, one in listed.items()})


def _bring(name: str, commit: Where, folder: Path, listed: Mapping[str, Any]) -> None:
    """Fetches what a snapshot lacks, and what it has in another size than the hub lists. What came is read once, while
    it is still in memory; what is not what the hub lists is taken away, and UnreachableError says so. What was there
    before goes once the other has come.

    listed: what the hub's client says of each file that is wanted.
    """
    new = _lacking(folder, listed)
    with set_aside(folder, {file: listed[file] for file in new}):
        _fetch(name, commit, {file: listed[file].size for file in sorted(listed)})
        if lacking := [file for file in _lacking(folder, listed) if file not in new or not (folder / file).exists()]:
            raise _not_fetched(name, f"the hub did not give {several(lacking, 3)}")
        cache.open_list(folder)
        told = {file: why for file in new if (why := difference(folder / file, listed[file]))}
        for file in told:
            forget(folder / file)
        if told:
            odd = (f"{file} came with {why}, and was taken away" for file, why in list(told.items())[:3])
            raise _not_fetched(name, "; ".join(odd))


def _as_gguf(name: str, found: Sequence[str], where: Where) -> str:
    """What to do with the GGUF files that a repository does hold."""
    if not found:
        return ""
    fetch = downloads(name, found[0], where)
    return f"; it holds {several(found, 3)}: fetch one by `{fetch}`, and give its path"


def _renamed(files: Iterable[str]) -> str:
    """What to do with weights by other names."""
    found = sorted(file for file in files if file.endswith(".safetensors"))
    return (
        f"; it holds {several(found, 3)}, which are read by those names alone: fetch and rename them" if found else ""
    )


class _StoppedError(Exception):
    """Nobody waits any more for what is being fetched."""


def _fetch(name: str, commit: Where, sizes: Mapping[str, int | None]) -> None:
    """Files of a commit, by the sizes that are listed, into its snapshot, in a thread of its own: in the main one
    Ctrl-C would wait for the hub's threads, which do not hear of it, until all is fetched. They end with the next bytes
    that come, for the client's connections are closed, all of this process, as it does itself when one fails; with the
    first answer, where they ask again after that; or once the client gives up waiting for either, ten seconds later.
    """
    hub, done, stopped = client(), Future[None](), threading.Event()

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
        answers = Answers(commit.revision, sizes)
        try:
            answers.of(
                lambda: hub.snapshot_download(
                    name,
                    revision=commit.revision,
                    token=commit.token,
                    cache_dir=commit.cache_dir,
                    allow_patterns=[glob.escape(file) for file in sizes],
                    tqdm_class=Bar,
                    headers=answers.headers,
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


def nowhere(name: str, why: str, where: Where) -> str:
    """The sentence for a name that leads to no files, with the command that would bring them."""
    package = find(name)
    hint, advice = ("", package.install) if package else (near_names(name), pulls(name, where))
    run = "otherwise run" if hint else "run"
    at = f" at revision {where.revision}" if where.revision else ""
    return f"{name!r}{hint} is no folder, no installed package and not in the hub's cache{at}, {why}; {run}: {advice}"


def near_names(name: str) -> str:
    """` (did you mean a, b?)` of what is packaged and of what lies in the cache; nothing where no name is near."""
    return near(name, _others(name))


def _others(name: str) -> Iterator[str]:
    """Names of what is packaged and of what lies in the cache, where a download of `name` may have been broken off."""
    for package in packaged():
        yield from (package.short, package.name, *package.aliases)
    yield from (other for other in cached_names().values() if other != name)


@contextmanager
def _asking(name: str, revision: str, *, described: bool = False) -> Iterator[None]:
    """Turns what goes wrong on the way into one sentence.

    described: the hub knows the name, since it has said what goes by it.
    """
    errors = client().errors
    try:
        yield
    except PellucidError:
        raise
    except errors.GatedRepoError as error:
        advice = "accept its terms on the hub, then set HF_TOKEN or pass "
        raise NotFoundError(f"{name!r} is gated: {advice}", _TOKEN) from error
    except errors.RepositoryNotFoundError as error:
        raise _refused(name) if described else _unknown(name) from error
    except errors.RevisionNotFoundError as error:
        raise NotFoundError(f"{name!r} has no revision {revision!r} on the hub") from error
    except Exception as error:  # the disk, the network, and whatever else the hub's HTTP client may raise
        offline = isinstance(error, errors.LocalEntryNotFoundError)  # for which it takes any refusal
        raise _in_words(error.__cause__ if offline and error.__cause__ else error, name, described) from error


def _in_words(error: BaseException, name: str, described: bool) -> PellucidError:
    if isinstance(error, OSError) and error.errno in FULL:
        return ResourceError(f"{FULL[error.errno]} while fetching {name!r} into the hub's cache")
    if isinstance(error, OSError) and error.filename is not None:
        return NotFoundError(f"the hub's cache cannot be read or written: {error}")
    if isinstance(error, StrangeAnswerError):
        return _not_fetched(name, str(error), *error.advice)
    response: Any = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    if status == 401 and not described and "Invalid credentials" not in str(error):  # so it answers strangers
        return _unknown(name)
    if status in (401, 403):
        return _refused(name)
    if isinstance(error, client().errors.LocalTokenNotFoundError):
        return NotFoundError("token=True is the one that `hf auth login` stores, and there is none")
    if isinstance(error, (*_UNREADABLE, client().errors.FileMetadataError)):
        return _not_fetched(name, "what answers is not the hub")
    if status is not None:  # of what was asked for the path alone, since a link that was signed is a secret
        return _not_fetched(name, f"the hub answered {status} to {response.url.path[:200]}", "try again later")
    return _not_fetched(name, f"the hub could not be reached ({_short(error)})")


def _refused(name: str) -> NotFoundError:
    return NotFoundError(f"the hub refused {name!r}: check HF_TOKEN, or pass ", _TOKEN)


def _not_fetched(name: str, reason: str, advice: str = "try again with network") -> UnreachableError:
    if package := find(name):
        advice = f"otherwise run: {package.install}"
    error = UnreachableError(f"{name!r} was not fetched: {reason}; {advice}")
    error.reason = reason
    return error


def _unknown(name: str) -> NotFoundError:
    package = find(name)
    hint, advice = ("", f"; run: {package.install}") if package else (near_names(name), "")
    check = "check the name (owner/model), or set HF_TOKEN if it is private"
    return NotFoundError(f"the hub does not know {name!r}{hint}: {check}{advice}")


def _short(error: BaseException) -> str:
    first = (str(error).strip().splitlines() or [type(error).__name__])[0][:120]
    return re.sub("Bearer .*", "Bearer …", first)
