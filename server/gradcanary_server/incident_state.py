"""What an incident is, and how changes move it: pure, time is an argument.

At most one incident per run and rule is open; layers are its members. A layer that fires joins, one that resolves
keeps its row, and the incident resolves with its last firing member.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal

from gradcanary_server.observations import Change, Evidence, Jump, Severity

State = Literal["open", "resolved"]

RANKS: dict[Severity, int] = {"information": 0, "warning": 1, "critical": 2}
"""Severities in rising order."""

OF_THE_CLOCK = ("silent", "stalled")
"""Rules of what did not come: the end of a run is the answer to them, and leaves nothing unrecovered."""


@dataclass(frozen=True)
class Member:
    """A layer of an incident; ``until_step`` and ``resolution`` are None while it fires.

    A refire begins a new span with its own numbers; the highest severity stays. ``rank`` is the process that a
    gradient which is not finite came from, None = not known. One that recovered while it was silenced is ``unheard``:
    nobody is owed a word about it.
    """

    severity: Severity
    since_step: int
    value: float | None
    baseline: float | None
    siblings: float | None
    evidence: Evidence | None
    until_step: int | None = None
    resolution: str | None = None
    rank: int | None = None
    unheard: bool = False


@dataclass(frozen=True)
class Incident:
    """An incident without its members; ``firing`` and ``ever`` count layers, not the whole run as a member; ``unheard``
    counts the members that are. ``jumps`` are learning rates that were set to others shortly before.
    """

    rule: str
    launch_no: int
    severity: Severity
    state: State
    opened_step: int
    opened: float
    since_step: int
    layers: int
    firing: int = 0
    ever: int = 0
    resolved_step: int | None = None
    resolved: float | None = None
    resolution: str | None = None
    reopened: int = 0
    reopened_at: float | None = None
    acked: float | None = None
    unheard: int = 0
    jumps: tuple[Jump, ...] = ()
    id: int | None = None


@dataclass(frozen=True)
class Origin:
    """Where changes come from: the launch, how many layers the run has, and the database's time.

    ``grown`` is the step after which the launch is old enough to say what did not recover; None until it is there.
    """

    launch_no: int
    layers: int
    now: float
    grown: int | None = None


@dataclass
class Case:
    """An incident and its members by layer_no (None: the whole run) while changes are applied to them.

    ``touched`` names the members that changed, so that only those are written.
    """

    incident: Incident
    members: dict[int | None, Member] = field(default_factory=dict)
    touched: set[int | None] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._open = sum(member.until_step is None for member in self.members.values())
        self._loaded = self.incident

    @property
    def has_news(self) -> bool:
        """Whether anything happened to it here."""
        return self.incident is not self._loaded

    @property
    def is_firing(self) -> bool:
        """Whether a member, a layer or the whole run, fires."""
        return self._open > 0

    def fire(self, change: Change) -> None:
        """Let a layer join, begin a new span, or rise in severity."""
        before = self.members.get(change.layer)
        is_rise = before is not None and before.until_step is None
        if not is_rise:
            self._open += 1
        self._put(change.layer, _fired(change, before))
        was_unheard = before is not None and before.unheard
        named = change.layer is not None
        self.incident = replace(
            self.incident,
            severity=_higher(self.incident.severity, change.severity),
            since_step=min(self.incident.since_step, change.since_step),
            firing=self.incident.firing + (named and not is_rise),
            ever=self.incident.ever + (named and before is None),
            unheard=self.incident.unheard - was_unheard,
        )

    def resolve(self, change: Change, now: float, *, unheard: bool = False) -> None:
        """End a member's span; the incident resolves with its last one. A layer that does not fire is no news."""
        before = self.members.get(change.layer)
        if before is None or before.until_step is not None:
            return
        self._open -= 1
        resolution = change.resolution or "recovered"
        self._put(change.layer, replace(before, until_step=change.step, resolution=resolution, unheard=unheard))
        self.incident = replace(
            self.incident,
            firing=self.incident.firing - (change.layer is not None),
            unheard=self.incident.unheard + unheard,
        )
        if self._open == 0 and self.incident.state == "open":
            self.incident = close(self.incident, change.step, now, self._resolution(change))

    def reopen(self, origin: Origin, jumps: tuple[Jump, ...]) -> None:
        """Continue a resolved incident; an acknowledgement held for what was known then, and ends here."""
        self.incident = replace(
            self.incident,
            state="open",
            launch_no=origin.launch_no,
            resolved_step=None,
            resolved=None,
            resolution=None,
            reopened=self.incident.reopened + 1,
            reopened_at=origin.now,
            acked=None,
            jumps=jumps,
        )

    def _resolution(self, last: Change) -> str:
        if last.resolution == "rule_changed":
            return "rule_changed"
        # Members that a changed rule took back before say nothing about the others.
        found = {member.resolution for member in self.members.values()} - {"rule_changed"}
        if "rebaselined" in found:
            return "rebaselined"
        return next((each for each in ("recovered", "resumed") if found == {each}), "layer_gone")

    def go_on(self, origin: Origin) -> None:
        """Open what another launch ended on again, if this one did not recover from it."""
        mine = self.incident
        if mine.resolution == "run_finished" and mine.launch_no != origin.launch_no and self.is_firing:
            self.reopen(origin, mine.jumps)

    def _put(self, layer: int | None, member: Member) -> None:
        self.members[layer] = member
        self.touched.add(layer)


def apply(
    before: Case | None,
    changes: Iterable[Change],
    origin: Origin,
    reopen_s: float,
    silenced: Collection[int | None] = (),
) -> list[Case]:
    """Return the incidents of one rule that the changes touched: the latest one before, a new one, or both.

    1. A fired change joins the open incident; reopens the latest one if it resolved within ``reopen_s``; else opens.
    2. A resolved change ends a member's span, also in an incident that a run's end closed; of the members that are
       ``silenced`` now nobody will be told that.
    3. What another launch ended on, and fires still after ``origin.grown``, is open again.
    """
    case = None if before is None else Case(before.incident, dict(before.members))
    finished: list[Case] = []
    for change in changes:
        if case is not None and origin.grown is not None and change.step > origin.grown:
            case.go_on(origin)
        if change.kind == "fired":
            if case is None or not _continues(case, origin.now, reopen_s):
                finished += [case] if case is not None and case.has_news else []
                case = Case(_opened(change, origin))
            elif case.incident.state == "resolved":
                case.reopen(origin, change.jumps)
            case.fire(change)
        elif case is not None:
            case.resolve(change, origin.now, unheard=change.layer in silenced)
    if case is not None and origin.grown is not None:
        case.go_on(origin)
    return [*finished, *([case] if case is not None and case.has_news else [])]


def close(incident: Incident, step: int, now: float, resolution: str) -> Incident:
    """Return the incident resolved; members that still fire stay as they are, they did not recover."""
    return replace(incident, state="resolved", resolved_step=step, resolved=now, resolution=resolution)


def _continues(case: Case, now: float, reopen_s: float) -> bool:
    # What a run ended on goes on however long it stood: a new incident would not know the layers that fire still.
    mine = case.incident
    is_unrecovered = mine.resolution == "run_finished" and case.is_firing
    return mine.resolved is None or now - mine.resolved <= reopen_s or is_unrecovered


def _opened(change: Change, origin: Origin) -> Incident:
    return Incident(
        rule=change.rule,
        launch_no=origin.launch_no,
        severity=change.severity,
        state="open",
        opened_step=change.step,
        opened=origin.now,
        since_step=change.since_step,
        layers=origin.layers,
        jumps=change.jumps,
    )


def _fired(change: Change, before: Member | None) -> Member:
    since_step = change.since_step
    if before is not None and before.until_step is None:
        since_step = min(since_step, before.since_step)
    return Member(
        severity=change.severity if before is None else _higher(before.severity, change.severity),
        since_step=since_step,
        value=_finite(change.value),
        baseline=_finite(change.baseline),
        siblings=_finite(change.siblings),
        evidence=change.evidence,
        rank=before.rank if before is not None and before.until_step is None else None,
    )


def _finite(number: float | None) -> float | None:
    # A NaN gradient is the news itself; its number says no more, and JSON has no word for it.
    return number if number is not None and math.isfinite(number) else None


def _higher(one: Severity, other: Severity) -> Severity:
    return max(one, other, key=RANKS.__getitem__)
