"""How long the steps of a run take, by the agent's own measure: an outage of ours, or a replay, does not change it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from gradcanary_server.archive import Archive
from gradcanary_server.nodes import MAXIMUM, MEAN
from gradcanary_server.window import Range, metric_window

SERIES = ("step_time_s", "{}")

STEPS = 200
"""Whose median is taken: enough that some evaluations do not matter."""


@dataclass(frozen=True)
class Tempo:
    """Seconds from step to step, None where no time was measured."""

    median_s: float | None
    longest_s: float | None


def read(archive: Archive, connection: Connection, run_id: int, step: int) -> Tempo:
    """Return the median of the last steps up to one, and the longest of all."""
    recent = _read(archive, connection, run_id, Range(max(step - STEPS + 1, 0), step, STEPS), MEAN)
    whole = _read(archive, connection, run_id, Range(None, None, 1), MAXIMUM)
    return Tempo(float(np.median(recent)) if len(recent) else None, float(whole.max()) if len(whole) else None)


def _read(archive: Archive, connection: Connection, run_id: int, steps: Range, plane: str) -> NDArray[np.float64]:
    found = metric_window(archive, connection, run_id, [SERIES], steps).envelope[plane][:, 0]
    return np.asarray(found[np.isfinite(found)], np.float64)
