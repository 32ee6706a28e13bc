"""Times fresh processes: one vector, the imports and the help, pellucid beside the peers.

    python bench/start.py [--rounds 5] [--json FILE]

No corpus is needed. Every run starts a new process; rounds are interleaved, after one warm-up of each. Compiled
bytecode is kept, even where PYTHONDONTWRITEBYTECODE is set: installed packages come compiled.
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from machine import model_folder
from session import Session
from timing import order_of_round

TEXT = "time flies like an arrow"
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

PELLUCID = f"""
import pellucid
print(pellucid.load("all-MiniLM-L6-v2").embed(["{TEXT}"])[0, :3])
"""
SENTENCE_TRANSFORMERS = f"""
from sentence_transformers import SentenceTransformer
print(SentenceTransformer(MODEL, device="cpu").encode(["{TEXT}"])[0, :3])
"""
TRANSFORMERS = f"""
import torch
from transformers import AutoModel, AutoTokenizer
inputs = AutoTokenizer.from_pretrained(MODEL)(["{TEXT}"], return_tensors="pt")
with torch.inference_mode():
    states = AutoModel.from_pretrained(MODEL)(**inputs).last_hidden_state
print(torch.nn.functional.normalize(states.mean(1), dim=-1)[0, :3])
"""


@dataclass
class Case:
    """One kind of process: its command, and the measurements of its runs."""

    name: str
    command: list[str]
    seconds: list[float] = field(default_factory=list)
    peak: int = 0  # bytes, the largest of all runs; never below this script's own memory
    last_line: str = ""  # the last line of its output, which after a failure is the reason
    failed: bool = False


def python(name: str, code: str) -> Case:
    """A case that runs code in a fresh interpreter."""
    return Case(name, [sys.executable, "-c", code])


def cases(model: Path) -> dict[str, list[Case]]:
    """Groups of cases; in each, ratios refer to the second."""
    model_line = f"MODEL = {str(model)!r}\n"
    program = Path(sys.executable).with_name("pellucid")
    command = [str(program)] if program.exists() else [sys.executable, "-m", "pellucid"]
    return {
        "one vector": [
            python("pellucid", PELLUCID),
            python("sentence-transformers", model_line + SENTENCE_TRANSFORMERS),
            python("transformers", model_line + TRANSFORMERS),
            Case("pellucid embed TEXT", [*command, "embed", TEXT]),
        ],
        "import": [
            python("pellucid", "import pellucid"),
            python("torch", "import torch"),
            python("pellucid with load", "import pellucid; pellucid.load"),  # what the first use of the package needs
            python("bare interpreter", "pass"),
            python("transformers", "import transformers"),
            python("sentence-transformers", "import sentence_transformers"),
        ],
        "help": [Case("pellucid --help", [*command, "--help"]), python("bare interpreter", "pass")],
    }


def run(case: Case) -> float:
    """Seconds from the start of a process to its end; records its peak memory and the last line of its output."""
    begun = time.perf_counter()
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(case.command, env=ENVIRONMENT, **pipes)
    with process:
        output = process.stdout.read() if process.stdout else ""
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - begun
    unit = 1 if sys.platform == "darwin" else 1024  # getrusage counts bytes on macOS and kibibytes elsewhere
    case.peak = max(case.peak, usage.ru_maxrss * unit)
    case.failed |= process.returncode != 0
    case.last_line = (output.strip().splitlines() or ["nothing"])[-1][:200]
    return seconds


def measure(group: list[Case], rounds: int) -> list[Case]:
    """The cases that run on this machine, measured in rounds of alternating order after one warm-up of each."""
    for case in group:
        run(case)
    measured = [case for case in group if not case.failed]
    for number in range(rounds):
        for case in order_of_round(measured, number):
            case.seconds.append(run(case))
    return measured


def time_shares(case: Case, base: Case) -> list[float]:
    """The time of a case as a fraction of ``base``'s, round by round."""
    return [own / other for own, other in zip(case.seconds, base.seconds, strict=True)]


def table(title: str, group: list[Case], measured: list[Case]) -> list[str]:
    """Medians of one group, and of the ratios to its second case."""
    lines = [f"{title:28}  {'seconds':>8}  {'of its time':>11}  {'min..max':>12}  {'peak MB':>7}"]
    base = group[1]
    for case in group:
        if case not in measured:
            lines.append(f"  {case.name}: left out, {case.last_line}")
            continue
        share = time_shares(case, base) if base in measured else [float("nan")]
        spread = f"{min(share):.2f}..{max(share):.2f}"
        numbers = f"{median(case.seconds):8.3f}  {median(share):11.2f}  {spread:>12}  {case.peak / 1e6:7.0f}"
        lines.append(f"  {case.name:26}  {numbers}")
    return [*lines, f"  (of the time of {base.name})", ""]


def verdicts(groups: dict[str, list[Case]]) -> list[str]:
    """The promises, one line each, where both sides ran."""
    lines = []
    vectors, imports, helps = ({case.name: case for case in group} for group in groups.values())
    if {"pellucid", "sentence-transformers"} <= vectors.keys():
        share = median(time_shares(vectors["pellucid"], vectors["sentence-transformers"]))
        lines.append(f"one vector: pellucid / sentence-transformers = {share:.2f} of its time (promise 1/3)")
    if {"pellucid with load", "torch", "sentence-transformers"} <= imports.keys():
        own = imports["pellucid with load"]
        more, share = difference(own, imports["torch"]), median(time_shares(own, imports["sentence-transformers"]))
        lines.append(
            f"import of pellucid.load: {more:+.3f} s over torch (promise 0.2), "
            f"{share:.2f} of sentence-transformers' time (promise 1/3)"
        )
    if {"pellucid --help", "bare interpreter"} <= helps.keys():
        more = difference(helps["pellucid --help"], helps["bare interpreter"])
        lines.append(f"help: {more:+.3f} s over a bare interpreter (promise 0.15)")
    return lines


def difference(case: Case, base: Case) -> float:
    """The median of the seconds that it took longer than ``base``, round by round."""
    return median(own - other for own, other in zip(case.seconds, base.seconds, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds after one warm-up (default 5)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes all numbers")
    options = parser.parse_args()
    session, measured = Session(), {}
    for title, group in cases(model_folder()).items():
        measured[title] = measure(group, options.rounds)
        print(*table(title, group, measured[title]), sep="\n", flush=True)
    session.verdicts += verdicts(measured)
    session.end(options.json, groups={title: [asdict(case) for case in group] for title, group in measured.items()})


if __name__ == "__main__":
    main()
