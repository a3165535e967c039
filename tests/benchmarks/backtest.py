"""What it takes to play a run again by the rules, and to look up what each run takes of the store.

    python tests/benchmarks/backtest.py

Two runs of every step, two stats, as the agent sends them; CPU seconds of one process, from the log to the count, the
middle of three. Then 40,000 tiles of 20 kB, of ten runs. There is no target: the limits of a backtest come from here.
"""

import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

sys.path[:0] = [str(Path(__file__).parent.parent)]

from fastapi.testclient import TestClient
from sqlalchemy import insert

from gradcanary_server.app import create_app
from gradcanary_server.ops import backtest_worker
from gradcanary_server.rules.config import Rules
from gradcanary_server.settings import Settings
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import run, tile
from gradcanary_server.tsdb.retention import DiskUsage
from support import blank_stores
from support.browser import scenes
from support.streams import Session

HOST = "http://localhost"
IN_FORCE = {"in_force": Rules()}
RUNS = ((1_200, 12), (6_000, 25))
"""Steps, and blocks of 12 layers."""


def cpu_s(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def play(folder: Path) -> None:
    app = create_app(Settings.from_env({}, data=folder))
    with TestClient(app, base_url=HOST) as client:
        for steps, blocks in RUNS:
            stream = scenes.collapse(steps=steps, blocks=blocks, at=steps // 2)
            Session(HOST, run=f"of-{steps}", client=client).send(stream, 40)  # type: ignore[arg-type]  # an httpx.Client
        state = app.state.services
        with state.database.read() as connection:
            rows = {row.name: row for row in backtest_worker.select_runs(connection)}
        for steps, blocks in RUNS:
            mine = rows[f"of-{steps}"]
            play = partial(backtest_worker.play_run, state.database, state.measurements, IN_FORCE, mine)
            took = [cpu_s(play) for _ in "abc"]
            print(f"{steps:,} steps x {12 * blocks} layers: {median(took):.2f} s of CPU")


def weigh(folder: Path) -> None:
    blank_stores.lay(folder)
    database = Database(f"sqlite:///{folder / blank_stores.FILE}")
    keys = {"level": 0, "kind": "absmax", "launch_no": 1, "every": 1, "layer_group": 0, "part": 0, "stored": 0}
    with database.write() as connection:
        for number in range(10):
            about = {"run_id": number + 1, "name": f"run-{number}", "created": 0, "last_seen": 0}
            connection.execute(insert(run).values(**about))
            tiles = [
                {**keys, "run_id": number + 1, "range_no": place, "body": os.urandom(20_000)} for place in range(4_000)
            ]
            connection.execute(insert(tile), tiles)
    took = median(cpu_s(lambda: DiskUsage(database).use()) for _ in "abc")
    print(f"40,000 tiles of 20 kB: {took:.2f} s of CPU")
    database.close()


if __name__ == "__main__":
    for part in (play, weigh):
        with tempfile.TemporaryDirectory() as name:
            part(Path(name))
