"""One call of a pipeline of the reference: what all tasks share."""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from pellucid.compat.arguments import UnsupportedArguments
from pellucid.errors import InputError, did_you_mean, shorten
from pellucid.model import Model
from pellucid.text import Tokenizer

COMMON = frozenset(
    """config feature_extractor image_processor processor framework use_fast device_map trust_remote_code
    pipeline_class binary_output batch_size num_workers padding max_question_len""".split()
)
"""Arguments that change no answer."""

NO_LIMIT = 1_000_000
"""The limit of a text's tokens where only the model limits it."""

MAX_LENGTH_ADVICE = "tokenizer=AutoTokenizer.from_pretrained(NAME, model_max_length=...)"
"""How to request truncation where the reference's pipeline has no other argument for it."""

ItemGroup = tuple[Iterable[Any], dict[str, Any]]


class PipelineCall:
    """One call of a pipeline.

    task: its full name.  takes: the names of its arguments.
    arguments: `pipeline_arguments`, overridden by `call_arguments`.
    """

    takes: ClassVar[str] = ""
    input_argument: ClassVar[str] = "inputs"
    """The name of the items, where they are given by keyword."""
    clearable_arguments: ClassVar[str] = ""
    """Arguments that None in a call clears; for all others None keeps the pipeline's value."""
    truncation_advice: ClassVar[str] = "truncation=True"
    """How to request truncation."""
    fixed_options: ClassVar[Mapping[str, Any]] = {"parse_special_tokens": True}
    """Options of our task that are always set."""
    our_names: ClassVar[Mapping[str, str]] = {}
    """Arguments that our task has under another name."""
    unsupported: ClassVar[UnsupportedArguments] = {
        "truncation_side": "pass tokenizer=AutoTokenizer.from_pretrained(NAME, truncation_side=...)"
    }
    """Arguments that have another form here."""

    def __init__(self, task: str, model: Model, options: Mapping[str, Any], call: Mapping[str, Any]) -> None:
        self.task, self.model, self.pipeline_arguments, self.call_arguments = task, model, options, call
        effective = {
            name: one for name, one in call.items() if one is not None or name in self.clearable_arguments.split()
        }
        self.arguments: dict[str, Any] = {**options, **effective}

    @classmethod
    def as_ours(cls, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that are not None, by the names of our task."""
        return {cls.our_names.get(name, name): value for name, value in arguments.items() if value is not None}

    @property
    def tokenizer(self) -> Tokenizer:
        return self.model.loaded.required_tokenizer

    @classmethod
    def argument_names(cls) -> list[str]:
        """All arguments that have an effect."""
        return cls.takes.split()

    @classmethod
    def split_inputs(cls, inputs: tuple[Any, ...], call: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Separates the items from the arguments."""
        if cls.input_argument in call:
            inputs = (*inputs, call.pop(cls.input_argument))
        if len(inputs) != 1:
            raise InputError(f"{len(inputs)} arguments were given, expected one: a text, or a list of several")
        return inputs[0], call

    def is_single_item(self, items: list[Any]) -> bool:
        """Whether a list is one item."""
        return False

    def item_groups(self, items: Iterable[Any]) -> Iterator[ItemGroup]:
        """The items as our task takes them, with its options."""
        yield items, self.options()

    def options(self) -> dict[str, Any]:
        """The options of our task that give the reference's answer."""
        return {}

    def format_answer(self, answer: Any, item: Any) -> Any:
        """One answer of ours in the reference's shape."""
        return answer

    def rephrase_error(self, error: InputError) -> InputError:
        """The error in terms of these pipelines' arguments, which have no `long`."""
        parts = list(itertools.takewhile(lambda part: getattr(part, "name", "") != "long", error.parts))
        return InputError(*parts, self.truncation_advice, " to cut it") if len(parts) < len(error.parts) else error

    def format_single(self, answer: Any, item: Any) -> Any:
        """The result for one item."""
        return answer

    def format_list(self, answers: list[Any], items: list[Any]) -> Any:
        """The result for a list."""
        return answers

    def truncation_options(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The options for long texts. `max_length` alone requests truncation, as in the reference's tokenizers.

        Without truncation, the reference's limit is the model's alone, not the tokenizer's.
        arguments: with `truncation` and `max_length`; all others are ignored.
        """
        truncation, max_length = arguments.get("truncation"), arguments.get("max_length")
        truncates = max_length is not None if truncation is None else truncation not in (False, "do_not_truncate")
        return {"long": "truncate", "max_length": max_length} if truncates else {"max_length": NO_LIMIT}

    def forced_truncation(self) -> dict[str, Any]:
        """The options where the reference truncates unasked and silently: to the tokenizer's limit, never to less."""
        own, max_positions = self.tokenizer.model_max_length, self.model.config.max_sequence_length
        fits = own is not None and (max_positions is None or own <= max_positions)
        return {"long": "truncate"} if fits else {"max_length": NO_LIMIT}

    def tokenizer_arguments(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """An argument that is a dict of tokenizer arguments; InputError for those that would be ignored."""
        values, known = arguments.get(name), ("truncation", "max_length", "padding")
        if values is not None and not isinstance(values, Mapping):
            raise InputError(f"{name} is {type(values).__name__}, expected a dict with truncation or max_length")
        for one in values or {}:
            if one not in known:
                raise InputError(
                    f"{name} holds {shorten(repr(one))}{did_you_mean(one, known)}, and truncation and "
                    "max_length are read"
                )
        return dict(values or {})
