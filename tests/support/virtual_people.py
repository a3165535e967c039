"""Who hears of incidents on a virtual clock: one endpoint that takes every message at once, and months in seconds."""

from dataclasses import dataclass, field, replace

from gradcanary_server.incidents.lifecycle import IncidentCase, TransitionContext, apply_transitions
from gradcanary_server.notify.planner import LastNotification, next_notification
from gradcanary_server.rules.config import Pace, Rules
from gradcanary_server.rules.evaluator import evaluate
from gradcanary_server.rules.state import RuleState
from gradcanary_server.rules.types import Transition


@dataclass(frozen=True)
class Message:
    at: float
    incident: int
    kind: str
    ever: int
    state: str
    severity: str
    reopened: int


@dataclass
class People:
    """One run's incidents of each rule, the latest of a rule last; ``messages`` in the order of their sending."""

    pace: Pace = field(default_factory=Pace)
    layers: int = 300
    now: float = 0.0
    cases: dict[int, IncidentCase] = field(default_factory=dict)
    latest: dict[str, int] = field(default_factory=dict)
    told: dict[int, LastNotification] = field(default_factory=dict)
    messages: list[Message] = field(default_factory=list)

    def change(self, *changes: Transition) -> None:
        """Let these changes become incidents, now."""
        for rule in dict.fromkeys(each.rule for each in changes):
            mine = [each for each in changes if each.rule == rule]
            before = self.cases.get(self.latest.get(rule, 0))
            for case in apply_transitions(
                before, mine, TransitionContext(1, self.layers, self.now), self.pace.reopen_s
            ):
                number = case.incident.id or len(self.cases) + 1
                case.incident = replace(case.incident, id=number)
                self.cases[number], self.latest[rule] = case, number

    def wait(self, seconds: float) -> None:
        """Let time go by, and say what becomes due in it."""
        end = self.now + seconds
        while (found := self._next()) is not None and found[0] <= end:
            self.now = max(self.now, found[0])
            self._say(found[1])
        self.now = end

    def of(self, rule: str) -> list[Message]:
        """Return the messages about a rule."""
        return [each for each in self.messages if self.cases[each.incident].incident.rule == rule]

    def _next(self) -> tuple[float, int] | None:
        found = []
        for number, case in self.cases.items():
            news = next_notification(case.incident, self.told.get(number), self.pace, acked=False)
            if news is not None and case.incident.severity != "information":
                found.append((news.not_before, number))
        return min(found, default=None)

    def _say(self, number: int) -> None:
        what, heard = self.cases[number].incident, self.told.get(number)
        news = next_notification(what, heard, self.pace, acked=False)
        assert news is not None
        self.told[number] = LastNotification(self.now, news.kind, news.layers, what.severity, what.reopened)
        said = Message(self.now, number, news.kind, news.layers, what.state, what.severity, what.reopened)
        self.messages.append(said)


def live(trace, of, people: People, *, step_s: float, batch: int, rules: Rules | None = None) -> RuleState:
    """Fold a trace batch by batch as time goes by, ``step_s`` a step; a batch begins where records change."""
    rules, state, row = rules or Rules(), RuleState.empty(), 0
    while row < len(trace.absmax):
        later = [each for each in trace.records if each > row]
        end = min(row + batch, len(trace.absmax), *later)
        people.wait((end - row) * trace.every * step_s)
        state, changes = evaluate(state, of, trace.samples(row, end), rules)
        people.change(*changes)
        row = end
    return state
