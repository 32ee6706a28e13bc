"""What is asked of the reference's pipelines that write: how long, by which search, and what is decoded how; of those
that write anew, all of it."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch

from pellucid.compat.arguments import Unfollowed
from pellucid.compat.generate import DEFAULT_LENGTH, REFERENCE_TOP_K, TORCH, agreeing, useful
from pellucid.compat.generation_config import UNFOLLOWED, spread
from pellucid.compat.pipeline_call import Asked, Round
from pellucid.errors import InputError
from pellucid.generation.checkpoint_settings import REFERENCE_LENGTH, started
from pellucid.generation.settings import APART, SAMPLING, check_beams
from pellucid.generation.settings import names as names_of_writing
from pellucid.model import Model
from pellucid.tasks.task_settings import params_of, prefix_of

log = logging.getLogger("pellucid")

LONGEST = 256
"""New tokens, where nobody says anything."""

_OURS = {"stop_strings": "stop"}
_NOTHING = ("use_cache", "cache_implementation", "pad_token_id", "return_text", "return_type")
"""Arguments that change nothing that is written; one says what stands behind it, where several texts are one tensor."""


class Written(Asked, ABC):
    """What both kinds of writers share.

    In this version of the reference the pipeline's own defaults stand over what a checkpoint says, and so `max_length`,
    of a call or of `task_specific_params`, is not heeded beside the default of 256 new tokens. It is only where
    `generation_config.json` or the arguments of the pipeline say it, or that default is emptied
    (`max_new_tokens=None`). A `generation_config` takes the place of these defaults, and what it does not say is as the
    checkpoint says.
    """

    takes = (
        "return_tensors clean_up_tokenization_spaces truncation stop_sequence max_length eos_token_id generation_config"
    )
    cleared = "eos_token_id add_special_tokens"
    defaults: ClassVar[Mapping[str, Any]]
    unfollowed: ClassVar[Unfollowed] = {
        **Asked.unfollowed,
        **{name: one and one.replace("model.pellucid.", "pipe.model.") for name, one in UNFOLLOWED.items()},
        "streamer": "pipe.model.stream(prompt) gives a text piece by piece, as it is written",
    }

    def __init__(self, task: str, model: Model, options: Mapping[str, Any], call: Mapping[str, Any]) -> None:
        settings = next((one for said in (call, options) if (one := said.get("generation_config")) is not None), None)
        self.settled, self.typed = settings is not None, call
        if self.settled:  # which stand in place of what the pipeline says of writing
            call = spread(model.loaded, settings, self.names(), self.unfollowed) | _plain(call)
            writing = {*names_of_writing(), *_OURS, "max_length", "eos_token_id"}
            options = {name: one for name, one in options.items() if name not in writing}
        super().__init__(task, model, options, call)

    @classmethod
    def names(cls) -> list[str]:
        return list(dict.fromkeys([*cls.takes.split(), *names_of_writing(), *_OURS, *_NOTHING]))

    def rounds(self, items: Iterable[Any]) -> Iterator[Round]:
        said = self.model.loaded.generation | self._params()
        options, longest = useful(self.options(), said), self._longest()
        both = {"num_beams": said.get("num_beams", 1), **self._heard()}
        if both.get("do_sample") and both["num_beams"] > 1 and not {"do_sample", "num_beams"} <= self.said.keys():
            does = "searches" if options.get("num_beams", 1) > 1 else "draws"
            log.warning(APART, "these pipelines do both unless a call says otherwise", does)
        if options.get("do_sample", said.get("do_sample") and options.get("num_beams", 1) == 1):
            options.setdefault("seed", TORCH)
        if "max_new_tokens" in longest:
            yield items, agreeing(options | longest)
        else:  # so many tokens with the prompt, which is another number for each
            for item in items:
                yield [item], agreeing(options | {"max_new_tokens": self._left(item, longest["max_length"])})

    def _heard(self) -> dict[str, Any]:
        """The options of a call over those of the pipeline, over what the checkpoint says of this task."""
        told, general = self._params(), self.model.loaded.generation
        top_k = general.get("top_k", REFERENCE_TOP_K)
        if self.settled:
            own = {name: general[name] for name in ("do_sample", "num_beams") if name in general}
            return {"top_k": top_k, "num_beams": 1, **own, **_plain(self.call)}
        made = {name: value for name, value in _plain(self.made).items() if name not in told}
        heard = {name: told[name] for name in self.defaults if name in told}
        return {"top_k": top_k, **self.defaults, **made, **heard, **_plain(self.call)}

    def options(self) -> dict[str, Any]:
        said = self._heard()
        check_beams(said.get("num_beams", 1))
        if "do_sample" not in self.said and said.get("num_beams", 1) > 1:
            said["do_sample"] = False
        if "num_beams" not in self.said and said.get("do_sample"):
            said["num_beams"] = 1
        plain = {name: said[name] for name in names_of_writing() if said.get(name) is not None}
        plain["keep_stop"] = self.said.get("stop") is None  # which is pellucid's own name
        if not said.get("do_sample"):
            plain = {name: value for name, value in plain.items() if name not in SAMPLING}
        if (stop := self.said.get("stop_sequence")) is not None:  # in place of the model's own end tokens
            if not isinstance(stop, str):
                raise InputError(f"stop_sequence is {type(stop).__name__}, expected a text")
            plain["eos_token_id"] = self.stopped(self.words(stop, add_special_tokens=False)["input_ids"])
        elif (ends := self._said_last("eos_token_id")) is not None:  # in place of those of `config.json`
            plain["eos_token_id"] = ends
        return plain | self.cut(self.said.get("truncation"), None)

    def ended(self, answer: Any) -> list[tuple[Any, str]]:
        """Every text, and the end tokens and padding that the reference leaves behind it."""
        every, skip = answer.all or [answer], self.said.get("skip_special_tokens") is not False
        kept = [one.ids[:-1] if skip and one.finish_reason == "end" else one.ids for one in every]
        texts = [self.words.decode(ids, skip_special_tokens=skip) for ids in kept]
        padded = [self.words.decode(ids, skip_special_tokens=skip) for ids in self.rows([], answer)]
        return [(one, whole[len(text) :]) for one, text, whole in zip(every, texts, padded)]

    def rows(self, start: list[int], answer: Any) -> list[list[int]]:
        """The tokens of every text, padded to one length; the reference's beams take a padding token of 0 for none."""
        options, pad, own = self.options(), self._said_last("pad_token_id"), self.words.pad_token_id
        pad = own if pad is None else pad
        if pad is None or (pad == 0 and options.get("num_beams", 1) > 1):
            asked = options.get("eos_token_id", self.model.config.end_tokens)
            pad = asked if isinstance(asked, int) else next(iter(asked), 0)
        rows = [[*start, *one.ids] for one in answer.all or [answer]]
        longest = max(map(len, rows))
        return [row + [pad] * (longest - len(row)) for row in rows]

    def _said_last(self, name: str) -> Any:
        """What a call or the pipeline says, or else the checkpoint's file of writing; None where none does."""
        return next(
            (one for said in (self.said, self.model.loaded.generation) if (one := said.get(name)) is not None), None
        )

    def _params(self) -> dict[str, Any]:
        return params_of(self.model.loaded).get(self.task, {})

    def stopped(self, ids: list[int]) -> list[int]:
        return ids

    def _longest(self) -> dict[str, int]:
        """New tokens, or tokens in all."""
        general = self.model.loaded.generation.get("max_length", REFERENCE_LENGTH)
        made = {"max_new_tokens": LONGEST, "max_length": general} | _lengths(self.made)
        if made["max_new_tokens"] == LONGEST and made["max_length"] != REFERENCE_LENGTH:
            del made["max_new_tokens"]
        said = made | _lengths(self._params()) | _lengths(self.call)
        if self.settled:
            whole = _lengths(self.model.loaded.generation) | _lengths(self.call)
            said = whole or {"max_new_tokens": DEFAULT_LENGTH}
        if {**self.made, **self.typed}.get("max_new_tokens", LONGEST) is None:  # which somebody has emptied
            own = _lengths(self.model.loaded.generation) | _lengths(self.made) | _lengths(self._params())
            own |= _lengths(self.call)
            said = {"max_length": own["max_length"]} if "max_length" in own else {"max_new_tokens": DEFAULT_LENGTH}
        if "max_new_tokens" in said and "max_length" in _lengths(self.call):
            new = said["max_new_tokens"]
            log.warning("max_length is not heeded beside max_new_tokens, which is %d: give max_new_tokens alone", new)
        return {"max_new_tokens": said["max_new_tokens"]} if "max_new_tokens" in said else said

    def _left(self, item: Any, longest: int) -> int:
        """How many tokens may be new, of so many in all."""
        new = longest - self.before(item)
        if new < 1:
            raise InputError(f"max_length is {longest}, and the prompt is as long: raise it, or pass max_new_tokens")
        return new

    @abstractmethod
    def before(self, item: Any) -> int:
        """The tokens that count towards `max_length` before the first new one."""


class Rewritten(Written):
    """Summaries, translations and whatever else an encoder-decoder writes."""

    takes = Written.takes + " src_lang tgt_lang"
    defaults: ClassVar[Mapping[str, Any]] = {"num_beams": 4}
    _keys: ClassVar[Mapping[str, str]] = {"summarization": "summary", "text2text-generation": "generated"}

    def options(self) -> dict[str, Any]:
        prefix = prefix_of(self.model.loaded, [self.task]) or ""
        tidy = {"clean_up_tokenization_spaces": bool(self.said.get("clean_up_tokenization_spaces"))}
        return {"prefix": prefix} | super().options() | tidy

    def stopped(self, ids: list[int]) -> list[int]:
        return ids[:1]

    def before(self, item: Any) -> int:
        return 1  # the start token

    def shape(self, answer: Any, item: Any) -> Any:
        key = self._keys.get(self.task, "translation")
        if self.said.get("return_tensors"):
            start = started(self.model.loaded)
            return [{f"{key}_token_ids": torch.tensor(row, device="cpu")} for row in self.rows([start], answer)]
        return [{f"{key}_text": one[f"{key}_text"] + tail} for one, tail in self.ended(answer)]

    def whole(self, found: list[Any], given: list[Any]) -> Any:
        flat = all(isinstance(one, str) for one in given) and all(len(one) == 1 for one in found)
        return [one[0] for one in found] if flat else found


def _lengths(said: Mapping[str, Any]) -> dict[str, int]:
    return {name: said[name] for name in ("max_new_tokens", "max_length") if said.get(name) is not None}


def _plain(said: Mapping[str, Any]) -> dict[str, Any]:
    return {_OURS.get(name, name): value for name, value in said.items() if value is not None}
