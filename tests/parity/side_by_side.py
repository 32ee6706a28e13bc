"""Runs the reference and pellucid on the same random inputs, and prints where the answers differ.

    PYTHONPATH=src ../reference/bin/python -m tests.parity.side_by_side [QUESTIONS [SEED [TASK ...]]]

in the environment that `golden.py` describes, with pellucid's own few requirements (tqdm, click, rich-click). The texts
consist of words of a page, characters that tokenizers often get wrong, and special tokens. Where the reference refuses
an input, pellucid may answer.
"""

import copy
import os
import random
import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}

import torch
import transformers

import pellucid
from pellucid.compat.pipeline import pipeline
from tests.parity import cases, tiny
from tests.parity.comparison import difference
from tests.parity.golden import as_json
from tests.parity.vocabularies import PAGE

ODD = "🙂 naïve İstanbul ﬁne 中文 ... -- e.g. can't «b» x² ½ Ελλάδα 1,000.50 A-B 's é ß _ ##a ▁".split()
ODD += ["[MASK]", "</s>", "<mask>", "\u200b", "\t", "\n", "  ", "e\u0301", "\u00a0", "\ufffd"]
WORDS = " ".join(PAGE).split()
CLOSE = 3e-5
"""Hidden states of long texts differ by more than the golden answers, which are selected."""

Question = tuple[str, str, tuple[Any, ...], dict[str, Any]]
"""Task, model, inputs, keywords of the call."""


class RandomQuestions:
    """Generates random questions, determined by the seed."""

    def __init__(self, seed: int) -> None:
        self.generator = random.Random(seed)

    def text(self, words: int = 0) -> str:
        count = words or self.generator.choice([1, 2, 3, 6, 10, 20])
        parts = [
            self.generator.choice(ODD if self.maybe(0.15) else WORDS) + " " * self.maybe(0.9) for _ in range(count)
        ]
        return "".join(parts).strip() or "x"

    def maybe(self, probability: float) -> bool:
        return self.generator.random() < probability

    def some(self, probability: float = 0.15, **options: Any) -> dict[str, Any]:
        return {name: value for name, value in options.items() if self.maybe(probability)}

    def classification(self) -> Question:
        pair = {"text": self.text(), "text_pair": self.text()}
        item: Any = pair if self.maybe(0.4) else self.text()
        call = {"top_k": self.generator.choice([None, 1, 2]), "truncation": True}
        return "text-classification", self.generator.choice(cases.CLASSIFIERS), (item,), call

    def tagging(self) -> Question:
        call: dict[str, Any] = {"aggregation_strategy": self.generator.choice(cases.STRATEGIES)}
        text = self.text(self.generator.choice([0, 60]))
        if call["aggregation_strategy"] != "none":
            call |= self.some(0.4, stride=self.generator.choice([0, 5, 20]))
        call |= self.some(0.2, is_split_into_words=True)
        item = text.split() if "is_split_into_words" in call else text
        return "token-classification", self.generator.choice(cases.TAGGERS + cases.MORE_TAGGERS), (item,), call

    def reading(self) -> Question:
        call: dict[str, Any] = {"question": self.text(4), "context": self.text(self.generator.choice([5, 30, 90]))}
        call |= {"top_k": self.generator.choice([1, 3, 8]), "max_answer_len": self.generator.choice([1, 5, 15])}
        call |= self.some(0.4, align_to_words=False, handle_impossible_answer=True)
        if self.maybe(0.4):
            call |= {"max_seq_len": self.generator.choice([40, 64]), "doc_stride": self.generator.choice([4, 12])}
        return "question-answering", self.generator.choice(cases.READERS), (), call

    def filling(self) -> Question:
        name = self.generator.choice(cases.FILLERS)
        mask = cases.MASKS.get(name, "<mask>")
        text = f"{self.text(5)} {mask} {self.text(4)}" + f" {mask}" * self.maybe(0.3)
        call = {"top_k": self.generator.choice([1, 3, 5])} | self.some(0.4, targets=[self.text(1) for _ in range(3)])
        return "fill-mask", f"{name}-filler", (text,), call

    def judging(self) -> Question:
        labels = [f"{self.text(1)}{i}" for i in range(self.generator.choice([1, 2, 4]))]
        call = {"candidate_labels": labels, "multi_label": self.maybe(0.5)}
        return "zero-shot-classification", self.generator.choice(cases.JUDGES), (self.text(),), call

    def features(self) -> Question:
        return "feature-extraction", self.generator.choice(cases.BODIES), (self.text(),), {}

    def writing(self) -> Question:
        model = self.generator.choice(["gpt2", "llama", "llama-chat", "mistral", "qwen2-chat"])
        chat = model not in ("gpt2", "llama") and self.maybe(0.4)
        texts: list[Any] = [[{"role": "user", "content": self.text(4)}] if chat else self.text() for _ in range(2)]
        call = {"do_sample": False, "max_new_tokens": 8} | self._search()
        call |= self.some(return_full_text=False, clean_up_tokenization_spaces=False, prefix="Yes. ", min_new_tokens=3)
        call |= self.some(handle_long_generation="hole", add_special_tokens=False)
        return "text-generation", model, (texts[0] if self.maybe(0.6) else texts,), call

    def rewriting(self) -> Question:
        model = self.generator.choice(["t5-tasks", "t5-gated", "t5-tied", "bart", "bart-settings", "bart-summary"])
        task = self.generator.choice(["text2text-generation", "summarization", "translation_en_to_fr", "translation"])
        call = {"max_new_tokens": 8, "num_beams": 2} | self._search()
        call |= self.some(clean_up_tokenization_spaces=True, min_length=4, return_tensors=True, truncation=True)
        return task, model, (self.text() if self.maybe(0.6) else [self.text(), self.text()],), call

    def _search(self) -> dict[str, Any]:
        call = self.some(
            repetition_penalty=1.4, no_repeat_ngram_size=2, stop_sequence=self.generator.choice(["e", " the"])
        )
        call |= self.some(bad_words_ids=[[self.generator.randrange(500)] for _ in range(100)])
        if self.maybe(0.4):
            call |= {"num_beams": self.generator.choice([2, 3])}
            call |= self.some(0.3, num_return_sequences=2, length_penalty=0.3, early_stopping=True)
        return call


@cache
def load_pipelines(task: str, model: str) -> tuple[Any, Any]:
    """The reference's pipeline and ours."""
    folder = tiny.write(model, Path(mkdtemp()) / model)
    return transformers.pipeline(task, model=str(folder), device=-1), pipeline(task, model=folder, device=-1)


def differing(question: Question) -> str:
    """Where the two answers differ, or "" if they agree or the reference refuses."""
    task, model, inputs, call = question
    theirs, ours = load_pipelines(task, model)
    try:
        expected = as_json(theirs(*copy.deepcopy(inputs), **copy.deepcopy(call)))
    except (ValueError, AssertionError, IndexError):  # there is no answer to compare with
        return ""
    try:
        actual = as_json(ours(*copy.deepcopy(inputs), **copy.deepcopy(call)))
    except pellucid.InputError as error:
        return f"pellucid refuses: {error}"
    return difference(expected, actual, CLOSE)


def main(questions: int = 100, seed: int = 0, *tasks: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    random_questions = RandomQuestions(seed)
    kinds: list[Callable[[], Question]] = [getattr(random_questions, name) for name in tasks or _KINDS]
    chosen = [random_questions.generator.choice(kinds)() for _ in range(questions)]
    for question in chosen:
        if message := differing(question):
            print(ascii(question), message, sep="\n    ", flush=True)
    print(f"{questions} questions compared")


_KINDS = ("classification", "tagging", "reading", "filling", "judging", "features", "writing", "rewriting")

if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:])
