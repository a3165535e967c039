"""A simulation of rules: the incidents and messages that they would have made of a run. Pure.

Evaluation, incident lifecycle and notification policy are the collector's; the clock is that of the samples. One
receiver takes each message at once, there are no acks, and nothing is silenced.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from gradcanary_server.incidents.lifecycle import (
    RANKS,
    IncidentCase,
    TransitionContext,
    apply_transitions,
    close_incident,
)
from gradcanary_server.incidents.service import RESUME_STEPS
from gradcanary_server.notify.planner import (
    LAST_KINDS,
    Kind,
    LastNotification,
    NotifiedCause,
    inhibition,
    next_notification,
)
from gradcanary_server.ops.replay_source import ReplayChunk, ReplaySource
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.detectors import metric
from gradcanary_server.rules.evaluator import evaluate
from gradcanary_server.rules.state import RuleState
from gradcanary_server.rules.types import Severity, Transition

OVER = ("finished", "crashed")
"""States of a run that went to its end: a detached one may go on."""

MIN_SEVERITY: Severity = "warning"
"""The receiver gets messages of this severity and above."""


@dataclass(frozen=True)
class SimulatedMessage:
    """A message that the receiver would have got, when (unix seconds), and after which step."""

    at: float
    step: int
    kind: Kind


@dataclass
class SimulatedIncident:
    """An incident as it would have been, and its messages; ``changed`` is the time of its last change."""

    case: IncidentCase
    changed: float
    messages: list[SimulatedMessage] = field(default_factory=list)
    last_notification: LastNotification | None = None


class Simulation:
    """Plays the chunks of a run in their order; ``incidents`` are in the order in which they opened."""

    def __init__(self, rules: Rules, layers: int, ended: Iterable[int] = ()) -> None:
        self.incidents: list[SimulatedIncident] = []
        self._rules = rules
        self._layers = layers
        self._ended = frozenset(ended)
        self._state = RuleState.empty()
        self._now = -math.inf
        self._launch = 0
        self._times, self._steps = np.empty(0), np.empty(0, np.int64)  # of the last samples

    @property
    def message_count(self) -> int:
        return sum(len(simulated.messages) for simulated in self.incidents)

    def play(self, chunk: ReplayChunk) -> None:
        """Evaluate some steps, and send what becomes due meanwhile."""
        if chunk.launch.number != self._launch and self._launch in self._ended:
            self._close_incidents()
        self._launch = chunk.launch.number
        self._state, changes = evaluate(self._state, chunk.launch, chunk.samples, self._rules)
        steps, times = chunk.samples.steps, np.maximum.accumulate(np.maximum(chunk.times, self._now))
        if len(steps):
            self._now = float(times[0]) if math.isinf(self._now) else self._now
            self._times = np.concatenate([self._times[-1:], times])
            self._steps = np.concatenate([self._steps[-1:], steps])
        by_step: dict[int, list[Transition]] = defaultdict(list)
        for change in changes:
            by_step[change.step].append(change)
        for step in sorted(by_step):
            # A loss may be of a step that was not sampled: its time is that of the sample before.
            row = int(np.searchsorted(steps, step, side="right")) - 1
            self._advance_clock(float(times[row]) if row >= 0 else self._now)
            self._apply(by_step[step])
        if len(steps):
            self._advance_clock(float(times[-1]))
            self._reopen_inherited(int(steps[-1]) - chunk.launch.first_step)

    def finish(self, *, is_over: bool) -> None:
        """Send the last messages of a run that ``is_over``, or of one that goes on as it was; without reminders."""
        if is_over:
            self._close_incidents()
        for simulated in self.incidents:
            is_done = simulated.case.incident.state != "open"
            self._send(simulated, math.inf if is_done else self._now + self._rules.pace.wait_s)

    def _advance_clock(self, now: float) -> None:
        self._now = now
        for simulated in self.incidents:
            self._send(simulated, now)

    def _apply(self, changes: list[Transition]) -> None:
        by_rule: dict[str, list[Transition]] = defaultdict(list)
        for change in changes:
            by_rule[change.rule].append(change)
        for rule, rule_changes in by_rule.items():
            latest = self._latest(rule)
            before = None if latest is None else latest.case
            for case in apply_transitions(before, rule_changes, self._context(), self._rules.pace.reopen_s):
                if latest is not None and case.incident.id is not None:
                    latest.case, latest.changed = case, self._now
                else:
                    numbered = replace(case.incident, id=len(self.incidents) + 1)
                    self.incidents.append(SimulatedIncident(IncidentCase(numbered, case.members), self._now))

    def _latest(self, rule: str) -> SimulatedIncident | None:
        return next((simulated for simulated in reversed(self.incidents) if simulated.case.incident.rule == rule), None)

    def _context(self) -> TransitionContext:
        return TransitionContext(self._launch, self._layers, self._now)

    def _close_incidents(self) -> None:
        for simulated in self.incidents:
            if simulated.case.incident.state == "open":
                closed = close_incident(
                    simulated.case.incident, self._state.progress.last_step, self._now, "run_finished"
                )
                simulated.case, simulated.changed = IncidentCase(closed, simulated.case.members), self._now

    def _reopen_inherited(self, steps: int) -> None:
        """Reopen the incidents that an earlier launch ended on, after enough steps of this one."""
        if steps < RESUME_STEPS:
            return
        for rule in {simulated.case.incident.rule for simulated in self.incidents} - {metric.RULE}:
            simulated = self._latest(rule)
            if simulated is None or simulated.case.incident.state != "ended":
                continue
            if simulated.case.incident.launch_no != self._launch and simulated.case.is_firing:
                simulated.case.reopen(self._context(), simulated.case.incident.lr_jumps)
                simulated.changed = self._now

    def _send(self, simulated: SimulatedIncident, until: float) -> None:
        """Send the messages of an incident that are due until a moment."""
        incident, last = simulated.case.incident, simulated.last_notification
        if incident.rule in self._rules.muted or (last is None and not _is_severe(incident.severity)):
            return
        while (message := next_notification(incident, last, self._rules.pace, acked=False)) is not None:
            at = max(message.not_before, simulated.changed)
            inhibited = inhibition(incident, self._notified_causes(), self._rules.pace)
            if inhibited.is_active and message.kind not in LAST_KINDS:
                simulated.changed = max(simulated.changed, self._now)  # not sent before its cause is over
                return
            at = max(at, inhibited.until if last is None else at)
            if at > until:
                return
            row = max(int(np.searchsorted(self._times, at, side="right")) - 1, 0)
            simulated.messages.append(SimulatedMessage(at, int(self._steps[row]), message.kind))
            last = LastNotification(at, message.kind, message.layers, incident.severity, incident.reopened)
            simulated.last_notification = last

    def _notified_causes(self) -> list[NotifiedCause]:
        return [
            NotifiedCause(other.case.incident, other.messages[0].at if other.messages else None)
            for other in self.incidents
            if other.messages
            or (other.case.incident.rule not in self._rules.muted and _is_severe(other.case.incident.severity))
        ]


def _is_severe(severity: Severity) -> bool:
    return RANKS[severity] >= RANKS[MIN_SEVERITY]


@dataclass(frozen=True)
class Replay:
    """A run that was played; ``series`` are the metrics that it logged; ``is_whole``: all its samples were played."""

    simulations: Mapping[str, Simulation]
    series: frozenset[metric.SeriesKey]
    samples: int
    first_step: int | None
    last_step: int | None
    is_whole: bool


def replay(source: ReplaySource, rules: Mapping[str, Rules], max_samples: float = math.inf) -> Replay:
    """Play a run by all rules at once, so its samples are read only once; stop after ``max_samples`` of them."""
    simulations = {name: Simulation(content, len(source.layers), source.ended) for name, content in rules.items()}
    samples, is_whole = 0, True
    steps: list[int] = []
    series: set[metric.SeriesKey] = set()
    for chunk in source.chunks:
        if samples >= max_samples:
            is_whole = False
            break
        for simulation in simulations.values():
            simulation.play(chunk)
        samples += len(chunk.samples.steps)
        series |= {(points.name, points.tags) for points in chunk.samples.metrics}
        steps += chunk.samples.steps[[0, -1]].tolist() if len(chunk.samples.steps) else []
    if samples:
        for simulation in simulations.values():
            simulation.finish(is_over=is_whole and source.state in OVER)
    return Replay(simulations, frozenset(series), samples, min(steps, default=None), max(steps, default=None), is_whole)
