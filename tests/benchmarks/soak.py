"""A soak: real trainings begin, end, crash and are attached to, while collectors are killed and disks are full.

python tests/benchmarks/soak.py [--minutes 120] [--trainings 20] [--database sqlite|postgresql] [--seed 0]

Small trainings on the CPU, each watched, with a record of its own gradients. Collectors are killed in the first and the
third quarter. In the second and the fourth one lives as long as the quarter, so that a leak would show: its medians are
compared. Disks fill up and receivers of webhooks are slow throughout. Needs root: it mounts two small disks in memory.
Everything is written to ``--record`` and judged at the end, or again with ``--judge DIR``. Exit status 1 on a miss.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import ratios

ratios.need("torch", "psutil", "httpx")

import httpx
import postgresql
import psutil
from soaking import report
from soaking.collectors import Collector, Moody, every_incident, fill, small_disk
from soaking.jobs import KINDS, LONG, Job, Record, command, held, measured

from support import receivers

SAMPLE_S, ERRANDS_S = 10.0, 45.0
STORE_MIB, SPOOL_MIB = 768, 64
ENDINGS = 12
"""Of trainings at a time."""

SETTLE_S = 600.0
"""At most, for runs that were killed to be silent (5 minutes), and for messages that wait for their next attempt."""


class Soak:
    """All that goes on: trainings, faults and measurements, in three threads."""

    def __init__(self, options: argparse.Namespace, root: Path, record: Record, database) -> None:
        self.options, self.record = options, record
        self.spool, self.store, self.truths = root / "spool", root / "store", record.folder / "trainings"
        self.sound, self.slow = receivers.Receiver(), receivers.Receiver()
        self.slow.answers = Moody(options.seed)
        self.database = database
        where = ["--db", database.create_database()] if database else ["--data", str(self.store / "data")]
        webhooks = [self.sound.url, self.slow.url]
        self.collector = Collector(record.folder / "collector.log", where, webhooks)
        self.environ = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GRADCANARY_URL": self.collector.url,
            "GRADCANARY_SPOOL": str(self.spool / "sessions"),
        }
        self.jobs: list[Job] = []
        self.begun = time.monotonic()
        self.over = threading.Event()
        self.incidents = 0
        self._count = 0
        self._endings = threading.Semaphore(ENDINGS)
        self._random = random.Random(options.seed)
        self._leaving: list[threading.Thread] = []

    @property
    def share(self) -> float:
        """Of the soak that is over."""
        return (time.monotonic() - self.begun) / (60 * self.options.minutes)

    @property
    def is_killing(self) -> bool:
        """Return True in the first and the third quarter."""
        return int(self.share * 4) % 2 == 0

    @contextlib.contextmanager
    def calm(self) -> Iterator[None]:
        """Yield while a training may end: with neither a disk nor a collector it would lose what it made."""
        with self._endings:
            yield

    def start_job(self, kind: str, *, is_long: bool = False) -> None:
        """Start a training."""
        self._count += 1
        shortest = min(120.0, 15 * self.options.minutes)
        life = float("inf") if is_long else self._random.uniform(shortest, 4 * shortest)
        job = Job(self.truths, kind, self._count, life, self.environ)
        self.jobs.append(job)
        if kind == "attached":
            job.visit(self.record, self.calm)

    def look_after(self) -> None:
        """Let the trainings leave that have lived, and start others for them."""
        for job in list(self.jobs):
            if job.process.poll() is None and (time.monotonic() < job.until or not job.may_leave):
                continue
            self.let_go(job)
            if not self.over.is_set():
                self.start_job(self._random.choice(KINDS))

    def let_go(self, job: Job) -> None:
        """End a training, in a thread of its own."""
        self.jobs.remove(job)
        thread = threading.Thread(target=self._end, args=(job,))
        thread.start()
        self._leaving = [each for each in self._leaving if each.is_alive()] + [thread]

    def _end(self, job: Job) -> None:
        job.is_leaving.set()
        if job.visitor is not None:
            job.visitor.join()
        with self.calm():
            job.order(self.record, self.spool / "sessions")

    def trouble(self) -> None:
        """Make one fault after the other until the soak is over."""
        while not self.over.wait(self._random.uniform(30, 90) if self.options.minutes > 20 else 20):
            kills = (self.kill, self.kill, self.kill, self.stop, self.fill_spool)
            fault = self._random.choice((*(kills if self.is_killing else ()), self.fill_store, self.stand_still))
            seconds = self._random.uniform(5, 40)
            self.record.write("faults", fault=fault.__name__, seconds=seconds)
            try:
                fault(seconds)
            except (OSError, RuntimeError, psutil.Error) as error:
                self.record.write("faults", error=repr(error))
                self.collector.process.kill()
                self.collector.start()

    def kill(self, seconds: float) -> None:
        """Kill -9 the collector."""
        self.collector.end(signal.SIGKILL)
        time.sleep(self._random.choice((0.0, seconds)))
        self.collector.start()

    def stop(self, seconds: float) -> None:
        """Stop the collector as Ctrl-C does."""
        self.collector.end(signal.SIGINT)
        time.sleep(self._random.choice((0.0, seconds)))
        self.collector.start()

    def stand_still(self, seconds: float) -> None:
        """Let the collector accept connections and answer nothing: requests end without an answer in time."""
        self.collector.process.suspend()
        time.sleep(seconds)
        self.collector.process.resume()

    def fill_store(self, seconds: float) -> None:
        """Fill the disk of the store; PostgreSQL goes away instead."""
        if self.database:
            self.database.stop(signal.SIGQUIT)
            time.sleep(seconds)
            self.database.start()
            return
        is_killed = self.is_killing and self._random.random() < 0.3
        if is_killed:
            threading.Timer(seconds / 2, self.collector.end, (signal.SIGKILL,)).start()
        self._full(self.store, seconds)
        if is_killed:
            self.collector.start()

    def fill_spool(self, seconds: float) -> None:
        """Fill the disk of what trainings could not send, and kill the collector: memory has to do."""
        with contextlib.ExitStack() as stack:
            for _ in range(ENDINGS):
                stack.enter_context(self._endings)
            self.collector.end(signal.SIGKILL)
            self._full(self.spool, seconds)
            self.collector.start()
            time.sleep(60)  # all is sent

    def _full(self, disk: Path, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and disk.is_mount():
            fill(disk)
            time.sleep(1)
        (disk / "filler").unlink(missing_ok=True)

    def sample(self) -> dict[str, object]:
        """Write down what everything holds."""
        found: dict[str, object] = {"share": self.share, "runs": self._count}
        with contextlib.suppress(psutil.Error):
            found["collector"] = {"pid": self.collector.process.pid, **measured(self.collector.process)}
        for job in self.jobs[:4]:
            with contextlib.suppress(psutil.Error):
                found[job.run] = measured(job.process)
        found["spool"], found["store"] = held(self.spool), held(self.store)
        found["messages"] = [len(self.sound.got), len(self.slow.got)]
        found["incidents"] = self.incidents
        self.record.write("samples", **found)
        return found

    def errands(self) -> None:
        """Do what else goes on: a page and a scraper read, and a timer sends what ended trainings left."""
        while not self.over.wait(ERRANDS_S):
            self.sync()
            with (
                contextlib.suppress(httpx.HTTPError, KeyError, ValueError),
                httpx.Client(base_url=self.collector.url, timeout=20) as client,
            ):
                for path in ("/metrics", "/runs", "/api/v1/runs", f"/api/v1/runs/{self.jobs[0].run}/heatmap"):
                    client.get(path)
                self.collect(samples=False)

    def sync(self) -> None:
        """Send what is left of trainings that ended, if the collector answers."""
        if any((self.spool / "sessions").glob("*.spool")) and self.collector.answers():
            status, output = command(self.environ, "sync")
            self.record.write("syncs", status=status, output=output)

    def run(self) -> None:
        """Soak, settle, and write down what the collector has."""
        self.collector.start()
        for number in range(self.options.trainings):
            self.start_job(LONG[number] if number < len(LONG) else self._random.choice(KINDS), is_long=number < 4)
        while any(job.steps == 0 and job.process.poll() is None for job in self.jobs):
            time.sleep(1)
        self.begun = time.monotonic()
        others = [threading.Thread(target=each) for each in (self.trouble, self.errands)]
        for each in others:
            each.start()
        self._watch()
        self.over.set()
        for each in others:
            each.join()
        print("settling: all trainings end, all is sent", flush=True)
        for job in list(self.jobs):
            self.let_go(job)
        for thread in self._leaving:
            thread.join()
        self.slow.answers.is_well = True
        self._settle()
        if self.database is None:
            shutil.copytree(self.store / "data", self.record.folder / "store")
        self.collect()

    def _watch(self) -> None:
        minute = 0
        while self.share < 1:
            time.sleep(SAMPLE_S)
            try:
                self.look_after()
                found = self.sample()
            except OSError as error:
                self.record.write("faults", error=repr(error))
                continue
            if int(self.share * self.options.minutes) > minute:
                minute = int(self.share * self.options.minutes)
                print(report.line(minute, found), flush=True)

    def _settle(self) -> None:
        until = time.monotonic() + SETTLE_S
        while time.monotonic() < until:
            with contextlib.suppress(httpx.HTTPError, psutil.Error):
                self.sync()
                self.sample()
                self.collect(samples=False)
                if not report.unsettled(self.record.folder):
                    break
            time.sleep(15)

    def collect(self, *, samples: bool = True) -> None:
        """Write down runs, incidents, messages and, last, all samples that the collector has."""
        folder = self.record.folder
        with httpx.Client(base_url=self.collector.url, timeout=120) as client:
            incidents = every_incident(client)
            (folder / "incidents.json").write_text(json.dumps(incidents))
            self.incidents = len(incidents)
            for name, receiver in (("sound", self.sound), ("slow", self.slow)):
                told = [{"at": e.at, "id": e.id, "body": e.body.decode(), "taken": e.is_taken} for e in receiver.got]
                (folder / f"{name}.json").write_text(json.dumps(told))
            if not samples:
                return
            (folder / "exports").mkdir(exist_ok=True)
            for run in sorted(each.name for each in self.truths.iterdir()):
                with client.stream("GET", f"/api/v1/runs/{run}/export.csv") as answer:
                    (folder / "exports" / f"{run}.csv").write_bytes(answer.read() if answer.is_success else b"")
                (folder / "exports" / f"{run}.json").write_text(client.get(f"/api/v1/runs/{run}").text)
        (folder / "left.json").write_text(json.dumps(sorted(map(str, (self.spool / "sessions").rglob("*")))))


def main() -> int:
    """Soak and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--trainings", type=int, default=20)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, help="a new folder for everything that was measured")
    parser.add_argument("--judge", type=Path, metavar="DIR", help="only judge what a soak has recorded")
    options = parser.parse_args()
    if options.judge:
        return report.main(options.judge)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the disks are unmounted
    root = Path(tempfile.mkdtemp(prefix="gradcanary-soak-"))
    record = Record(options.record or root / "record")
    record.write("options", **{key: str(value) for key, value in vars(options).items()})
    with contextlib.ExitStack() as stack:
        stack.enter_context(small_disk(root / "spool", SPOOL_MIB))
        stack.enter_context(small_disk(root / "store", STORE_MIB))
        database = stack.enter_context(postgresql.running()) if options.database == "postgresql" else None
        soak = Soak(options, root, record, database)
        try:
            soak.run()
        finally:
            soak.over.set()
            for job in soak.jobs:
                job.process.kill()
            if soak.collector.process is not None:
                soak.collector.process.kill()
    print(f"recorded in {record.folder}")
    return report.main(record.folder)


if __name__ == "__main__":
    raise SystemExit(main())
