"""The stats of a layer: their texts, and the axis that each is drawn on. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradcanary import wire


@dataclass(frozen=True)
class Stat:
    """A stat: its title and description, True for a logarithmic axis, and True if exactly 0 is the best value."""

    name: str
    title: str
    words: str
    is_log: bool = True
    zero_is_good: bool = False

    @property
    def has_threshold(self) -> bool:
        """True if the rules compare it with ``enter`` and a baseline."""
        return self.name == "absmax"


def phases(seen: Sequence[str], *, clips: bool) -> str:
    """Return the phases of values, after a comma; without ``post_clip`` if the run never clips."""
    return "".join(f", {phase}" for phase in seen if clips or phase != "post_clip")


STATS = {
    stat.name: stat
    for stat in (
        Stat("absmax", "Gradient absmax", "largest absolute value of the gradient"),
        Stat("norm", "Gradient norm", "L2 norm of the gradient"),
        Stat("zero_fraction", "Zero fraction", "share of the gradient that is exactly 0", False, True),
        Stat("nonfinite", "Non-finite elements", "NaN and infinite elements of the gradient", False, True),
        Stat("update_ratio", "Update ratio", "norm of a step's change of the weights, by the norm of the weights"),
        Stat("weight_norm", "Weight norm", "L2 norm of the weights"),
        Stat("accumulation_error", "Accumulation error", "what summing up lost, beside a float32 sum", True, True),
        Stat("norm_ratio", "Norm ratio", "norm of the summed gradient, by that of a float32 sum", False),
        Stat(
            "frozen_fraction",
            "Frozen fraction",
            "share of the weights that 50 steps or more did not move",
            False,
            True,
        ),
    )
}
if tuple(STATS) != wire.STATS:
    raise AssertionError(f"analysis.stats.STATS needs the stats of wire.STATS, in this order: {', '.join(wire.STATS)}")

MEASURED_WITH = {"weight_norm": "update_ratio", "norm_ratio": "accumulation_error"}
"""Stats that are always measured together with another one, and that one."""
