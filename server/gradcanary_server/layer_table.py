"""The layers of a run as the read API lists them: description, last values, and what the rules say of each."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from gradcanary import wire
from gradcanary_server.archive import Archive
from gradcanary_server.arrays import number
from gradcanary_server.database import Record
from gradcanary_server.fold import FoldState
from gradcanary_server.heatmap import block
from gradcanary_server.log import Piece
from gradcanary_server.schema import fold_state, layer
from gradcanary_server.tiles import ABSENT

SHOWN = (
    "absmax",
    "norm",
    "zero_fraction",
    "nonfinite",
    "update_ratio",
    "accumulation_error",
    "frozen_fraction",
)
EACH_STEP = ("absmax", "norm", "nonfinite")
"""Sampled with every step: an older value would be a lie; of the others, sampled in turns, the last one stands."""

Json = dict[str, object]


@dataclass
class _Latest:
    step: int
    state: str
    micro_steps: int
    values: dict[str, float | None] = field(default_factory=dict)


def described(connection: Connection, run_id: int) -> Sequence[Record]:
    """Return the rows of a run's layers in model order."""
    return connection.execute(select(layer).where(layer.c.run_id == run_id).order_by(layer.c.layer_no)).all()


def folded(connection: Connection, run_id: int) -> FoldState:
    """Return what the rules hold of a run."""
    packed = connection.execute(select(fold_state.c.packed).where(fold_state.c.run_id == run_id)).scalar_one_or_none()
    return FoldState.empty() if packed is None else FoldState.unpack(packed)


def table(connection: Connection, archive: Archive, run_id: int) -> list[Json]:
    """Return a run's layers with their last values."""
    latest: dict[int, _Latest] = {}
    for piece in archive.newest(connection, run_id):
        _fill(latest, piece)
    state = folded(connection, run_id)
    return [_entry(row, latest.get(row.layer_no), state) for row in described(connection, run_id)]


def _fill(latest: dict[int, _Latest], piece: Piece) -> None:
    """Add what an older piece knows to what newer ones said."""
    columns = piece.columns
    if not len(columns.steps):
        return
    last = {stat: _last_values(plane, stat) for stat, plane in columns.values.items() if stat in SHOWN}
    for column, layer_no in enumerate(piece.numbers.tolist()):
        if columns.state[-1, column] == ABSENT:
            continue
        known = latest.get(layer_no)
        if known is None:
            state = wire.STATES[int(columns.state[-1, column])]
            known = latest[layer_no] = _Latest(int(columns.steps[-1]), state, int(columns.micro_steps[-1]))
            # The count is sent only of layers that have one.
            counted: dict[str, float | None] = {} if state == "nonfinite" else {"nonfinite": 0}
            sent = {stat: number(values[column]) for stat, values in last.items()}
            known.values = counted | {stat: value for stat, value in sent.items() if value is not None}
        else:
            for stat, values in last.items():
                if stat not in EACH_STEP and known.values.get(stat) is None:
                    known.values[stat] = number(values[column])


def _last_values(plane: NDArray[np.float32], stat: str) -> NDArray[np.float32]:
    """Return float32[L]: the last row, or for a stat that is sampled in turns the last value of each column."""
    at = np.full(plane.shape[1], len(plane) - 1)
    if stat not in EACH_STEP:
        at -= np.argmax(~np.isnan(plane)[::-1], axis=0)
    last: NDArray[np.float32] = plane[at, np.arange(plane.shape[1])]
    return last


def _entry(row: Record, latest: _Latest | None, state: FoldState) -> Json:
    verdict = state.verdict(row.layer_no)
    values = {} if latest is None else latest.values
    return {
        "layer": row.layer_no,
        "name": row.name,
        "block": block(row.name),
        "shape": json.loads(row.shape),
        "param_dtype": row.param_dtype,
        "accumulator": {"declared": row.declared, "stored": row.stored, "effective": row.effective},
        "micro_steps": latest and latest.micro_steps,
        "step": latest and latest.step,
        "state": latest and latest.state,
        **{stat: values.get(stat) for stat in SHOWN},
        "rules": verdict.rules,
        "low": verdict.low,
        "baseline": verdict.baseline,
    }
