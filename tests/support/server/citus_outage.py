"""Stop or kill a worker of a Citus cluster under trainings, and see what is answered meanwhile and afterwards.

PYTHONPATH=tests python -m support.server.citus_outage --db URL --away 'CMD' --back 'CMD' --node HOST:PORT
The store at URL is on a cluster (``gradcanary migrate --citus``); the first command stops or kills the worker at
HOST:PORT, the second one brings it back after ``--seconds``. Half of the trainings begin before that, half amid it.
Status 1: a run of another node or a message about its incident waited, an answer was late or an error of the server,
``/readyz`` was not 200, or the end is not that of a collector on plain PostgreSQL that was left alone.
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg

from gradcanary_server.rules.config import Pace
from support import postgres
from support.collectors import Collector
from support.receivers import Receiver
from support.server.citus_kills import TOGETHER, acknowledged, answers, difference, stream_of
from support.streams import Session

BEFORE_S = 5.0
READ = ("/readyz", "/metrics", "/api/v1/runs", "/api/v1/incidents", "/api/v1/storage", "/api/v1/incidents/1")
ACK_S, ANSWER_S, READ_PAUSE_S, NO_ANSWER = 1.0, 10.0, 0.2, 0
MESSAGE_S = Pace().wait_s + 5.0
"""After an incident has opened: the first message waits for more layers."""
NODE_OF_RUN = """
SELECT nodename || ':' || nodeport FROM pg_dist_placement JOIN pg_dist_node USING (groupid)
WHERE shardid = get_shard_id_for_distribution_column('run', %s::bigint)
"""


class Watch:
    """All answers of a collector by path: when they came, their status and how long they took."""

    def __init__(self, url: str, pause_s: float, read_pause_s: float = READ_PAUSE_S) -> None:
        self.url = url
        self.pause_s, self.read_pause_s = pause_s, read_pause_s
        self.acks: defaultdict[str, list[tuple[float, float]]] = defaultdict(list)
        self.answers: defaultdict[str, list[tuple[float, int, float]]] = defaultdict(list)
        self.texts: Counter[str] = Counter()
        self.refused: dict[str, str] = {}
        self.is_over = threading.Event()

    def train(self, name: str) -> None:
        """Send a training to its end; each message until it is acknowledged."""
        stream = stream_of(name)
        with httpx.Client(timeout=60.0, event_hooks={"response": [self._note]}) as client:
            session = Session(self.url, run=name, session=f"{name}-session", client=client)
            messages = [lambda: session.put_hello(stream.hello())]
            messages += [
                lambda seq=seq, batch=batch: session.post_batch(seq, batch)
                for seq, batch in enumerate(stream.batches(TOGETHER))
            ]
            for message in (*messages, session.end):
                begun = time.monotonic()
                answer = acknowledged(message)
                self.acks[name].append((begun, time.monotonic() - begun))
                if answer is not None:
                    self.refused[name] = answer
                    return
                time.sleep(self.pause_s)

    def _note(self, answer: httpx.Response) -> None:
        answer.read()
        kind = f"{answer.request.method} of a run"
        self.answers[kind].append((time.monotonic(), answer.status_code, answer.elapsed.total_seconds()))
        if answer.status_code >= 500:
            self.texts[f"{kind} {answer.status_code} {answer.text}"] += 1

    def read(self, path: str) -> None:
        """Ask for one path until it is over."""
        with httpx.Client(timeout=60.0) as client:
            while not self.is_over.is_set():
                begun = time.monotonic()
                try:
                    answer = client.get(self.url + path)
                except httpx.TransportError as error:
                    self.answers[path].append((begun, NO_ANSWER, time.monotonic() - begun))
                    self.texts[f"{path} {error!r}"] += 1
                    continue
                took = answer.elapsed.total_seconds()
                self.answers[path].append((time.monotonic(), answer.status_code, took))
                if answer.status_code >= 500:
                    self.texts[f"{path} {answer.status_code} {answer.text[:300]}"] += 1
                if path == "/readyz" or "gradcanary-missing" in answer.headers:
                    self.texts[f"{path} {answer.headers.get('gradcanary-missing')}"] += 1
                time.sleep(self.read_pause_s)

    def report(self, away: float, back: float) -> tuple[float, set[int]]:
        """Print what was answered while the node was away; return the longest time and the statuses."""
        longest, statuses = 0.0, set[int]()
        for path, told in self.answers.items():
            amid = [(status, took) for at, status, took in told if away <= at <= back]
            took = max((took for _, took in amid), default=0.0)
            longest, statuses = max(longest, took), statuses | {status for _, status, _ in told}
            counts = (
                dict(Counter(status for status, _ in amid)),
                dict(Counter(each for at, each, _ in told if at > back)),
            )
            print(f"  {path}: amid {counts[0]}, the longest {took:.2f} s; after {counts[1]}")
        for text, times in self.texts.most_common():
            print(f"  {times} times: {text}")
        return longest, statuses


def main() -> int:
    """Train, take the node away, bring it back, and compare; print what was seen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--db", required=True)
    parser.add_argument("--away", required=True)
    parser.add_argument("--back", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--trainings", type=int, default=8)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--read-pause", type=float, default=READ_PAUSE_S)
    faults = faults_of(parser.parse_args())
    print("faults:", faults)
    return 1 if faults else 0


def faults_of(given: argparse.Namespace) -> list[str]:
    """Take a node away and bring it back; return what a training or a page would have to complain of."""
    names = [f"away-{int(time.time())}-{number}" for number in range(given.trainings)]
    receiver = Receiver()
    with tempfile.TemporaryDirectory() as folder:
        arguments = ("--workers", str(given.workers), "--webhook", receiver.url)
        collector = Collector(Path(folder) / "cluster", arguments, db=given.db).start()
        try:
            watch = Watch(collector.url, given.seconds / 40, given.read_pause)
            away, back, done = outage(watch, names, given)
            opened = {each["id"]: each for each in collector.get("/api/v1/incidents").json()["incidents"]}
            time.sleep(MESSAGE_S)
            late = late_messages(receiver, [each for each in opened.values() if each["run"] in names])
            wrong = compare(collector, names, Path(folder) / "alone")
        finally:
            collector.kill()
            receiver.close()
    with psycopg.connect(given.db) as connection:
        runs = connection.execute("SELECT name, run_id FROM run_name WHERE name = ANY(%s)", [names]).fetchall()
        node_of = {name: connection.execute(NODE_OF_RUN, [run_id]).fetchall()[0][0] for name, run_id in runs}
    others = [name for name in names if node_of[name] != given.node]
    print(f"{given.node} away for {back - away:.0f} s; runs there {len(names) - len(others)}, elsewhere {len(others)}")
    before = [wait for told in watch.acks.values() for at, wait in told if at + wait < away]
    waits = [min(wait, back - at) for name in others for at, wait in watch.acks[name] if at < back and at + wait > away]
    print(f"messages elsewhere: {len(waits)}, waited {max(waits):.2f} s at most, of all before {max(before):.2f} s")
    worst = sorted((wait, at - away, name) for name in others for at, wait in watch.acks[name] if at < back)[-5:]
    for wait, at, name in reversed(worst):
        print(f"  {name} waited {wait:.2f} s from {at:+.2f} s on")
    print(f"all done {done - back:.1f} s after it was back")
    late = {number: wait for number, wait in late.items() if opened[number]["run"] in others}
    print(f"incidents elsewhere: {sum(each['run'] in others for each in opened.values())}, with late messages: {late}")
    longest, statuses = watch.report(away, back)
    seen = {
        f"runs of other nodes waited {max(waits):.2f} s": max(waits) > ACK_S,
        f"an answer took {longest:.2f} s": longest > ANSWER_S,
        f"statuses {statuses}": not statuses <= {200, 404, 503},
        f"messages about runs of other nodes came too late: {late}": late,
        "/readyz was not 200": any(status != 200 for _, status, _ in watch.answers["/readyz"]),
        f"unlike plain PostgreSQL: {wrong}": wrong,
        f"refused: {watch.refused}": watch.refused,
    }
    return [fault for fault, is_so in seen.items() if is_so]


def late_messages(receiver: Receiver, incidents: Sequence[dict[str, Any]]) -> dict[int, float]:
    """Return the incidents whose first message came late, and how late; one that another explains may have none."""
    came = {message.data["incident"]: message.at for message in reversed(receiver.got)}
    waits = {
        each["id"]: came.get(each["id"], math.inf) - datetime.fromisoformat(each["opened"]).timestamp()
        for each in incidents
        if each["caused_by"] is None
    }
    return {number: wait for number, wait in waits.items() if wait > MESSAGE_S}


def outage(watch: Watch, names: Sequence[str], given: argparse.Namespace) -> tuple[float, float, float]:
    """Train, with a node away for a while; return when it went, when it was back, and when all were done."""
    readers = [threading.Thread(target=watch.read, args=(path,), daemon=True) for path in READ]
    trainings = [threading.Thread(target=watch.train, args=(name,), daemon=True) for name in names]
    early = trainings[: len(names) // 2]
    for thread in (*readers, *early):
        thread.start()
    time.sleep(BEFORE_S)
    away = time.monotonic()
    subprocess.run(given.away, shell=True, check=True)
    time.sleep(given.seconds / 3)
    for thread in trainings[len(early) :]:
        thread.start()
    time.sleep(given.seconds * 2 / 3)
    back = time.monotonic()
    subprocess.run(given.back, shell=True, check=True)
    for thread in trainings:
        thread.join()
    done = time.monotonic()
    time.sleep(BEFORE_S)
    watch.is_over.set()
    for thread in readers:
        thread.join()
    return away, back, done


def compare(collector: Collector, names: Sequence[str], folder: Path) -> dict[str, str]:
    """Return the first difference of each training from what plain PostgreSQL says of it."""
    with postgres.running() as plain:
        alone = Collector(folder, db=plain.create_store()).start()
        try:
            left = Watch(alone.url, pause_s=0.0)
            for name in names:
                left.train(name)
            found = {name: difference(answers(collector.url, name), answers(alone.url, name)) for name in names}
        finally:
            alone.kill()
    return {name: where for name, where in found.items() if where is not None}


if __name__ == "__main__":
    sys.exit(main())
