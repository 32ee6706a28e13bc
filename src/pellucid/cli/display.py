"""Answers of tasks for a terminal: a readable line, or a small table."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pellucid.cli.output import clean, console, on_one_line, plain_table, score_colour

if TYPE_CHECKING:  # --help imports neither
    from rich.table import Table
    from rich.text import Text

    from pellucid.tasks.answer import Answer, AnswerAttribution, Answers, Method

MAX_ATTRIBUTIONS = 8
"""The most tokens whose attribution is shown as a number."""
METHOD_LIMITS: "dict[Method, str]" = {
    "integrated gradients": "each token alone, not how they work together",
    "gradient x input": "the slope at this text alone, little where the answer is sure",
}
"""The limits of each attribution method."""

MAX_NUMBERS = 6
"""The most numbers of a vector that are shown."""


def answer_renderables(
    answer: "Answer | Answers", item: str, several: bool, show_all: bool
) -> "Iterator[Table | Text]":
    """The tables and lines that show an answer.

    item: its text, on one line.  several: whether there are answers to other texts as well.
    show_all: whether to show all alternatives, not only the best.
    """
    title = [_line((item, "bold"))] if several else []
    if isinstance(answer, list):
        rows = _item_rows(answer)
        yield from title
        yield _table(rows) if rows else _line(("nothing found", "dim"))
    elif "labels" in answer:  # candidate labels
        yield from title
        yield _table([[(label, ""), _percent_cell(score)] for label, score in zip(answer["labels"], answer["scores"])])
    elif "label" in answer and not show_all:
        item_cell = [(item, "dim")] if several else []
        yield _table([[(answer["label"], "bold"), _score_cell(answer), *item_cell]])
    elif "score" in answer:
        yield from title
        yield _table([_answer_row(one) for one in _shown_answers(answer, show_all)])
    else:  # generated texts
        for one in _shown_answers(answer, show_all):
            for written in one.values():
                yield _line((written, ""))
    for one in [answer, *(answer if isinstance(answer, list) else [])]:
        why: AnswerAttribution | None = getattr(one, "why", None)
        if why is not None:
            yield from _attribution_lines(why)


def _shown_answers(answer: "Answer", show_all: bool) -> "Sequence[Answer]":
    """All alternatives, or only the best."""
    return answer.all or [answer] if show_all else [answer]


def _answer_row(answer: "Answer") -> list[tuple[str, str]]:
    """The cells of an answer with a score."""
    if "label" in answer:
        return [(answer["label"], ""), _score_cell(answer)]
    if "answer" in answer:
        return [(answer["answer"] or "(no answer)", "bold"), _percent_cell(answer["score"]), _span_cell(answer)]
    return [(f"{answer['score']:.4f}", "bold")]


def _item_rows(answers: Sequence[Any]) -> list[list[tuple[str, str]]]:
    """The rows of entities, tokens for a mask, ranked documents, or vectors."""
    rows = []
    for i, one in enumerate(answers):
        if not isinstance(one, dict):
            more = f"and {len(one) - MAX_NUMBERS} more" if len(one) > MAX_NUMBERS else ""
            rows.append([(str(i), "dim"), (" ".join(f"{x:+.4f}" for x in one[:MAX_NUMBERS]), ""), (more, "dim")])
        elif "token_str" in one:
            rows.append([(one["token_str"], "bold"), _percent_cell(one["score"]), (one["sequence"], "dim")])
        elif "corpus_id" in one:
            rows.append([(str(one["corpus_id"]), "dim"), (f"{one['score']:.4f}", "bold"), (one.get("text", ""), "")])
        else:
            kind = one.get("entity_group", one.get("entity"))
            rows.append([(kind, "bold"), (one["word"], ""), _percent_cell(one["score"]), _span_cell(one)])
    return rows


def _span_cell(one: Any) -> tuple[str, str]:
    """Start and end in characters."""
    return f"{one['start']}-{one['end']}", "dim"


def _score_cell(answer: "Answer") -> tuple[str, str]:
    """A probability in percent; another score, as of a regression, unchanged."""
    return (f"{answer['score']:.4f}", "") if answer.raw else _percent_cell(answer["score"])


def _percent_cell(score: float) -> tuple[str, str]:
    return f"{score:.1%}", score_colour(score)


def _table(rows: list[list[tuple[str, str]]]) -> "Table":
    from rich.text import Text

    table = plain_table(show_header=False)
    for row in rows:
        table.add_row(*(Text(clean(text), style) for text, style in row))
    return table


def _line(*parts: tuple[str, str]) -> "Text":
    from rich.text import Text

    return Text.assemble(*((clean(text), style) for text, style in parts))


def _attribution_lines(attribution: "AnswerAttribution") -> "Iterator[Text]":
    """The tokens, shaded where there are colours, and those with the largest attributions with their numbers."""
    max_score = max((abs(score) for score in attribution.scores), default=0.0) or 1.0
    tokens = list(map(on_one_line, attribution.tokens))
    yield _line(
        ("why: ", "bold"), (f"{attribution.target}  ({attribution.method}: {METHOD_LIMITS[attribution.method]})", "dim")
    )
    paper = console()
    if paper.is_terminal and not paper.no_color:
        yield _line(
            *(
                part
                for token, score in zip(tokens, attribution.scores)
                for part in _shaded_token(token, score / max_score)
            )
        )
    order = sorted(range(len(tokens)), key=lambda i: -abs(attribution.scores[i]))[:MAX_ATTRIBUTIONS]
    yield _line(("   ".join(f"{tokens[i]} {attribution.scores[i]:+.2g}" for i in order), ""))


def _shaded_token(token: str, share: float) -> list[tuple[str, str]]:
    """A token on green where it supports the answer, on red where it opposes it, by strength.  share: from -1 to 1."""
    deep = round(40 + 150 * abs(share))
    colour = f"white on rgb(0,{deep},0)" if share > 0 else f"white on rgb({deep},0,0)"
    return [(token, colour if abs(share) > 0.05 else ""), (" ", "")]
