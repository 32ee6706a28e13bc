"""The measurements of one side, and the ratio of two sides. Ratios are speeds: 2.0 is twice as fast."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from side import Setting


@dataclass
class SideResult:
    """The measurements of one side, one per round.

    others: the share of the processor that other processes used during each measurement.
    """

    name: str
    setting: Setting = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)

    def setting_text(self) -> str:
        """The setting as text."""
        return ", ".join(f"{axis} {value}" for axis, value in self.setting.items()) or "default"


def ratios(result: SideResult, base: SideResult) -> list[float]:
    """How many times as fast as ``base``, for each round that both sides were measured in."""
    return [other / own for own, other in zip(result.seconds, base.seconds)]


def disturbance(results: Iterable[SideResult]) -> str:
    """How quiet the machine was, as text."""
    most = max((share for result in results for share in result.others), default=0.0)
    return f"other processes used at most {most:.0%} of the processor while a side was measured"
