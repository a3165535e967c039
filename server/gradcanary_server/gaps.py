"""Steps that should have come and did not; pure."""

import json
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from gradcanary_server.batches import Columns

MAX_GAPS = 1_000
"""Of a session; the oldest go first."""


class Progress(Protocol):
    """What a session had sent before a batch."""

    last_step: int | None
    every: int | None
    dropped_steps: int
    gaps: str


def note_gaps(before: Progress, columns: Columns, begins: int) -> str:
    """Return the session's gaps, JSON [[from_step, to_step, why], ...], with those that this batch shows.

    A gap is two received steps further apart than ``every``; it is "dropped" when the agent counted more dropped
    steps since its last batch, else "missing". Where it dropped more than such gaps hold, it thinned: one "dropped" gap
    reaches over the steps that it kept. ``from_step`` and ``to_step`` are the first and last step in it; ``begins`` is
    the first step of the session's launch.
    """
    dropped = columns.dropped_steps - before.dropped_steps
    holes = list(_holes(before, columns))
    known = json.loads(before.gaps)
    if dropped > sum((end - begin) // columns.every + 1 for begin, end in holes):
        holes = _thinned(begins - 1 if before.last_step is None else before.last_step, columns, dropped)
        # The gap of the batch before goes on: its last step is one that was kept.
        if holes and known and before.last_step is not None and known[-1][1:] == [before.last_step - 1, "dropped"]:
            holes = [(known.pop()[0], holes[0][1])]
    found = [[begin, end, "dropped" if dropped > 0 else "missing"] for begin, end in holes]
    return json.dumps([*known, *found][-MAX_GAPS:]) if found else before.gaps


def with_late(gaps: str, begin: int, end: int) -> str:
    """Return a session's gaps with steps that were put together without it, from ``begin`` to ``end``."""
    known = json.loads(gaps)
    if known and known[-1][1:] == [begin - 1, "late"]:
        begin = known.pop()[0]
    return json.dumps([*known, [begin, end, "late"]][-MAX_GAPS:])


def _thinned(before: int, columns: Columns, dropped: int) -> list[tuple[int, int]]:
    """Return the stretch after step ``before`` that lacks steps, whatever ``every`` says: one or none."""
    first, last = int(columns.steps[0]), int(columns.steps[-1])
    ahead = max(first - before - 1, 0)
    apart = columns.steps[:-1][np.diff(columns.steps) > 1]
    begin = first - ahead if ahead or not len(apart) else int(apart[0]) + 1
    if dropped <= ahead or not len(apart):
        end = first - 1
    else:
        end = int(columns.steps[np.searchsorted(columns.steps, apart[-1]) + 1]) - 1
    return [(begin, min(end, last))] if begin <= end else []


def _holes(before: Progress, columns: Columns) -> Iterator[tuple[int, int]]:
    steps, every = columns.steps, columns.every
    if before.last_step is not None and before.every is not None:
        # Where the interval changed, the larger one is the distance that was promised.
        widest = max(before.every, every)
        if steps[0] - before.last_step > widest:
            yield before.last_step + before.every, int(steps[0]) - every
    for row in np.flatnonzero(np.diff(steps) > every):
        yield int(steps[row]) + every, int(steps[row + 1]) - every
