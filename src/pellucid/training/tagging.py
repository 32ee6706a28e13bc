"""Token classification: a label for each word, such as named entities or parts of speech."""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from pellucid.checkpoints.loaded import Loaded
from pellucid.config import Head
from pellucid.config.checks import check_bool, check_choice, check_count
from pellucid.errors import Argument, InputError, did_you_mean, format_count, join_names, shorten
from pellucid.tasks.reader import WindowOutput
from pellucid.tasks.tagged_tokens import AlignedText, TaggedTokens, merge_windows, tag_window, tokenizer_words
from pellucid.text import RULES, Window, windows
from pellucid.text.truncation import trimmed_span
from pellucid.training import tags
from pellucid.training.data import row_location
from pellucid.training.learner import Learner
from pellucid.training.losses import IGNORED
from pellucid.training.metrics import entity_scores, majority_accuracy, require_library
from pellucid.training.objective import Example, Fields, Objective, batch_of, head_for, logits_of
from pellucid.training.reading import token_limit
from pellucid.training.sequence_packing import padded

log = logging.getLogger("pellucid")


class TaggingTarget(NamedTuple):
    """The target of a window of a sentence.

    labels: for each token the id of its label, or `IGNORED`.
    row: the index of the sentence.  words: of each word labelled in this window its first token and its index.
    truth: the tags of all words of the sentence that are not cut off.
    """

    labels: list[int]
    row: int
    words: list[tuple[int, int]]
    truth: list[str]


@dataclass(frozen=True, kw_only=True)
class TokenClassification(Objective):
    """One label per word; the mean cross-entropy over all labelled tokens of a step.

    Tags with a prefix (B- and I-; in some data also E-, L-, S-, U-) are those of entities, others of single words. An
    I- that continues no entity is read as B-, and their number is logged: so IOB1 is read too (`training/tags.py`).

    Rows hold `tokens`, words, and `tags`, a label for each; or `text` and `entities`, each with start, end and label.
    Words are joined by spaces, as in the task, and labelled at their first token.
    classes: the labels; None for those of the data.
    every_piece: labels all tokens of a word, not only its first (after B- with I-).
    long: how to read sentences that are too long: "windows" splits them into windows, and labels each word in the one
        where it is farthest from a cut; "truncate" cuts them, and what is cut off is neither trained on nor scored;
        "error" refuses them.
    stride: tokens that a window shares with the one before; None for a quarter of a window.
    """

    classes: tuple[str, ...] | None = None
    every_piece: bool = False
    long: str = "windows"
    stride: int | None = None

    name: ClassVar[str] = "token-classification"
    columns: ClassVar[tuple[str, ...]] = ("tokens", "tags", "text", "entities")
    default_settings: ClassVar[dict[str, Any]] = {"learning_rate": 1e-4}
    best_metric: ClassVar[str] = "f1"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("long", self.long, RULES)
        check_bool("every_piece", self.every_piece)
        if self.stride is not None:
            check_count("stride", self.stride, minimum=0)
            if self.long != "windows":
                windows_argument = Argument("long", "windows")
                raise InputError(f"stride is for windows, and long is {self.long!r}: pass ", windows_argument)

    def fitted(self, rows: Sequence[Fields]) -> Self:
        require_library("nervaluate")
        if self.classes is not None:
            return self
        found: set[str] = {tags.OUTSIDE} if any(_has_entities(row) for row in rows) else set()
        for row in rows:
            found |= self.labels_of_row(row)
        if len(found) < 2:
            what = f"all words are {next(iter(found))!r}" if found else "there are no words"
            raise InputError(f"there is nothing to tell apart in {format_count(len(rows), 'sentence')}: {what}")
        if strange := tags.labels_without_prefix(found):
            message = "the labels %s lack B- and I-, so those of the others are part of the name: are they misspelt?"
            log.warning(message, join_names(strange))
        return replace(self, classes=tags.head_labels(found))

    def labels_of_row(self, row: Fields) -> set[str]:
        if _has_entities(row):
            return {f"B-{one.kind}" for one in _text_and_entities(row)[1]}
        return set(self._words_and_tags(row)[1])

    def head(self, loaded: Loaded) -> Head:
        return head_for(loaded, self.name)

    def labels(self, loaded: Loaded) -> tuple[str, ...]:
        """The labels of the data, or the model's own where it is a tagger that has them all."""
        own, head = loaded.config.labels, loaded.config.head
        tags_already = head is not None and head.name == self.name
        return own if self.classes is None or (tags_already and set(self.classes) <= set(own)) else self.classes

    # -- rows to examples ---------------------------------------------------------------------------------------------

    def examples(self, loaded: Loaded, rows: Sequence[Fields]) -> list[Example]:
        numbers = {label: i for i, label in enumerate(self.labels(loaded))}
        found, cut = list[Example](), 0
        for i, row in enumerate(rows):
            text_windows, targets = self._windows_and_targets(loaded, row, i, numbers)
            found += [Example((one.ids,), (one.type_ids,), target) for one, target in zip(text_windows, targets)]
            cut += any(one.cut for one in text_windows)
        if cut:
            were = f"{format_count(len(rows), 'sentence')} {'was' if cut == 1 else 'were'}"
            log.warning("%s of %s cut: words cut off are neither trained on nor scored", f"{cut:,}", were)
        self._warn_of_changed_tags(rows)
        return found

    def _warn_of_changed_tags(self, rows: Sequence[Fields]) -> None:
        """Warns of tags that are read as I- changed to B-."""
        changed = list[str]()
        for row in rows:
            if not _has_entities(row):
                written, read = _text_list(row, "tags"), self._words_and_tags(row)[1]
                changed += [
                    f"{row_location(row)}, word {n}" for n, (one, own) in enumerate(zip(written, read)) if one != own
                ]
        if changed:
            log.warning(
                "%s with I-, which is read as B- (the first: %s)",
                format_count(len(changed), "entity begins", "entities begin"),
                changed[0],
            )

    def _windows_and_targets(
        self, loaded: Loaded, row: Fields, i: int, numbers: Mapping[str, int]
    ) -> tuple[list[Window], list[TaggingTarget]]:
        location = row_location(row)
        if entities := _has_entities(row):
            text, spans = _text_and_entities(row)
            text_windows, whole = self._windows_and_tokens(loaded, AlignedText.of_text(text, location), location)
            word_tokens = dict(enumerate(tokenizer_words(whole)))
            bounds = [_characters(whole, word) for word in word_tokens.values()]
            if text_windows[0].cut:
                spans = [one for one in spans if bounds and one.start < bounds[-1][1] and bounds[0][0] < one.end]
            word_tags = tags.tags_of(spans, bounds, location)
        else:
            words, word_tags = self._words_and_tags(row)
            text_windows, whole = self._windows_and_tokens(loaded, AlignedText.of_words(words, " ", location), location)
            word_tokens = dict[int, range]()
            for word in tokenizer_words(whole):
                word_tokens.setdefault(whole[word.start].word or 0, word)
            if text_windows[0].cut:
                first, last = min(word_tokens, default=0), max(word_tokens, default=-1)
                word_tags = word_tags[first : last + 1]
                word_tokens = {number - first: word for number, word in word_tokens.items()}
        column = "entities" if entities else "tags"
        labels = {tag: _label_id(tag, numbers, f"{location}: {column}") for tag in dict.fromkeys(word_tags)}
        targets = [TaggingTarget([IGNORED] * len(one.ids), i, [], word_tags) for one in text_windows]
        for number, word in word_tokens.items():
            targets[whole[word.start].window].words.append((whole[word.start].position, number))
            first = labels[word_tags[number]]
            for i in word if self.every_piece else word[:1]:
                label = first if i == word.start else numbers.get(tags.inside_tag(word_tags[number]), first)
                targets[whole[i].window].labels[whole[i].position] = label
        return text_windows, targets

    def _words_and_tags(self, row: Fields) -> tuple[list[str], list[str]]:
        """The words of a row and their tags in IOB2, or unchanged where they have no prefixes."""
        words, found = (_text_list(row, name) for name in ("tokens", "tags"))
        if len(words) != len(found) or not words:
            tokens, marks = format_count(len(words), "token"), format_count(len(found), "tag")
            raise InputError(f"{row_location(row)} has {tokens} and {marks}, expected a tag for each token")
        return words, tags.to_iob2(found) if tags.have_prefixes(found) else found

    def _windows_and_tokens(
        self, loaded: Loaded, sentence: AlignedText, location: str
    ) -> tuple[list[Window], TaggedTokens]:
        """The windows of a sentence, and all its tokens, each from the window where it is farthest from a cut."""
        tokenizer = loaded.required_tokenizer
        limit = token_limit(loaded, self.max_length)
        found = windows(tokenizer, sentence.read, index=location, rule=self.long, max_length=limit, stride=self.stride)
        outputs = [WindowOutput(one, torch.zeros(len(one.ids), 1, device="cpu")) for one in found]
        parts = [tag_window(sentence, one, tokenizer.unk_token_id) for one in outputs]
        return found, merge_windows(parts, outputs)

    # -- examples to numbers ------------------------------------------------------------------------------------------

    def collate(self, loaded: Loaded, examples: Sequence[Example], generator: np.random.Generator) -> dict[str, Tensor]:
        return batch_of(loaded, examples, labels=padded([one.target.labels for one in examples], IGNORED))

    def weight(self, batch: Mapping[str, Tensor]) -> float:
        return float((batch["labels"] != IGNORED).sum())

    def loss(self, learner: Learner, batch: Mapping[str, Tensor]) -> Tensor:
        logits = learner.logits(**batch)
        return functional.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum")

    def score(self, loaded: Loaded, examples: Sequence[Example]) -> dict[str, float]:
        """->  "precision", "recall" and "f1" of entities, "accuracy" of words, and "loss", the mean cross-entropy"""
        logits = logits_of(loaded, examples)
        labels, total, num_tokens = loaded.config.labels, 0.0, 0
        found: dict[int, list[str]] = {}
        true_tags: dict[int, list[str]] = {one.target.row: one.target.truth for one in examples}
        for one, here in zip(examples, logits):
            predicted = found.setdefault(one.target.row, [tags.OUTSIDE] * len(one.target.truth))
            for token, word in one.target.words:
                predicted[word] = labels[int(here[token].argmax())]
            targets = torch.tensor(one.target.labels, device="cpu")
            total += float(functional.cross_entropy(here, targets, reduction="sum"))
            num_tokens += int((targets != IGNORED).sum())
        pairs = [pair for row, own in true_tags.items() for pair in zip(own, found[row])]
        right = [_label_for_tag(own, labels) == other for own, other in pairs]
        are_marked = tags.have_prefixes(labels)
        scores = entity_scores(
            *([tags.entity_spans(side[row], are_marked) for row in true_tags] for side in (true_tags, found))
        )
        return scores | {"accuracy": sum(right) / max(len(right), 1), "loss": total / max(num_tokens, 1)}

    def baseline_scores(self, training_examples: Sequence[Example], held_out: Sequence[Example]) -> dict[str, float]:
        """Scores of a baseline that predicts the most frequent tag of the training words for each word."""
        rows = ({one.target.row: one.target.truth for one in side}.values() for side in (training_examples, held_out))
        words, right = ([tag for row in side for tag in row] for side in rows)
        return {"accuracy": majority_accuracy(words, right)} if words and right else {}


def _label_for_tag(tag: str, labels: Collection[str]) -> str:
    """The label for a tag: the tag itself, or for a B- that is no label its I-."""
    return tag if tag in labels else tags.inside_tag(tag)


def _label_id(tag: str, numbers: Mapping[str, int], column: str) -> int:
    found = numbers.get(_label_for_tag(tag, numbers))
    if found is None:
        raise InputError(
            f"{column} hold {shorten(repr(tag))}{did_you_mean(tag, numbers)}, and the labels are {', '.join(numbers)}"
        )
    return found


def _has_entities(row: Fields) -> bool:
    return "entities" in row and "tags" not in row


def _text_list(row: Fields, name: str) -> list[str]:
    """A column of lists of texts; a cell of a table has them separated by spaces, or as a JSON list."""
    location = row_location(row)
    if name not in row:
        raise InputError(
            f"{location} has no {name!r}{did_you_mean(name, row)}: give 'tokens' and 'tags', or 'text' and 'entities'"
        )
    found = _split_cell(row[name], name, location) if isinstance(row[name], str) else row[name]
    if isinstance(found, Sequence) and found and all(type(one) is int for one in found):
        raise InputError(f"{location}: {name!r} are numbers: give each as the name that it stands for, such as 'B-PER'")
    if not isinstance(found, Sequence | np.ndarray) or not all(isinstance(one, str) for one in found):
        raise InputError(f"{location}: {name!r} is {shorten(repr(row[name]), 60)}, expected a list of texts")
    return [str(one) for one in found]


def _split_cell(cell: str, name: str, location: str) -> Any:
    """The words of a cell, of JSON where it begins with [ in a column of tags, and with [" or [' in one of words."""
    within, begins = cell.strip(), "[" if name == "tags" else ('["', "['")
    if not (within.startswith(begins) and within.endswith("]")):
        return cell.split()
    try:
        return json.loads(cell)
    except (ValueError, RecursionError) as error:
        advice = 'write it as ["a", "b"], or as words with a space between'
        raise InputError(f"{location}: {name!r} is {shorten(repr(cell), 60)}, which is not JSON: {advice}") from error


def _text_and_entities(row: Fields) -> tuple[str, list[tags.Entity]]:
    """The text of a row and its entities, which are JSON in a table."""
    text, found, location = row.get("text"), row["entities"], row_location(row)
    if not isinstance(text, str):
        raise InputError(f"{location} has entities, and its text is {type(text).__name__}, expected a string")
    if isinstance(found, str):
        try:
            found = json.loads(found)
        except (ValueError, RecursionError) as error:
            raise InputError(f"{location}: entities are not JSON: {error}") from error
    return text, tags.parse_entities(found, len(text), location)


def _characters(tokens: TaggedTokens, word: range) -> tuple[int, int]:
    """Start and end of a word in characters, without the space that its first token may include."""
    return trimmed_span(tokens.sentence.shown, tokens[word.start].span[0], tokens[word[-1]].span[1])
