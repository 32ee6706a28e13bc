"""The contents of a page: a manifest and blocks of numbers, within the requested precision and size."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pellucid.config.checks import check_choice
from pellucid.errors import Argument, InputError
from pellucid.view.extras import store_extras
from pellucid.view.manifest import attention_entry, manifest_of
from pellucid.view.page import base64_length, data_size
from pellucid.view.store import MAX_MEASURED_CELLS, BlockStore
from pellucid.view.subject import Subject

PRECISIONS = ("auto", "float32", "int16", "compact")

VIEWS = ("heads", "matrix", "grid", "neuron", "lens", "tensor", "diff")
"""The views of a page, as named in web/app.js."""

MAX_FLOAT32_BYTES = 5_000_000
"""Up to this size queries and keys are stored as float32, above it as int16."""

MAX_THUMBNAIL_CELLS = 120_000_000
"""Number of all weights of the page above which heads whose weights were not kept get no thumbnail."""


@dataclass(frozen=True)
class PageData:
    """manifest: plain JSON values.  blocks: little-endian, row-major numbers, by the names in `manifest["blocks"]`.

    notes: what was done to keep the page small, in sentences.
    """

    manifest: dict[str, Any]
    blocks: dict[str, bytes]
    notes: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        """The size of the data inside a page, in bytes."""
        return data_size(self.manifest, self.blocks)


def build_data(
    subject: Subject, other: Subject | None, show: dict[str, Any], precision: str, max_bytes: int | None
) -> PageData:
    """All the data that a page needs.

    other: a second subject, to show differences.  show: see `initial_view`.
    precision: one of PRECISIONS.  max_bytes: the most bytes of data; None for no limit.
    """
    exact = precision
    if precision == "auto":
        numbers = sum(one.cells if one.recipe is None else one.recipe.number_count for one in subject.attentions)
        exact = "float32" if 4 * numbers <= MAX_FLOAT32_BYTES else "int16"
    data = _data_at_precision(subject, other, show, exact)
    if max_bytes is not None and data.size > max_bytes and precision == "auto" and exact == "float32":
        less = f"numbers are stored as int16, since float32 would take {data.size / 1e6:.1f} MB"
        data = _data_at_precision(subject, other, show, "int16")
        data.notes.append(less)
    if max_bytes is not None and data.size > max_bytes:
        _drop_layers(data, max_bytes, precision, show["name"])
    return data


def _data_at_precision(subject: Subject, other: Subject | None, show: dict[str, Any], precision: str) -> PageData:
    """All the data at one precision, whatever its size."""
    store = BlockStore(precision)
    parts = _store_subject(subject, store)
    second = None
    if other is not None:
        other_store = BlockStore(store.precision, "other/", store.blocks, store.facts)
        second = {
            "label": _run_label(other, subject),
            "beside": _run_label(subject, other),
            "texts": other.texts,
            "sequences": other.sequences,
            **_store_subject(other, other_store),
        }
    return PageData(manifest_of(subject, parts, store.facts, show, second), store.blocks)


def _run_label(one: Subject, other: Subject) -> str:
    """What distinguishes a run from the one beside it: its edits or its text, or its model where the models differ."""
    if one.model == other.model:
        return one.label
    plain = [" | ".join(texts) for texts in (one.texts, one.texts[:-1])]  # not repeating a decoder's own text
    edits = "" if one.label in plain else f"; {one.label}"
    return f"{one.model['name']} ({one.model['family']}){edits}"


def _store_subject(subject: Subject, store: BlockStore) -> dict[str, Any]:
    cells = sum(attention.cells for attention in subject.attentions)
    side = 24 if store.precision == "compact" else 32 if cells > 4_000_000 else 64
    entries = []
    for attention in subject.attentions:
        entry = attention_entry(
            attention, store.add_attention(attention, int(MAX_MEASURED_CELLS * attention.cells / max(cells, 1)))
        )
        has_thumbnail = attention.weights is not None or attention.sample is not None or cells <= MAX_THUMBNAIL_CELLS
        entry |= store.add_thumbnail(attention, side) if has_thumbnail else {"thumb": None}
        entries.append(entry)
    return {"attentions": entries, **store_extras(subject, store)}


def initial_view(
    subject: Subject, view: str, layer: int, heads: Sequence[int] | None, theme: str | None, name: str | None
) -> dict[str, Any]:
    """The state in which a page opens; a layer is given by its index in the model.

    theme: "light" or "dark"; None for the preference of the reader's browser.  name: of layers with several attentions,
        the path of the one to show; None for the first.
    """
    check_choice("show", view, VIEWS)
    if theme is not None:
        check_choice("theme", theme, ("light", "dark"))
    found = [
        attention for attention in subject.attentions if attention.layer == layer and name in (None, attention.name)
    ]
    if not found:
        layers = sorted({attention.layer for attention in subject.attentions})
        is_contiguous = layers == list(range(layers[0], layers[-1] + 1))
        known = f"{layers[0]} to {layers[-1]}" if is_contiguous else str(layers)[1:-1]
        raise InputError(Argument("layer"), f" {layer} does not exist: this page has layers {known}")
    count = found[0].heads
    heads = list(range(count)) if heads is None else list(dict.fromkeys(heads))
    if not heads:
        raise InputError("no head was selected: heads takes their numbers, such as ", Argument("heads", [8]))
    for head in heads:
        if not 0 <= head < count:
            raise InputError(Argument("head"), f" {head!r} does not exist: this model has heads 0 to {count - 1}")
    chosen_theme = {} if theme is None else {"theme": theme}
    return {"view": view, "layer": layer, "name": found[0].name, "heads": heads, **chosen_theme}


def _drop_layers(data: PageData, max_bytes: int, precision: str, shown: str) -> None:
    """Drops whole layers, of both traces, until the page fits; keeps all thumbnails and the layer shown first."""
    manifest = data.manifest
    entries = [*manifest["attentions"], *(manifest["other"] or {}).get("attentions", [])]
    names = list(dict.fromkeys(entry["name"] for entry in entries))
    order = sorted((name for name in names if name != shown), key=lambda name: _reversed_bits(names.index(name)))
    dropped = set()
    while data.size > max_bytes and order:
        dropped.add(name := order.pop())
        for entry in entries:
            if entry["name"] == name:
                _drop_numbers(data, entry)
        manifest["left_out"] = [name for name in names if name in dropped]
    if data.size > max_bytes:
        tensors = {tensor["block"] for tensor in manifest["tensors"]}
        of_tensors = base64_length(data.blocks[name] for name in tensors) / 1e6
        of_which = f", {of_tensors:.2f} MB of it for tensors" if tensors else ""
        exact = any(manifest["blocks"][entry["weights"]]["dtype"] == "float32" for entry in entries if entry["weights"])
        raise InputError(
            f"budget_mb leaves {max_bytes / 1e6:.2f} MB for numbers, but a single layer takes "
            f"{data.size / 1e6:.2f} MB{of_which}: raise it",
            *([] if precision == "compact" or exact else [", or pass ", Argument("precision", "compact")]),
            *([", or keep fewer tensors"] if tensors else []),
        )
    pictures = ", except for their pictures" if any(entry["thumb"] for entry in entries) else ""
    data.notes.append(f"left out to keep the page small{pictures}: {', '.join(manifest['left_out'])}")


def _reversed_bits(number: int) -> int:
    """The bits of an index in reverse order, by which consecutive choices lie far apart."""
    return int(f"{number:012b}"[::-1], 2)


def _drop_numbers(data: PageData, entry: dict[str, Any]) -> None:
    for part in ("query", "key", "weights"):
        block, entry[part] = entry[part], None
        if block is not None:
            del data.blocks[block], data.manifest["blocks"][block]
