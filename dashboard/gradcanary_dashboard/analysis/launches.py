"""Launches and missing steps of a run, from the API's sessions and gaps. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradcanary_dashboard.text import numbers

Steps = tuple[int, int]
"""First and last step, both included."""

RESOLUTION = 300
"""Holes closer than the axis divided by this are drawn as one."""

WHY = {
    "dropped": "dropped by the agent, which could not keep up or could not reach the collector",
    "missing": "never received",
    "late": "a rank was more than a minute behind: what it holds is missing",
}


@dataclass(frozen=True)
class Launch:
    """One start of the job: its number from 1, its steps (None before the first) and its state.

    ``every`` and ``agent_share``, a share of 1, are the latest ones, the largest of all ranks.
    """

    number: int
    name: str
    first: int | None
    last: int | None
    every: int
    state: str
    ranks: int
    dropped_steps: int
    agent_share: float | None
    sessions: tuple[str, ...]

    @property
    def steps(self) -> Steps | None:
        """First and last received step, None before the first."""
        return None if self.first is None or self.last is None or self.last < self.first else (self.first, self.last)


@dataclass(frozen=True)
class Hole:
    """Steps without data, both included, and the reason; ``gaps`` of them are drawn as one."""

    first: int
    last: int
    whys: tuple[str, ...]
    gaps: int = 1

    @property
    def text(self) -> str:
        """The hole as a sentence."""
        where = numbers.steps(self.first, self.last)
        where = where if self.gaps == 1 else f"{numbers.plural(self.gaps, 'gap')} in {where[0].lower()}{where[1:]}"
        return f"{where}: {'; '.join(self.whys)}"


def launches(run: Mapping[str, Any]) -> list[Launch]:
    """Return the launches of a run, the first one first.

    A launch has the steps of its first rank, whose measurements are drawn.
    """
    groups: list[list[Mapping[str, Any]]] = []
    ranks: set[int] = set()
    for session in run["sessions"]:
        if not groups or groups[-1][0]["launch"] != session["launch"] or session["rank"] in ranks:
            groups.append([])
            ranks = set()
        groups[-1].append(session)
        ranks.add(session["rank"])
    return [_launch(number, group) for number, group in enumerate(groups, start=1)]


def holes(run: Mapping[str, Any]) -> list[Hole]:
    """Return the missing steps of a run in order: gaps of a launch that no later launch measured, and steps between two
    launches.
    """
    known = launches(run)
    of_session: dict[str, list[Mapping[str, Any]]] = {}
    for gap in run["gaps"]:
        of_session.setdefault(gap["session"], []).append(gap)
    found: list[Hole] = []
    later: list[Steps] = []  # of all later launches: apart, the first one first
    for launch in reversed(known):
        for gap in reversed([gap for session in launch.sessions for gap in of_session.get(session, ())]):
            why = str(WHY.get(gap["reason"], gap["reason"]))
            found += [Hole(*steps, (why,)) for steps in _without((gap["from_step"], gap["to_step"]), later)]
        if launch.steps is not None:
            later = _joined([*later, launch.steps])
    return sorted([*reversed(found), *_between(known)], key=lambda hole: hole.first)


def measured(known: Iterable[Launch]) -> Steps | None:
    """Return the first and the last step of all launches; None before there is one."""
    steps = [launch.steps for launch in known if launch.steps is not None]
    return (min(first for first, _ in steps), max(last for _, last in steps)) if steps else None


def around(steps: Steps, first: float, last: float) -> list[Hole]:
    """Return the steps between ``first`` and ``last`` that are before or after all steps of the run."""
    ends = [
        (int(first), min(steps[0] - 1, int(last)), "before the first step"),
        (max(steps[1] + 1, int(first)), int(last), "behind the last step"),
    ]
    return [Hole(begin, end, (why,)) for begin, end, why in ends if begin <= end]


def in_sight(found: Iterable[Hole], first: float, last: float) -> list[Hole]:
    """Return the holes that touch ``first`` to ``last``; those that would overlap in a figure become one."""
    merged: list[Hole] = []
    near = (last - first) / RESOLUTION
    for hole in found:
        if hole.last < first or hole.first > last:
            continue
        if merged and hole.first - merged[-1].last <= near:
            before = merged.pop()
            whys = tuple(dict.fromkeys(before.whys + hole.whys))
            hole = Hole(before.first, max(before.last, hole.last), whys, before.gaps + hole.gaps)
        merged.append(hole)
    return merged


def steps_back(launch: Launch, before: Launch) -> int:
    """Return the number of steps of the previous launch that a launch repeats."""
    return 0 if before.last is None or launch.first is None else max(0, before.last - launch.first + 1)


def beginning(launch: Launch, before: Launch) -> str:
    """Return the text for the start of a launch, compared with the previous one."""
    text = f"begins at step {numbers.integer(launch.first)}"
    again = steps_back(launch, before)
    if not again:
        return text
    back = f"{numbers.plural(again, 'step')} before the end of launch {before.number}"
    return f"{text}, {back}: what it measures again counts"


def _launch(number: int, sessions: Sequence[Mapping[str, Any]]) -> Launch:
    first = sessions[0]
    return Launch(
        number=number,
        name=first["launch"],
        first=first["first_step"],
        last=first["last_step"],
        every=max(session["every"] or 1 for session in sessions),
        state=first["state"],
        ranks=len(sessions),
        dropped_steps=first["dropped_steps"] or 0,
        agent_share=max((session["agent_share"] or 0.0 for session in sessions), default=0.0) or None,
        sessions=tuple(session["session"] for session in sessions),
    )


def _between(known: Sequence[Launch]) -> Iterable[Hole]:
    """Return the steps between the last step of all earlier launches and the first of the next."""
    reached: Launch | None = None
    for launch in known:
        if launch.steps is None:
            continue
        if reached is not None and reached.steps is not None and launch.steps[0] - reached.steps[1] > reached.every:
            why = f"between the end of launch {reached.number} and the beginning of launch {launch.number}"
            yield Hole(reached.steps[1] + reached.every, launch.steps[0] - 1, (why,))
        if reached is None or reached.steps is None or launch.steps[1] > reached.steps[1]:
            reached = launch


def _joined(spans: Iterable[Steps]) -> list[Steps]:
    """Return the steps of some spans, those that touch as one, the first one first."""
    joined: list[Steps] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], last)
        else:
            joined.append((first, last))
    return joined


def _without(steps: Steps, covered: Iterable[Steps]) -> list[Steps]:
    """Return some steps without others."""
    left = [steps]
    for first, last in covered:
        left = [
            part
            for begin, end in left
            for part in ((begin, min(end, first - 1)), (max(begin, last + 1), end))
            if part[0] <= part[1]
        ]
    return left
