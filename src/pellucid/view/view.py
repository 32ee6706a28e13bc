"""The thing that a person holds: a page that is made when it is wanted."""

import functools
import html
import os
from collections.abc import Iterable
from pathlib import Path

from pellucid.errors import InputError
from pellucid.files import write_whole
from pellucid.trace import Trace
from pellucid.view.data import Data, data_of
from pellucid.view.page import render


class View:
    """A page of one trace. `save` writes it; in a notebook it shows itself."""

    def __init__(
        self, trace: Trace, *, layer: int = 0, heads: Iterable[int] | None = None, precision: str = "auto"
    ) -> None:
        count = trace.config.num_attention_heads
        chosen = list(range(count)) if heads is None else list(heads)
        for head in chosen:
            if not 0 <= head < count:
                raise InputError(f"head {head} is not there: this model has heads 0 to {count - 1}")
        if not 0 <= layer < trace.config.num_hidden_layers:
            raise InputError(
                f"layer {layer} is not there: this model has layers 0 to {trace.config.num_hidden_layers - 1}"
            )
        self.trace, self.layer, self.heads, self.precision = trace, layer, chosen, precision

    @functools.cached_property
    def data(self) -> Data:
        """What the page holds: a manifest and blocks of numbers."""
        return data_of(self.trace, self.layer, self.heads, self.precision)

    def html(self) -> str:
        """The whole page as text; it needs nothing else and asks nobody for anything."""
        return render(self.data.manifest, self.data.blocks)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Writes the page: beside its place first, then moved there."""
        page = self.html().encode("utf-8")
        return write_whole(Path(path).expanduser(), lambda file: file.write(page))

    def __repr__(self) -> str:
        return f"View({' | '.join(self.trace.texts)!r}, layer {self.layer}); save('page.html') writes the page"

    def _repr_html_(self) -> str:
        frame = 'sandbox="allow-scripts" style="width:100%;height:640px;border:0"'
        return f'<iframe srcdoc="{html.escape(self.html())}" {frame}></iframe>'
