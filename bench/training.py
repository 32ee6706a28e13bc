"""Trains, evaluates on test data, and prints the rows of bench/training.md.

    PELLUCID_SHARED=FOLDER python bench/training.py sst2 stsb --seeds 0,1,2 [--quick] [--json FILE]

Each lesson is a file in bench/lessons; without names they are listed.
"""

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path

from corpus import CorpusError, data_folder
from experiment import HEAD, Asked, Line, write
from machine import describe, quiet_environment

LESSONS = Path(__file__).parent / "experiments"


def names() -> list[str]:
    """The names of all lessons."""
    return sorted(path.stem.replace("_", "-") for path in LESSONS.glob("*.py"))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lessons", nargs="*", metavar="LESSON", help=f"some of {', '.join(names())}")
    parser.add_argument("--seeds", default="0,1,2", help="each lesson is learned once with each (default 0,1,2)")
    parser.add_argument("--quick", action="store_true", help="a small share of the data: shows that everything runs")
    parser.add_argument("--scratch", type=Path, help="a folder for models, which stay there; else they are removed")
    parser.add_argument("--out", type=Path, help="where the last model of a lesson is to stand, if it keeps one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    return parser.parse_args()


def learned(name: str, asked: Asked) -> list[tuple[str, Line]]:
    """The lines of a lesson, printed as they are computed."""
    found = []
    for line in importlib.import_module(f"experiments.{name.replace('-', '_')}").run(asked):
        print(line, flush=True)
        found.append((name, line))
    return found


def main() -> None:
    options, known = arguments(), names()
    if unknown := [name for name in options.lessons if name not in known]:
        sys.exit(f"bench: no lesson {', '.join(unknown)}; there are {', '.join(known)}")
    if not options.lessons:
        print(*known, sep="\n")
        return
    quiet_environment()
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    try:
        data = data_folder()
    except CorpusError as missing:
        sys.exit(str(missing))
    print(*describe().lines(), "", HEAD, sep="\n", flush=True)
    seeds = tuple(int(seed) for seed in options.seeds.split(","))
    found: list[tuple[str, Line]] = []
    with tempfile.TemporaryDirectory(prefix="pellucid-lessons-") as temporary:
        scratch = options.scratch or Path(temporary)
        for name in options.lessons:
            found += learned(name, Asked(seeds, options.quick, data, scratch, options.out))
    if options.json:
        write(options.json, found)
    if not options.quick and not all(line.held for _, line in found):
        sys.exit(1)


if __name__ == "__main__":
    main()
