"""Tasks that generate text: what to read of each item, and the answer from the generated texts.

items --prompts()--> ids --in batches, equal lengths together--> texts --answer()--> answers, in their order
"""

import itertools
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar

from pellucid.checkpoints.loaded import Loaded
from pellucid.errors import InputError
from pellucid.generation import Settings
from pellucid.generation.checkpoint_settings import with_end_tokens
from pellucid.generation.options import token_ids
from pellucid.generation.prompts import GenerationRequest
from pellucid.generation.settings import option_names
from pellucid.generation.stops import cut_at_stop
from pellucid.generation.texts import GeneratedSequence, generate_group
from pellucid.tasks.answer import Answer, AnswerAttribution, TextCoverage
from pellucid.tasks.attribution import attribute_generation
from pellucid.tasks.task import Task, TaskAnswer, Work
from pellucid.tasks.task_settings import prefix_of, task_generation_settings
from pellucid.text import Tokenizer
from pellucid.text.chunks import TextChunk

ITEMS_PER_SORT = 64
"""Items that are sorted by length at a time; they are answered before the next ones are read."""


@dataclass(frozen=True)
class Prompt:
    """The model's input for an item, or for a window of it.

    portion: its tokens, and its place in the text.  end_tokens: tokens that end its answer, besides the model's own.
    """

    portion: TextChunk
    end_tokens: tuple[int, ...] = ()


@dataclass(frozen=True)
class GeneratedText:
    """A generated text.  sequence: its tokens, and why they end."""

    text: str
    sequence: GeneratedSequence
    finish_reason: str


@dataclass(frozen=True, kw_only=True)
class Writer(Task):
    """A task that generates text. Every generation option is an option of the task: max_new_tokens, num_beams,
    do_sample, temperature, seed, stop, num_return_sequences and all others.

    settings: the generation settings from these options; defaults are the checkpoint's for this task
        (`task_specific_params`), then its settings for all generation, then the task's own.
    prefix: a text before each item, and before each window of it; by default the checkpoint's for this task.
    parse_special_tokens: whether `<extra_id_0>` in an item is that token; otherwise it is plain text. In the prefix it
        is always that token.
    eos_token_id: tokens that end a text, in place of the model's own; `stop_token_ids` are added to them.
    clean_up_tokenization_spaces: removes the space before `.`, `,`, `n't` and the like, as the reference may; not for
        BPE, whose tokens include their spaces.
    keep_stop: whether a text ended by a `stop` keeps it, and the rest of its last token, as in the reference.
    """

    settings: Settings = field(default_factory=Settings)
    prefix: str | None = None
    parse_special_tokens: bool = False
    clean_up_tokenization_spaces: bool = False
    eos_token_id: int | Sequence[int] | None = None
    keep_stop: bool = False

    inputs: ClassVar[tuple[str, ...]] = ("text",)
    defaults: ClassVar[Mapping[str, Any]]
    """Generation options where neither the caller nor the checkpoint sets any."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prefix is not None and not isinstance(self.prefix, str):
            raise InputError(f"prefix is {type(self.prefix).__name__}, expected a text")
        if self.eos_token_id is not None:
            token_ids("eos_token_id", self.eos_token_id, None)

    @classmethod
    def options(cls) -> list[str]:
        own = [one.name for one in fields(cls) if one.name != "settings"]
        return [*own, *(name for name in option_names() if name not in own)]

    @classmethod
    def resolve_options(cls, loaded: Loaded, options: Mapping[str, Any]) -> dict[str, Any]:
        own = {one.name for one in fields(cls)}
        own_options = {name: value for name, value in options.items() if name in own}
        generation_options = {name: value for name, value in options.items() if name not in own}
        names = cls.task_names(loaded, own_options)
        if own_options.get("prefix") is None:
            own_options["prefix"] = prefix_of(loaded, names)
        return own_options | {"settings": task_generation_settings(loaded, generation_options, names, cls.defaults)}

    @classmethod
    def task_names(cls, loaded: Loaded, options: Mapping[str, Any]) -> list[str]:
        """The names that a checkpoint may have for this task, the preferred first."""
        return [cls.name]

    @abstractmethod
    def prompts(self, work: Work, item: Any, index: int) -> list[Prompt]:
        """The prompt of an item, or one for each window of it."""

    @abstractmethod
    def generated_text(self, tokenizer: Tokenizer, prompt: Prompt, sequence: GeneratedSequence) -> GeneratedText:
        """The text of a sequence generated after a prompt."""

    @abstractmethod
    def answer(self, work: Work, item: Any, prompts: list[Prompt], texts: list[list[GeneratedText]]) -> Answer:
        """The answer to an item.  texts: for each of its prompts, as many as were requested, the best first."""

    def answer_items(self, work: Work, items: Sequence[Any], first: int) -> Iterator[TaskAnswer]:
        numbered = enumerate(items, first)
        while some := list(itertools.islice(numbered, ITEMS_PER_SORT)):
            item_prompts = [self.prompts(work, item, number) for number, item in some]
            texts = iter(self._generate(work, list(itertools.chain.from_iterable(item_prompts))))
            for (_, item), prompts in zip(some, item_prompts):
                yield self.answer(work, item, prompts, list(itertools.islice(texts, len(prompts))))

    def _generate(self, work: Work, prompts: list[Prompt]) -> list[list[GeneratedText]]:
        """The texts for each prompt."""
        found: dict[int, list[GeneratedText]] = {}
        tokenizer, loaded = work.loaded.required_target_tokenizer, work.loaded
        if work.dtype is not None:
            loaded = replace(loaded, module=loaded.module.packed_copy(work.dtype))
        for ends in dict.fromkeys(prompt.end_tokens for prompt in prompts):
            which = [i for i, prompt in enumerate(prompts) if prompt.end_tokens == ends]
            rows = [prompts[i].portion.ids for i in which]
            request = GenerationRequest(self._with_end_tokens(loaded, ends), tokenizer, rows, self.settings)
            for group in request.groups():
                for i, sequences in zip(group, generate_group(request, group)):
                    found[which[i]] = [
                        self.generated_text(tokenizer, prompts[which[i]], sequence) for sequence in sequences
                    ]
        return [found[i] for i in range(len(prompts))]

    def _with_end_tokens(self, loaded: Loaded, ends: tuple[int, ...]) -> Loaded:
        """The model with the tokens that end a text."""
        if self.eos_token_id is None:
            return with_end_tokens(loaded, ends)
        stated = (self.eos_token_id,) if isinstance(self.eos_token_id, int) else tuple(self.eos_token_id)
        return replace(loaded, config=loaded.config.replace(eos_token_id=stated))

    def decode(self, tokenizer: Tokenizer, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Ids as a text, cleaned if requested.  skip_special_tokens: leaves special tokens out."""
        return tokenizer.cleaned(
            tokenizer.decode(ids, skip_special_tokens=skip_special_tokens), self.clean_up_tokenization_spaces
        )

    def finish_text(self, whole: str, sequence: GeneratedSequence) -> GeneratedText:
        """The generated text, up to a stop."""
        text, stopped = cut_at_stop(whole, self.settings.stop)
        return GeneratedText(whole if self.keep_stop else text, sequence, "stop" if stopped else sequence.finish_reason)

    def attribution(
        self, work: Work, prompts: Sequence[Prompt], texts: Sequence[GeneratedText]
    ) -> AnswerAttribution | None:
        """The attribution of each text to its prompt; None unless `explain` is set."""
        if not self.explain:
            return None
        pairs = zip(prompts, texts)
        attributions = [
            attribute_generation(work.loaded, prompt.portion.ids, text.sequence.ids) for prompt, text in pairs
        ]
        tokens = tuple(token for one in attributions for token in one.tokens)
        scores = tuple(score for one in attributions for score in one.scores)
        return AnswerAttribution(attributions[0].target, tokens, scores, attributions[0].method)


def chunk_coverage(text: str, chunks: Sequence[TextChunk]) -> TextCoverage:
    """What was read of an item's text, from its chunks."""
    return TextCoverage(tuple(one.span for one in chunks), sum(one.cut for one in chunks), not text.strip())
