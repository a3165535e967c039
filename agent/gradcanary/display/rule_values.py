"""The value that a rule judges: its stat, whether more of it is worse, and its word where it is a share. Pure.

The collector ranks the layers of an incident by it, and messages and pages show it.
"""

from __future__ import annotations

from typing import NamedTuple


class RuleValue(NamedTuple):
    """``stat`` names the measurement. The worst layer has the largest value if ``more_is_worse``, else the smallest.

    ``share`` follows the value in per cent, as in "97 % stood still"; None = the value is not a share.
    """

    stat: str = "absmax"
    more_is_worse: bool = False
    share: str | None = None


_STOOD_STILL = RuleValue("frozen_fraction", more_is_worse=True, share="stood still")
_LOST = RuleValue("accumulation_error", more_is_worse=True, share="lost")

_VALUES = {
    "metric": RuleValue(more_is_worse=True),
    "explosion": RuleValue(more_is_worse=True),
    "frozen": _STOOD_STILL,
    "in_vain": _STOOD_STILL,
    "no_update": RuleValue("update_ratio"),
    "accumulation_loss": _LOST,
    "accumulator": _LOST,
    "fp16_underflow": RuleValue("zero_fraction", more_is_worse=True, share="exactly zero"),
}


def value_of(rule: str) -> RuleValue:
    """Return the value that a rule judges; absmax, of which less is worse, for a rule without an entry."""
    return _VALUES.get(rule, RuleValue())
