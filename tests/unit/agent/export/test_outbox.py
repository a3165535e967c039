"""What waits in a spool or in memory: nothing goes unseen, the order stays, and a restart repeats the same bytes."""

import errno
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcanary import wire
from gradcanary.export import outbox, spool
from gradcanary.export.outbox import Outbox, RetryQueue
from gradcanary.export.spool import Progress, Spool, StoredBatch
from support.agent.step_rows import ROOMY, row, sampled_steps, streams

HELLO = b"{}"


@pytest.fixture(autouse=True)
def no_file_stays_open() -> Iterator[None]:
    yield
    for left in list(spool._open):
        left.close()


def spool_in(folder: Path | str, progress: Progress | None = None) -> Spool:
    return Spool.create(Path(folder), "run", "session", "http://x", HELLO, progress or Progress())


def reopened(old: Spool) -> Spool:
    old.close()
    return Spool.open(old.path)


def numbered(number: int, size: int = 1) -> StoredBatch:
    return StoredBatch(number.to_bytes(size, "big"), 1, number + 1)


def drained(store: Spool) -> list[StoredBatch]:
    found = []
    while (batch := store.first()) is not None:
        found.append(batch)
        store.pop(Progress(len(found)))
    return found


ACTS = st.lists(st.tuples(st.sampled_from(["append", "append", "pop", "reopen"]), st.integers(0, 50)), max_size=40)


@settings(max_examples=25)
@given(ACTS)
def test_a_spool_holds_what_was_put_there_and_so_for_the_next_process(acts):
    with tempfile.TemporaryDirectory() as folder:
        held: list[StoredBatch] = []
        store, progress = spool_in(folder), Progress()
        store.limit = 64 * 100  # some batches a segment
        for act, number in acts:
            if act == "append" and sum(len(batch.body) + 20 for batch in held) + number + 20 < store.limit:
                held.append(StoredBatch(bytes(number), number % 3, number))
                store.append(held[-1])
            elif act == "pop" and held:
                assert store.first() == held.pop(0)
                progress = Progress(number, number + 1, number + 2)
                store.pop(progress)
            elif act == "reopen":
                store = reopened(store)
                store.limit = 64 * 100
            assert (store.count, store.steps) == (len(held), sum(batch.steps for batch in held))
            assert store.progress == progress
        assert drained(store) == held
        store.delete()
        assert list(Path(folder).iterdir()) == []


def test_full_it_gives_up_every_second_segment_of_the_oldest_half_and_keeps_the_first_and_the_last(tmp_path):
    store = spool_in(tmp_path)
    store.limit = 64 * 120  # a segment has one batch
    for number in range(64):
        store.append(numbered(number, 100))
    assert store.count == 64
    store.append(numbered(64, 100))
    kept = [int.from_bytes(batch.body, "big") for batch in drained(reopened(store))]
    assert kept == [*range(0, 32, 2), *range(32, 65)]


@pytest.mark.parametrize("limit", [0, 1000, 20_000])
def test_outbox_stays_bounded_and_keeps_its_first_and_last_batch(tmp_path, limit):
    store = spool_in(tmp_path)
    store.limit = limit
    for number in range(300):
        store.append(numbered(number, 100))
        assert store.size <= max(limit, 240)
    kept = drained(store)
    assert (kept[0], kept[-1]) == (numbered(0, 100), numbered(299, 100))
    made = [batch.made for batch in kept]
    assert made == sorted(made)


@pytest.mark.parametrize("damage", ["cut", "changed", "zeros"])
def test_a_record_that_is_not_whole_is_left_out(tmp_path, damage):
    store = spool_in(tmp_path)
    for number in range(3):
        store.append(numbered(number, 50))
    (file,) = store.path.glob("*.seg")
    with file.open("r+b") as damaged:
        if damage == "cut":
            damaged.truncate(file.stat().st_size - 1)
        else:
            damaged.seek(-10 if damage == "changed" else 0, 2)
            damaged.write(b"x" if damage == "changed" else bytes(100))
    store = reopened(store)
    store.append(numbered(9, 50))
    kept = [0, 1, 2, 9] if damage == "zeros" else [0, 1, 9]
    assert drained(store) == [numbered(number, 50) for number in kept]


def test_a_segment_that_is_damaged_meanwhile_takes_only_its_own_along(tmp_path):
    store = spool_in(tmp_path)
    store.limit = 64 * 120
    for number in range(3):
        store.append(numbered(number, 100))
    first, *_ = sorted(store.path.glob("*.seg"))
    first.write_bytes(b"\xff" * 200)
    assert [batch.made for batch in drained(store)] == [2, 3]


def test_spool_of_a_process_is_not_opened_by_another(tmp_path):
    store = spool_in(tmp_path)
    with pytest.raises(spool.LockedError):
        Spool.open(store.path)
    assert reopened(store).run == "run"


FORK = """
import os, sys, warnings
from pathlib import Path
from gradcanary.export.spool import LockedError, Progress, Spool, StoredBatch
warnings.simplefilter("ignore", DeprecationWarning)
spool = Spool.create(Path(sys.argv[1]), "run", "session", "http://x", b"{}", Progress())
spool.append(StoredBatch(b"of the parent", 1, 1))
reads, writes = os.pipe()
is_ready, ready = os.pipe()
if os.fork() == 0:
    os.write(ready, b"x")
    os.read(reads, 1)
    try:
        spool.append(StoredBatch(b"of the child", 1, 2))
    except OSError:
        os._exit(7)
    os._exit(0)
os.read(is_ready, 1)
try:
    Spool.open(spool.path)
    sys.exit("the child has taken the lock along")
except LockedError:
    pass
spool.append(StoredBatch(b"again of the parent", 1, 2))
spool.close()
spool = Spool.open(spool.path)  # though the child lives
os.write(writes, b"x")
status = os.waitstatus_to_exitcode(os.wait()[1])
assert status == 7, status
assert (spool.count, spool.steps) == (2, 2)
"""


def test_a_forked_child_writes_nothing_and_does_not_hold_the_lock(tmp_path):
    done = subprocess.run([sys.executable, "-c", FORK, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


class Weather:
    """A session whose collector answers as it likes, whose spool is small, and whose process ends now and then."""

    def __init__(self, rows: list, dice: random.Random, folder: str) -> None:
        self.waiting, self.dice, self.folder = list(rows), dice, folder
        self.limit = dice.choice([6_000, 20_000, 10**9])
        self.box = Outbox(self.queue())
        self.bodies: dict[int, bytes] = {}
        self.answers: dict[bytes, str] = {}

    def queue(self, left: Spool | None = None) -> RetryQueue:
        def create(_: bytes, progress: Progress) -> Spool:
            return self.limited(spool_in(self.folder, progress))

        return RetryQueue(create, pytest.fail, left and self.limited(left))

    def limited(self, store: Spool) -> Spool:
        store.limit = self.limit
        return store

    def pass_by(self) -> None:
        while self.waiting or not self.box.is_empty:
            for _ in range(min(self.dice.randrange(30), len(self.waiting))):
                self.box.add(self.waiting.pop(0))
            if self.dice.random() < 0.5:
                self.box.move_to_queue(HELLO, ROOMY)
                self.restart()
            for _ in range(self.dice.randrange(4)):
                self.answer()

    def restart(self) -> None:
        left = self.box.queue._spool
        if left is None or self.dice.random() > 0.2:
            return
        left = reopened(left)
        # A sync has no rows of its own; here it goes on as the training it stands for.
        made, self.box = self.box._made, Outbox(self.queue(left), left)
        self.box._made, self.box._last_step = made, 10**6

    def answer(self) -> None:
        sent = self.box.next_batch(ROOMY)
        if sent is None:
            return
        answer = self.dice.choice(["acked", "acked", "away", "halve", "aside", "forgets"])
        if answer in ("acked", "halve", "aside"):  # a collector says the same again: halves keep their numbers
            answer = self.answers.setdefault(sent.body, answer)
        if answer == "acked":
            assert self.bodies.setdefault(sent.seq, sent.body) == sent.body
            self.box.acked()
        elif answer != "away":
            {"halve": self.box.halve, "aside": self.box.set_aside, "forgets": self.box.resend_all}[answer]()


@given(streams(), st.integers(0, 2**32))
def test_steps_arrive_in_order_or_are_counted_for_any_failures(rows, seed):
    with tempfile.TemporaryDirectory() as folder:
        weather = Weather(rows, random.Random(seed), folder)
        weather.pass_by()
        assert list(Path(folder).iterdir()) == []
    acked = [json.loads(body) for body in weather.bodies.values()]
    steps = [step for body in acked for step in body["steps"]]
    assert list(weather.bodies) == sorted(weather.bodies)
    assert all(before < after for before, after in pairwise(steps))
    assert len(steps) + weather.box.lost == len(sampled_steps(rows))
    reported = [body["dropped_steps"] for body in acked]
    assert reported == sorted(reported)
    assert reported == [] or reported[-1] <= weather.box.lost


def test_a_restart_sends_what_was_in_flight_with_its_number_and_its_bytes(tmp_path):
    box = Outbox(RetryQueue(lambda _, progress: spool_in(tmp_path, progress), pytest.fail))
    for step in range(5):
        box.add(row(step))
        box.next_batch(ROOMY)
        box.acked()
    box.count_dropped(2)
    box.add(row(7))
    before = box.next_batch(ROOMY)
    box.add(row(8))
    box.move_to_queue(HELLO, ROOMY)
    left = reopened(box.queue._spool)
    box = Outbox(RetryQueue(None, pytest.fail, left), left)
    assert box.next_batch(ROOMY) == before
    assert (before.seq, before.dropped_steps) == (5, 2)
    box.acked()
    after = json.loads(box.next_batch(ROOMY).body)
    assert (after["steps"], after["dropped_steps"]) == ([8], 2)


def test_steps_dropped_by_a_full_spool_are_reported_where_they_are_missing(tmp_path):
    store = spool_in(tmp_path)
    store.limit = 0
    box = Outbox(RetryQueue(lambda *_: store, pytest.fail))
    for step in range(6):
        box.add(row(step))
        box.move_to_queue(HELLO, ROOMY)
    sent = []
    while (batch := box.next_batch(ROOMY)) is not None:
        sent += [(json.loads(batch.body)["steps"], batch.dropped_steps)]
        box.acked()
    assert sent == [([0], 0), ([5], 4)]


def test_full_memory_gives_up_the_same(monkeypatch):
    monkeypatch.setattr(outbox, "MEMORY_BYTES", 0)
    box = Outbox(RetryQueue(None, pytest.fail))
    for step in range(6):
        box.add(row(step))
        box.move_to_queue(HELLO, ROOMY)
    assert (box.queue.steps, box.lost) == (2, 4)


def test_a_disk_that_takes_nothing_is_left_clean(tmp_path, monkeypatch):
    said = []
    store = spool_in(tmp_path)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(spool, "_write_all", full)
    box = Outbox(RetryQueue(lambda *_: store, lambda line, **_: said.append(line)))
    for step in range(3):
        box.add(row(step))
        box.move_to_queue(HELLO, ROOMY)
    assert said == [outbox.NOT_WRITTEN]
    assert box.queue.steps == 3
    while box.next_batch(ROOMY) is not None:
        box.acked()
    assert (box.lost, list(tmp_path.iterdir())) == (0, [])


@pytest.mark.parametrize("heals", ["in the next outage", "at the end"])
def test_a_disk_that_has_room_again_takes_a_spool(tmp_path, heals):
    said, tried = [], []

    def create(_: bytes, progress: Progress) -> Spool:
        tried.append(progress)
        if len(tried) == 1:
            raise OSError(errno.ENOSPC, "full")
        return spool_in(tmp_path, progress)

    box = Outbox(RetryQueue(create, lambda line, **_: said.append(line)))
    for step in range(3):
        box.add(row(step))
        box.move_to_queue(HELLO, ROOMY)
    assert (len(tried), box.queue.left_in, box.queue.steps) == (1, None, 3), "one try in an outage"
    if heals == "in the next outage":
        while box.next_batch(ROOMY) is not None:
            box.acked()
        box.add(row(3))
        box.move_to_queue(HELLO, ROOMY)
    box.end(HELLO, b"{}")
    assert (len(tried), said) == (2, [outbox.NO_SPOOL])
    assert (box.queue.left_in, box.queue.steps) == (next(tmp_path.iterdir()), 1 if "outage" in heals else 3)
    box.queue.delete()


def test_a_batch_that_is_too_long_for_a_collector_is_cut_before_it_is_sent():
    box = Outbox(RetryQueue(None, pytest.fail))
    for step in range(64):
        box.add(row(step))
    box.move_to_queue(HELLO, ROOMY)
    small = wire.Limits(max_body=6_000, max_points=10**6, max_layers=100)
    sent = []
    while (batch := box.next_batch(small)) is not None:
        assert len(batch.body) <= 6_000
        sent.append((batch.seq, *json.loads(batch.body)["steps"]))
        box.acked()
    assert [seq for seq, *_ in sent] == list(range(len(sent)))
    assert [step for _, *steps in sent for step in steps] == list(range(64))
