"""Kill a node of a Citus cluster, or the collector, under trainings, and compare what is stored with plain PostgreSQL.

PYTHONPATH=tests python -m support.server.citus_kills --db URL --kill 'CMD {node}' --start 'CMD {node}' --state FILE
The store at URL is on a cluster (``gradcanary migrate --citus``); the two commands end and start a node, 0 the
coordinator. Each round has trainings of its own. FILE keeps what was done: the same command goes on after the last
round. Status 1: a training was refused, or its answers are not those of a collector that was left alone.
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
from pathlib import Path
from typing import Any

import httpx

from support import postgres
from support.collectors import Collector
from support.streams import Session, Stream, collapsed, falling_loss, healthy

STEPS, LAYERS, TOGETHER, PAUSE_S = 240, 6, 5, 0.05
LONGEST_S = 180.0
"""How long a training may wait for one acknowledgement: Citus ends what a kill left within its own minute."""

MOMENTARY = frozenset(
    [
        "created",
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
            for number in range(len(rounds), given.kills):
                names = [f"kill-{number}-{training}" for training in range(given.trainings)]
                target = ["collector", *map(str, range(given.nodes))][number % (given.nodes + 1)]
                said = one_round(killed, names, target, given)
                train(alone, names, {})
                found = {each: difference(answers(killed.url, each), answers(alone.url, each)) for each in names}
                wrong = {each: where for each, where in found.items() if where is not None}
                rounds.append({"round": number, "target": target, **said, "wrong": wrong})
                given.state.write_text(json.dumps(rounds, indent=1))
                print(rounds[-1], flush=True)
        finally:
            killed.kill()
            alone.kill()
    bad = [each for each in rounds if each["refused"] or each["wrong"]]
    print(f"{len(rounds)} kills, {len(rounds) * given.trainings} trainings; rounds with a fault: {len(bad)}")
    return 1 if bad else 0


def one_round(collector: Collector, names: list[str], target: str, given: argparse.Namespace) -> dict[str, Any]:
    """Train all at once, kill at a random moment, and wait for the end of all; return what was refused."""
    refused: dict[str, str] = {}
    training = threading.Thread(target=train, args=(collector, names, refused))
    training.start()
    after_s = random.uniform(0.5, 6.0)
    time.sleep(after_s)
    if target == "collector":
        collector.kill()
        collector.start()
    else:
        for command in (given.kill, given.start):
            subprocess.run(command.format(node=target), shell=True, check=True)
    begun = time.monotonic()
    training.join()
    return {"after_s": round(after_s, 2), "finished_s": round(time.monotonic() - begun, 1), "refused": refused}


def train(collector: Collector, names: list[str], refused: dict[str, str]) -> None:
    """Send all trainings at once, to their ends."""
    threads = [threading.Thread(target=send, args=(collector.url, name, refused)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def stream_of(name: str) -> Stream:
    """Return the measurements of a training: those of every second one collapse."""
    seed = int(name.rpartition("-")[2])
    absmax = collapsed(STEPS, LAYERS, (seed % LAYERS,), 120) if seed % 2 else healthy(STEPS, LAYERS, seed=seed)
    return Stream(absmax, falling_loss(STEPS))


def send(url: str, name: str, refused: dict[str, str]) -> None:
    """Send a training to its end; each message until it is acknowledged."""
    stream = stream_of(name)
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


def answers(url: str, name: str) -> object:
    """Return all that is told of a run, without what depends on the moment."""
    with httpx.Client(timeout=60.0) as client:
        asked = (f"/runs/{name}", f"/runs/{name}/heatmap", f"/runs/{name}/series?layer=1&points=50")
        found = [client.get(f"{url}/api/v1{path}").raise_for_status().json() for path in asked]
        listed = client.get(f"{url}/api/v1/incidents", params={"run": name}).raise_for_status().json()["incidents"]
    return plain_of([*found, listed])


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
