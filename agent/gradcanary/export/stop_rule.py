"""``stop_on``: whether an open incident should stop the training. Pure.

Written by the sender's thread, read by the training's: each attribute is set as a whole, so there is no lock.
"""

from __future__ import annotations

from collections.abc import Iterable

from gradcanary import settings, wire
from gradcanary.display.verdict import PROCESS_RULES


class StopRule:
    """Holds ``is_on``, True while an incident should stop the training, and the ``reason`` of the last time.

    An incident counts from the severity ``stop_on`` on, if it began in this launch and is neither acknowledged nor
    silenced. One that an earlier launch left counts only if it is worse than it was. Without ``stop_on`` none does.
    """

    def __init__(self, stop_on: str | None) -> None:
        self.stop_on = stop_on
        self.is_on = False
        self.reason: str | None = None
        self._earlier: dict[int, int] = {}
        """Of incidents that an earlier launch left: the severity, as a rank, when they were first seen."""
        self._seen: set[int] | None = None

    def apply(self, incidents: Iterable[wire.Brief]) -> None:
        """Take over the open incidents of a reply, the first one of which comes before anything was measured."""
        incidents = tuple(incidents)
        self._note_earlier(incidents)
        counting = [each for each in incidents if self._counts(each)]
        if counting:
            self.reason = describe(max(counting, key=lambda each: (_rank(each.severity), -each.id)))
        self.is_on = bool(counting)

    def _note_earlier(self, incidents: tuple[wire.Brief, ...]) -> None:
        is_first = self._seen is None
        seen = self._seen or set()
        for each in incidents:
            # One that comes back without having been open in this launch was opened by another one.
            if each.id not in seen and (is_first or each.reopened):
                self._earlier[each.id] = _rank(each.severity)
        self._seen = seen | {each.id for each in incidents}

    def _counts(self, incident: wire.Brief) -> bool:
        if self.stop_on is None or incident.is_handled:
            return False
        if incident.rule in PROCESS_RULES:  # a training would end for a network that failed
            return False
        return _rank(incident.severity) >= max(_rank(self.stop_on), self._earlier.get(incident.id, -1) + 1)


def describe(incident: wire.Brief) -> str:
    """Return an incident, its parameters and what to do first, in one line."""
    first = f" Do first: {incident.do_first}" if incident.do_first else ""
    return f"{incident.rule} ({incident.severity}, #{incident.id}): {incident.summary}{first} {incident.url}"


def _rank(severity: str) -> int:
    """Return the place of a severity among those that may stop, -1 for information."""
    return settings.STOPPING.index(severity) if severity in settings.STOPPING else -1
