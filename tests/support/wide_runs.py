"""A run of many layers that lies in tiles: to send what it measured would take minutes."""

import numpy as np
from sqlalchemy import select, update

from gradcanary import wire
from gradcanary_server.ingest.service import Ingest
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import session
from gradcanary_server.tsdb import tiles
from gradcanary_server.tsdb.batch import Columns
from gradcanary_server.tsdb.log import LoggedBatch
from gradcanary_server.tsdb.samples import build_sample_tiles
from gradcanary_server.tsdb.tiles import TILE_ROWS, SampleStream
from support import streams

NAME = "wide"
NONE, ZERO, NONFINITE = 0.02, 0.02, 0.001
"""Shares of the values that are missing, exactly 0, and not finite."""


def lay(database: Database, ingest: Ingest, layers: int, samples: int) -> None:
    """Store a run of so many layers and samples of their absmax; nothing of it waits in the log."""
    names = streams.layer_names(layers)
    hello = streams.hello(streams.layer_set(names), launch=NAME)
    ingest.hello(NAME, NAME, wire.dump(hello))
    random = np.random.default_rng(0)
    with database.write() as connection:
        row = connection.execute(select(session).where(session.c.session == NAME)).one()
        of = SampleStream(row.launch_no, 1)
        for begin in range(0, samples, TILE_ROWS):
            piece = _piece(random, row.launch_no, begin, min(begin + TILE_ROWS, samples), layers)
            made = tiles.pack_tiles(build_sample_tiles([piece], of, samples))
            tiles.write_tiles(connection, row.run_id, made, 0.0)
        tiles.write_stream(connection, row.run_id, SampleStream(row.launch_no, 1, sealed_until=samples))
        this = (session.c.run_id == row.run_id) & (session.c.session == NAME)
        connection.execute(update(session).where(this).values(first_sample=0, last_step=samples - 1))


def _piece(random: np.random.Generator, launch_no: int, begin: int, end: int, layers: int) -> LoggedBatch:
    shape = (end - begin, layers)
    kind = random.random(shape, np.float32)
    state = np.full(shape, streams.MEASURED, np.uint8)
    state[kind < NONE + ZERO + NONFINITE] = streams.NONFINITE
    state[kind < NONE + ZERO] = streams.ZERO
    state[kind < NONE] = streams.NO_GRADIENT
    # A few values, so that the tiles of the largest run are small, and of every order of magnitude.
    absmax = np.float32(10) ** random.integers(-9, 2, shape).astype(np.float32)
    absmax[state == streams.ZERO] = 0
    absmax[(state == streams.NO_GRADIENT) | (state == streams.NONFINITE)] = np.nan
    steps = np.arange(begin, end)
    none = np.zeros(len(steps), np.int64)
    return LoggedBatch(
        launch_no,
        NAME,
        0,
        np.arange(layers, dtype=np.int32),
        Columns(
            layer_set="",
            every=1,
            steps=steps,
            times=1.7e9 + steps * 0.1,
            micro_steps=none,
            skipped=none,
            clipped=none,
            state=state,
            values={"absmax": absmax},
            phases={"absmax": np.zeros(len(steps), np.uint8)},
            accumulators=(),
            metrics=(),
            dropped_steps=0,
        ),
    )
