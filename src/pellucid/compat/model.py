"""The reference's models: forward passes with attentions and losses, generation, saving."""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from pellucid.checkpoints.family_page import Family
from pellucid.checkpoints.load import read_tokenizer
from pellucid.checkpoints.save import save_checkpoint
from pellucid.compat.arguments import check_not_exported, check_save_arguments, no_architecture_error
from pellucid.compat.config import PretrainedConfig
from pellucid.compat.generate import check_mask, generate_ids
from pellucid.compat.generation_config import GenerationConfig, merged_settings
from pellucid.compat.output import ModelOutput, check_labels, loss_of, ordered_outputs, problem_type
from pellucid.compat.parts import Parts
from pellucid.config import Config, Head, SequenceClassification, SequenceToSequenceLM
from pellucid.config.checks import check_bool, check_count
from pellucid.errors import InputError, join_names, shorten
from pellucid.machine import no_grad
from pellucid.model import Model, build
from pellucid.models import resize_vocabulary, save_tied_once
from pellucid.paths import path_of
from pellucid.tasks.forward import forward
from pellucid.trace import Recorder, resolve


def _refuse_preparation(*inputs: Any, **arguments: Any) -> Any:
    raise InputError("generate has its own loop here, and nothing prepares its inputs: leave the hook out")


class PreTrainedModel(Parts):
    """A network under one of the reference's names; built from a config, it has random weights.

    pellucid: the same model as a `Model`, with everything else (`trace`, `edit`, `explain`, `embed`, ...).
    network: its module, which names the parameters.  config: its configuration by the reference's keys.
    It is in evaluation mode until `.train()` is called, however it was made. Random weights follow `torch.manual_seed`.
    The reference's Trainer saves its state dict, as of any module that is not its own; `save_pretrained` writes a
    folder that both libraries can open.
    """

    family: ClassVar[Family]
    head: ClassVar[Head | None]
    accepts_loss_kwargs: ClassVar[bool] = True  # the reference's Trainer passes `num_items_in_batch`
    loss_type: ClassVar[str | None] = None  # by which the Trainer counts them

    def __init__(self, config: PretrainedConfig, add_pooling_layer: bool = True) -> None:
        """add_pooling_layer: False leaves out the pooler, of a body that has one."""
        super().__init__()
        if not hasattr(type(self), "family"):
            raise no_architecture_error(type(self))
        check_bool("add_pooling_layer", add_pooling_layer)
        if not isinstance(config, PretrainedConfig):
            name = type(self).__name__
            raise InputError(
                f"{name} is made of a config, not of {shorten(repr(config))}: {name}.from_pretrained opens a checkpoint"
            )
        facts = config.to_config(self.head)
        facts = facts if add_pooling_layer else facts.replace(pooler=False)
        self._set_model(build(facts, seed=int(torch.randint(2**31, (), device="cpu"))), config)

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Raises InputError: only the classes of architectures can open a checkpoint."""
        raise no_architecture_error(cls)

    @classmethod
    def from_model(cls, model: Model, config: PretrainedConfig) -> Self:
        """An existing model, under this name."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made._set_model(model, config)
        return made

    def _set_model(self, model: Model, config: PretrainedConfig) -> None:
        self.pellucid, self.network, self.config = model, model.module, config
        self.generation_config = GenerationConfig.of(model.loaded)
        self._register_parts()
        save_tied_once(self)
        self.eval()

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        *,
        labels: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        use_cache: bool | None = None,
        **unread: Any,
    ) -> Any:
        """One pass, with the reference's outputs.

        A decoder's positions are counted from the first token of `attention_mask`, and a mask with gaps is refused.
        Where positions are learned (GPT-2), the reference counts padding on the left among them, unless `position_ids`
        are given; these are not supported here.

        labels: the expected output, from which `loss` is computed.
        num_items_in_batch: the number of labels to average the loss over, where these are a part of them.
        ->  a `ModelOutput`; with `return_dict=False` a tuple. No `past_key_values` or `cache`: `generate` has its own.
        """
        check_not_exported()
        for name, value in unread.items():
            if value is not None:
                raise InputError(f"{name} was given, which is not supported here: give input_ids and masks alone")
        check_mask(self.pellucid.config, attention_mask)
        self._check_head_linears()
        if labels is not None:
            self.sync_labels()
            check_labels(self.pellucid.loaded, labels, input_ids)
        if labels is not None and decoder_input_ids is None and self._head_is(SequenceToSequenceLM):
            decoder_input_ids = self._decoder_ids_from_labels(labels)
        requested = {
            "hidden_states": self._flag_or_config(output_hidden_states, "output_hidden_states"),
            "attentions": self._flag_or_config(output_attentions, "output_attentions"),
        }
        points = self._point_names(requested)
        recorded_names = [name for names in points.values() for name in names]
        recorder: Any = Recorder(recorded_names, with_graph=True) if points else None
        if self._head_is(SequenceClassification):
            cast(Any, self.network).head.pick.pad_token_id = self.config.pad_token_id  # which may have been changed
        read = input_ids, attention_mask, token_type_ids, decoder_input_ids
        outputs = forward(self.pellucid.loaded, *read, decoder_attention_mask=decoder_attention_mask, observer=recorder)
        recorded = {name: tuple(recorder.recorded[one] for one in names) for name, names in points.items()}
        logits = outputs.get("logits")
        loss = None if labels is None else self._loss(logits, labels, num_items_in_batch)
        answer = ModelOutput(ordered_outputs(self.pellucid.config, outputs, recorded, loss))
        return answer if self._flag_or_config(return_dict, "return_dict") else answer.to_tuple()

    @property
    def prepare_decoder_input_ids_from_labels(self) -> Callable[[Tensor], Tensor]:
        """The function from labels, Int[Tensor, "batch seq"], to the decoder's input ids; only of an encoder-decoder
        with a language model head. The reference's collators call it."""
        if not self._head_is(SequenceToSequenceLM):
            raise AttributeError("prepare_decoder_input_ids_from_labels")
        return self._decoder_ids_from_labels

    @property
    def prepare_inputs_for_generation(self) -> Callable[..., Any]:
        """PEFT requires it of every model that generates; low-rank adapters never call it."""
        if not self.pellucid.config.writes:
            raise AttributeError("prepare_inputs_for_generation")
        return _refuse_preparation

    def _decoder_ids_from_labels(self, labels: Tensor) -> Tensor:
        return cast(Any, self.network).shift_right(labels.masked_fill(labels == -100, self.config.pad_token_id))

    def _head_is(self, kind: type[Head]) -> bool:
        return isinstance(self.pellucid.config.head, kind)

    def _flag_or_config(self, flag: bool | None, name: str) -> bool:
        return bool(getattr(self.config, name)) if flag is None else flag

    def _point_names(self, requested: dict[str, bool]) -> dict[str, list[str]]:
        """The requested points of a pass, by the reference's names for them."""
        if not (names := [name for name, is_requested in requested.items() if is_requested]):
            return {}
        config = self._current_config()
        if config.kind == "encoder-decoder":
            names = [f"{side}_{name}" for name in names for side in ("encoder", "decoder")]
            names += ["cross_attentions"] if requested["attentions"] else []
        return {name: resolve(f"{name}[*]", config) for name in names}

    def _current_config(self) -> Config:
        """Its config with the network's current number of layers, some of which the caller may have removed."""
        config, network = self.pellucid.config, cast(Any, self.network)
        if config.decoder is None:
            return config.replace(num_hidden_layers=network.depth)
        decoder = replace(config.decoder, num_decoder_layers=network.decoder.depth)
        return config.replace(num_hidden_layers=network.encoder.depth, decoder=decoder)

    def _loss(self, logits: Tensor | None, labels: Tensor, num_items: Tensor | int | None) -> Tensor:
        """See `loss_of`. The problem type of a text's labels is saved in `config`, since later answers depend on it."""
        if logits is None:
            raise InputError("labels were given, and this model has no head that they could be compared with")
        if self._head_is(SequenceClassification):
            self.config.problem_type = problem_type(logits, labels, self.config.problem_type)
        return loss_of(self.pellucid.config, logits, labels, self.config.problem_type, num_items)

    def check_forward(self, what: str) -> None:
        """Refuses a `forward` of a subclass, or one set on this model, which only calls of the model would run.

        what: the operation that would bypass it.
        """
        self._check_head_linears()
        if not self._uses_our_forward:
            raise InputError(
                f"this {type(self).__name__} has a forward of its own, which {what} would not call: call the model "
                "itself, or use .pellucid, which ignores it"
            )

    def _check_head_linears(self) -> None:
        """Raises AttributeError, with what to do, where a linear layer of the head was removed."""
        if getattr(self.network, "head", self) is not None:  # without a head a pass gives the body's output
            for name in self.maps:
                self._head_linear(name)

    @no_grad()
    def generate(self, inputs: Any = None, attention_mask: Tensor | None = None, **options: Any) -> Any:
        """Ids of texts generated after prompts. See `pellucid.compat.generate.generate_ids`.

        return_dict_in_generate: returns them as `sequences` of a `ModelOutput`.
        """
        self.check_forward("generate")
        ids = options.pop("input_ids", None) if inputs is None else inputs
        if isinstance(ids, Mapping):
            ids, attention_mask = ids["input_ids"], ids.get("attention_mask")
        if not isinstance(ids, Tensor):
            raise InputError("generate needs input_ids, a tensor of [batch, seq]: tokenizer(..., return_tensors='pt')")
        for name in ("token_type_ids", "labels"):  # of a batch for a pass, unused here
            options.pop(name, None)
        settings = merged_settings(self.pellucid.loaded, self.generation_config, options)
        as_dict = options.pop("return_dict_in_generate", settings.get("return_dict_in_generate"))
        if as_dict is not None:
            check_bool("return_dict_in_generate", as_dict)
        ids = generate_ids(replace(self.pellucid.loaded, generation=settings), ids, attention_mask, options)
        return ModelOutput({"sequences": ids}) if as_dict else ids

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        *,
        is_main_process: bool = True,
        safe_serialization: bool = True,
        **arguments: Any,
    ) -> None:
        """Saves the model, and its tokenizer where the folder holds none yet, for the reference and for `load`.

        Changes to `config` (labels, ids of tokens, values that affect no computation) and to `generation_config` are
        included.

        is_main_process: where it is False, nothing is written.
        safe_serialization: only True, since no pickle is written.
        arguments: `max_shard_size`, `save_function`: ignored, one file is written; no others are accepted.
        """
        check_save_arguments(arguments)
        if not safe_serialization:
            raise InputError("safe_serialization is False, and no pickle is written here: leave it out")
        check_bool("is_main_process", is_main_process)
        if not is_main_process:
            return
        if own := [name for name in self.state_dict() if not name.startswith("network.")]:
            raise InputError(
                f"this {type(self).__name__} has numbers that no file of its family holds ({join_names(own, 3)}): keep "
                "state_dict()"
            )
        folder, loaded = path_of(save_directory), self.current_model().loaded
        tokenizer = read_tokenizer(folder, config=loaded.config) if folder.is_dir() else None
        save_checkpoint(replace(loaded, tokenizer=tokenizer or loaded.tokenizer), folder, overwrite=True)

    def resize_token_embeddings(
        self, new_num_tokens: int | None = None, pad_to_multiple_of: int | None = None, mean_resizing: bool = True
    ) -> nn.Module:
        """Resizes the token embeddings, such as to `len(tokenizer)` after adding tokens; returns the input embeddings.

        The network changes in place: read `model.pellucid` again, and rebuild pipelines that hold the old one. The
        model no longer matches its files, so save and reopen it before adding an adapter.

        pad_to_multiple_of: the number is rounded up to a multiple of it.
        mean_resizing: new rows are the mean of the old ones, near which the reference samples them.
        """
        loaded, rows = self.pellucid.loaded, self.pellucid.config.vocab_size
        if loaded.module.observer is not None:
            raise InputError("this model is edited here, and would be resized for good: do it outside the block")
        if new_num_tokens is not None:
            rows = check_count("new_num_tokens", new_num_tokens)
        if pad_to_multiple_of is not None:
            rows += -rows % check_count("pad_to_multiple_of", pad_to_multiple_of)
        if not mean_resizing:
            raise InputError("mean_resizing is False, and new rows are the mean of the old ones here: leave it out")
        if loaded.config.decoder is not None and loaded.config.decoder.source_vocab_size:
            raise InputError("this model has a vocabulary for each of its halves: neither can be resized")
        module = loaded.module.require_float("resizing")
        if rows != loaded.config.vocab_size:
            config = loaded.config.replace(vocab_size=rows)  # first, since it may raise
            resize_vocabulary(module, loaded.config.vocab_size, rows)
            self.pellucid = Model(replace(loaded, config=config, source=None))
        self.config.vocab_size = rows
        return self.get_input_embeddings()

    device = property(lambda self: self.pellucid.device)
    dtype = property(lambda self: self.pellucid.dtype)
