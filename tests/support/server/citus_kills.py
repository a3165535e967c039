"""Kill the nodes of a Citus cluster, and the collector, under trainings, and compare with plain PostgreSQL.

PYTHONPATH=tests python -m support.server.citus_kills --db URL --kill 'CMD {node}' --start 'CMD {node}' --state FILE
The store at URL is on a cluster (``gradcanary migrate --citus``); the two commands end and start a node, 0 the
coordinator. Each round has trainings of its own, amid which collector and nodes are killed, in a random order. FILE
keeps what was done: the same command goes on after the last round. Status 1: a training was refused, or its answers or
its compacted tiles are not those of a collector that was left alone.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import psycopg

from support import postgres
from support.collectors import Collector
from support.streams import Session, Stream, collapsed, falling_loss, healthy

COLLECTOR, LINES = "collector", 300

STEPS, LAYERS, TOGETHER, PAUSE_S = 2304, 6, 48, 0.05
"""Nine tiles of samples, the first eight of which are folded into one, in 48 batches."""

BEGIN_S, KILL_S, OFTEN = 4.0, 6.0, 4
"""Trainings begin within so many seconds; each kill is so many seconds at most after the one before came back."""

COMPACTED_S = 120.0
"""How long the last batches of a training may wait in the log."""

LONGEST_S = 180.0
"""How long a training may wait for one acknowledgement: Citus ends what a kill left within its own minute."""

AGAIN_S = 30.0
"""How long a collector may take to see that a node is back."""

MOMENTARY = frozenset(
    [
        "created",
        "last_deliveries",
        "last_seen",
        "last_step_at",
        "opened",
        "resolved",
        "reopened_at",
        "started",
        "since",
        "revision",
        "session",
        "id",
        "incident",
        "url",
        "runbook_url",
        "open_incidents",
        "worst_incident",
        "caused_by",
        "also",
        "unacked",
    ]
)
"""What depends on the moment, or on which training was the first to open an incident."""


WAITING = """
SELECT (SELECT count(*) FROM batch WHERE run_id = %(run_id)s)
    + (SELECT count(*) FROM stream WHERE run_id = %(run_id)s AND rollup_ends = '[]')
"""
TILES = """
SELECT level, kind, launch_no, every, range_no, layer_group, part, md5(body) FROM tile
WHERE run_id = %(run_id)s AND (kind <> 'metrics' OR level > 0) ORDER BY 1, 2, 3, 4, 5, 6, 7
"""
"""Without points of metrics: how many of them a tile has depends on when they were sealed."""


class Proof:
    """Trainings under kills of ``killed``, a collector on a cluster, against those of one that is left alone."""

    def __init__(self, killed: Collector, alone: Collector, trainings: int) -> None:
        self._killed = killed
        self._trainings = trainings
        names = [f"alone-{training}" for training in range(trainings)]
        refused = train(alone, names)
        assert not refused, refused
        self._expected = [found(alone, name) for name in names]

    def round(self, number: int, targets: Sequence[str], kill: str, start: str) -> dict[str, Any]:
        """Train all at once, with kills at random moments; return what was refused and what is not as expected."""
        names = [f"kill-{number}-{training}" for training in range(self._trainings)]
        refused: dict[str, str] = {}
        training = threading.Thread(target=lambda: refused.update(train(self._killed, names)))
        begun = time.monotonic()
        training.start()
        kills = []
        for target in targets:
            training.join(random.uniform(0.0, KILL_S))
            if not training.is_alive():
                break
            kills.append({"target": target, "at_s": round(time.monotonic() - begun, 2)})
            self._kill(target, kill, start)
        training.join()
        trained_s = round(time.monotonic() - begun, 1)
        self._wait_for_nodes()
        ended = [(name, self._expected[row]) for row, name in enumerate(names) if name not in refused]
        told = {name: difference(found(self._killed, name), expected) for name, expected in ended}
        wrong = {name: where for name, where in told.items() if where is not None}
        return {"round": number, "kills": kills, "trained_s": trained_s, "refused": refused, "wrong": wrong}

    def _wait_for_nodes(self) -> None:
        """Wait until the collector knows that all nodes are back: before, reads of their runs are 503."""
        end = time.monotonic() + AGAIN_S
        while set((answer := self._killed.get("/readyz")).json()["checks"].values()) != {"ok"}:
            assert time.monotonic() < end, answer.text + "\n" + "".join(self._killed.output[-LINES:])
            time.sleep(0.2)

    def _kill(self, target: str, kill: str, start: str) -> None:
        """Kill the collector or a node, and bring it back."""
        if target == COLLECTOR:
            self._killed.kill()
            self._killed.start()
        else:
            for command in (kill, start):
                subprocess.run(command.format(node=target), shell=True, check=True)


def main() -> int:
    """Run the rounds that are left; print a line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", required=True)
    parser.add_argument("--kill", required=True)
    parser.add_argument("--start", required=True)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--trainings", type=int, default=16)
    given = parser.parse_args()
    rounds: list[dict[str, Any]] = json.loads(given.state.read_text()) if given.state.exists() else []
    with tempfile.TemporaryDirectory() as folder, postgres.running() as plain:
        killed = Collector(Path(folder) / "killed", db=given.db).start()
        alone = Collector(Path(folder) / "alone", db=plain.create_store()).start()
        try:
            proof = Proof(killed, alone, given.trainings)
            while (done := count(rounds)) < given.kills:
                targets = in_random_order([COLLECTOR, *map(str, range(given.nodes))], given.kills - done)
                rounds.append(proof.round(len(rounds), targets, given.kill, given.start))
                given.state.write_text(json.dumps(rounds, indent=1))
                print(rounds[-1], flush=True)
                if rounds[-1]["refused"] or rounds[-1]["wrong"]:
                    print("".join(killed.output[-LINES:]), flush=True)
        finally:
            killed.kill()
            alone.kill()
    bad = [each for each in rounds if each["refused"] or each["wrong"]]
    print(f"{count(rounds)} kills, {len(rounds) * given.trainings} trainings; rounds with a fault: {len(bad)}")
    return 1 if bad else 0


def in_random_order(targets: Sequence[str], left: int) -> list[str]:
    """Return the targets of a round, each one ``OFTEN`` times and not more than are left."""
    return random.sample([*targets] * OFTEN, len(targets) * OFTEN)[:left]


def count(rounds: Sequence[dict[str, Any]]) -> int:
    """Return the number of kills."""
    return sum(len(each["kills"]) for each in rounds)


def train(collector: Collector, names: Sequence[str]) -> dict[str, str]:
    """Send all trainings at once, to their ends; return the answers that refused one."""
    refused: dict[str, str] = {}
    threads = [threading.Thread(target=send, args=(collector.url, name, refused)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return refused


def stream_of(name: str) -> Stream:
    """Return the measurements of a training: those of every second one collapse."""
    seed = int(name.rpartition("-")[2])
    absmax = collapsed(STEPS, LAYERS, (seed % LAYERS,), STEPS // 2) if seed % 2 else healthy(STEPS, LAYERS, seed=seed)
    return Stream(absmax, falling_loss(STEPS))


def send(url: str, name: str, refused: dict[str, str]) -> None:
    """Send a training to its end, after a pause; each message until it is acknowledged."""
    stream = stream_of(name)
    time.sleep(random.uniform(0.0, BEGIN_S))
    with httpx.Client(timeout=60.0) as client:
        session = Session(url, run=name, session=f"{name}-session", client=client)
        messages = [lambda: session.put_hello(stream.hello())]
        messages += [
            lambda seq=seq, batch=batch: session.post_batch(seq, batch)
            for seq, batch in enumerate(stream.batches(TOGETHER))
        ]
        for message in (*messages, session.end):
            answer = acknowledged(message)
            if answer is not None:
                refused[name] = answer
                return
            time.sleep(PAUSE_S)


def acknowledged(message: Any) -> str | None:
    """Repeat a message until it is acknowledged; return the answer that refused it."""
    until = time.monotonic() + LONGEST_S
    said = ""
    for _ in itertools.takewhile(lambda _: time.monotonic() < until, itertools.count()):
        try:
            answer = message()
        except httpx.TransportError as error:
            said = repr(error)
        else:
            if answer.is_success:
                return None
            said = f"{answer.status_code} {answer.text[:300]}"
            if answer.status_code not in (429, 503):
                return said
        time.sleep(0.3)
    return f"no acknowledgement within {LONGEST_S:.0f} s: {said}"


def found(collector: Collector, name: str) -> object:
    """Return all that is told and stored of a run that has ended, without what depends on the moment."""
    assert collector.db is not None
    with psycopg.connect(collector.db, autocommit=True) as connection:
        rows = connection.execute("SELECT run_id FROM run_name WHERE name = %s", [name]).fetchall()
        of_run = {"run_id": rows[0][0]}
        until = time.monotonic() + COMPACTED_S
        while (waiting := connection.execute(WAITING, of_run).fetchone()) != (0,) and time.monotonic() < until:
            time.sleep(0.5)
        tiles = [list(row) for row in connection.execute(TILES, of_run)]
    return {"waiting": waiting, "tiles": tiles, "answers": answers(collector.url, name)}


def answers(url: str, name: str) -> object:
    """Return all that is told of a run, without what depends on the moment."""
    asked = [f"/runs/{name}{path}" for path in ("", "/heatmap", "/series?layer=1&points=50", "/metrics?points=50")]
    with httpx.Client(timeout=60.0) as client:
        told = [client.get(f"{url}/api/v1{path}").raise_for_status().text for path in asked]
        told.append(client.get(f"{url}/api/v1/incidents", params={"run": name}).raise_for_status().text)
    *of_run, listed = [json.loads(text.replace(name, "run")) for text in told]
    return plain_of([*of_run, listed["incidents"]])


def difference(told: object, expected: object, where: str = "") -> str | None:
    """Return the place of the first difference."""
    if isinstance(told, dict) and isinstance(expected, dict) and told.keys() == expected.keys():
        found = (difference(told[key], expected[key], f"{where}.{key}") for key in told)
        return next((each for each in found if each is not None), None)
    if isinstance(told, list) and isinstance(expected, list) and len(told) == len(expected):
        found = (difference(*pair, f"{where}[{row}]") for row, pair in enumerate(zip(told, expected, strict=True)))
        return next((each for each in found if each is not None), None)
    return None if told == expected else f"{where}: {str(told)[:200]} instead of {str(expected)[:200]}"


def plain_of(told: object) -> object:
    if isinstance(told, dict):
        return {key: plain_of(value) for key, value in told.items() if key not in MOMENTARY}
    return [plain_of(each) for each in told] if isinstance(told, list) else told


if __name__ == "__main__":
    sys.exit(main())
