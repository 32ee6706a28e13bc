"""pellucid generate"""

from typing import TYPE_CHECKING, Any

import rich_click as click

from pellucid.cli.generation_options import (
    load_generator,
    print_text,
    requested_options,
    show_tokens,
    to_json_fields,
    writing_options,
)
from pellucid.cli.output import progress_option, report_empty, to_json
from pellucid.cli.reading import TEXT, LocationOf, file_argument, read_stdin, read_texts, typed_location, with_locations
from pellucid.errors import InputError

if TYPE_CHECKING:
    import pellucid

RUNNERS_UP = 3


class WhyCommand(click.RichCommand):
    """A command whose `--why` takes an optional number: what follows it is a prompt unless it is a number."""

    def make_parser(self, ctx: click.Context) -> Any:
        parser = super().make_parser(ctx)
        plain = parser.parse_args
        parser.parse_args = lambda args: plain(_expand_why(args))  # for every use of the parser
        return parser


@click.command("generate", cls=WhyCommand)
@click.argument("prompts", type=TEXT, nargs=-1, required=True, metavar="PROMPT... | FILE | -")
@writing_options
@click.option("--beams", "num_beams", type=int, metavar="N", help="Beam search with N beams.")
@click.option(
    "--column", "-c", metavar="NAME", help="The column of a .csv, .tsv or .jsonl FILE that holds the prompts."
)
@click.option("--encoding", metavar="NAME", default="utf-8", help="Encoding of FILE, where it is not UTF-8.")
@click.option("--stream", is_flag=True, help="Show the text while it is written.")
@click.option(
    "--why", type=click.IntRange(0, 50), metavar="[K]", help="Show the probability of each token, and K others."
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per text, or with --stream per token.")
def command(
    prompts: tuple[str, ...],
    model: str,
    dtype: str,
    column: str | None,
    encoding: str,
    stream: bool,
    why: int | None,
    as_json: bool,
    **typed: Any,
) -> None:
    """Continue a text.

    The text is taken as it is; to ask a chat model, use `pellucid chat`. Prompts are the arguments, the whole of
    standard input (`-`), the lines of a FILE, or a column of a table. The likeliest token is taken each time, unless
    a sampling option is given, or the model's own generation_config.json says otherwise.

    \b
    Examples:
      pellucid generate "The capital of France is" --max-new-tokens 20 --stream
      pellucid generate "Roses are red," --temperature 0.8 --seed 1 --stop "."
      pellucid generate "2 + 2 =" -n 5 --why
    """
    texts, location_of = _prompts(prompts, column, encoding)
    if stream and len(texts) != 1:
        raise click.UsageError(f"--stream shows one text while it is written, and there are {len(texts)} prompts")
    options = requested_options(typed)
    writer = load_generator(model, dtype)
    if location_of is not None:
        empty = [number for number, text in enumerate(texts, 1) if not text.strip()]
        report_empty(len(empty), next(iter(empty), 0), len(texts))
    with with_locations(location_of or typed_location(len(texts), "prompt")):
        if stream:
            _show_stream(writer, texts[0], why, as_json, options)
        elif why is None and not as_json:
            for text in writer.generate(texts, progress=progress_option(), **options):
                print_text(text, end=True)
        else:
            _show_completions(writer, texts, why, as_json, options)


def _show_stream(model: "pellucid.Model", prompt: str, why: int | None, as_json: bool, options: dict[str, Any]) -> None:
    rows = []
    try:
        for piece in model.stream(prompt, alternatives=_alternative_count(why), **options):
            rows.append((piece.token, piece.id, piece.log_probability, piece.alternatives))
            print_text(to_json(to_json_fields(piece)) if as_json else piece.text, end=as_json)
    finally:
        if rows and not as_json:
            print_text("", end=True)  # also after an interruption: a message then starts a new line
    if why is not None and not as_json:
        _show_token_table(model, rows, why)


def _show_completions(
    model: "pellucid.Model", prompts: list[str], why: int | None, as_json: bool, options: Any
) -> None:
    from pellucid.generation.texts import completions

    found = completions(
        model.loaded, prompts, alternatives=_alternative_count(why), progress=progress_option(), **options
    )
    for prompt, one in zip(prompts, found):
        print_text(to_json({"prompt": prompt} | to_json_fields(one)) if as_json else one.text, end=True)
        if not as_json:
            rows = zip(one.tokens, one.ids, one.log_probabilities, one.alternatives)
            _show_token_table(model, list(rows), why or 0)


def _show_token_table(model: "pellucid.Model", rows: list[Any], why: int) -> None:
    from pellucid.text.spelling import token_text

    tokenizer = model.loaded.required_target_tokenizer

    def spell(token: str, i: int) -> str:
        """A token in quotes, which show spaces; one that is no complete character as its bytes."""
        text = tokenizer.decode([i])
        return repr(text) if text and "\ufffd" not in text else token_text(token, tokenizer.by_bytes)

    click.echo()
    show_tokens(rows, why, spell)


def _alternative_count(why: int | None) -> int:
    """One more than shown, since the chosen token may be among them and is not shown again."""
    return 0 if why is None else why + 1


def _expand_why(args: list[str]) -> list[str]:
    options = args[: args.index("--")] if "--" in args else args
    places = [i for i, arg in enumerate(options) if arg == "--why" and not _is_number(args[i + 1 : i + 2])]
    return [f"--why={RUNNERS_UP}" if i in places else arg for i, arg in enumerate(args)]


def _is_number(following: list[str]) -> bool:
    return following != [] and following[0].isdecimal()


def _prompts(arguments: tuple[str, ...], column: str | None, encoding: str) -> tuple[list[str], LocationOf | None]:
    """The prompts and their locations; standard input is one prompt. Raises InputError for an empty one."""
    if arguments != ("-",):
        return read_texts(arguments, column, encoding)
    file_argument(arguments, column)  # refuses options of a FILE
    if not (text := read_stdin()).strip():
        raise InputError("standard input is empty: there is nothing to continue")
    return [text], None
