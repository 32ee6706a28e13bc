"""Arguments of the reference's pipelines that read, as options of our tasks, and answers in its shapes."""

import itertools
import string
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

import torch

from pellucid.compat.batch import without_empty_pair
from pellucid.compat.pipeline_call import MAX_LENGTH_ADVICE, ItemGroup, PipelineCall
from pellucid.config.checks import check_count
from pellucid.errors import InputError, format_count
from pellucid.tasks.zero_shot import labels_of


class TextClassificationCall(PipelineCall):
    """Labels of texts: one for each, or with `top_k` a list; a single text gets its label in a list."""

    takes = "top_k return_all_scores function_to_apply truncation max_length"
    clearable_arguments = "top_k truncation max_length"

    def item_groups(self, items: Iterable[Any]) -> Iterator[ItemGroup]:
        pairs = (tuple(one[0]) if isinstance(one, list) and one and isinstance(one[0], list) else one for one in items)
        yield map(without_empty_pair, pairs), self.options()

    def options(self) -> dict[str, Any]:
        if (max_labels := self._label_limit()[0]) is not None:
            check_count("top_k", max_labels, minimum=0)
        function = self.arguments.get("function_to_apply")
        applied = function.lower() if isinstance(function, str) else function
        return {"function_to_apply": applied} | self.truncation_options(self.arguments)

    def _label_limit(self) -> tuple[Any, bool]:
        """How many labels, None for all, and whether in a list, the likeliest first; a call overrides the pipeline."""
        max_labels, listed, of_file = 1, False, self.model.config.inert.get("return_all_scores")
        for arguments in (self.pipeline_arguments, self.call_arguments):
            returns_all = arguments.get("return_all_scores")
            if "top_k" in arguments:
                max_labels, listed = arguments["top_k"], True
            elif (returns_all := of_file if returns_all is None else returns_all) is not None:
                max_labels = None if returns_all else 1
        return max_labels, listed

    def format_answer(self, answer: Any, item: Any) -> Any:
        max_labels, listed = self._label_limit()
        if listed:
            return list(answer.all)[:max_labels]
        if max_labels is None:  # in the order of the labels
            labels = list(self.model.config.labels)
            return sorted(answer.all, key=lambda one: labels.index(one["label"]))
        return answer

    def format_single(self, answer: Any, item: Any) -> Any:
        return [answer] if isinstance(item, str) and "top_k" not in self.call_arguments else answer


class TokenClassificationCall(PipelineCall):
    """Tokens or entities, with the reference's guessed words, and in overlapping windows the longest entity."""

    truncation_advice = MAX_LENGTH_ADVICE
    takes = "aggregation_strategy ignore_labels stride is_split_into_words delimiter grouped_entities ignore_subwords"

    def is_single_item(self, items: list[Any]) -> bool:
        return bool(self.arguments.get("is_split_into_words")) and not all(isinstance(one, list) for one in items)

    def options(self) -> dict[str, Any]:
        arguments, strategy, stride = self.arguments, self._strategy(), self.arguments.get("stride")
        if stride is not None and strategy == "none":
            raise InputError(f"stride is {stride!r} and nothing is grouped: pass an aggregation_strategy")
        windows = {"long": "windows", "stride": stride, "overlap": "longest"}
        long = self.forced_truncation() if stride is None else windows
        names = ("is_split_into_words", "delimiter", "ignore_labels")
        own = {name: arguments[name] for name in names if arguments.get(name) is not None}
        return {"aggregation_strategy": strategy, "boundaries": "heuristic", "decoded": True} | long | own

    def _strategy(self) -> str:
        strategy = "none"
        for arguments in (self.pipeline_arguments, self.call_arguments):
            grouped, subwords = arguments.get("grouped_entities"), arguments.get("ignore_subwords")
            if grouped is not None or subwords is not None:
                strategy = ("first" if subwords else "simple") if grouped else "none"
            elif arguments.get("aggregation_strategy") is not None:
                strategy = str(arguments["aggregation_strategy"]).lower()
        return strategy

    def format_answer(self, answer: Any, item: Any) -> Any:
        return list(answer)

    def format_single(self, answer: Any, item: Any) -> Any:
        return [answer] if isinstance(item, list) else answer


class QuestionAnsweringCall(PipelineCall):
    """Answers to questions: a single one alone, several in a list, with the reference's scores per window."""

    takes = "top_k topk doc_stride max_answer_len max_seq_len handle_impossible_answer align_to_words"
    our_names: ClassVar[Mapping[str, str]] = {"doc_stride": "stride", "max_seq_len": "max_length", "topk": "top_k"}

    @classmethod
    def split_inputs(cls, inputs: tuple[Any, ...], call: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        by_name = [call.pop(name) for name in ("X", "data") if name in call]
        question, context = call.pop("question", None), call.pop("context", None)
        if len(inputs) == 2 and all(isinstance(one, str) for one in inputs):
            question, context = inputs
        if question is not None and context is not None:
            contexts = context if isinstance(context, list) else itertools.repeat(context)
            questions = question if isinstance(question, list) else [question]
            if isinstance(context, list) and len(questions) != len(context):
                both = f"{format_count(len(questions), 'question')} and {format_count(len(context), 'context')}"
                raise InputError(f"{both} were given, expected as many of each")
            found: Any = [{"question": one, "context": passage} for one, passage in zip(questions, contexts)]
        else:
            found = list(inputs) if len(inputs) > 1 else next(iter((*inputs, *by_name)), None)
            if found is None:
                raise InputError(
                    "neither a question and a context were given, nor a list of both: pass question= and context="
                )
        return found[0] if isinstance(found, list) and len(found) == 1 else found, call

    def options(self) -> dict[str, Any]:
        return {"scores": "per_window"} | self.as_ours(self.arguments)

    def format_answer(self, answer: Any, item: Any) -> Any:
        return answer if len(answer.all) < 2 else list(answer.all)


class FillMaskCall(PipelineCall):
    """Fillings of masks: a list for each mask, if there are several."""

    takes = "top_k targets tokenizer_kwargs"
    truncation_advice = "tokenizer_kwargs={'truncation': True}"

    def options(self) -> dict[str, Any]:
        arguments = {
            name: self.arguments[name] for name in ("top_k", "targets") if self.arguments.get(name) is not None
        }
        tokenizer_arguments = self.tokenizer_arguments("tokenizer_kwargs", self.arguments)
        reference_options = {"decoded": True, "partial_targets": True}
        return reference_options | arguments | self.truncation_options(tokenizer_arguments)

    def format_answer(self, answer: Any, item: Any) -> Any:
        masks = [list(one) for _, one in itertools.groupby(answer, key=lambda one: one.mask)]
        return masks[0] if len(masks) == 1 else masks

    def format_list(self, answers: list[Any], items: list[Any]) -> Any:
        return answers[0] if len(items) == 1 else answers


class ZeroShotCall(PipelineCall):
    """The caller's labels, with entailment and contradiction at the reference's indices."""

    truncation_advice = MAX_LENGTH_ADVICE
    input_argument = "sequences"
    takes = "candidate_labels hypothesis_template multi_label multi_class"
    fixed_options: ClassVar[Mapping[str, Any]] = {"parse_special_tokens": True, "roles": "fixed"}

    @classmethod
    def split_inputs(cls, inputs: tuple[Any, ...], call: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        if len(inputs) == 2 and "candidate_labels" not in call:
            inputs, call = inputs[:1], call | {"candidate_labels": inputs[1]}
        return super().split_inputs(inputs, call)

    def options(self) -> dict[str, Any]:
        arguments = {name: one for name, one in self.arguments.items() if name != "multi_class"}
        for source in (self.pipeline_arguments, self.call_arguments):
            if source.get("multi_class") is not None:
                arguments["multi_label"] = source["multi_class"]
            elif "multi_label" in source:
                arguments["multi_label"] = False if source["multi_label"] is None else source["multi_label"]
        if isinstance(template := arguments.get("hypothesis_template"), str):
            arguments["hypothesis_template"] = _our_template(template)
        return self.forced_truncation() | arguments

    def format_answer(self, answer: Any, item: Any) -> Any:
        """Labels with equal scores are in reverse order, as in the reference."""
        candidates = labels_of(self.arguments["candidate_labels"])
        scores = dict(zip(answer["labels"], answer["scores"]))
        labels = sorted(candidates, key=lambda label: (scores[label], candidates.index(label)), reverse=True)
        return {**answer, "labels": labels, "scores": [scores[label] for label in labels]}


def _our_template(template: str) -> str:
    """A hypothesis for `str.format` in our task's form: {} is the label, and all else is literal."""
    try:
        parts = list(string.Formatter().parse(template))
    except ValueError as error:
        raise InputError(f"hypothesis_template is {template!r}: {error}; write a literal brace twice") from error
    fields = [(name, kind or "s", way or "s") for _, name, kind, way in parts if name is not None]
    found = "".join(before if name is None else f"{before}{{}}" for before, name, *_ in parts)
    readable = fields == [("", "s", "s")] or {*fields} == {("0", "s", "s")}
    if not readable or found.count("{}") != len(fields):
        raise InputError(f"hypothesis_template is {template!r}, expected {{}} or {{0}} where the label goes")
    return found


class FeatureExtractionCall(PipelineCall):
    """Hidden states, with the reference's extra batch dimension of one."""

    takes = "truncation tokenize_kwargs return_tensors"

    def options(self) -> dict[str, Any]:
        tokenizer_arguments: dict[str, Any] = {}
        for arguments in (self.pipeline_arguments, self.call_arguments):
            cut = {} if arguments.get("truncation") is None else {"truncation": arguments["truncation"]}
            tokenizer_arguments |= cut | self.tokenizer_arguments("tokenize_kwargs", arguments)
        side = {"side": "decoder"} if self.model.config.kind == "encoder-decoder" else {}
        return side | self.truncation_options(tokenizer_arguments)

    def format_answer(self, answer: Any, item: Any) -> Any:
        return torch.tensor([list(answer)], device="cpu") if self.arguments.get("return_tensors") else [list(answer)]
