"""Shared by commands that generate text: options, and the table of tokens with their alternatives."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import rich_click as click

from pellucid.cli.options import combined_options
from pellucid.cli.output import clean, plain_table, print_rich, score_colour
from pellucid.cli.reading import TEXT
from pellucid.errors import Argument, InputError, Placeholder
from pellucid.tasks.names import SMALL

if TYPE_CHECKING:  # --help does not import torch
    import pellucid
    from pellucid.generation import Alternative, Completion, Piece

MIN_TEMPERATURE, MAX_TEMPERATURE = 1e-30, 1000
"""The range of temperatures other than 0."""

writing_options = combined_options(
    click.option("--model", "-m", default=SMALL, show_default=True, help="A folder, hub id or installed model."),
    click.option(
        "--max-new-tokens", "-n", type=int, metavar="N", help="Tokens to write at most.  [default: the model's, or 256]"
    ),
    click.option(
        "--temperature", "-t", type=float, metavar="T", help="Sample; 0 takes the likeliest token.  [0 to 1000]"
    ),
    click.option("--top-k", type=int, metavar="K", help="Sample from the K likeliest tokens."),
    click.option("--top-p", type=float, metavar="P", help="Sample from the likeliest that hold P of the probability."),
    click.option(
        "--min-p", type=float, metavar="P", help="Sample from those at least P times as likely as the likeliest."
    ),
    click.option("--seed", type=int, metavar="N", help="Sample with this seed."),
    click.option(
        "--repetition-penalty", type=float, metavar="R", help="Above 1, makes repeating earlier tokens less likely."
    ),
    click.option("--stop", type=TEXT, multiple=True, metavar="TEXT", help="Stop before this text; may be repeated."),
    click.option(
        "--dtype", default="float32", show_default=True, metavar="NAME", help="float32, bfloat16, int8, int4 or auto."
    ),
)
"""The options of a command that generates text."""


def load_generator(model: str, dtype: str) -> "pellucid.Model":
    """Loads a model that generates text. Raises InputError for one that cannot."""
    import pellucid

    found = pellucid.load(model, dtype=dtype)
    if not found.config.writes:
        problem = f"{model} is of kind {found.config.kind!r} and cannot generate text: name a text-generation model by "
        raise InputError(problem, Argument("model", Placeholder("NAME")))
    return found


def requested_options(typed: Mapping[str, Any]) -> dict[str, Any]:
    """The given options by the library's names, with do_sample: set by a sampling option, unset by temperature 0."""
    from pellucid.generation.settings import SAMPLING

    found = {name: value for name, value in typed.items() if value not in (None, ())}
    temperature = found.get("temperature", 1.0)
    if temperature != 0 and not MIN_TEMPERATURE <= temperature <= MAX_TEMPERATURE:  # also refuses NaN
        expected = f"expected a number from {MIN_TEMPERATURE} to {MAX_TEMPERATURE}"
        problem = f"{temperature} is not possible, {expected}; --temperature 0 takes the likeliest token"
        raise click.BadParameter(problem, param_hint="'--temperature' / '-t'")
    greedy = temperature == 0
    if greedy:
        del found["temperature"]
    drawing = [f"--{name.replace('_', '-')}" for name in (*SAMPLING, "seed") if name in found]
    if drawing and (greedy or found.get("num_beams", 1) > 1):
        other = "--temperature 0" if greedy else "--beams"
        raise click.UsageError(f"{drawing[0]} samples, and {other} does not: leave one of them out")
    return found | ({"do_sample": bool(drawing)} if greedy or drawing else {})


def print_text(text: str, *, end: bool = False) -> None:
    """Prints part of an answer on stdout; at a terminal without control characters.  end: also ends the line."""
    click.echo(clean(text), nl=end)


def to_json_fields(one: "Completion | Piece") -> dict[str, Any]:
    """The fields of a completion, or of a piece of one, for JSON."""
    return {name: _json_value(value) for name, value in vars(one).items() if name != "sequences"}


def show_tokens(
    tokens: "Sequence[tuple[str, int, float, Sequence[Alternative]]]",
    max_alternatives: int,
    spell: Callable[[str, int], str],
) -> None:
    """Prints a table: each token, its probability, and up to `max_alternatives` likeliest other tokens.

    tokens: of each its name, id, log-probability and alternatives.  spell: returns the text of a name and id.
    """
    from rich.text import Text

    table = plain_table()
    for name, side in (("token", "left"), ("probability", "right"), ("instead", "left")):
        table.add_column(name if max_alternatives or name != "instead" else "", justify=side, no_wrap=name != "instead")
    for token, i, number, alternatives in tokens:
        others = [one for one in alternatives if one.id != i][:max_alternatives]
        instead = "   ".join(f"{spell(one.token, one.id)} {_percent(one.log_probability)}" for one in others)
        table.add_row(
            Text(spell(token, i)), Text(_percent(number), score_colour(math.exp(number))), Text(instead, "dim")
        )
    print_rich(table)


def _percent(log_probability: float) -> str:
    share = math.exp(log_probability)
    return f"{share:.1%}" if share >= 0.0005 else "<0.1%"


def _json_value(value: Any) -> Any:
    """Named tuples as objects, others as lists."""
    if hasattr(value, "_asdict"):
        return value._asdict()
    return [_json_value(one) for one in value] if isinstance(value, tuple) else value
