"""The one list of tasks: their names, inputs, answers and default models.

It is importable without torch, for the command line and the documents.
"""

import importlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pellucid.errors import InputError, did_you_mean, shorten

if TYPE_CHECKING:
    from pellucid.tasks.task import Task

SMALL = "HuggingFaceTB/SmolLM2-135M-Instruct"
SENTENCES = "sentence-transformers/all-MiniLM-L6-v2"
SENTIMENT = "pellucid/sentiment-minilm"


@dataclass(frozen=True)
class TaskInfo:
    """A task by its name.

    class_path: its class, as "module:class".  default_model: the model where none is named.
    summary: one line of description.  answer_keys: the keys of an answer.  aliases: other names for the same.
    """

    name: str
    class_path: str
    default_model: str
    summary: str
    answer_keys: tuple[str, ...]
    aliases: tuple[str, ...] = ()

    def task_class(self) -> "type[Task]":
        return import_class("pellucid.tasks", self.class_path)


def import_class(package: str, class_path: str) -> Any:
    """The class at "module:class" of a package, imported on demand."""
    module, _, name = class_path.partition(":")
    return getattr(importlib.import_module(f"{package}.{module}"), name)


TASKS = (
    TaskInfo(
        "text-classification",
        "text_classification:TextClassification",
        SENTIMENT,
        "Which label a text, or a pair of texts, has.",
        ("label", "score"),
        ("sentiment-analysis",),
    ),
    TaskInfo(
        "token-classification",
        "token_classification:TokenClassification",
        "nationaldesignstudio/rampart",
        "Names, places, addresses: the entities of a text.",
        ("entity_group", "score", "word", "start", "end"),
        ("ner",),
    ),
    TaskInfo(
        "question-answering",
        "question_answering:QuestionAnswering",
        "distilbert/distilbert-base-cased-distilled-squad",
        "The passage of a context that answers a question.",
        ("score", "start", "end", "answer"),
    ),
    TaskInfo(
        "fill-mask",
        "fill_mask:FillMask",
        "distilbert/distilroberta-base",
        "The words that fit where a mask is.",
        ("score", "token", "token_str", "sequence"),
    ),
    TaskInfo(
        "summarization",
        "writing:Summarization",
        "sshleifer/distilbart-cnn-12-6",
        "A text in fewer words.",
        ("summary_text",),
    ),
    TaskInfo(
        "translation",
        "writing:Translation",
        "google-t5/t5-base",
        "A text in another language: translation_xx_to_yy.",
        ("translation_text",),
    ),
    TaskInfo(
        "text2text-generation",
        "writing:TextToText",
        "google-t5/t5-base",
        "What an encoder-decoder writes for a text.",
        ("generated_text",),
    ),
    TaskInfo(
        "text-generation",
        "text_generation:TextGeneration",
        SMALL,
        "The continuation of a text or a conversation.",
        ("generated_text",),
    ),
    TaskInfo(
        "zero-shot-classification",
        "zero_shot:ZeroShotClassification",
        "facebook/bart-large-mnli",
        "Which of your own labels fits a text.",
        ("sequence", "labels", "scores"),
    ),
    TaskInfo(
        "feature-extraction",
        "feature_extraction:FeatureExtraction",
        SENTENCES,
        "The hidden state of every token.",
        (),
    ),
    TaskInfo(
        "sentence-similarity",
        "sentence_similarity:SentenceSimilarity",
        SENTENCES,
        "How alike the meaning of two texts is.",
        ("score",),
    ),
    TaskInfo(
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


def find_task(task: str) -> tuple[TaskInfo, dict[str, Any]]:
    """The task of a name, and the options that the name implies: translation_en_to_de names two languages."""
    if not isinstance(task, str):
        raise InputError(f"task is {shorten(repr(task))}, expected the name of a task, such as 'text-classification'")
    if found := _PAIR.fullmatch(task):
        return find_task("translation")[0], {"src_lang": found[1], "tgt_lang": found[2]}
    for one in TASKS:
        if task in (one.name, *one.aliases):
            return one, {}
    known = [name for one in TASKS for name in (one.name, *one.aliases)]
    others = f": one of {', '.join(known)}, or two languages, as translation_en_to_de"
    raise InputError(f"unknown task {shorten(repr(task))}{did_you_mean(task, known)}", others)
