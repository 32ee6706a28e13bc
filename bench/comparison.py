"""One workload, run by several sides: each in its own process, tuned, warmed up and measured in turn."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from results import SideResult
from side import Setting, Workspace
from side_process import SideError, SideProcess
from timing import elapsed_seconds, least_disturbed, order_of_round, tune


class WorkloadSide(ABC):
    """One side of a comparison; it loads its model when it is made."""

    setting: Setting

    def axes(self) -> dict[str, list[Any]]:
        """The values that may be tuned, the most promising first."""
        return {}

    def configure(self, setting: Setting) -> None:
        """Sets a value for every axis."""
        self.setting = setting

    @abstractmethod
    def run(self) -> Any:
        """Runs the workload once."""

    def seconds(self) -> float:
        """Runs the workload once; returns the seconds that count."""
        return elapsed_seconds(self.run)

    def trial_seconds(self) -> float:
        """The seconds of the workload by which a setting is chosen; a side may run a smaller one of the same kind."""
        return self.seconds()

    @abstractmethod
    def details(self) -> list[Any]:
        """What is reported beside the time: the values by which two sides are compared, or the share of padding."""


class ComparisonCommands:
    """The commands that the process of a side executes. attempts: how often a disturbed measurement is tried."""

    def __init__(self, make_side: Callable[[], WorkloadSide], attempts: int) -> None:
        self.make_side, self.attempts = make_side, attempts

    def prepare(self) -> Setting:
        """Loads, tunes and warms up the side; returns the chosen setting."""
        self.side = self.make_side()
        setting = tune(self.side.axes(), self.side.configure, self.side.trial_seconds, attempts=self.attempts)
        self.side.seconds()
        return setting

    def details(self) -> list[Any]:
        return self.side.details()

    def measure(self) -> tuple[float, float]:
        """Seconds of one run, and the share of the processor that other processes used meanwhile."""
        return least_disturbed(self.side.seconds, self.attempts)


@dataclass
class ComparisonResult(SideResult):
    """The measurements of one side of a comparison. failed: the reason why there are none, or empty."""

    details: list[Any] = field(default_factory=list)
    failed: str = ""


@dataclass
class Comparison:
    """One workload and its sides; the first is pellucid, and ``peer`` names the side that it is compared with."""

    title: str
    peer: str
    sides: Mapping[str, Callable[[Workspace], WorkloadSide]]

    def run(self, workspace: Workspace, rounds: int, attempts: int) -> list[ComparisonResult]:
        """Prepares every side, then measures them in alternating order."""
        results = {name: ComparisonResult(name) for name in self.sides}
        processes: dict[str, SideProcess] = {}
        for name, make_side in self.sides.items():
            commands = partial(ComparisonCommands, partial(make_side, workspace), attempts)
            process = SideProcess(name, commands, workspace)
            try:
                results[name].setting = process.call("prepare")
                results[name].details = process.call("details")
                processes[name] = process
            except SideError as reason:
                results[name].failed = str(reason)
                process.stop()
        for number in range(rounds):
            for name in order_of_round(processes, number):
                seconds, others = processes[name].call("measure")
                results[name].seconds.append(seconds)
                results[name].others.append(others)
        for process in processes.values():
            process.stop()
        return list(results.values())
