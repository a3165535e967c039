"""Why a cell of a heatmap has no value, held against the states that were sent."""

import time
from dataclasses import replace

import numpy as np
import pytest

from gradcanary import wire
from gradcanary_server.api import cell_states, charts
from gradcanary_server.api.charts import HeatmapOptions
from gradcanary_server.rules.config import Rules
from gradcanary_server.tsdb import tiles
from gradcanary_server.tsdb.query import StepRange
from support import streams
from support.server.archives import RUN, Store, decoded

STEPS, LAYERS = 900, 4
MEASURED, NO_GRADIENT, NOT_TRAINABLE = (
    wire.STATES.index(name) for name in ("measured", "no_gradient", "not_trainable")
)
CODES = {MEASURED: 0, NO_GRADIENT: charts.WITHOUT_GRADIENT, NOT_TRAINABLE: charts.FROZEN}


@pytest.fixture
def store(tmp_path):
    made = Store(f"sqlite:///{tmp_path / 'gradcanary.db'}")
    yield made
    made.database.close()


def send(store, states, session="s", first_step=0, compacted=6):
    """Send samples with these states [step, layer], the first batches compacted to tiles."""
    absmax = np.where(states == MEASURED, 1e-3, np.nan)
    stream = streams.Stream(absmax, first_step=first_step)
    store.ingest.hello(RUN, session, wire.dump(stream.hello(launch=session)))
    for seq, batch in enumerate(stream.batches(100)):
        column = wire.column("B", states[100 * seq : 100 * (seq + 1)].ravel().tolist())
        store.ingest.batch(RUN, session, seq, wire.dump(replace(batch, state=column)))
        if seq == compacted:
            store.compactor.compact()


def cells_of(store, columns, rows=400, stat="absmax"):
    options, span = HeatmapOptions("min", "model", None, rows), StepRange(None, None, columns)
    build = charts.build_heatmap
    return decoded(store.read(lambda c, run: build(c, store.archive, Rules(), run, stat, options, span))["cells"])


def test_cells_say_no_gradient_and_not_trainable_from_the_step_on_at_which_they_begin(store):
    states = np.full((STEPS, LAYERS), MEASURED)
    states[317:, 0] = NO_GRADIENT
    states[:50, 1] = NOT_TRAINABLE
    states[50:120, 1] = NO_GRADIENT
    states[400:405, 2] = NO_GRADIENT
    states[811:, 2] = NOT_TRAINABLE
    send(store, states)
    cells = cells_of(store, 1000).T
    for state, code in CODES.items():
        assert ((cells == code) == (states == state)).all() or state == MEASURED
    assert (cells[states == MEASURED] == -3000).all()
    assert (np.where(states == MEASURED, -2523, cells) == cells_of(store, 1000, stat="norm").T).all()
    wide = cells_of(store, 120).T
    assert wide[-1].tolist() == [charts.WITHOUT_GRADIENT, -3000, charts.FROZEN, -3000]


def test_of_layers_in_one_row_the_loudest_is_told(store):
    states = np.full((20, LAYERS), NOT_TRAINABLE)
    states[:, 1] = NO_GRADIENT
    send(store, states)
    assert np.unique(cells_of(store, 100, rows=2), axis=1).ravel().tolist() == [charts.WITHOUT_GRADIENT, charts.FROZEN]


def test_a_layer_that_a_launch_does_not_have_is_no_data(store):
    send(store, np.full((20, LAYERS), NO_GRADIENT))
    send(store, np.full((20, 1), MEASURED), session="t", first_step=20)
    cells = cells_of(store, 100)
    assert (cells[:, :20] == charts.WITHOUT_GRADIENT).all()
    assert (cells[1:, 20:] == charts.NO_DATA).all()


def test_few_samples_are_read_however_often_a_layer_comes_and_goes(store, monkeypatch):
    states = np.full((STEPS, LAYERS), MEASURED)
    states[::2, 0] = NO_GRADIENT
    send(store, states)
    asked = []
    monkeypatch.setattr(
        store.archive, "states", lambda *given: asked.append(given) or type(store.archive).states(store.archive, *given)
    )
    cells = cells_of(store, 1000).T
    assert (cells[::2, 0] == charts.WITHOUT_GRADIENT).all()
    assert (cells[1::2] == -3000).all()
    assert 0 < len(asked) <= cell_states.MOST


def test_samples_that_are_gone_explain_nothing(store, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_ROWS", 8)
    states = np.full((STEPS, LAYERS), MEASURED)
    states[:, 0] = NO_GRADIENT
    send(store, states, compacted=8)
    assert store.thin(time.time() + 60)
    cells = cells_of(store, 1000)
    assert (cells[0] == charts.NO_DATA).any()
    assert (cells[1:] != charts.NO_DATA).all()
