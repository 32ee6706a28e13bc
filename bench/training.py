"""Trains, evaluates on test data, and prints the rows of bench/training.md.

    PELLUCID_SHARED=FOLDER python bench/training.py sst2 stsb --seeds 0,1,2 [--quick] [--json FILE]

Each experiment is a file in bench/experiments; without names they are listed.
"""

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path

from corpus import CorpusError, data_folder
from experiment import TABLE_HEAD, Options, ResultRow, write
from machine import describe, quiet_environment

EXPERIMENTS = Path(__file__).parent / "experiments"


def names() -> list[str]:
    """The names of all experiments."""
    return sorted(path.stem.replace("_", "-") for path in EXPERIMENTS.glob("*.py"))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiments", nargs="*", metavar="EXPERIMENT", help=f"some of {', '.join(names())}")
    parser.add_argument("--seeds", default="0,1,2", help="one training for each (default 0,1,2)")
    parser.add_argument("--quick", action="store_true", help="a small share of the data: shows that everything runs")
    parser.add_argument("--scratch", type=Path, help="a folder where models are kept; otherwise they are removed")
    parser.add_argument("--out", type=Path, help="where the last model of an experiment is saved, if it keeps one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    return parser.parse_args()


def run_experiment(name: str, options: Options) -> list[tuple[str, ResultRow]]:
    """The rows of an experiment, printed as they are computed."""
    results = []
    for row in importlib.import_module(f"experiments.{name.replace('-', '_')}").run(options):
        print(row, flush=True)
        results.append((name, row))
    return results


def main() -> None:
    options, known = arguments(), names()
    if unknown := [name for name in options.experiments if name not in known]:
        sys.exit(f"bench: there is no experiment named {', '.join(unknown)}; choose among {', '.join(known)}")
    if not options.experiments:
        print(*known, sep="\n")
        return
    quiet_environment()
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    try:
        data = data_folder()
    except CorpusError as missing:
        sys.exit(str(missing))
    print(*describe().lines(), "", TABLE_HEAD, sep="\n", flush=True)
    seeds = tuple(int(seed) for seed in options.seeds.split(","))
    results: list[tuple[str, ResultRow]] = []
    with tempfile.TemporaryDirectory(prefix="pellucid-experiments-") as temporary:
        scratch = options.scratch or Path(temporary)
        for name in options.experiments:
            results += run_experiment(name, Options(seeds, options.quick, data, scratch, options.out))
    if options.json:
        write(options.json, results)
    if not options.quick and not all(row.within_limits for _, row in results):
        sys.exit(1)


if __name__ == "__main__":
    main()
