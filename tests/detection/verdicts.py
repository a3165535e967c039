"""What was true of a job, what was said of it, and whether that is right."""

import re
from dataclasses import dataclass, field
from statistics import median

from detection.case import Case
from detection.rivals import RIVALS
from detection.truths import TRUTHS, Read
from words.check import Flaw

WHOLE_RUN = "(whole run)"


@dataclass(frozen=True)
class Said:
    """An incident of a job, as the API shows it."""

    rule: str
    severity: str
    opened_step: int
    layers: frozenset[str]
    cause: str = ""

    @property
    def is_alarm(self) -> bool:
        return self.severity != "information"


@dataclass(frozen=True)
class Row:
    """One job: ``status`` is its own, ``true`` the layers that went wrong and when ("" the run), ``messages`` the types
    of what the receiver got, ``rivals`` the first step at which others would have spoken, ``flaws`` the sentences that
    are false."""

    case: Case
    status: int
    steps: int
    true: dict[str, int]
    said: tuple[Said, ...]
    messages: tuple[str, ...]
    rivals: dict[str, int | None] = field(default_factory=dict)
    flaws: tuple[Flaw, ...] = ()

    @property
    def true_step(self) -> int:
        return min(self.true.values(), default=self.case.since)

    @property
    def right(self) -> Said | None:
        """The first incident of the rule that should speak."""
        return min(self._spoke, key=lambda each: each.opened_step, default=None)

    @property
    def _spoke(self) -> list[Said]:
        return [each for each in self.said if each.rule in self.case.rules]

    @property
    def delay(self) -> int | None:
        return None if self.right is None else self.right.opened_step - self.true_step

    @property
    def layers(self) -> str:
        """Of the right rule: all layers that it should name and no others, some of them, or wrong ones."""
        if self.right is None or not set(self.true) - {""}:
            return "-"
        if self.right.rule in self.case.instead and self.right.layers == {WHOLE_RUN}:
            return "-"
        named = {name for each in self._spoke for name in each.layers} - {WHOLE_RUN}
        if named == set(self.true):
            return "all"
        return "some" if named and named < set(self.true) else "wrong"

    @property
    def unclear(self) -> str:
        """Why the job proves nothing: it did not run, or is not what it was made to be."""
        if self.status:
            return f"the job ended with status {self.status}"
        return _disagreement(self.case, self.true) if self.case.truth else ""

    @property
    def miss(self) -> str:
        """What is wrong with what was said, empty if nothing is."""
        return self.unclear or (self._miss_of_fault() if self.case.is_fault else self._noise())

    def _noise(self) -> str:
        sent = f"message: {', '.join(self.messages)}" if self.messages else ""
        shown = f"shown: {', '.join(each.rule for each in self.false_alarms)}" if self.false_alarms else ""
        return "; ".join(each for each in (sent, shown) if each)

    @property
    def alarms(self) -> list[Said]:
        """The incidents at warning and above, told of or not."""
        return [each for each in self.said if each.is_alarm]

    @property
    def false_alarms(self) -> list[Said]:
        """Of a healthy job: those whose rule must not speak, or that name a layer of which it is not true."""
        true = {*self.true, WHOLE_RUN}
        return [each for each in self.alarms if each.rule not in self.case.also or not each.layers <= true]

    def _miss_of_fault(self) -> str:
        if self.right is None or self.delay is None:
            return f"{self.case.rule} was not reported"
        if self.right.opened_step < self.case.since:
            return f"{self.case.rule} at step {self.right.opened_step}, before the fault"
        if self.delay > self.case.within * self.case.interval:
            return f"{self.delay} steps late"
        if self.layers == "wrong":
            return "other layers"
        if self.case.cause and self.right.cause != self.case.cause:
            return f"cause {self.right.cause}, where {self.case.cause} is right"
        if self.case.severity and self.right.severity != self.case.severity:
            return f"{self.right.severity}, where {self.case.severity} is right"
        if self.case.is_told and not self.messages:
            return "no message"
        again = sum(each.rule == self.right.rule for each in self.alarms)
        if again > 1:
            return f"{again} incidents of one fault"
        strange = {each.rule for each in self.alarms} - {*self.case.rules, *self.case.also}
        return f"also reported: {', '.join(sorted(strange))}" if strange else ""

    @property
    def is_known(self) -> bool:
        """Tell whether it is a fault of which the source says why it is missed: a healthy job has no excuse."""
        return self.case.is_fault and bool(self.case.why)

    def rival(self, name: str) -> str:
        """Return what another's rule makes of the job: caught, early, missed; quiet, noisy."""
        step = self.rivals[name]
        if not self.case.is_fault:
            return "quiet" if step is None else "noisy"
        if step is None:
            return "missed"
        return "caught" if step >= self.case.since else "early"


def judge(
    case: Case,
    status: int,
    read: Read | None,
    said: tuple[Said, ...],
    messages: tuple[str, ...],
    flaws: tuple[Flaw, ...] = (),
) -> Row:
    """Return the row of a job; one that did not end well left nothing to read."""
    if read is None:
        return Row(case, status or 1, 0, {}, said, messages, dict.fromkeys(RIVALS))
    true = TRUTHS[case.truth](read, case.since) if case.truth else {"": case.since} if case.is_fault else {}
    rivals = {name: rule(read) for name, rule in RIVALS.items()}
    return Row(case, status, len(read.loss), true, said, messages, rivals, flaws)


def _disagreement(case: Case, true: dict[str, int]) -> str:
    """Say where the reading is not what the job was made for."""
    if not true:
        return "in truth nothing happened"
    strange = sorted(name for name in true if case.layers and not re.fullmatch(case.layers, name))
    if strange:
        return f"in truth {', '.join(strange)}, too"
    return f"in truth at step {min(true.values())}" if min(true.values()) < case.since else ""


def totals(rows: list[Row]) -> list[str]:
    """Return the numbers over all rows, a line each."""
    faults = [row for row in rows if row.case.is_fault]
    controls = [row for row in rows if not row.case.is_fault]
    named = [row for row in faults if row.right is not None]
    caught = sum(not row.miss for row in faults)
    delays = [row.delay / row.case.interval for row in named if row.delay is not None]
    noise, steps = sum(len(row.messages) for row in controls), sum(row.steps for row in controls)
    alarms, false = sum(len(row.alarms) for row in controls), sum(len(row.false_alarms) for row in controls)
    told = [row for row in named if row.layers != "-"]
    right, parts = (sum(row.layers == each for row in told) for each in ("all", "some"))
    honest = sum(not row.flaws for row in faults)
    return [
        f"recall: {caught} of {len(faults)} faults",
        f"right rule: {len(named)} of {len(faults)}",
        f"right layers: {right} of {len(told)} incidents with layers, {parts} a part",
        f"words true: {honest} of {len(faults)} faults",
        f"observations to detect: median {median(delays or [0]):.0f}, at most {max(delays, default=0):.0f}",
        f"messages per 1,000 healthy steps: {1000 * noise / max(1, steps):.2f} ({noise} in {steps:,})",
        f"incidents at warning or above on healthy jobs: {alarms}, {false} of them false",
    ]
