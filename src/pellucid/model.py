"""The facade: a `Model`, each of whose methods calls the room that does the work."""

import html
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, overload

import torch
from torch import Tensor, nn

from pellucid import generation as writing
from pellucid.checkpoints.families import family_of
from pellucid.checkpoints.fill import move_network
from pellucid.checkpoints.load import OWN_HEAD, open_checkpoint
from pellucid.checkpoints.loaded import Loaded
from pellucid.checkpoints.location import HubOptions
from pellucid.checkpoints.save import save_checkpoint
from pellucid.config import Config, Head
from pellucid.config.checks import check_count
from pellucid.generation.answers import Completion, Messages, Piece, Score
from pellucid.machine import choose_device, choose_dtype
from pellucid.models import Network, Output, freeze, untrained_network
from pellucid.streams import use_threads
from pellucid.tasks.describe import summary
from pellucid.tasks.embed import embed
from pellucid.tasks.forward import forward
from pellucid.text import Tokenizer
from pellucid.text.special_token_ids import check_config, with_tokenizer_ids
from pellucid.trace import Points, Trace, points, record
from pellucid.trace import explain as explaining
from pellucid.trace.editable import Editable


def load(
    name: str | os.PathLike[str],
    *,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    head: str | Head | None = OWN_HEAD,
    attention: str = "fused",
    revision: str | None = None,
    token: str | bool | None = None,
    local_files_only: bool = False,
) -> "Model":
    """Opens a trained checkpoint.

    name: a folder, a GGUF file, a hub id such as "sentence-transformers/all-MiniLM-L6-v2", or the short name of an
        installed package ("all-MiniLM-L6-v2"). Files in the hub's cache are used without a network request.
    device: "cpu", "cuda", "mps", or "auto" for the fastest one available.
    dtype: None is float32; "auto" the fastest that is safe here; "checkpoint" that of most of its weights; or a name.
        "int8" and "int4" quantize weight matrices to 8 or 4 bits (token embeddings to 8, or 6 with `fast`), to run.
    head: "own" is the head that the checkpoint was saved with, None the body alone, or a name such as
        "sequence-classification"; a head that the file does not hold gets random weights, with a warning.
    attention: "fused" (one kernel) or "explicit" (scores, softmax and weighted sum, each in plain code).

    Raises NotFoundError, CheckpointMismatchError, CorruptFileError, ResourceError, UnsafeFileError (code in a file).
    """
    options = HubOptions(revision, token, local_files_only)
    return Model(open_checkpoint(name, device=device, dtype=dtype, head=head, attention=attention, hub_options=options))


def build(
    config: Config,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    dtype: str | torch.dtype | None = None,
    attention: str = "fused",
    tokenizer: Tokenizer | None = None,
) -> "Model":
    """An untrained model with random weights of `seed`: normal, with standard deviation `initializer_range`, as the
    reference initializes most families (some matrices of GPT-2 and T5 narrower). The ids that pad, begin and end a text
    are the `tokenizer`'s; `build(config).reading(tokenizer)` keeps `config`'s. Raises ResourceError and InputError.

    >>> build(Config.of("bert", num_hidden_layers=2))        # doctest: +SKIP
    Model(UNTRAINED: bert, 2 layers, ...)
    """
    use_threads()
    family = family_of(check_config(config).family, "config")
    config = with_tokenizer_ids(config, tokenizer, family.keys.fixed)
    seed = check_count("seed", seed, maximum=2**63 - 1, minimum=0)
    at = choose_device(device)
    module = untrained_network(config, seed, at, choose_dtype(dtype, torch.float32, at), attention)
    return Model(Loaded(module, config, family, untrained=("all",))).reading(tokenizer)


class Model(Editable):
    """A Transformer with its configuration and tokenizer. Made by `pellucid.load` and `pellucid.build`."""

    # -- run ----------------------------------------------------------------------------------------------------------

    def __call__(
        self,
        input_ids: Tensor | str | Sequence[str] | Sequence[Sequence[int]],
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        decoder_input_ids: Tensor | None = None,
    ) -> Output:
        """One forward pass. It follows the caller's `torch.autocast`, which affects nothing else here.

        input_ids: Int[Tensor, "batch seq"], or one text, or several texts (padded together). Without a mask every
            position counts as real.
        decoder_input_ids: Int[Tensor, "batch seq"], the decoder's input; by default `input_ids` behind its start token.
        ->  an `Output` with `last_hidden_state` Float[Tensor, "batch seq hidden"], and `pooler_output`
            Float[Tensor, "batch hidden"] and `logits` where the model has them; of an encoder-decoder the decoder's
            `last_hidden_state`, and `encoder_last_hidden_state`.
        """
        return forward(self.loaded, input_ids, attention_mask, token_type_ids, decoder_input_ids)

    def embed(
        self,
        texts: str | Iterable[str],
        *,
        pooling: str | None = None,
        normalize: bool | None = None,
        dtype: str | torch.dtype | None = None,
        max_length: int | None = None,
        progress: bool | None = None,
    ) -> Tensor:
        """One vector per text, on the CPU in float32, without gradient or dropout; `[SEP]` in a text is plain text.

        texts: several texts give Float[Tensor, "texts hidden"] in their order, one string Float[Tensor, "hidden"].
        pooling: "mean", "cls", "max", "mean_sqrt_len", "weightedmean" or "lasttoken"; by default the checkpoint's, or
            the mean over all real tokens where it sets none.
        normalize: scale to length 1; by default as the checkpoint sets it.
        dtype: compute in this dtype; "bfloat16", or "auto" for the fastest that is safe, is for speed.
        max_length: longer texts are truncated to so many tokens, with a warning; by default the checkpoint's limit.
        progress: show a bar; by default for long work at a terminal.
        """
        kwargs: dict[str, Any] = {"pooling": pooling, "normalize": normalize, "dtype": dtype, "max_length": max_length}
        return embed(self.loaded, texts, progress=progress, **kwargs)

    # -- generate -----------------------------------------------------------------------------------------------------

    @overload
    def generate(self, prompt: str, *, progress: bool | None = None, **options: Any) -> str: ...
    @overload
    def generate(self, prompt: Sequence[str], *, progress: bool | None = None, **options: Any) -> list[str]: ...
    def generate(self, prompt: str | Sequence[str], *, progress: bool | None = None, **options: Any) -> str | list[str]:
        """What the model generates after a prompt, without special tokens: text for one string, a list for several.

        prompt: taken as it is; of an encoder-decoder, the encoder's input. For conversations see `chat`.
        progress: show a bar; by default for long work at a terminal.
        options: `max_new_tokens` (256), `stop`, `do_sample`, `temperature`, `top_k`, `top_p`, `seed`, `num_beams`, and
            all others of `pellucid.generation.Settings` and its rules; by default the checkpoint's, not `max_length`.
        """
        return writing.texts.generate(self.loaded, prompt, progress=progress, **options)

    def chat(self, messages: str | Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The next reply in a conversation, `[{"role": "user", "content": "..."}, ...]`; a string is one message.
        Special tokens within a message are plain text.  options: those of `generate`."""
        return writing.texts.chat(self.loaded, messages, **options)

    def complete(self, prompt: str | Messages, *, alternatives: int = 0, **options: Any) -> Completion:
        """One completion of a raw prompt or a conversation, with its tokens, their probabilities and why it ends.

        alternatives: likely tokens to list for each token.  options: of `generate`, and `num_return_sequences`.
        """
        return writing.texts.complete(self.loaded, prompt, alternatives=alternatives, **options)

    def stream(self, prompt: str | Messages, *, alternatives: int = 0, **options: Any) -> Iterator[Piece]:
        """The same in pieces, one as soon as its token is chosen; joined, their texts are the completion. No beams."""
        return writing.stream.stream(self.loaded, prompt, alternatives=alternatives, **options)

    @overload
    def score(self, text: str, target: str | None = None) -> Score: ...
    @overload
    def score(self, text: Sequence[str], target: Sequence[str] | None = None) -> list[Score]: ...
    def score(self, text: str | Sequence[str], target: str | Sequence[str] | None = None) -> Score | list[Score]:
        """How likely a text is, token by token; several give a list.  target: the decoder's text, if there is one."""
        return writing.score.score(self.loaded, text, target)

    # -- inspect ------------------------------------------------------------------------------------------------------

    def points(self) -> Points:
        """Every point of this model by name, with the names of its axes; displayed as a table with their sizes."""
        return points(self.config)

    def trace(
        self,
        text: str | Sequence[str],
        pair: str | Sequence[str] | None = None,
        *,
        target: str | Sequence[str] | None = None,
        after: str | Sequence[str] | None = None,
        keep: str | Iterable[str] = "all",
        max_length: int | None = None,
        padding: str = "right",
        gradients_of: Callable[[Output], Tensor] | None = None,
    ) -> Trace:
        """One pass over a text, a pair of texts, or several of them, with the intermediate tensors kept by name.

        target: what the decoder reads behind its start token; by default the text itself, in the same vocabulary.
        after: a text that a decoder has already read and holds in its cache; attention then has more columns than rows.
        keep: "all", "view" (what a page needs), a name, or several names; `*` matches anything:
            "layers.*.attention.weights". Names of the reference are accepted as well, and TransformerLens's, which
            select its axes: `hook_z` is [batch, seq, heads, head_dim], ours has heads before seq.
        gradients_of: a scalar of the pass, such as `lambda output: output.logits[0, -1, 42]`; `trace.gradients` then
            holds its gradient with respect to every kept point.
        max_length: longer texts are truncated; by default to the model's limit.  padding: "right"; "left" for decoders.

        Recording changes no bit of the results. An unknown name is an error that lists similar ones.

        >>> model.trace("time flies")["layers.0.attention.weights"].shape      # doctest: +SKIP
        torch.Size([1, 12, 4, 4])
        """
        kwargs: dict[str, Any] = {"max_length": max_length, "padding": padding, "gradients_of": gradients_of}
        return record(self.loaded, text, pair, target=target, after=after, keep=keep, **kwargs)

    def trace_writing(
        self, prompt: str | Messages, *, keep: str | Iterable[str] = "all", **options: Any
    ) -> "writing.TracedText":
        """Generates after a prompt, or replies to a conversation, and keeps the tensors of every pass by name.

        keep: as for `trace`.  options: as for `generate`, whose faster blocks round differently; one text at a time.

        >>> model.trace_writing("The sky is", max_new_tokens=3).steps[1]["layers.0.attention.weights"]  # doctest: +SKIP
        """
        return writing.observed.trace_writing(self.loaded, prompt, keep=keep, **options)

    @property
    def explain(self) -> "explaining.Explain":
        """Explains an output: `logit_lens`, `direct_logit_attribution`, `attention_rollout`, `gradient_x_input`,
        `integrated_gradients` and `head_scores`; each names its paper and its limits."""
        return explaining.Explain(self._loaded)

    # -- parts --------------------------------------------------------------------------------------------------------

    @property
    def module(self) -> Network:
        """The plain `nn.Module`."""
        return self.loaded.module

    @property
    def config(self) -> Config:
        """Its configuration: sizes, head, labels, ids of special tokens."""
        return self.loaded.config

    @property
    def tokenizer(self) -> Tokenizer | None:
        """Turns text into ids; None for a model without one."""
        return self.loaded.tokenizer

    @property
    def device(self) -> torch.device:
        """The device that holds the weights and runs the passes."""
        return self.module.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights; of a quantized model, of those that are not quantized."""
        return self.module.dtype

    def parameters(self) -> Iterable[nn.Parameter]:
        """Every weight and bias, for an optimizer of your own."""
        return self.module.parameters()

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        """The same, each with its name, as `freeze` takes it."""
        return self.module.named_parameters()

    # -- change and save ----------------------------------------------------------------------------------------------

    def freeze(self, *patterns: str) -> Self:
        """Stops training of the parameters whose names match ("*" for all, "embeddings.*")."""
        freeze(self.module, *patterns)
        return self

    def unfreeze(self, *patterns: str) -> Self:
        """Trains the parameters whose names match again."""
        freeze(self.module, *patterns, frozen=False)
        return self

    def train(self, mode: bool = True) -> Self:
        """Turns on training mode: calls of the model apply dropout. `embed` and `trace` never do."""
        self._loaded.set_training(mode)
        return self

    def eval(self) -> Self:
        """Turns on evaluation mode, the state of a loaded model: no dropout."""
        return self.train(False)

    def to(self, device: str | torch.device | None = None, dtype: str | torch.dtype | None = None) -> Self:
        """Moves the weights to another device or dtype, in place. InputError for a dtype that cannot represent them."""
        device, kind = self.device if device is None else choose_device(device), self.dtype if dtype is None else dtype
        move_network(self.module.require_float("moving"), device, choose_dtype(kind, self.dtype, device))
        return self

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Writes a checkpoint folder that pellucid can open, and `transformers` and `sentence-transformers` where they
        have the architecture: all families but the original Transformer."""
        return save_checkpoint(self._loaded, folder, overwrite=overwrite)

    def __repr__(self) -> str:
        return f"Model({summary(self.loaded)})"

    def _repr_html_(self) -> str:
        return f"<b>pellucid model</b> {html.escape(summary(self.loaded))}"
