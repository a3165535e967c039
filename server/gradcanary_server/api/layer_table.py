"""The layer table of a run: description, last values and rule states of each layer."""

import json
from functools import lru_cache

import numpy as np
import orjson
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, select

from gradcanary import wire
from gradcanary_server.api.charts import block_name
from gradcanary_server.api.http import Json
from gradcanary_server.rules.state import Verdict
from gradcanary_server.storage import layers, rule_states
from gradcanary_server.storage.database import Record
from gradcanary_server.storage.runs import launch_order
from gradcanary_server.storage.schema import incident, incident_layer
from gradcanary_server.tsdb.log import LoggedBatch
from gradcanary_server.tsdb.reader import Reader
from gradcanary_server.tsdb.tiles import ABSENT

SHOWN = tuple(stat for stat in wire.STATS if stat != "weight_norm")
"""All but the one that is measured with ``update_ratio``."""
EACH_STEP = ("absmax", "norm", "nonfinite")
"""Sampled with every step: an older value is outdated. Of the others, sampled in turns, the last value is shown."""


class _Latest:
    """The last values of each layer, from batches in any order; an ``at`` rises with launch and step."""

    def __init__(self, layers: int) -> None:
        self.at, self.step = np.full(layers, -1, np.int64), np.zeros(layers, np.int64)
        self.state, self.micro_steps = np.zeros(layers, np.uint8), np.zeros(layers, np.int64)
        self.values = {stat: np.full(layers, np.nan, np.float32) for stat in SHOWN}
        self._stat_at = {stat: np.full(layers, -1, np.int64) for stat in SHOWN if stat not in EACH_STEP}

    def update(self, batch: LoggedBatch, launch: int) -> None:
        """Update the values that a batch of the n-th launch has newer ones of."""
        columns = batch.columns
        rows, newer = self._newer(self.at, batch, launch, columns.state != ABSENT)
        numbers = batch.numbers[newer]
        self.step[numbers] = columns.steps[rows]
        self.micro_steps[numbers] = columns.micro_steps[rows]
        self.state[numbers] = columns.state[rows, newer]
        for stat in EACH_STEP:
            plane = columns.values.get(stat)
            self.values[stat][numbers] = np.nan if plane is None else plane[rows, newer]
        for stat, at in self._stat_at.items():
            if stat in columns.values:
                rows, newer = self._newer(at, batch, launch, ~np.isnan(columns.values[stat]))
                self.values[stat][batch.numbers[newer]] = columns.values[stat][rows, newer]

    @staticmethod
    def _newer(
        at: NDArray[np.int64], batch: LoggedBatch, launch: int, is_known: NDArray[np.bool_]
    ) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Set ``at`` of the columns whose last known row is newer; return these rows and columns."""
        rows = len(is_known) - 1 - np.argmax(is_known[::-1], axis=0)
        when = (launch << 32) + batch.columns.steps[rows]
        newer = np.flatnonzero(is_known.any(axis=0) & (when > at[batch.numbers]))
        at[batch.numbers[newer]] = when[newer]
        return rows[newer], newer


def build_layer_table(connection: Connection, measurements: Reader, run_id: int) -> list[Json]:
    """Return a run's layers with their last values."""
    rows = layers.read_layers(connection, run_id)
    latest = _Latest(1 + max((row.layer_no for row in rows), default=-1))
    order = launch_order(connection, run_id)
    for batch in measurements.latest(connection, run_id):
        latest.update(batch, order[batch.launch_no])
    numbers = [row.layer_no for row in rows]
    verdicts = rule_states.read_state(connection, run_id).state.verdicts(numbers)
    _fill_frozen(connection, run_id, latest.values["frozen_fraction"])
    columns = zip(*(_to_json_numbers(latest.values[stat][numbers]) for stat in SHOWN), strict=True)
    planes = (latest.at, latest.state, latest.step, latest.micro_steps)
    samples = zip(*(plane[numbers].tolist() for plane in planes), strict=True)
    return [
        _to_json(row, sample, values, verdict)
        for row, sample, values, verdict in zip(rows, samples, columns, verdicts, strict=True)
    ]


_FROZEN = (
    select(incident_layer.c.layer_no, incident_layer.c.value)
    .join(
        incident,
        (incident_layer.c.run_id == incident.c.run_id) & (incident_layer.c.incident_id == incident.c.incident_id),
    )
    .where(incident.c.run_id == bindparam("run_id"), incident.c.rule.in_(("frozen", "in_vain")))
    .where(incident_layer.c.layer_no >= 0, incident_layer.c.value.is_not(None))
    .order_by(incident_layer.c.since_step.desc())
)


def _fill_frozen(connection: Connection, run_id: int, shares: NDArray[np.float32]) -> None:
    """Fill in the shares that incidents name, of layers whose last measurement is older than the samples read."""
    for number, value in connection.execute(_FROZEN, {"run_id": run_id}):
        if np.isnan(shares[number]):
            shares[number] = value


def _to_json_numbers(values: NDArray[np.float32]) -> list[float | None]:
    """Return numbers in the shortest digits of a float32; None for NaN and infinities."""
    numbers: list[float | None] = orjson.loads(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY))
    return numbers


def _to_json(row: Record, sample: tuple[int, ...], values: tuple[float | None, ...], verdict: Verdict) -> Json:
    """Return a layer; ``sample`` is ``at``, ``state``, ``step`` and ``micro_steps``, ``values`` are those of SHOWN."""
    at, state, step, micro_steps = sample
    is_known = at >= 0
    described = {
        "layer": row.layer_no,
        "name": row.name,
        "block": block_name(row.name),
        "shape": _shape(row.shape),
        "param_dtype": row.param_dtype,
        "accumulator": {"declared": row.declared, "stored": row.stored, "effective": row.effective},
        "micro_steps": micro_steps if is_known else None,
        "step": step if is_known else None,
        "state": wire.STATES[state] if is_known else None,
        **dict(zip(SHOWN, values, strict=True)),
        "rules": verdict.rules,
        "below_threshold": verdict.below_threshold,
        "baseline": verdict.baseline,
    }
    if is_known and described["state"] != "nonfinite" and described["nonfinite"] is None:
        described["nonfinite"] = 0  # agents send the count only if it is not zero
    return described


@lru_cache(maxsize=1024)
def _shape(text: str) -> list[int]:
    shape: list[int] = json.loads(text)
    return shape
