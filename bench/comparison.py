"""One workload, run by several sides: each in its own process, tuned, warmed up and measured in turn."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from side import Place
from side_process import SideError, Worker, clocked, timed, tune


class Desk:
    """The commands that the process of a side executes."""

    def __init__(self, made: Callable[[], Any], most: int) -> None:
        self.made, self.most = made, most

    def prepare(self) -> dict[str, Any]:
        """Loads, tunes and warms up the side; returns the chosen setting."""
        self.side = self.made()
        trial = getattr(self.side, "trial", self.side.work)  # a smaller workload of the same kind, if the side has one
        tried = getattr(self.side, "counted", functools.partial(clocked, trial))
        chosen = tune(self.side.axes, self.side.configure, tried, most=self.most) if self.side.axes else {}
        self._once()
        return chosen

    def told(self) -> list[list[float]]:
        return self.side.told()

    def turn(self) -> tuple[float, float]:
        """Seconds of one run of the workload, and the share of the processor that other processes used meanwhile."""
        return timed(self._once, self.most)

    def _once(self) -> float:
        """Seconds of one run: as reported by the side's own `counted` if it has one, otherwise by the clock."""
        return self.side.counted() if hasattr(self.side, "counted") else clocked(self.side.work)


@dataclass
class Result:
    """The measurements of one side of one part."""

    name: str
    setting: dict[str, Any] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    told: list[list[float]] = field(default_factory=list)
    failed: str = ""


def ratios(result: Result, base: Result) -> list[float]:
    """How many times as fast as ``base``, round by round."""
    return [other / own for own, other in zip(result.seconds, base.seconds)]


def disturbance(results: Sequence[Result]) -> str:
    """The line below a table that shows how quiet the machine was."""
    return f"  others used at most {max(max(r.others, default=0.0) for r in results):.0%} of the processor"


@dataclass
class Part:
    """One workload and its sides; the first is pellucid, and `peer` names the side that it is compared with."""

    title: str
    peer: str
    sides: dict[str, Callable[[Place], Any]]

    def run(self, place: Place, rounds: int, most: int) -> list[Result]:
        """Prepares every side, then measures them in alternating order."""
        results, workers = {name: Result(name) for name in self.sides}, {}
        for name, made in self.sides.items():
            worker = Worker(name, functools.partial(Desk, functools.partial(made, place), most), place)
            try:
                results[name].setting = worker.ask("prepare")
                results[name].told = worker.ask("told")
                workers[name] = worker
            except SideError as reason:
                results[name].failed = str(reason)
                worker.stop()
        for turn in range(rounds):
            for name in list(workers) if turn % 2 == 0 else reversed(list(workers)):
                seconds, others = workers[name].ask("turn")
                results[name].seconds.append(seconds)
                results[name].others.append(others)
        for worker in workers.values():
            worker.stop()
        return list(results.values())
