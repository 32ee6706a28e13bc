"""Ends a command: an error becomes one sentence on stderr, and an exit code that a script can act on."""

import contextlib
import io
import logging
import sys

import rich_click as click
from click.exceptions import Exit

from pellucid.cli.options import message_as_typed, running_context
from pellucid.cli.output import clean, discard_output
from pellucid.cli.signals import INTERRUPTED
from pellucid.errors import PellucidError, StructuredError, did_you_mean, is_out_of_memory, was_interrupted
from pellucid.files import FULL

OK, FAILED, USAGE, NO_ROOM = 0, 1, 2, 6

NO_MEMORY = "out of memory; try shorter texts or dtype bfloat16"


def run(app: click.Command) -> int:
    """Runs the command line, and returns its exit code; any error is printed as one line."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")  # as on stderr: no character raises an error
    if isinstance(sys.stdin, io.TextIOWrapper) and sys.stdin.errors == "surrogateescape":
        sys.stdin.reconfigure(errors="strict")  # without a locale Python accepts invalid bytes
    try:
        code = app.main(standalone_mode=False)  # of `ctx.exit(code)`, or returned by the command
        sys.stdout.flush()  # raises here what Python would report at exit
    except click.UsageError as error:
        return _usage_error(error, app)
    except Exit as error:
        return error.exit_code
    except (KeyboardInterrupt, click.Abort) as stop:
        return _print_error(
            _error_message(stop, app) or _error_message(stop.__context__, app) or "interrupted", INTERRUPTED
        )
    except SystemExit as error:
        if isinstance(error.__context__, BrokenPipeError):  # click noticed it first, and exits with 1
            return OK
        raise
    except BrokenPipeError:  # the reader of our output has closed it, as `| head` does
        discard_output()
        return OK
    except PellucidError as error:
        _log_traceback()
        return _print_error(_error_message(error, app), error.exit_code)
    except Exception as error:  # noqa: BLE001 - the last door: nobody should see a traceback they did not ask for
        _log_traceback()
        return _unexpected_error(error)
    return code if isinstance(code, int) else OK


def _unexpected_error(error: Exception) -> int:
    """Prints an error of another library: a full disk, lack of memory, a Ctrl-C that became another error, or a bug."""
    if isinstance(error, OSError) and error.errno in FULL and error.filename is None:
        discard_output()
        return _print_error(f"{FULL[error.errno]} where the answer is written", NO_ROOM)
    if is_out_of_memory(error):
        return _print_error(NO_MEMORY, NO_ROOM)
    if was_interrupted(error):
        return _print_error("interrupted", INTERRUPTED)
    return _print_error(f"this should not happen: {type(error).__name__}: {error}; --debug shows where", FAILED)


def _error_message(error: BaseException | None, app: click.Command) -> str:
    return message_as_typed(error, running_context(app)) if isinstance(error, StructuredError) else str(error or "")


def _usage_error(error: click.UsageError, app: click.Command) -> int:
    # click's error for an option without a value lacks the command
    command = error.ctx.command_path if error.ctx else f"pellucid {running_context(app).command_path}".rstrip()
    names = (
        error.ctx.command.list_commands(error.ctx) if error.ctx and isinstance(error.ctx.command, click.Group) else []
    )
    message = error.format_message().rstrip(".")
    word = message.partition("'")[2].rpartition("'")[0]
    return _print_error(f"{message}{did_you_mean(word, names)}; see {command} --help", USAGE)


def _print_error(message: str, code: int) -> int:
    with contextlib.suppress(OSError):  # without a readable stderr the exit code is left
        print(f"pellucid: {clean(message, err=True)}", file=sys.stderr)  # noqa: T201
    return code


def _log_traceback() -> None:
    if logging.getLogger("pellucid").isEnabledFor(logging.DEBUG):
        logging.getLogger("pellucid").exception("where it happened:")
