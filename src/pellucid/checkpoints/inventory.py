"""Which checkpoints are available without the network."""

from dataclasses import dataclass
from pathlib import Path

from pellucid.checkpoints import installed
from pellucid.checkpoints.adapter_facts import read_adapter_facts, weights_file_name
from pellucid.checkpoints.cache import cached_names, mismatched_model_files, missing_files
from pellucid.checkpoints.converted import is_available
from pellucid.checkpoints.families import families
from pellucid.checkpoints.links import path_inside, refuse_links_of_folder
from pellucid.checkpoints.location import HubOptions
from pellucid.checkpoints.model_files import form_of_folder, missing_weights
from pellucid.checkpoints.source import find_local
from pellucid.errors import NotFoundError, PellucidError, UnsafeFileError, join_names, shorten
from pellucid.files import read_json


@dataclass(frozen=True)
class Entry:
    """One checkpoint.

    kind: "package" or "hub".  state: "ready", "not installed", or why pellucid cannot open it.
    """

    name: str
    kind: str
    state: str
    bytes: int
    licence: str
    notice: str
    folder: Path | None


def inventory() -> list[Entry]:
    """Every packaged checkpoint, and everything in the hub's cache."""
    return [*(_package_entry(p) for p in installed.packaged_checkpoints()), *_cached_entries()]


def _package_entry(package: installed.Packaged) -> Entry:
    folder = package.path()
    if folder is None:
        state = "not installed"
    elif not (package.needs_conversion and (folder / package.weights).is_file()):
        state = _state(folder)
    else:
        lacks = "needs a cache that you can write, and nobody else: PELLUCID_CACHE names one"
        state = "ready" if is_available(package) else lacks
    notice = package.notice if folder else f"install it with: {package.install_command}"
    return Entry(package.name, "package", state, _size(folder), package.licence, notice, folder)


def _cached_entries() -> list[Entry]:
    entries = []
    for repository, name in cached_names().items():
        for snapshot in sorted((repository / "snapshots").glob("*")):
            try:
                entry = Entry(name, "hub", _state(snapshot), _size(snapshot), _licence(snapshot), "", snapshot)
            except OSError as error:
                entry = Entry(name, "hub", f"cannot be read: {error.strerror}", 0, "", "", snapshot)
            entries.append(entry)
    return entries


def _state(folder: Path) -> str:
    try:
        refuse_links_of_folder(folder)
    except UnsafeFileError:
        return "holds links that lead outside of it"
    if mismatched := mismatched_model_files(folder):
        return f"incomplete: another size than on the hub: {join_names(mismatched)}"
    form = form_of_folder(folder)
    if form.kind == "gguf":
        return "ready" if form.gguf_file else "holds several .gguf files: open one by its path"
    if form.adapter:
        state = _state_of_adapter(folder, is_own_base=form.kind == "checkpoint")
        if form.kind != "checkpoint" or state != "ready":
            return state
    try:
        kind = read_json(folder / "config.json").get("model_type")
    except (OSError, PellucidError):
        return "incomplete: no readable config.json"
    try:
        if missing := missing_weights(folder) or join_names(missing_files(folder)):
            return f"incomplete: no {missing}"
    except PellucidError:
        return "incomplete: no readable index of the weights"
    return (
        "ready" if isinstance(kind, str) and kind in families() else f"family {shorten(ascii(kind))} is not known yet"
    )


def _state_of_adapter(folder: Path, *, is_own_base: bool) -> str:
    """The state of an adapter, which also depends on its base, unless its folder holds that, too."""
    try:
        facts = read_adapter_facts(folder)
        weights_file_name(folder)
    except NotFoundError:
        return "incomplete: no weights"
    except PellucidError:
        return "incomplete: no readable adapter_config.json"
    if is_own_base:
        return "ready"
    needs = f"needs its base {facts.base}"
    try:
        base = find_local(facts.base, HubOptions(facts.revision))
    except (PellucidError, OSError):  # an unreadable folder
        return needs
    if base is None:
        return needs
    adapted = base.file is None and form_of_folder(base.folder).adapter
    if adapted or (base.kind == "hub" and _state(base.folder) != "ready"):
        return needs
    return "ready"


def _size(folder: Path | None) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) if folder else 0


def _licence(folder: Path) -> str:
    """The licence in the model card's first lines, or "unknown"; the card is data and never trusted."""
    try:
        with path_inside(folder, "README.md").open(encoding="utf-8", errors="replace") as card:
            lines = [card.readline(1_000) for _ in range(60)]
    except (OSError, UnsafeFileError):
        return "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("license:")), "unknown")
