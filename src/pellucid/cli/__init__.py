"""The same questions by hand. Sub-commands are found by name and loaded when they are called, so that help is quick."""

import atexit
import gc
import sys

from pellucid.cli.app import app


def main() -> None:
    """The command `pellucid`."""
    from pellucid.cli.errors import run

    atexit.register(gc.freeze)  # or Python walks all that torch has made once more before it ends: 0.3 s and more
    sys.exit(run(app))
