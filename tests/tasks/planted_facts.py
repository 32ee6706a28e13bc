"""Small models, trained in a few seconds, that find facts planted in a text.

They have no position embeddings, so that a long text is read like the short ones of their training.
"""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import pellucid
from pellucid.config import QuestionAnswering, SequenceClassification
from pellucid.text import Encoded, Tokenizer, collate
from tests.parity import tiny

WHO, WHERE = "Who wrote the book?", "Where do you live?"
ANSWERS = {WHO: ("Gustave Eiffel", "Werner von Siemens", "Buzz Aldrin"), WHERE: ("Berlin", "Paris", "Vienna", "Oxford")}
CLASSES = {"city": ANSWERS[WHERE], "person": ANSWERS[WHO]}
JUDGEMENTS = ("neutral", "entailment", "contradiction")
"""In this order, the reference takes "neutral" for contradiction."""
WORDS = (
    "about after air all and any are as at bad before but by call can come company day did dog end every example film "
    "first flies food for forest found from good has hate he help her high house in is its know last late later learn "
    "like little long love makes many me met music name near new no not of old on or past people read rest said sea "
    "she story takes tall teacher team that there this three time to today too two walk want was water we week with"
).split()
"""Neutral words, which answer no question."""
STEPS, ROWS = 300, 16

Example = tuple[Encoded, Any]


def neutral_words(generator: random.Random, count: int, **planted: str) -> str:
    """`count` neutral words, some of them replaced: `neutral_words(generator, 9, at_3="Berlin")`."""
    words = generator.choices(WORDS, k=count)
    for name, word in planted.items():
        words[int(name.removeprefix("at_"))] = word
    return " ".join(words)


def trained_reader(folder: Path) -> Path:
    """A checkpoint that finds who wrote a book and where somebody lives, and contexts without an answer."""
    return _trained(folder, _reading_example, head=QuestionAnswering(), num_hidden_layers=1)


def trained_nli(folder: Path) -> Path:
    """A checkpoint for inference: a text with a city entails "This example is city."; others contradict it."""
    facts = {"labels": JUDGEMENTS, "classifier_dropout": 0.0, "num_hidden_layers": 2}
    return _trained(folder, _nli_example, head=SequenceClassification(), **facts)


def _trained(folder: Path, example: Callable[[Tokenizer, random.Random], Example], **facts: Any) -> Path:
    tokenizer = pellucid.load(tiny.write("bert-reader", folder / "words")).tokenizer
    assert tokenizer is not None
    sizes = {"vocab_size": 600, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "max_position_embeddings": 98}
    model = pellucid.build(pellucid.Config.of("bert", **sizes, **no_dropout, **facts), tokenizer=tokenizer)
    model.freeze("embeddings.position")
    with torch.no_grad():
        dict(model.named_parameters())["embeddings.position.weight"].zero_()
    trainable, generator = (
        [parameter for parameter in model.train().parameters() if parameter.requires_grad],
        random.Random(0),
    )
    optimiser = torch.optim.AdamW(trainable)
    for step in range(STEPS):
        for group in optimiser.param_groups:
            group["lr"] = 3e-3 * min(1.0, step / 20) * (1 - step / STEPS)
        optimiser.zero_grad()
        _loss(model, [example(tokenizer, generator) for _ in range(ROWS)]).backward()
        torch.nn.utils.clip_grad_norm_(trainable, 1.0)
        optimiser.step()
    return model.eval().save(folder / "trained")


def _loss(model: "pellucid.Model", examples: list[Example]) -> Tensor:
    arrays = collate([row.ids for row, _ in examples], [row.type_ids for row, _ in examples], 0)
    batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
    logits = model.module(**batch)["logits"]
    if logits.dim() == 3:  # scores of tokens, not of labels
        logits = logits.masked_fill(batch["attention_mask"][..., None] == 0, -1e4)
    return cross_entropy(logits, torch.tensor([target for _, target in examples]))


def _reading_example(tokenizer: Tokenizer, generator: random.Random) -> Example:
    """A question with a context, and the first and last token of the answer; (0, 0) for none."""
    question, words, expected = (
        generator.choice(list(ANSWERS)),
        generator.choices(WORDS, k=generator.randint(4, 16)),
        None,
    )
    for other, answers in ANSWERS.items():
        if generator.random() < 0.6:
            answer = generator.choice(answers)
            words.insert(generator.randint(0, len(words)), answer)
            expected = answer if other == question else expected
    context = " ".join(words)
    (row,) = tokenizer.encode([question], [context], max_length=96, strategy="only_second")
    start = len(context) if expected is None else context.index(expected)
    end = start + len(expected or "")
    positions = [
        i
        for i, (kind, offsets) in enumerate(zip(row.type_ids, row.offsets))
        if kind and start <= offsets[0] < offsets[1] <= end
    ]
    return row, (positions[0], positions[-1]) if positions else (0, 0)


def _nli_example(tokenizer: Tokenizer, generator: random.Random) -> Example:
    """A text with a hypothesis, and the index of the right judgement."""
    words, hypothesis_class, entailed = (
        generator.choices(WORDS, k=generator.randint(4, 16)),
        generator.choice(list(CLASSES)),
        False,
    )
    for kind, members in CLASSES.items():
        if generator.random() < 0.5:
            words.insert(generator.randint(0, len(words)), generator.choice(members))
            entailed = entailed or kind == hypothesis_class
    (row,) = tokenizer.encode(
        [" ".join(words)], [f"This example is {hypothesis_class}."], max_length=96, strategy="only_first"
    )
    return row, JUDGEMENTS.index("entailment" if entailed else "contradiction")
