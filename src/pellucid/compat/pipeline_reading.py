"""What is asked of the reference's pipelines that read: arguments as options of our tasks, answers in its shapes."""

import itertools
import string
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch

from pellucid.compat.batch import without_empty_pair
from pellucid.compat.pipeline_call import SHORTER, Asked, Round
from pellucid.config.checks import count
from pellucid.errors import InputError, counted
from pellucid.tasks.zero_shot import labels_of


class Classified(Asked):
    """Labels of texts: one for each, or with `top_k` a list; a text that was given alone gets its one in a list."""

    takes = "top_k return_all_scores function_to_apply truncation max_length"
    cleared = "top_k truncation max_length"

    def rounds(self, items: Iterable[Any]) -> Iterator[Round]:
        pairs = (tuple(one[0]) if isinstance(one, list) and one and isinstance(one[0], list) else one for one in items)
        yield map(without_empty_pair, pairs), self.options()

    def options(self) -> dict[str, Any]:
        if (most := self._most()[0]) is not None:
            count("top_k", most, least=0)
        function = self.said.get("function_to_apply")
        applied = function.lower() if isinstance(function, str) else function
        return {"function_to_apply": applied} | self.cut(self.said.get("truncation"), self.said.get("max_length"))

    def _most(self) -> tuple[Any, bool]:
        """How many labels, None for all, and whether as a list, the likeliest first; a call has the last word."""
        most, listed, of_file = 1, False, self.model.config.inert.get("return_all_scores")
        for said in (self.made, self.call):
            whole = said.get("return_all_scores")
            if "top_k" in said:
                most, listed = said["top_k"], True
            elif (whole := of_file if whole is None else whole) is not None:
                most = None if whole else 1
        return most, listed

    def shape(self, answer: Any, item: Any) -> Any:
        most, listed = self._most()
        if listed:
            return list(answer.all)[:most]
        if most is None:  # in the order of the labels
            labels = list(self.model.config.labels)
            return sorted(answer.all, key=lambda one: labels.index(one["label"]))
        return answer

    def alone(self, found: Any, given: Any) -> Any:
        return [found] if isinstance(given, str) and "top_k" not in self.call else found


class Tagged(Asked):
    """Tokens or entities, by the reference's guesses of words, and windows of which the longest entity wins."""

    cuts = SHORTER
    takes = "aggregation_strategy ignore_labels stride is_split_into_words delimiter grouped_entities ignore_subwords"

    def single(self, given: list[Any]) -> bool:
        return bool(self.said.get("is_split_into_words")) and not all(isinstance(one, list) for one in given)

    def options(self) -> dict[str, Any]:
        said, way, stride = self.said, self._strategy(), self.said.get("stride")
        if stride is not None and way == "none":
            raise InputError(f"stride is {stride!r} and nothing is grouped: pass an aggregation_strategy")
        windows = {"long": "windows", "stride": stride, "overlap": "longest"}
        long = self.always_cut() if stride is None else windows
        names = ("is_split_into_words", "delimiter", "ignore_labels")
        own = {name: said[name] for name in names if said.get(name) is not None}
        return {"aggregation_strategy": way, "boundaries": "heuristic", "decoded": True} | long | own

    def _strategy(self) -> str:
        way = "none"
        for said in (self.made, self.call):
            grouped, subwords = said.get("grouped_entities"), said.get("ignore_subwords")
            if grouped is not None or subwords is not None:
                way = ("first" if subwords else "simple") if grouped else "none"
            elif said.get("aggregation_strategy") is not None:
                way = str(said["aggregation_strategy"]).lower()
        return way

    def shape(self, answer: Any, item: Any) -> Any:
        return list(answer)

    def alone(self, found: Any, given: Any) -> Any:
        return [found] if isinstance(given, list) else found


class Read(Asked):
    """Answers to questions: one alone, several in a list, by the reference's scores of each window."""

    takes = "top_k topk doc_stride max_answer_len max_seq_len handle_impossible_answer align_to_words"
    _ours: ClassVar[Mapping[str, str]] = {"doc_stride": "stride", "max_seq_len": "max_length", "topk": "top_k"}

    @classmethod
    def given(cls, inputs: tuple[Any, ...], call: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        call = dict(call)
        named = [call.pop(name) for name in ("X", "data") if name in call]
        question, context = call.pop("question", None), call.pop("context", None)
        if len(inputs) == 2 and all(isinstance(one, str) for one in inputs):
            question, context = inputs
        if question is not None and context is not None:
            contexts = context if isinstance(context, list) else itertools.repeat(context)
            asked = question if isinstance(question, list) else [question]
            if isinstance(context, list) and len(asked) != len(context):
                both = f"{counted(len(asked), 'question')} and {counted(len(context), 'context')}"
                raise InputError(f"{both} were given, expected as many of each")
            found: Any = [{"question": one, "context": beside} for one, beside in zip(asked, contexts)]
        else:
            found = list(inputs) if len(inputs) > 1 else next(iter((*inputs, *named)), None)
            if found is None:
                raise InputError(
                    "neither a question and a context were given, nor a list of both: pass question= and context="
                )
        return found[0] if isinstance(found, list) and len(found) == 1 else found, call

    def options(self) -> dict[str, Any]:
        said = {self._ours.get(name, name): value for name, value in self.said.items() if value is not None}
        return {"scores": "per_window"} | said

    def shape(self, answer: Any, item: Any) -> Any:
        return answer if len(answer.all) < 2 else list(answer.all)


class Filled(Asked):
    """Fillings of masks: a list for each mask, where there is more than one."""

    takes = "top_k targets tokenizer_kwargs"
    cuts = "tokenizer_kwargs={'truncation': True}"

    def options(self) -> dict[str, Any]:
        said = {name: self.said[name] for name in ("top_k", "targets") if self.said.get(name) is not None}
        how = self.how("tokenizer_kwargs", self.said)
        theirs = {"decoded": True, "partial_targets": True}
        return theirs | said | self.cut(how.get("truncation"), how.get("max_length"))

    def shape(self, answer: Any, item: Any) -> Any:
        masks = [list(one) for _, one in itertools.groupby(answer, key=lambda one: one.mask)]
        return masks[0] if len(masks) == 1 else masks

    def whole(self, found: list[Any], given: list[Any]) -> Any:
        return found[0] if len(given) == 1 else found


class Judged(Asked):
    """Labels of one's own, with entailment and contradiction where the reference looks for them."""

    cuts = SHORTER
    named = "sequences"
    takes = "candidate_labels hypothesis_template multi_label multi_class"
    fixed: ClassVar[Mapping[str, Any]] = {"parse_special_tokens": True, "roles": "fixed"}

    @classmethod
    def given(cls, inputs: tuple[Any, ...], call: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if len(inputs) == 2 and "candidate_labels" not in call:
            inputs, call = inputs[:1], call | {"candidate_labels": inputs[1]}
        return super().given(inputs, call)

    def options(self) -> dict[str, Any]:
        said = {name: one for name, one in self.said.items() if name != "multi_class"}
        for here in (self.made, self.call):
            if here.get("multi_class") is not None:
                said["multi_label"] = here["multi_class"]
            elif "multi_label" in here:
                said["multi_label"] = False if here["multi_label"] is None else here["multi_label"]
        if isinstance(template := said.get("hypothesis_template"), str):
            said["hypothesis_template"] = _template(template)
        return self.always_cut() | said

    def shape(self, answer: Any, item: Any) -> Any:
        """Of labels with one score, this reference has the last one first."""
        given, scores = labels_of(self.said["candidate_labels"]), dict(zip(answer["labels"], answer["scores"]))
        labels = sorted(given, key=lambda label: (scores[label], given.index(label)), reverse=True)
        return {**answer, "labels": labels, "scores": [scores[label] for label in labels]}


def _template(said: str) -> str:
    """A hypothesis that `str.format` fills in, as our task has it: {} is the label, and all else is as it stands."""
    try:
        parts = list(string.Formatter().parse(said))
    except ValueError as error:
        raise InputError(f"hypothesis_template is {said!r}: {error}; a brace that is one is written twice") from error
    fields = [(name, kind or "s", way or "s") for _, name, kind, way in parts if name is not None]
    found = "".join(before if name is None else f"{before}{{}}" for before, name, *_ in parts)
    readable = fields == [("", "s", "s")] or {*fields} == {("0", "s", "s")}
    if not readable or found.count("{}") != len(fields):
        raise InputError(f"hypothesis_template is {said!r}, expected {{}} or {{0}} in the place of the label")
    return found


class Features(Asked):
    """Hidden states, with the batch of one that the reference leaves around them."""

    takes = "truncation tokenize_kwargs return_tensors"

    def options(self) -> dict[str, Any]:
        how: dict[str, Any] = {}
        for said in (self.made, self.call):
            cut = {} if said.get("truncation") is None else {"truncation": said["truncation"]}
            how |= cut | self.how("tokenize_kwargs", said)
        side = {"side": "decoder"} if self.model.config.kind == "encoder-decoder" else {}
        return side | self.cut(how.get("truncation"), how.get("max_length"))

    def shape(self, answer: Any, item: Any) -> Any:
        return torch.tensor([list(answer)], device="cpu") if self.said.get("return_tensors") else [list(answer)]
