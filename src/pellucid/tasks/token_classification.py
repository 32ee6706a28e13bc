"""Which tokens, words or stretches of a text have which label: names, places, parts of speech."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from pellucid.checkpoints.loaded import Loaded
from pellucid.config.checks import all_of, choice, is_word, listed, names_of, truth
from pellucid.errors import Argument, InputError, Item, near, several
from pellucid.models import Output
from pellucid.tasks.answer import Answer, Answers
from pellucid.tasks.attribution import Aim
from pellucid.tasks.entities import (
    STRATEGIES,
    Found,
    grouped,
    guessed_tags,
    labelled,
    longest,
    ranges_of,
    tags_of,
    written,
)
from pellucid.tasks.reader import Reader, Stretch, what_was_read
from pellucid.tasks.tagged_tokens import BOUNDARIES, Sentence, Tagged, innermost, tagged
from pellucid.tasks.task import Work, text_alone
from pellucid.text import Tokenizer, Window
from pellucid.text.cut import visible

OVERLAPS = ("inner", "longest")
_WORDS = Argument("is_split_into_words", True)


@dataclass(frozen=True, kw_only=True)
class TokenClassification(Reader):
    """The entities of a text, `{"entity_group", "score", "word", "start", "end"}`; places count characters.

    aggregation_strategy: how the tokens of a word get one label. "first" takes that of its first token, which most
        models learned; "average" that of the mean of their scores, "max" that of the surest token; "simple" knows no
        words, so that an entity may begin within one; "none" labels each token and groups nothing:
        `{"entity", "score", "index", "word", "start", "end"}`.
    boundaries: "words" are those of the tokenizer, with signs apart, and in scripts without spaces its tokens;
        "heuristic" guesses them from spaces and lengths, reads only the prefixes B- and I-, counts spaces before a
        token with it, and reads words that were given one by one as if each stood alone, all as the reference does.
    ignore_labels: what is left out of the answer.
    is_split_into_words: an item is several words, as a tuple or in a list of items; places then count the characters
        of the words with `delimiter` between them.
    decoded: `word` is what the tokenizer makes of the tokens, lower case perhaps; else the text itself.
    overlap: of a text read in stretches. "inner" takes each token from the stretch in which it stands farther from
        where the text was cut; "longest" reads each stretch alone and keeps the longest of entities that overlap.
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
        choice("aggregation_strategy", self.aggregation_strategy, STRATEGIES)
        choice("boundaries", self.boundaries, BOUNDARIES)
        choice("overlap", self.overlap, OVERLAPS)
        truth("is_split_into_words", self.is_split_into_words)
        truth("decoded", self.decoded)
        if not isinstance(self.delimiter, str):
            raise InputError(f"delimiter is {type(self.delimiter).__name__}, expected a text such as ' '")
        ignored = listed("ignore_labels", self.ignore_labels, "a list of labels")
        object.__setattr__(self, "ignore_labels", names_of("ignore_labels", ignored, "a list of labels"))
        if self.overlap == "longest" and self.aggregation_strategy == "none":
            grouped = Argument("aggregation_strategy", "simple")
            raise InputError(Argument("overlap", "longest"), " compares entities: pass ", grouped, ", say")

    @classmethod
    def fitting(cls, loaded: Loaded, options: Mapping[str, Any]) -> dict[str, Any]:
        """The options; a label that is to be left out has to be one of the model's, unless it is "O"."""
        labels, fitting = tuple(loaded.config.labels), dict(options)
        known = {*labels, *(tag.kind for tag in tags_of(labels)), "O"}
        if (ignored := all_of(options.get("ignore_labels"))) is not None:
            fitting["ignore_labels"] = ignored
            theirs = is_word(options.get("boundaries"), "heuristic")
            for label in () if theirs else {str(label) for label in ignored if isinstance(label, str)} - known:
                has = several(sorted(known))
                raise InputError(f"ignore_labels names {label!r}{near(label, known)}, and this model has {has}")
        return fitting

    def item(self, given: Any, index: int) -> Sentence:
        if isinstance(given, Mapping) and set(given) == {"text"}:
            given = given["text"]
        if not self.is_split_into_words:
            if isinstance(given, tuple | list):
                raise InputError(Item(index), f" is {type(given).__name__}: pass ", _WORDS, " for words")
            return Sentence.of_text(text_alone(given, index), index)
        if not isinstance(given, tuple | list) or not all(isinstance(word, str) for word in given):
            raise InputError(
                Item(index),
                f" is {type(given).__name__}, and ",
                _WORDS,
                " takes several words: give one text as a tuple of words, several as a list of lists",
            )
        return Sentence.of_words(given, self.delimiter, index)

    def asked(self, work: Work, item: Sentence, index: int) -> list[Window]:
        alone = self.boundaries == "heuristic" and item.starts is not None
        return self.stretches(work, index, item.words if alone else item.read)

    def keep(self, work: Work, here: Tensor, window: Window) -> Tensor:
        return here.softmax(dim=-1)

    def answer(self, work: Work, item: Sentence, stretches: list[Stretch]) -> Answers:
        parts, read = self._parts(work, item, stretches), what_was_read(stretches)
        if self.overlap == "longest" and len(parts) > 1:
            every = [one for part in parts for one in self._entities(work, part)]
            numbers = {id(entity): number for entity, number in every}
            found = [(entity, numbers[id(entity)]) for entity in longest(entity for entity, _ in every)]
        else:
            found = self._entities(work, innermost(parts, stretches))
        return Answers((Answer(entity, read=read, window=number) for entity, number in found), read=read)

    def _parts(self, work: Work, item: Sentence, stretches: list[Stretch]) -> list[Tagged]:
        return [tagged(item, stretch, work.loaded.words.unk_token_id) for stretch in stretches]

    def _entities(self, work: Work, tokens: Tagged) -> list[tuple[dict[str, Any], int]]:
        """The entities of some tokens, each with the stretch that it begins in."""
        words, labels = work.loaded.words, tuple(work.loaded.config.labels)
        true = self.boundaries == "words"
        found = labelled(tokens, ranges_of(tokens, self.aggregation_strategy, true, words), self.aggregation_strategy)
        kinds: Sequence[str] = labels
        if self.aggregation_strategy != "none":
            tags = tags_of(labels) if true else guessed_tags(labels)
            found = grouped(tokens, found, tags, touching=true)
            kinds = [tag.kind for tag in tags] if true else [label.split("-", 1)[-1] for label in labels]
        wanted = [(one, kinds[one.label]) for one in found if kinds[one.label] not in self.ignore_labels]
        return [(self._entity(words, tokens, *one), tokens.stretches[one[0].tokens[0]]) for one in wanted]

    def _entity(self, words: Tokenizer, tokens: Tagged, one: Found, kind: str) -> dict[str, Any]:
        start, end = tokens.places[one.tokens[0]][0], tokens.places[one.tokens[-1]][1]
        if self.boundaries == "words":
            start, end = visible(tokens.sentence.shown, start, end)
        if self.decoded:
            word = written(tokens, one, self.aggregation_strategy, words)
        else:
            word = tokens.sentence.slice(start, end)
        place = {"word": word, "start": start, "end": end}
        if self.aggregation_strategy == "none":
            return {"entity": kind, "score": one.score, "index": tokens.numbers[one.tokens[0]], **place}
        return {"entity_group": kind, "score": one.score, **place}

    def _of_spaces(self, tokens: Tagged, one: Answer) -> list[int]:
        """The tokens of an entity that is a space alone, which takes no place."""
        if "index" in one:
            return [tokens.numbers.index(one["index"])]
        places = enumerate(tokens.places)
        return [nth for nth, (start, end) in places if one["start"] <= start and end <= one["end"]]

    def aims(self, work: Work, item: Sentence, stretches: list[Stretch], one: Answer) -> list[Aim]:
        """The mean of the logits of an entity's label at its tokens, as far as the stretch it began in holds them."""
        stretch = stretches[one.window or 0]
        (tokens,) = self._parts(work, item, [stretch])
        kind = one.get("entity", one.get("entity_group"))
        labels = [i for i, label in enumerate(work.loaded.config.labels) if kind in (label, label.split("-", 1)[-1])]
        here = [nth for nth, (start, end) in enumerate(tokens.places) if one["start"] < end and start < one["end"]]
        here = here or self._of_spaces(tokens, one)
        best = tokens.scores[here][:, labels].argmax(dim=-1).tolist()
        places, numbers = [tokens.within[nth] for nth in here], [labels[i] for i in best]

        def of(output: Output) -> Tensor:
            return output["logits"][0, torch.tensor(places, device="cpu"), torch.tensor(numbers, device="cpu")].mean()

        return [Aim(f"logit of {kind} at {one['word']!r}", stretch.window, of)]
