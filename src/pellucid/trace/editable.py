"""The methods of `Model` that edit its passes."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from torch import Tensor

from pellucid.checkpoints.generation import check_settings, plain_settings
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

    if not TYPE_CHECKING:  # a type checker should see only the real attributes

        def __getattr__(self, name: str) -> Any:
            """Raises AttributeError; for a name that another library uses, the message names the equivalent here."""
            try:
                return object.__getattribute__(self, name)  # raises the original error, also that of a property
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
        """The same model, sharing all weights, with another tokenizer. An edit of either model applies to both."""
        if tokenizer is not None:
            check_tokenizer(tokenizer)
        return type(self)(replace(self._loaded, tokenizer=tokenizer))

    def saying(self, config: Config, generation: dict[str, Any]) -> Self:
        """The same model, sharing all weights, with other facts: the names of its labels and tokens, and its generation
        settings. An edit of either model applies to both."""
        if not isinstance(generation, Mapping):
            found = shorten(repr(generation))
            raise InputError(f"generation is {found}, expected a dictionary, as generation_config.json holds it")
        settings = check_settings(plain_settings(generation))
        return type(self)(replace(self._loaded, config=check_config(config), generation=settings))

    def edit(self, edits: EditsByName) -> AbstractContextManager[Self]:
        """Edits every pass of this model in this thread inside a `with` block.

        edits: what to do at which points, `{"layers.3.attention.weights": zero(head=5)}`: an edit of `pellucid.edits`,
            a function Tensor -> Tensor of the same shape and dtype, a tensor, or several of these, made in their order.
            Names are those of `trace`, including `*` and aliases: under TransformerLens names, functions and tensors
            have its axes, heads after positions ("blocks.0.attn.hook_z" is [batch, seq, heads, head_dim],
            "layers.0.attention.heads" [batch, heads, seq, head_dim]), and its hooks, `hook(value, hook)`, are accepted.
        ->  the edited model, which stays edited after the block and may be used in other threads too.

        Blocks nest: inner edits are made after outer ones. A block that ends does so everywhere: an `asyncio` task
        started inside it continues without its edits. All passes are edited: calls, `trace` and `trace_writing` (whose
        `edits` list them), `embed`, `score`, and every pass of `generate`. Edited passes run on the plain blocks
        instead of the faster packed ones, so these three differ from unedited ones by rounding too, in half precision
        even by a word: compare with an edit that changes nothing, `scale(1)`. Editing `scores` or `weights` makes the
        attention of that layer explicit. An edit that changes no number changes no bit of a call, except where
        gradients are recorded (as in a plain call outside `torch.no_grad()`): there it stays part of the graph, and an
        edited layer in half precision rounds differently.

        Raises InputError: at once for a name or head that does not exist, also where `*` matches a TransformerLens name
        without a point; during the pass for a value whose shape or dtype does not fit (in an 8- or 4-bit model float32
        and bfloat16 are interchangeable) and for a `row` where texts are reordered; and at the end of the block, unless
        the block itself raised, for an edit that never fired.

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
        """Makes one edit at each layer and head, or at each layer and position, and measures each result.

        text: what the model reads.
        metric: a function from the pass's `Output` (of one text) to a number; or two words of one token each, for the
            logit of the first minus that of the second as the next token after the text.
        edit: makes an edit at a given index, `edit(head=5)` or `edit(position=3)`; by default `zero`, or `patch` with a
            source, in which case it must be left out.
        over: "layers x heads" or "layers x positions".
        options: point ("attention.heads" or "residual.pre" by default; in an encoder-decoder with its side, as
            "decoder.cross_attention.heads"), source (a `Trace` to patch in), target (the decoder's text in an
            encoder-decoder), pair (a second text), progress (a bar on stderr; by default for long work at a terminal).
        ->  the metric of each edit, Float[Tensor, "layers heads"] or Float[Tensor, "layers positions"], in float32, or
            in float64 of a model in float64

        Many copies of the text are read in one batch. An 8- or 4-bit model may then round its logits to bfloat16, in
        steps of up to 1/128 of their size, which hides smaller effects: use a float32 model to see those.

        >>> clean = model.trace("The capital of France is")                    # doctest: +SKIP
        >>> model.sweep("The capital of Germany is", (" Paris", " Berlin"), over="layers x positions", source=clean)
        """
        return sweep(self.loaded, text, metric, edit, over, **options)
