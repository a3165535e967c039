"""The lifecycle of an incident: opened, grown, resolved, ended, reopened. Pure; time is an argument.

At most one incident per run and rule is open; layers are its members. A layer that fires joins, one that resolves
stays a member, and the incident resolves with its last firing member.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from gradcanary.display.rule_values import value_of
from gradcanary.wire import Crash
from gradcanary_server.rules.layer_config import block_of
from gradcanary_server.rules.types import SEVERITIES, Evidence, Jump, ScaleFall, SeriesFacts, Severity, Transition

State = Literal["open", "resolved", "ended"]
"""Resolved is a recovery. Ended: the run ended, or was deleted, without one."""

RUN_ENDS = ("run_finished", "run_deleted")
"""Resolutions by the end of the run."""

RANKS: dict[Severity, int] = {severity: rank for rank, severity in enumerate(SEVERITIES)}
"""Severities in ascending order."""

ABSENCE_RULES = ("silent", "stalled")
"""Rules of silent and stalled runs: the end of the run resolves them, and leaves no layer unrecovered."""

PROCESS_RULES = (*ABSENCE_RULES, "crash")
"""Rules about the process: what they report comes after what its layers did."""

_LOST_PEER = re.compile(r"nccl|gloo|closed by peer|connection (?:reset|refused)|broken pipe|DistBackend", re.IGNORECASE)
"""Exceptions of a rank that waited for one that was gone."""

RULE_CHANGE_S = 3_600.0
"""The time in which a changed rule finds a lasting fault again: 20 steps of three minutes."""


@dataclass(frozen=True)
class Member:
    """A layer of an incident; ``until_step`` and ``resolution`` are None while it fires.

    A layer that fires again begins a new span with its own numbers; the highest severity stays. ``rank`` is the
    process that a non-finite gradient came from, None if unknown.
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


@dataclass(frozen=True)
class Incident:
    """An incident without its members; ``run_id`` and ``id`` are None before it is stored.

    ``firing`` and ``ever_firing`` count the layers that fire now and that ever fired; of the rule metric these are
    ``series`` of metrics, by their numbers. ``lr_jumps`` are learning-rate
    jumps shortly before, ``scale_fall`` the fall of a GradScaler's scale until then; ``crash`` is the exception of the
    rule crash; ``beside`` is the id of the collapse of neighbours that was open as an explosion began, or of the
    explosion after which updates are far smaller.
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
    ever_firing: int = 0
    resolved_step: int | None = None
    resolved: float | None = None
    resolution: str | None = None
    reopened: int = 0
    reopened_at: float | None = None
    acked: float | None = None
    lr_jumps: tuple[Jump, ...] = ()
    scale_fall: ScaleFall | None = None
    crash: Crash | None = None
    beside: int | None = None
    series: Mapping[int, SeriesFacts] = field(default_factory=dict, hash=False)
    run_id: int | None = None
    id: int | None = None


@dataclass(frozen=True)
class TransitionContext:
    """The launch that transitions come from, the number of layers of the run, and the database's time.

    After step ``inherit_after_step`` the launch inherits incidents that an earlier one ended on; None before it. A new
    incident begins ``beside`` the one with this id.
    """

    launch_no: int
    layers: int
    now: float
    inherit_after_step: int | None = None
    beside: int | None = None


@dataclass
class IncidentCase:
    """An incident and its members by layer_no (None: the whole run), to which transitions are applied.

    Only the ``touched`` members are written.
    """

    incident: Incident
    members: dict[int | None, Member] = field(default_factory=dict)
    touched: set[int | None] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._open = sum(member.until_step is None for member in self.members.values())
        self._loaded = self.incident

    @property
    def has_changed(self) -> bool:
        """Return True if transitions changed the incident."""
        return self.incident is not self._loaded

    @property
    def is_firing(self) -> bool:
        """Return True if a member, a layer or the whole run, fires."""
        return self._open > 0

    def fire(self, change: Transition) -> None:
        """Add a member, begin a new span of it, or raise its severity."""
        before = self.members.get(change.layer)
        is_firing = before is not None and before.until_step is None
        if not is_firing:
            self._open += 1
        self._put(change.layer, _fired(change, before))
        is_layer = change.layer is not None
        self.incident = replace(
            self.incident,
            severity=_higher(self.incident.severity, change.severity),
            since_step=min(self.incident.since_step, change.since_step) if change.crash is None else change.since_step,
            firing=self.incident.firing + (is_layer and not is_firing),
            ever_firing=self.incident.ever_firing + (is_layer and before is None),
            crash=change.crash or self.incident.crash,
            **self._with_series(change),
        )

    def _with_series(self, change: Transition) -> dict[str, Any]:
        """Return the columns that change with a series that fires: its facts, and the number of series of the run."""
        if change.series is None or change.layer is None:
            return {}
        return {"series": {**self.incident.series, change.layer: change.series}, "layers": change.series.total}

    def add_crash(self, change: Transition) -> None:
        """Take over the crash of another rank of the launch if the one before was a consequence of it."""
        crash = self.incident.crash
        if crash is None or change.crash is None or not _lost_peer(crash) or _lost_peer(change.crash):
            return
        self._put(None, replace(self.members[None], since_step=change.since_step, rank=change.rank))
        self.incident = replace(self.incident, crash=change.crash, since_step=change.since_step)

    def resolve(self, change: Transition, now: float) -> None:
        """End a member's span; the incident resolves with the last one. Ignores a layer that does not fire."""
        before = self.members.get(change.layer)
        if before is None or before.until_step is not None:
            return
        self._open -= 1
        resolution = change.resolution or "recovered"
        self._put(change.layer, replace(before, until_step=change.step, resolution=resolution))
        self.incident = replace(self.incident, firing=self.incident.firing - (change.layer is not None))
        if self._open == 0 and self.incident.state == "open":
            self.incident = close_incident(self.incident, change.step, now, self._resolution(change))

    def reopen(self, context: TransitionContext, lr_jumps: tuple[Jump, ...]) -> None:
        """Continue an incident that was over; its acknowledgement ends.

        If a changed rule finds the same again, the run did not change: no message is sent, and the ack stays.
        """
        is_same = _is_found_again(self.incident, context.now)
        self.incident = replace(
            self.incident,
            state="open",
            launch_no=context.launch_no,
            resolved_step=None,
            resolved=None,
            resolution=None,
            reopened=self.incident.reopened + (not is_same),
            reopened_at=context.now,
            acked=self.incident.acked if is_same else None,
            lr_jumps=lr_jumps,
        )

    def _resolution(self, last: Transition) -> str:
        if last.resolution == "rule_changed":
            return "rule_changed"
        # Members that an earlier change of the rule resolved do not count.
        resolutions = {member.resolution for member in self.members.values()} - {"rule_changed"}
        if "rebaselined" in resolutions:
            return "rebaselined"
        return next((name for name in ("recovered", "resumed") if resolutions == {name}), "layer_gone")

    def reopen_inherited(self, context: TransitionContext, step: float) -> None:
        """Reopen an incident that another launch ended on, if this launch reached a step without a recovery."""
        if context.inherit_after_step is None or step <= context.inherit_after_step:
            return
        incident = self.incident
        if incident.state == "ended" and incident.launch_no != context.launch_no and self.is_firing:
            self.reopen(context, incident.lr_jumps)

    def _put(self, layer: int | None, member: Member) -> None:
        self.members[layer] = member
        self.touched.add(layer)


def apply_transitions(
    before: IncidentCase | None,
    changes: Iterable[Transition],
    context: TransitionContext,
    reopen_s: float,
) -> list[IncidentCase]:
    """Return the incidents of one rule that transitions changed: the latest one before, a new one, or both.

    1. A fired layer joins the open incident, else reopens the latest one if it resolved within ``reopen_s``, else
       opens a new one.
    2. A resolved layer ends a member's span, also in an incident that the run's end closed.
    3. An incident that another launch ended on, and that fires after ``context.inherit_after_step``, is reopened.
    """
    case = None if before is None else IncidentCase(before.incident, dict(before.members))
    finished: list[IncidentCase] = []
    for change in changes:
        if case is not None:
            case.reopen_inherited(context, change.step)
        if change.kind == "fired":
            if case is None or not _continues(case, context.now, reopen_s):
                finished += [case] if case is not None and case.has_changed else []
                case = IncidentCase(_opened(change, context))
            elif case.incident.state != "open":
                is_known = change.layer in case.members and case.members[change.layer].until_step is None
                case.reopen(context, case.incident.lr_jumps if is_known else change.jumps)
            case.fire(change)
        elif case is not None:
            case.resolve(change, context.now)
    if case is not None:
        case.reopen_inherited(context, math.inf)
    return [*finished, *([case] if case is not None and case.has_changed else [])]


def is_beside(layer: int | None, other: IncidentCase, names: Mapping[int, str]) -> bool:
    """Return True if a layer is in the block of a layer of another incident, or in the next one.

    A name without a block tells nothing: all may be neighbours.
    """
    block = block_of(names.get(-1 if layer is None else layer, ""))
    blocks = [block_of(names.get(each, "")) for each in other.members if each is not None]
    return any(block is None or each is None or block.is_beside(each) for each in blocks)


def close_incident(incident: Incident, step: int, now: float, resolution: str) -> Incident:
    """Return the incident over; members that still fire are unchanged, they did not recover.

    The end of the run ends it, and resolves one of a silent or stalled run.
    """
    is_end = resolution in RUN_ENDS and incident.rule not in ABSENCE_RULES
    state: State = "ended" if is_end else "resolved"
    return replace(incident, state=state, resolved_step=step, resolved=now, resolution=resolution)


def worst_members(members: Mapping[int | None, Member], rule: str) -> list[tuple[int, Member]]:
    """Return the layers of an incident, the worst first: firing before resolved, then by severity, then by value."""

    def badness(entry: tuple[int, Member]) -> tuple[bool, int, float]:
        member = entry[1]
        value = 0.0 if member.value is None else member.value
        if rule == "metric":  # the one that is furthest from its level; what is not finite is no number at all
            level = member.baseline or 0.0
            value = math.inf if member.value is None else abs(value - level) / (abs(level) or 1.0)
        return member.until_step is not None, -RANKS[member.severity], -value if value_of(rule).more_is_worse else value

    return sorted(((number, member) for number, member in members.items() if number is not None), key=badness)


def _continues(case: IncidentCase, now: float, reopen_s: float) -> bool:
    # An incident that the run ended on continues at any time: a new one would lack the layers that still fire.
    incident = case.incident
    is_unrecovered = incident.state == "ended" and case.is_firing
    is_recent = incident.resolved is None or now - incident.resolved <= reopen_s
    return is_recent or is_unrecovered or _is_found_again(incident, now)


def _is_found_again(closed: Incident, now: float) -> bool:
    """Return True if a layer that fires now was firing shortly before the rule changed."""
    return closed.resolution == "rule_changed" and now - (closed.resolved or 0.0) <= RULE_CHANGE_S


def _opened(change: Transition, context: TransitionContext) -> Incident:
    return Incident(
        rule=change.rule,
        launch_no=context.launch_no,
        severity=change.severity,
        state="open",
        opened_step=change.step,
        opened=context.now,
        since_step=change.since_step,
        layers=context.layers,
        lr_jumps=change.jumps,
        scale_fall=change.scale_fall,
        beside=context.beside,
    )


def _fired(change: Transition, before: Member | None) -> Member:
    since_step, value = change.since_step, _finite(change.value)
    if before is not None and before.until_step is None:
        since_step = min(since_step, before.since_step)
        if change.rule == "explosion":  # its peak: gradients may be zero or NaN once the weights are far away
            value = max((each for each in (before.value, value) if each is not None), default=None)
    return Member(
        severity=change.severity if before is None else _higher(before.severity, change.severity),
        since_step=since_step,
        value=value,
        baseline=_finite(change.baseline),
        siblings=_finite(change.siblings),
        evidence=change.evidence,
        rank=before.rank if before is not None and before.until_step is None else change.rank,
    )


def _lost_peer(crash: Crash) -> bool:
    return _LOST_PEER.search(f"{crash.type}: {crash.message}") is not None


def _finite(number: float | None) -> float | None:
    # JSON has no NaN, and the rule shows that the gradient is not finite.
    return number if number is not None and math.isfinite(number) else None


def _higher(one: Severity, other: Severity) -> Severity:
    return max(one, other, key=RANKS.__getitem__)
