"""Token classification: labels of tokens, words or spans: names, places, parts of speech."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import as_list, check_choice, is_one_of, require_list, require_names
from pellucid.errors import Argument, InputError, Item, did_you_mean, join_names, shorten
from pellucid.models import Output
from pellucid.tasks.answer import Answer, Answers, TextCoverage
from pellucid.tasks.attribution import Target
from pellucid.tasks.entities import (
    STRATEGIES,
    Entity,
    entity_text,
    group_entities,
    heuristic_tags,
    label_words,
    longest_entities,
    parse_tags,
    word_ranges,
)
from pellucid.tasks.reader import Reader, WindowOutput, text_coverage
from pellucid.tasks.tagged_tokens import BOUNDARIES, AlignedText, TaggedTokens, merge_windows, tag_window
from pellucid.tasks.task import Work, single_text
from pellucid.text import Tokenizer, Window
from pellucid.text.truncation import visible_span

OVERLAPS = ("inner", "longest")
_WORDS = Argument("is_split_into_words", True)


@dataclass(frozen=True, kw_only=True)
class TokenClassification(Reader):
    """The entities of a text, `{"entity_group", "score", "word", "start", "end"}`; positions count characters.

    aggregation_strategy: how the tokens of a word get one label. "first" takes that of its first token, as most models
        are trained; "average" that of the mean of their scores, "max" that of the token with the highest score;
        "simple" ignores words, so that an entity may begin within one; "none" labels each token and groups nothing:
        `{"entity", "score", "index", "word", "start", "end"}`.
    boundaries: "words" are the tokenizer's, with punctuation separate, and in scripts without spaces its tokens;
        "heuristic" guesses them from spaces and lengths, parses only the prefixes B- and I-, includes spaces before a
        token, and reads pre-split words separately, all as the reference does.
    ignore_labels: labels to leave out of the answer.
    is_split_into_words: an item is several words, as a tuple or in a list of items; positions then count the characters
        of the words with `delimiter` between them.
    decoded: `word` is decoded from the tokens, perhaps lower-cased; otherwise the text itself.
    overlap: of a text read in windows. "inner" takes each token from the window in which it is farthest from a cut;
        "longest" reads each window separately and keeps the longest of entities that overlap.
    """

    aggregation_strategy: str = "first"
    boundaries: str = "words"
    ignore_labels: Sequence[str] = ("O",)
    is_split_into_words: bool = False
    delimiter: str = " "
    decoded: bool = False
    overlap: str = "inner"

    name: ClassVar[str] = "token-classification"
    heads: ClassVar[tuple[str | None, ...]] = ("token-classification",)
    inputs: ClassVar[tuple[str, ...]] = ("text",)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("aggregation_strategy", self.aggregation_strategy, STRATEGIES)
        check_choice("boundaries", self.boundaries, BOUNDARIES)
        check_choice("overlap", self.overlap, OVERLAPS)
        if not isinstance(self.delimiter, str):
            raise InputError(f"delimiter is {type(self.delimiter).__name__}, expected a text such as ' '")
        ignored = require_list("ignore_labels", self.ignore_labels, "a list of labels")
        object.__setattr__(self, "ignore_labels", require_names("ignore_labels", ignored, "a list of labels"))
        if self.overlap == "longest" and self.aggregation_strategy == "none":
            grouped = Argument("aggregation_strategy", "simple")
            raise InputError(Argument("overlap", "longest"), " compares entities: pass ", grouped, ", say")

    @classmethod
    def resolve_options(cls, loaded: Loaded, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options; a label to be ignored has to be one of the model's, unless it is "O"."""
        labels, resolved = tuple(loaded.config.labels), dict(options)
        known = {*labels, *(tag.entity_type for tag in parse_tags(labels)), "O"}
        if (ignored := as_list(options.get("ignore_labels"))) is not None:
            resolved["ignore_labels"] = ignored
            heuristic = is_one_of(options.get("boundaries"), "heuristic")
            for label in () if heuristic else {str(label) for label in ignored if isinstance(label, str)} - known:
                has = join_names(sorted(known))
                raise InputError(
                    f"ignore_labels names {shorten(repr(label))}{did_you_mean(label, known)}, and this model has {has}"
                )
        return resolved

    def check_item(self, item: Any, index: int) -> AlignedText:
        if isinstance(item, Mapping) and set(item) == {"text"}:
            item = item["text"]
        if not self.is_split_into_words:
            if isinstance(item, tuple | list):
                raise InputError(Item(index), f" is {type(item).__name__}: pass ", _WORDS, " for words")
            return AlignedText.of_text(single_text(item, index), index)
        if not isinstance(item, tuple | list) or not all(isinstance(word, str) for word in item):
            raise InputError(
                Item(index),
                f" is {type(item).__name__}, and ",
                _WORDS,
                " takes several words: give one text as a tuple of words, several as a list of lists",
            )
        return AlignedText.of_words(item, self.delimiter, index)

    def item_windows(self, work: Work, item: AlignedText, index: int) -> list[Window]:
        is_split_into_words = self.boundaries == "heuristic" and item.word_starts is not None
        return self.text_windows(work, index, item.words if is_split_into_words else item.read)

    def window_output(self, work: Work, output: Tensor, window: Window) -> Tensor:
        return output.softmax(dim=-1)

    def answer(self, work: Work, item: AlignedText, outputs: list[WindowOutput]) -> Answers:
        parts, read = self._tagged_windows(work, item, outputs), text_coverage(item.read, outputs)
        if self.overlap == "longest" and len(parts) > 1:
            found = longest_entities(one for part in parts for one in self._entities(work, part, read))
        else:
            found = self._entities(work, merge_windows(parts, outputs), read)
        return Answers(found, read=read)

    def _tagged_windows(self, work: Work, item: AlignedText, outputs: list[WindowOutput]) -> list[TaggedTokens]:
        return [tag_window(item, output, work.loaded.required_tokenizer.unk_token_id) for output in outputs]

    def _entities(self, work: Work, tokens: TaggedTokens, read: TextCoverage) -> list[Answer]:
        """The entities of some tokens.  read: what was read of the whole text."""
        tokenizer, labels = work.loaded.required_tokenizer, tuple(work.loaded.config.labels)
        use_tokenizer_words = self.boundaries == "words"
        found = label_words(
            tokens,
            word_ranges(tokens, self.aggregation_strategy, use_tokenizer_words, tokenizer),
            self.aggregation_strategy,
        )
        kinds: Sequence[str] = labels
        if self.aggregation_strategy != "none":
            tags = parse_tags(labels) if use_tokenizer_words else heuristic_tags(labels)
            found = group_entities(tokens, found, tags, merge_adjacent=use_tokenizer_words)
            kinds = (
                [tag.entity_type for tag in tags]
                if use_tokenizer_words
                else [label.split("-", 1)[-1] for label in labels]
            )
        included = [(one, kinds[one.label]) for one in found if kinds[one.label] not in self.ignore_labels]
        return [self._entity(tokenizer, tokens, *one, read) for one in included]

    def _entity(self, tokenizer: Tokenizer, tokens: TaggedTokens, one: Entity, kind: str, read: TextCoverage) -> Answer:
        first, last = tokens[one.tokens[0]], tokens[one.tokens[-1]]
        start, end = first.span[0], last.span[1]
        if self.boundaries == "words":
            start, end = visible_span(tokens.sentence.shown, start, end)
        if self.decoded:
            word = entity_text(tokens, one, self.aggregation_strategy, tokenizer)
        else:
            word = tokens.sentence.slice(start, end)
        if self.aggregation_strategy == "none":
            keys = {"entity": kind, "score": one.score, "index": first.index_in_text}
        else:
            keys = {"entity_group": kind, "score": one.score}
        return Answer(keys | {"word": word, "start": start, "end": end}, read=read, window=first.window)

    def _space_tokens(self, tokens: TaggedTokens, one: Answer) -> list[int]:
        """The tokens of an entity that is whitespace only, whose span is empty."""
        if "index" in one:
            return [i for i, token in enumerate(tokens) if token.index_in_text == one["index"]]
        return [i for i, token in enumerate(tokens) if one["start"] <= token.span[0] and token.span[1] <= one["end"]]

    def attribution_targets(
        self, work: Work, item: AlignedText, outputs: list[WindowOutput], one: Answer
    ) -> list[Target]:
        """The mean logit of an entity's label at its tokens, as far as the window that it begins in holds them."""
        window_output = outputs[one.window or 0]
        (tokens,) = self._tagged_windows(work, item, [window_output])
        kind = one.get("entity", one.get("entity_group"))
        labels = [i for i, label in enumerate(work.loaded.config.labels) if kind in (label, label.split("-", 1)[-1])]
        token_indices = [
            i for i, token in enumerate(tokens) if one["start"] < token.span[1] and token.span[0] < one["end"]
        ]
        token_indices = token_indices or self._space_tokens(tokens, one)
        best = tokens.scores[token_indices][:, labels].argmax(dim=-1).tolist()
        positions, label_ids = [tokens[i].position for i in token_indices], [labels[i] for i in best]

        def of(output: Output) -> Tensor:
            return output["logits"][
                0, torch.tensor(positions, device="cpu"), torch.tensor(label_ids, device="cpu")
            ].mean()

        return [Target(f"logit of {kind} at {one['word']!r}", window_output.window, of)]
