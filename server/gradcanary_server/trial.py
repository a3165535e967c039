"""Rules on trial: what incidents and messages they would have made of a run. Pure; the clock is the samples' own.

The fold, the life of incidents and what is said when are the collector's. What is not there is the outside world: one
receiver takes each message at once, nobody acknowledges, and nothing is silenced.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from gradcanary_server.fold import FoldState, fold
from gradcanary_server.incident_state import RANKS, Case, Origin, apply, close
from gradcanary_server.incidents import RESUME_STEPS
from gradcanary_server.observations import Change, Severity
from gradcanary_server.pace import Kind, Told, due
from gradcanary_server.rules import Rules
from gradcanary_server.takes import Take

LEAST: Severity = "warning"
"""The severity from which on an endpoint is told."""


@dataclass(frozen=True)
class Message:
    """What a receiver would have got, when (unix seconds), and after which step."""

    at: float
    step: int
    kind: Kind


@dataclass
class Story:
    """An incident as it would have been, and what would have been said of it; ``changed`` is when it last changed."""

    case: Case
    changed: float
    messages: list[Message] = field(default_factory=list)
    told: Told | None = None


class Trial:
    """Takes the takes of a run in their order; ``stories`` are in the order in which incidents opened."""

    def __init__(self, rules: Rules, layers: int, ended: Iterable[int] = ()) -> None:
        self.stories: list[Story] = []
        self._rules = rules
        self._layers = layers
        self._ended = frozenset(ended)
        self._state = FoldState.empty()
        self._now = -math.inf
        self._launch = 0
        self._times, self._steps = np.empty(0), np.empty(0, np.int64)
        """When the last samples were."""

    @property
    def messages(self) -> int:
        """How many messages a receiver would have got."""
        return sum(len(story.messages) for story in self.stories)

    def play(self, take: Take) -> None:
        """Fold some steps, and say what becomes due meanwhile."""
        if take.launch.number != self._launch:
            self._finish_launch()
        self._launch = take.launch.number
        self._state, changes = fold(self._state, take.launch, take.samples, self._rules)
        steps, times = take.samples.steps, np.maximum.accumulate(np.maximum(take.times, self._now))
        if len(steps):
            self._now = float(times[0]) if math.isinf(self._now) else self._now
            self._times = np.concatenate([self._times[-1:], times])
            self._steps = np.concatenate([self._steps[-1:], steps])
        by_step: dict[int, list[Change]] = defaultdict(list)
        for change in changes:
            by_step[change.step].append(change)
        for step in sorted(by_step):
            # A loss may be of a step that was not sampled: it was known by the sample before.
            place = int(np.searchsorted(steps, step, side="right")) - 1
            self._move(float(times[place]) if place >= 0 else self._now)
            self._apply(by_step[step])
        if len(steps):
            self._move(float(times[-1]))
            self._reopen(int(steps[-1]) - take.launch.first_step)

    def finish(self, *, is_over: bool) -> None:
        """Say what is left to say, of a run that ``is_over`` or of one that goes on as it was, but for reminders."""
        if is_over:
            self._close()
        for story in self.stories:
            is_done = story.case.incident.state == "resolved"
            self._speak(story, math.inf if is_done else self._now + self._rules.pace.wait_s)

    def _move(self, now: float) -> None:
        """Let time pass."""
        self._now = now
        for story in self.stories:
            self._speak(story, self._now)

    def _apply(self, changes: list[Change]) -> None:
        by_rule: dict[str, list[Change]] = defaultdict(list)
        for change in changes:
            by_rule[change.rule].append(change)
        for rule, mine in by_rule.items():
            latest = self._latest(rule)
            before = None if latest is None else latest.case
            for case in apply(before, mine, self._origin(), self._rules.pace.reopen_s):
                self._keep(latest, case)

    def _keep(self, latest: Story | None, case: Case) -> None:
        if latest is not None and case.incident.id is not None:
            latest.case, latest.changed = case, self._now
            return
        numbered = replace(case.incident, id=len(self.stories) + 1)
        self.stories.append(Story(Case(numbered, case.members), self._now))

    def _latest(self, rule: str) -> Story | None:
        return next((story for story in reversed(self.stories) if story.case.incident.rule == rule), None)

    def _origin(self) -> Origin:
        return Origin(self._launch, self._layers, self._now)

    def _finish_launch(self) -> None:
        if self._launch in self._ended:
            self._close()

    def _close(self) -> None:
        for story in self.stories:
            if story.case.incident.state == "open":
                closed = close(story.case.incident, self._state.progress.last_step, self._now, "run_finished")
                story.case, story.changed = Case(closed, story.case.members), self._now

    def _reopen(self, steps: int) -> None:
        """Open again what an earlier launch ended on, once this one has gone on for so many steps."""
        if steps < RESUME_STEPS:
            return
        for rule in {story.case.incident.rule for story in self.stories}:
            story = self._latest(rule)
            if story is None or story.case.incident.resolution != "run_finished":
                continue
            if story.case.incident.launch_no != self._launch and story.case.is_firing:
                story.case.reopen(self._origin(), story.case.incident.jumps)
                story.changed = self._now

    def _speak(self, story: Story, until: float) -> None:
        """Say what is due before a moment."""
        incident = story.case.incident
        if incident.rule in self._rules.muted or (story.told is None and RANKS[incident.severity] < RANKS[LEAST]):
            return
        while (news := due(incident, story.told, self._rules.pace, acked=False)) is not None:
            at = max(news.not_before, story.changed)
            if at > until:
                return
            place = max(int(np.searchsorted(self._times, at, side="right")) - 1, 0)
            story.messages.append(Message(at, int(self._steps[place]), news.kind))
            story.told = Told(at, news.kind, news.members, incident.severity, incident.reopened)
