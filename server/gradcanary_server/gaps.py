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


def note_gaps(before: Progress, columns: Columns) -> str:
    """Return the session's gaps, JSON [[from_step, to_step, why], ...], with those that this batch shows.

    A gap is two received steps further apart than ``every``; it is "dropped" when the agent counted more dropped
    steps since its last batch, else "missing". ``from_step`` and ``to_step`` are the first and last step in it.
    """
    why = "dropped" if columns.dropped_steps > before.dropped_steps else "missing"
    found = [[begin, end, why] for begin, end in _holes(before, columns)]
    if not found:
        return before.gaps
    return json.dumps([*json.loads(before.gaps), *found][-MAX_GAPS:])


def _holes(before: Progress, columns: Columns) -> Iterator[tuple[int, int]]:
    steps, every = columns.steps, columns.every
    if before.last_step is not None and before.every is not None:
        # Where the interval changed, the larger one is the distance that was promised.
        widest = max(before.every, every)
        if steps[0] - before.last_step > widest:
            yield before.last_step + before.every, int(steps[0]) - every
    for row in np.flatnonzero(np.diff(steps) > every):
        yield int(steps[row]) + every, int(steps[row + 1]) - every
