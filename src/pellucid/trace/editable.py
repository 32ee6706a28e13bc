"""The part of the facade that changes what is seen: `Model` has these methods."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Config
from pellucid.errors import InputError, shorten
from pellucid.text import Tokenizer
from pellucid.text.special_token_ids import check_config, check_tokenizer
from pellucid.trace.edit import EditsByName, editing, placed_edits, with_active_edits
from pellucid.trace.sweep import Metric, sweep


class Editable:
    """A model whose passes can be edited."""

    _loaded: Loaded

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded

    if not TYPE_CHECKING:  # a checker of types knows the names that are there

        def __getattr__(self, name: str) -> Any:
            """AttributeError for what is not there; of a name that others have for it, with what does it here."""
            try:
                return object.__getattribute__(self, name)  # its own error, also that of a property
            except AttributeError as error:
                if name.startswith("_") or hasattr(type(self), name):
                    raise
                from pellucid.models.other_libraries import EQUIVALENTS

                if name not in EQUIVALENTS:
                    raise
                message = f"a pellucid.Model has no {name!r}: {EQUIVALENTS[name]}"
                raise AttributeError(message, name=error.name, obj=error.obj) from None

    @property
    def loaded(self) -> Loaded:
        """The record that every room works on; inside a block of `edit`, that of the edited model."""
        return with_active_edits(self._loaded)

    def reading(self, tokenizer: Tokenizer | None) -> Self:
        """The same model, every number shared, with another tokenizer. What edits one of the two edits both."""
        if tokenizer is not None:
            check_tokenizer(tokenizer)
        return type(self)(replace(self._loaded, tokenizer=tokenizer))

    def saying(self, config: Config, generation: dict[str, Any]) -> Self:
        """The same model, every number shared, with other facts beside them: what its labels and tokens are called, how
        it writes. What edits one of the two edits both."""
        if not isinstance(generation, Mapping):
            found = shorten(repr(generation))
            raise InputError(f"generation is {found}, expected a dictionary, as generation_config.json holds it")
        return type(self)(replace(self._loaded, config=check_config(config), generation=dict(generation)))

    def edit(self, edits: EditsByName) -> AbstractContextManager[Self]:
        """Inside the block every pass of this model, in this thread, goes on with edited numbers.

        edits: what to do at which point, `{"layers.3.attention.weights": zero(head=5)}`: an edit of `pellucid.edits`, a
            function Tensor -> Tensor of the same shape and dtype, a tensor, or several of these in their order. Names
            as for `trace`, `*` and those of other libraries included: under TransformerLens's, functions and tensors
            have its axes, heads behind positions ("blocks.0.attn.hook_z" is [batch, seq, heads, head_dim], and
            "layers.0.attention.heads" [batch, heads, seq, head_dim]), and its hooks, `hook(value, hook)`, are taken.
        ->  the edited model, which stays edited and which other threads may use, too.

        Blocks nest: the inner edits come behind the outer ones. A block that ends, ends for all: a task of `asyncio`
        that began within it goes on without its edits. All passes are edited: calls, `trace` and
        `trace_writing` (whose `edits` say so), `embed`, `score`, and each of `generate`. They run on the plain blocks,
        and not on those laid out for speed, by which `embed`, `score` and `generate` round otherwise where nothing is
        edited, in half precision at times by a word: compare with an edit that does nothing, `scale(1)`. Editing
        `scores` or `weights` makes that layer explicit. An edit that changes no number changes no bit of a call, but
        where gradients are recorded, as in a plain call of the model outside `torch.no_grad()`: there it stays on the
        way of the gradients, and an edited layer of half precision rounds otherwise.

        Raises InputError at once for a name or head that is not there, also where `*` stands for a name of
        TransformerLens that is no point here; in the pass for a value whose shape or dtype does not fit (in a model of
        8 or 4 bits float32 and bfloat16 fit one another) and for a `row` where texts are read in another order; and,
        where the block itself raised nothing, at its end for an edit that never fired.

        >>> with model.edit({"layers.*.attention.heads": zero(head=5)}):       # doctest: +SKIP
        ...     model.generate("The sky is")
        """
        placed_edits(self._loaded.config, edits)
        return self._edit_block(edits)

    @contextmanager
    def _edit_block(self, edits: EditsByName) -> Iterator[Self]:
        with editing(self._loaded, edits) as loaded:
            yield type(self)(loaded)

    def sweep(
        self,
        text: str,
        metric: Metric,
        edit: Callable[..., Any] | None = None,
        over: str = "layers x heads",
        **options: Any,
    ) -> Tensor:
        """Tries one edit everywhere, at each layer and head or each layer and position, and measures each time.

        text: what the model reads.
        metric: a function of the pass's `Output` (of one text) to a number; or two words of one token each, for the
            logit of the first less that of the second in the place behind the text.
        edit: makes the edit from where it goes, `edit(head=5)` or `edit(position=3)`; `zero` by default, or `patch`
            where a source is given, beside which it is left out.
        over: "layers x heads" or "layers x positions".
        options: point ("attention.heads" and "residual.pre" by default; in an encoder-decoder with its side before it:
            "decoder.cross_attention.heads"), source (a `Trace` to patch in), target (what a decoder beside an encoder
            reads), pair (a second text), progress (a bar on stderr; by default on long work at a terminal).
        ->  the metric of each, Float[Tensor, "layers heads"] or Float[Tensor, "layers positions"], in float32, or
            in float64 of a model in float64

        Many copies of the text are read at once, for which a model of 8 or 4 bits may round its logits to bfloat16, in
        steps of up to 1/128 of their size: smaller effects are lost, and show in a model of float32.

        >>> clean = model.trace("The capital of France is")                    # doctest: +SKIP
        >>> model.sweep("The capital of Germany is", (" Paris", " Berlin"), over="layers x positions", source=clean)
        """
        return sweep(self.loaded, text, metric, edit, over, **options)
