"""The one list of objectives: what they are called, which models they fit, and their classes.

It is read without torch, by the command line and by the documents.
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
    """An objective by its name.

    home: its class, as "module:class".  says: one line for a person.  aliases: other names for the same.
    tag: the task that its models answer, where that goes by another name ("fill-mask"); "" where there is none.
    head: by its name, the head of the models that it scores where nobody names a task; "" for models without one, None
        where it is never meant unless named. Of several the first in the list is meant.
    reads: the columns of its data, in words.
    """

    name: str
    home: str
    says: str
    aliases: tuple[str, ...] = ()
    tag: str | None = None
    head: str | None = None
    reads: str = "text, label"

    @property
    def task(self) -> str:
        """The task that a model trained by it answers, by a name of `pellucid.tasks.names`; "" for none."""
        return self.name if self.tag is None else self.tag

    def objective(self) -> "type[Objective]":
        """Its class."""
        return import_class("pellucid.training", self.home)


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
    """The objective that goes by a name. Raises InputError, with near names, for one that nobody goes by."""
    for one in OBJECTIVES:
        if is_one_of(task, one.name, *one.aliases):
            return one
    known = [name for one in OBJECTIVES for name in (one.name, *one.aliases)]
    hint = did_you_mean(str(task), known) or f": one of {', '.join(known)}"
    raise InputError(f"unknown task {shorten(repr(task))}{hint}")
