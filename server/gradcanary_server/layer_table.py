"""The layers of a run as the read API lists them: description, last values, and what the rules say of each."""

import json
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from gradcanary import wire
from gradcanary_server import fold_states
from gradcanary_server.archive import Archive
from gradcanary_server.arrays import numbers
from gradcanary_server.database import Record
from gradcanary_server.fold_state import Verdict
from gradcanary_server.heatmap import block
from gradcanary_server.launches import places
from gradcanary_server.log import Piece
from gradcanary_server.schema import layer
from gradcanary_server.tiles import ABSENT

SHOWN = (
    "absmax",
    "norm",
    "zero_fraction",
    "nonfinite",
    "update_ratio",
    "accumulation_error",
    "norm_ratio",
    "frozen_fraction",
)
EACH_STEP = ("absmax", "norm", "nonfinite")
"""Sampled with every step: an older value would be a lie; of the others, sampled in turns, the last one stands."""

Json = dict[str, object]


class _Latest:
    """The last known of each layer, which pieces tell in any order; an ``at`` rises with launch and step."""

    def __init__(self, layers: int) -> None:
        self.at, self.step = np.full(layers, -1, np.int64), np.zeros(layers, np.int64)
        self.state, self.micro_steps = np.zeros(layers, np.uint8), np.zeros(layers, np.int64)
        self.values = {stat: np.full(layers, np.nan, np.float32) for stat in SHOWN}
        self._told = {stat: np.full(layers, -1, np.int64) for stat in SHOWN if stat not in EACH_STEP}

    def take(self, piece: Piece, place: int) -> None:
        """Take what a piece with samples knows better, of the launch at a place."""
        columns = piece.columns
        rows, newer = self._newer(self.at, piece, place, columns.state != ABSENT)
        mine = piece.numbers[newer]
        self.step[mine], self.micro_steps[mine] = columns.steps[rows], columns.micro_steps[rows]
        self.state[mine] = columns.state[rows, newer]
        for stat in EACH_STEP:
            plane = columns.values.get(stat)
            self.values[stat][mine] = np.nan if plane is None else plane[rows, newer]
        for stat, told in self._told.items():
            if stat in columns.values:
                rows, newer = self._newer(told, piece, place, ~np.isnan(columns.values[stat]))
                self.values[stat][piece.numbers[newer]] = columns.values[stat][rows, newer]

    @staticmethod
    def _newer(
        at: NDArray[np.int64], piece: Piece, place: int, known: NDArray[np.bool_]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the last known row of each column where it is newer than what is there, and these columns."""
        rows = len(known) - 1 - np.argmax(known[::-1], axis=0)
        when = (place << 32) + piece.columns.steps[rows]
        newer = np.flatnonzero(known.any(axis=0) & (when > at[piece.numbers]))
        at[piece.numbers[newer]] = when[newer]
        return rows[newer], newer


def described(connection: Connection, run_id: int) -> Sequence[Record]:
    """Return the rows of a run's layers in model order."""
    return connection.execute(select(layer).where(layer.c.run_id == run_id).order_by(layer.c.layer_no)).all()


def table(connection: Connection, archive: Archive, run_id: int) -> list[Json]:
    """Return a run's layers with their last values."""
    rows = described(connection, run_id)
    latest = _Latest(1 + max((row.layer_no for row in rows), default=-1))
    place = places(connection, run_id)
    for piece in archive.newest(connection, run_id):
        latest.take(piece, place[piece.launch_no])
    verdicts = fold_states.stored(connection, run_id).state.verdicts([row.layer_no for row in rows])
    values = {stat: numbers(plane) for stat, plane in latest.values.items()}
    return [
        _entry(row, latest, {stat: of[row.layer_no] for stat, of in values.items()}, verdict)
        for row, verdict in zip(rows, verdicts, strict=True)
    ]


def _entry(row: Record, latest: _Latest, values: dict[str, float | None], verdict: Verdict) -> Json:
    at = row.layer_no
    is_known = latest.at[at] >= 0
    measured = wire.STATES[int(latest.state[at])] if is_known else None
    if is_known and measured != "nonfinite" and values["nonfinite"] is None:
        values["nonfinite"] = 0  # the count is sent only of layers that have one
    return {
        "layer": row.layer_no,
        "name": row.name,
        "block": block(row.name),
        "shape": _shape(row.shape),
        "param_dtype": row.param_dtype,
        "accumulator": {"declared": row.declared, "stored": row.stored, "effective": row.effective},
        "micro_steps": int(latest.micro_steps[at]) if is_known else None,
        "step": int(latest.step[at]) if is_known else None,
        "state": measured,
        **values,
        "rules": verdict.rules,
        "low": verdict.low,
        "baseline": verdict.baseline,
    }


@lru_cache(maxsize=1024)
def _shape(text: str) -> list[int]:
    found: list[int] = json.loads(text)
    return found
