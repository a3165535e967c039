"""The settings of a session as they are sent: first values and changes, groups that are alike together. Pure.

A value that moves in each step, as the momentum of a cyclic schedule, is logged at each change by a tenth.
"""

from __future__ import annotations

import math

from gradcanary import wire
from gradcanary.settings import UNPRINTABLE
from gradcanary.tracking.group_settings import GroupChange, Value

LEAST_CHANGE = 0.1
"""Of the smaller of two values, or of their distances to 1: a momentum of 0.99 is not near one of 0.999."""

MAX_CHANGES = 64
"""Of one setting, whatever its groups: all are sent with each hello."""

MAX_ENTRIES = 1_000
MAX_TEXT = 100


class SettingsLog:
    """The entries so far; a new tuple with each new entry."""

    def __init__(self) -> None:
        self.entries: tuple[wire.Setting, ...] = ()
        self._last: dict[tuple[int | None, str], Value] = {}
        self._counts: dict[str, int] = {}

    def add(self, change: GroupChange) -> None:
        """Add the settings of all groups that differ from the last ones."""
        alike: dict[tuple[str, Value | None, Value], list[int]] = {}
        for group, settings in enumerate(change.groups):
            for name, given in settings.items():
                before, value = self._last.get((group, name)), _sendable(given)
                if before is None or (before != value if name == "lr" else _differ(before, value)):
                    alike.setdefault((name, before, value), []).append(group)
        if all(name == "lr" for name, _, _ in alike):
            return  # it is a series: here it only goes with the others
        for (name, _, value), groups in alike.items():
            self._append(wire.Setting(change.step, change.checked, tuple(groups), name, value))

    def add_clip(self, step: int, checked: int | None, limit: float) -> None:
        """Add the norm to which the loop clips all gradients."""
        self._append(wire.Setting(step, checked, (), "max_norm", limit))

    def _append(self, entry: wire.Setting) -> None:
        count = self._counts[entry.name] = self._counts.get(entry.name, 0) + (entry.checked is not None)
        if count > MAX_CHANGES or len(self.entries) >= MAX_ENTRIES:
            return
        self._last.update({(group, entry.name): entry.value for group in entry.groups})
        self.entries += (entry,)


def _sendable(value: Value) -> Value:
    """Return a text or a number as JSON has it: one that is not finite becomes a text."""
    if isinstance(value, str):
        return UNPRINTABLE.sub(" ", value)[:MAX_TEXT]
    if isinstance(value, bool) or math.isfinite(value):
        return value if isinstance(value, bool) else float(value)
    return str(value)


def _differ(before: Value, after: Value) -> bool:
    """Return True if a change is large enough for an entry."""
    if isinstance(before, (bool, str)) or isinstance(after, (bool, str)):
        return before != after
    return any(_is_far(*pair) for pair in ((before, after), (1 - before, 1 - after)))


def _is_far(before: float, after: float) -> bool:
    return before != after and abs(after - before) >= LEAST_CHANGE * min(abs(before), abs(after))
