"""The one list of tasks: what they are called, what they take, what they answer, and which model answers by default.

It is read without torch, by the command line and by the documents.
"""

import importlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pellucid.errors import InputError, near, short

if TYPE_CHECKING:
    from pellucid.tasks.task import Task

SMALL = "HuggingFaceTB/SmolLM2-135M-Instruct"
SENTENCES = "sentence-transformers/all-MiniLM-L6-v2"
FEELINGS = "pellucid/sentiment-minilm"


@dataclass(frozen=True)
class Name:
    """A task by its name.

    home: the class of it, as "module:class".  model: who answers where nobody is named.
    says: one line for a person.  gives: the keys of an answer.  aliases: other names for the same.
    """

    name: str
    home: str
    model: str
    says: str
    gives: tuple[str, ...]
    aliases: tuple[str, ...] = ()

    def task(self) -> "type[Task]":
        """Its class."""
        return homed("pellucid.tasks", self.home)


def homed(room: str, home: str) -> Any:
    """The class at "module:class" of a room, imported only now."""
    module, _, name = home.partition(":")
    return getattr(importlib.import_module(f"{room}.{module}"), name)


TASKS = (
    Name(
        "text-classification",
        "text_classification:TextClassification",
        FEELINGS,
        "Which label a text, or a pair of texts, has.",
        ("label", "score"),
        ("sentiment-analysis",),
    ),
    Name(
        "token-classification",
        "token_classification:TokenClassification",
        "nationaldesignstudio/rampart",
        "Names, places, addresses: the entities of a text.",
        ("entity_group", "score", "word", "start", "end"),
        ("ner",),
    ),
    Name(
        "question-answering",
        "question_answering:QuestionAnswering",
        "distilbert/distilbert-base-cased-distilled-squad",
        "The stretch of a context that answers a question.",
        ("score", "start", "end", "answer"),
    ),
    Name(
        "fill-mask",
        "fill_mask:FillMask",
        "distilbert/distilroberta-base",
        "The words that fit in the place of a mask.",
        ("score", "token", "token_str", "sequence"),
    ),
    Name(
        "summarization",
        "writing:Summarization",
        "sshleifer/distilbart-cnn-12-6",
        "A text in fewer words.",
        ("summary_text",),
    ),
    Name(
        "translation",
        "writing:Translation",
        "google-t5/t5-base",
        "A text in another language: translation_xx_to_yy.",
        ("translation_text",),
    ),
    Name(
        "text2text-generation",
        "writing:TextToText",
        "google-t5/t5-base",
        "What an encoder-decoder writes for a text.",
        ("generated_text",),
    ),
    Name(
        "text-generation",
        "text_generation:TextGeneration",
        SMALL,
        "How a text, or a conversation, goes on.",
        ("generated_text",),
    ),
    Name(
        "zero-shot-classification",
        "zero_shot:ZeroShotClassification",
        "facebook/bart-large-mnli",
        "Which of your own labels fits a text.",
        ("sequence", "labels", "scores"),
    ),
    Name(
        "feature-extraction",
        "feature_extraction:FeatureExtraction",
        SENTENCES,
        "The hidden state of every token.",
        (),
    ),
    Name(
        "sentence-similarity",
        "sentence_similarity:SentenceSimilarity",
        SENTENCES,
        "How alike the meaning of two texts is.",
        ("score",),
    ),
    Name(
        "text-ranking",
        "text_ranking:TextRanking",
        SENTENCES,
        "Documents by how well they answer a query.",
        ("corpus_id", "score", "text"),
        ("rerank",),
    ),
)
"""Every task."""

_PAIR = re.compile(r"translation_(\w+?)_to_(\w+)")


def named(task: str) -> tuple[Name, dict[str, Any]]:
    """The task that goes by a name, and the options that the name says: translation_en_to_de names two languages."""
    if not isinstance(task, str):
        raise InputError(f"task is {short(repr(task))}, expected the name of a task, such as 'text-classification'")
    if found := _PAIR.fullmatch(task):
        return named("translation")[0], {"src_lang": found[1], "tgt_lang": found[2]}
    for one in TASKS:
        if task in (one.name, *one.aliases):
            return one, {}
    known = [name for one in TASKS for name in (one.name, *one.aliases)]
    others = f": one of {', '.join(known)}, or translation_xx_to_yy"
    raise InputError(f"unknown task {short(repr(task))}{near(task, known)}", others)
