"""The same questions by hand. Sub-commands are found by name and loaded when they are called, so that help is quick."""

import sys

from pellucid.cli.app import app


def main() -> None:
    """The command `pellucid`."""
    from pellucid.cli.errors import run

    sys.exit(run(app))
