"""pellucid verify"""

import dataclasses
from typing import TYPE_CHECKING, Any

import rich_click as click

from pellucid.bars import progress_bar
from pellucid.cli.errors import FAILED
from pellucid.cli.output import print_result, progress_option, to_json
from pellucid.cli.reading import TEXT

if TYPE_CHECKING:  # --help does not import torch
    from pellucid.tasks.tolerance import Check

MARKS = {True: "ok", False: "FAILS", None: "-"}


@click.command("verify")
@click.argument("checkpoint")
@click.option("--text", "-t", "texts", type=TEXT, multiple=True, help="A text to verify with; may be repeated.")
@click.option(
    "--tokens", type=click.IntRange(min=0), default=10, show_default=True, help="Tokens to generate, 0 for none."
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "float64", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="What to compute in; float64 shows smaller mistakes.",
)
@click.option("--json", "as_json", is_flag=True, help="As JSON, with the difference at every point.")
def command(checkpoint: str, texts: tuple[str, ...], tokens: int, dtype: str, as_json: bool) -> None:
    """Check that a checkpoint computes the right numbers here.

    Is every tensor accounted for? Do all ways to the same numbers agree: fused and explicit attention, token by token
    and all at once, padded and alone, packed and plain, saved and loaded? And does `transformers`, where it is
    installed, compute the same, layer by layer? Each line shows the largest difference, relative to the largest
    number of its position, and the tolerance. The exit code is 0 if every check passed, else 1.

    \b
    Examples:
      pellucid verify all-MiniLM-L6-v2
      pellucid verify ./my-model --dtype float64 --text "a sentence of my own" \\
          --json
    """
    from pellucid.tasks.verify import TEXTS, verify

    checks = []
    with progress_bar("", shown=progress_option(), bar_format="{desc} ({elapsed})") as line:
        options: dict[str, Any] = {"texts": texts or TEXTS, "tokens": tokens, "dtype": dtype}
        for check in verify(checkpoint, **options, on_step=line.set_description_str):
            checks.append(check)
            if not as_json:
                line.clear()
                print_result(_check_line(check))
    passed = all(check.passed is not False for check in checks)
    if as_json:
        print_result(to_json(_report(checkpoint, dtype, passed, checks), indent=2))
    else:
        print_result(f"\n{_verdict(checkpoint, dtype, checks)}")
    if not passed:
        raise SystemExit(FAILED)


def _check_line(check: "Check") -> str:
    """A check on one line: mark, name, measured and allowed difference, first point that differs, note."""
    parts = [f"{MARKS[check.passed]:5}  {check.name:31}"]
    if check.difference is not None and check.tolerance is not None:
        sign = "<=" if check.difference <= check.tolerance else "> "
        parts.append(f"{_number(check.difference):>7} {sign} {_number(check.tolerance):5}")
    else:
        parts.append(" " * 16)
    if check.where:
        parts.append(f"first at {check.where};")
    return "  ".join([*parts, check.note]).rstrip(" ;")


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}".replace(".0e", "e")


def _verdict(checkpoint: str, dtype: str, checks: "list[Check]") -> str:
    failed = [check for check in checks if check.passed is False]
    if failed:
        first = next((f", first at {check.where}" for check in failed if check.where), "")
        return f"{checkpoint} computes wrong numbers: {len(failed)} of {len(checks)} checks fail in {dtype}{first}"
    left = [check.name for check in checks if check.passed is None]
    without = f"; not checked: {', '.join(left)}" if left else ""
    return f"{checkpoint} computes what it should: {len(checks) - len(left)} checks hold in {dtype}{without}"


def _report(checkpoint: str, dtype: str, passed: bool, checks: "list[Check]") -> dict[str, Any]:
    rows = [dataclasses.asdict(check) | {"points": dict(check.points)} for check in checks]
    return {"checkpoint": checkpoint, "dtype": dtype, "passed": passed, "checks": _finite(rows)}


def _finite(value: Any) -> Any:
    """A value for JSON, which has no infinity: "infinite" in its place."""
    if isinstance(value, dict):
        return {name: _finite(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return "infinite" if value == float("inf") else value
