"""What rules would have said of the runs that are there: each is played again, within bounds. Reads, and no more.

A count is of one receiver from warning on, who takes each message at once; nobody acknowledges, nothing is silenced.
So it tells rules apart, whoever was told of what, and is the same for rules that never were in force.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection, select

from gradcanary_server import recordings, takes
from gradcanary_server.archive import Archive
from gradcanary_server.database import Database, Record
from gradcanary_server.rules import Rules
from gradcanary_server.schema import run
from gradcanary_server.takes import Source
from gradcanary_server.trial import Trial

RUNS = 30
"""The runs heard of last that are not in the archive."""

SAMPLES = 20_000
POINTS = 5_000_000
"""Of a run its first samples are played, so many, and so many numbers of one stat: some seconds of one core."""

OVER = ("finished", "crashed")


@dataclass(frozen=True)
class Count:
    """What rules would have said of one run at a ``revision``.

    ``by_rule`` counts messages. ``is_whole``: all samples were played. ``gone_before``: the step before which single
    samples are gone. ``matched``: how many layers each entry of ``layers`` holds for.
    """

    run: str
    revision: int
    incidents: int
    messages: int
    by_rule: Mapping[str, int]
    layers: int
    samples: int
    first_step: int | None
    last_step: int | None
    is_whole: bool
    gone_before: int | None
    matched: tuple[int, ...]


def chosen(connection: Connection) -> list[Record]:
    """Return the runs that rules are tried on, the one heard of last first."""
    query = select(run).where(run.c.archived.is_(False)).order_by(run.c.last_seen.desc(), run.c.run_id.desc())
    return list(connection.execute(query.limit(RUNS)))


def count_run(database: Database, archive: Archive, rules: Rules, row: Record) -> Count:
    """Return what rules would have said of a run that is stored."""
    source = takes.of_recording(recordings.lines(database, archive, row, row.ended or ""))
    return count(source, rules, row.revision)


def count(source: Source, rules: Rules, revision: int) -> Count:
    """Return what rules would have said of a run."""
    trial = Trial(rules, len(source.layers), source.ended)
    most = min(SAMPLES, POINTS // max(len(source.layers), 1))
    samples, is_whole = 0, True
    steps: list[int] = []
    for take in source.takes:
        if samples >= most:
            is_whole = False
            break
        trial.play(take)
        samples += len(take.samples.steps)
        steps += take.samples.steps[[0, -1]].tolist() if len(take.samples.steps) else []
    if samples:
        trial.finish(is_over=is_whole and source.state in OVER)
    by_rule = Counter({story.case.incident.rule: 0 for story in trial.stories})
    for story in trial.stories:
        by_rule[story.case.incident.rule] += len(story.messages)
    return Count(
        run=source.name,
        revision=revision,
        incidents=len(trial.stories),
        messages=trial.messages,
        by_rule=dict(by_rule),
        layers=len(source.layers),
        samples=samples,
        first_step=min(steps, default=None),
        last_step=max(steps, default=None),
        is_whole=is_whole,
        gone_before=source.gone_before,
        matched=_matched(source, rules),
    )


def _matched(source: Source, rules: Rules) -> tuple[int, ...]:
    numbers = {id(entry): place for place, entry in enumerate(rules.layers)}
    found = Counter(numbers.get(id(rules.entry_of(name))) for name in source.layers.values())
    return tuple(found[place] for place in range(len(rules.layers)))
