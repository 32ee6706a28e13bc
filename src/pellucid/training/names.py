"""The list of all objectives: their names, the models they fit, and their classes.

It can be imported without torch, for the command line and the documentation.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pellucid.config.checks import is_one_of
from pellucid.errors import InputError, did_you_mean, shorten
from pellucid.tasks.names import import_class

if TYPE_CHECKING:
    from pellucid.training.objective import Objective


@dataclass(frozen=True)
class Name:
    """The name of an objective and where to find it.

    class_path: its class, as "module:class".  summary: its description in one line.  aliases: other names for it.
    tag: the task of models trained by it, where that has another name; "" where there is none.
    head: name of the head of the models that it scores where no task is given; "" for models without a head, None where
        the task must be given. Of several objectives the first in the list is used.
    reads: the columns of its data, in words.
    """

    name: str
    class_path: str
    summary: str
    aliases: tuple[str, ...] = ()
    tag: str | None = None
    head: str | None = None
    reads: str = "text, label"

    @property
    def task(self) -> str:
        """The name in `pellucid.tasks.names` of the task for models trained by it; "" for none."""
        return self.name if self.tag is None else self.tag

    def objective(self) -> "type[Objective]":
        """Imports its class."""
        return import_class("pellucid.training", self.class_path)


OBJECTIVES = (
    Name(
        "text-classification",
        "classification:TextClassification",
        "Which label a text, or a pair of texts, has.",
        ("classify", "sentiment-analysis", "sequence-classification"),
        head="sequence-classification",
        reads="text, label, and of pairs text_pair",
    ),
    Name(
        "text-regression",
        "regression:TextRegression",
        "Which number a text, or a pair of texts, has.",
        ("regression", "regress"),
        tag="text-classification",
        reads="text, a number as label, and of pairs text_pair",
    ),
    Name(
        "token-classification",
        "tagging:TokenClassification",
        "Names, places, parts of speech: which label each word has.",
        ("tag", "ner"),
        head="token-classification",
        reads="tokens and tags, or text and entities",
    ),
    Name(
        "question-answering",
        "answers:QuestionAnswering",
        "Which passage of a context answers a question.",
        ("answer",),
        head="question-answering",
        reads="question, context, answers",
    ),
    Name(
        "sentence-similarity",
        "pairs:SentenceSimilarity",
        "Vectors that are near each other where texts mean alike.",
        ("embed", "similarity"),
        head="",
        reads="sentence1, sentence2 and score; by criterion=multiple-negatives anchor, positive and perhaps negative",
    ),
    Name(
        "fill-mask",
        "masked:FillMask",
        "Which word a mask hides.",
        ("masked-lm",),
        head="masked-lm",
        reads="text",
    ),
    Name(
        "text-generation",
        "causal:TextGeneration",
        "Which token comes next.",
        ("causal-lm",),
        head="causal-lm",
        reads="text, or prompt and completion, or messages",
    ),
    Name(
        "text2text-generation",
        "writing:TextToText",
        "What is written for a text.",
        ("sequence-to-sequence-lm",),
        head="sequence-to-sequence-lm",
        reads="text, target",
    ),
    Name("summarization", "writing:Summarization", "A text in fewer words.", reads="text, target"),
    Name("translation", "writing:Translation", "A text in another language.", reads="text, target"),
)
"""Every objective."""


def objective_named(task: str) -> Name:
    """The objective of a name or alias. Raises InputError, which suggests similar names, for an unknown one."""
    for one in OBJECTIVES:
        if is_one_of(task, one.name, *one.aliases):
            return one
    known = [name for one in OBJECTIVES for name in (one.name, *one.aliases)]
    hint = did_you_mean(task, known) or f": one of {', '.join(known)}"
    raise InputError(f"unknown task {shorten(repr(task))}{hint}")
