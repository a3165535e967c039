"""Batches that wait: thinned, halved, shelved in memory or in a file; nothing goes unseen, and the order stays."""

import json
import random
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_batches import ROOMY, row, sampled_steps, streams

from gradcanary import batches, wire
from gradcanary.backlog import Backlog
from gradcanary.batches import Draft
from gradcanary.outbox import Outbox
from gradcanary.shelf import Entry, Memory, Tally
from gradcanary.spool import Spool

HELLO = b"{}"


def draft_of(rows: list, lost: int = 0, lost_after: int = 0) -> Draft:
    rows = rows[: batches.cut(rows, ROOMY, 64)]
    return Draft(batches.build(rows), lost, lost_after)


def points(batch: wire.Batch) -> dict:
    """Return every value of a batch by stat, step and layer, and its states, times and counts by step."""
    found: dict = {}
    for block in batch.blocks:
        values = iter(wire.uncolumn("f", block.values))
        width = len(wire.uncolumn("B", batch.state)) // len(batch.steps)
        for step in block.steps:
            found.update({(block.stat, step, layer): next(values) for layer in block.layers or range(width)})
        assert next(values, None) is None
    for key, code in (("state", "B"), ("times", "d")):
        column = wire.uncolumn(code, getattr(batch, key))
        width = len(column) // len(batch.steps) if batch.steps else 0
        found.update({(key, step): list(column[i * width :][:width]) for i, step in enumerate(batch.steps)})
    for key in ("micro_steps", "skipped", "clipped"):
        found.update({(key, step): each for step, each in zip(batch.steps, getattr(batch, key), strict=True)})
    return found


def metric_points(batch: wire.Batch) -> list:
    return sorted(
        (metric.name, metric.tags, step, value)
        for metric in batch.metrics
        for step, value in zip(metric.steps, wire.uncolumn("d", metric.values), strict=True)
    )


@given(streams())
def test_a_batch_survives_its_bytes(rows):
    batch = draft_of(rows).batch
    assert batches.load(wire.dump(batch)) == batch


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"blocks": 1}', b"\xff", b"[" * 100_000])
def test_what_is_no_batch_is_said_so(body):
    with pytest.raises(ValueError, match=r"."):
        batches.load(body)


@given(streams(), st.sampled_from([10, 100]), st.integers(0, 9), st.integers(0, 9))
def test_a_thinned_batch_keeps_its_steps_whole_and_counts_the_others(rows, every, lost, lost_after):
    draft = draft_of(rows, lost, lost_after)
    thinned = batches.thin(draft, every)
    if draft.batch.every == every:
        assert thinned is draft
        return
    steps = thinned.batch.steps
    assert list(steps) == [step for step in draft.batch.steps if step % every == 0]
    assert thinned.batch.every == every
    assert points(thinned.batch) == {key: value for key, value in points(draft.batch).items() if key[1] in steps}
    assert metric_points(thinned.batch) == metric_points(draft.batch)
    assert thinned.batch.accumulators == draft.batch.accumulators
    last = steps[-1] if steps else -1
    assert thinned.lost == (len([s for s in draft.batch.steps if s < last]) - len(steps) + 1 + lost if steps else 0)
    before, after = (len(each.batch.steps) + each.lost + each.lost_after for each in (draft, thinned))
    assert before == after
    assert batches.thin(thinned, every) is thinned


@given(streams(), st.integers(0, 9), st.integers(0, 9))
def test_halves_are_the_whole(rows, lost, lost_after):
    draft = draft_of(rows, lost, lost_after)
    halves = batches.halve(draft)
    moments = {*draft.batch.steps, *(step for metric in draft.batch.metrics for step in metric.steps)}
    assert (halves is None) == (len(moments) == 1)
    if halves is None:
        return
    first, second = halves
    assert first.batch.steps + second.batch.steps == draft.batch.steps
    assert points(first.batch) | points(second.batch) == points(draft.batch)
    assert sorted(metric_points(first.batch) + metric_points(second.batch)) == metric_points(draft.batch)
    assert abs(len(first.batch.steps) - len(second.batch.steps)) <= 1
    assert (first.lost, first.lost_after, second.lost, second.lost_after) == (lost, 0, 0, lost_after)
    if len(draft.batch.steps) > 1:
        last = first.batch.steps[-1]
        assert all(step <= last for _, _, step, _ in metric_points(first.batch))


def spool_in(folder: str, tally: Tally) -> Spool:
    return Spool.create(Path(folder), "run", "session", "http://x", HELLO, tally)


ACTS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "number", "drop", "split", "thin", "drop oldest", "reopen"]),
        st.integers(0, 50),
    ),
    max_size=30,
)


@settings(max_examples=60)
@given(ACTS)
def test_a_file_is_a_shelf_as_memory_is(acts):
    """Whatever is done to both, they hold the same; and the file does so for the next process too."""
    with tempfile.TemporaryDirectory() as folder:
        memory, tally = Memory(), Tally()
        file = spool_in(folder, tally)
        for act, number in acts:
            if act == "reopen":
                file.close()
                file = Spool.open(file.path)
                continue
            for shelf in (memory, file):
                do(act, number, shelf, tally)
            assert held(memory) == held(file)
        file.delete()
        assert list(Path(folder).iterdir()) == []


def do(act: str, number: int, shelf: Memory | Spool, tally: Tally) -> None:
    first, oldest = shelf.first(), shelf.oldest_draft()
    if act == "append":
        shelf.append(Entry(bytes(number), 1, number, number % 3, number % 2))
    elif act == "thin":
        for place in shelf.drafts_finer_than(10, 3):
            shelf.put(Entry(b"thin", 10, 1, 2, 3, None, place), tally)
    elif act == "drop oldest" and oldest is not None:
        shelf.drop(oldest, tally)
    elif first is not None and act == "number":
        shelf.put(Entry(b"numbered", 1, first.steps, seq=number, place=first.place), tally)
    elif first is not None and act == "split":
        halves = Entry(b"a", 1, 1, place=first.place - 1), Entry(b"b", 1, 1, place=first.place)
        shelf.split(first, halves, tally)
    elif first is not None and act == "drop":
        shelf.drop(first, tally)


def held(shelf: Memory | Spool) -> tuple:
    """Return what a shelf says, without the places: those of a file may be used again."""
    first, oldest = shelf.first(), shelf.oldest_draft()
    totals = shelf.totals
    return (
        *(
            (each.body, each.every, each.steps, each.lost, each.lost_after, each.seq) if each else None
            for each in (first, oldest)
        ),
        (totals.size, totals.count, totals.steps, totals.lost),
        [shelf.at(place).body for place in shelf.drafts_finer_than(1000, 99)],
    )


class Weather:
    """A session whose collector answers as it likes, whose file is small, and whose process ends now and then."""

    def __init__(self, rows: list, dice: random.Random, folder: str) -> None:
        self.waiting, self.dice, self.folder = list(rows), dice, folder
        self.box = Outbox(Backlog(lambda _, tally: spool_in(folder, tally), pytest.fail))
        self.limit = dice.choice([6_000, 20_000, 10**9])
        self.bodies: dict[int, bytes] = {}

    def pass_by(self) -> None:
        while self.waiting or not self.box.is_empty:
            for _ in range(min(self.dice.randrange(30), len(self.waiting))):
                self.box.add(self.waiting.pop(0))
            if self.dice.random() < 0.5:
                self.box.spill(HELLO, ROOMY)
                self.end_and_sync()
            for _ in range(self.dice.randrange(4)):
                self.answer()

    def end_and_sync(self) -> None:
        spool = self.box.backlog._spool
        if spool is None:
            return
        spool.limit = self.limit
        if self.dice.random() < 0.2:
            self.box.backlog.close()
            self.box = Outbox(Backlog.of(Spool.open(spool.path), pytest.fail))
            # A sync has no rows of its own; here it goes on as the training it stands for.
            self.box.backlog._create = lambda _, tally: spool_in(self.folder, tally)
            self.box._last_step = 10**6

    def answer(self) -> None:
        parcel = self.box.next(ROOMY)
        if parcel is None:
            return
        answer = self.dice.choice(["taken", "taken", "away", "halve", "aside", "repeat"])
        if answer == "taken":
            assert self.bodies.setdefault(parcel.seq, parcel.body) == parcel.body
            self.box.taken()
        elif answer != "away":
            {"halve": self.box.halve, "aside": self.box.set_aside, "repeat": self.box.repeat}[answer]()


@given(streams(), st.integers(0, 2**32))
def test_whatever_the_weather_steps_come_in_order_or_are_counted(rows, seed):
    with tempfile.TemporaryDirectory() as folder:
        weather = Weather(rows, random.Random(seed), folder)
        weather.pass_by()
        assert list(Path(folder).iterdir()) == []
    taken = [json.loads(body) for body in weather.bodies.values()]
    steps = [step for body in taken for step in body["steps"]]
    assert list(weather.bodies) == sorted(weather.bodies)
    assert all(before < after for before, after in pairwise(steps))
    assert all(step % body["every"] == 0 for body in taken for step in body["steps"])
    assert len(steps) + weather.box.lost == len(sampled_steps(rows))
    told = [body["dropped_steps"] for body in taken]
    assert told == sorted(told)
    assert told == [] or told[-1] <= weather.box.lost


def test_a_batch_that_is_too_long_for_a_collector_is_cut_before_it_is_sent():
    box = Outbox(Backlog(None, pytest.fail))
    for step in range(64):
        box.add(row(step))
    box.spill(HELLO, ROOMY)
    small = wire.Limits(max_body=6_000, max_points=10**6, max_layers=100)
    sent = []
    while (parcel := box.next(small)) is not None:
        assert len(parcel.body) <= 6_000
        sent.append((parcel.seq, *parcel.draft.batch.steps))
        box.taken()
    assert [seq for seq, *_ in sent] == list(range(len(sent)))
    assert [step for _, *steps in sent for step in steps] == list(range(64))


def test_what_a_full_disk_kept_does_not_hide_what_comes_to_its_place(tmp_path):
    """The first entry goes, but its row stays; the next one is cut in two, and its first half takes that place."""
    spool = spool_in(str(tmp_path), Tally())
    for steps in (1, 2):
        spool.append(Entry(b"body", 1, steps))
    first = spool.first()
    spool.split(first, (replace(first, place=first.place - 1), first), Tally())
    spool._connection.rows("PRAGMA query_only = 1")
    with pytest.raises(sqlite3.OperationalError):
        spool.drop(spool.first(), Tally())
    spool._connection.rows("PRAGMA query_only = 0")
    assert spool.first() == first
    half = replace(first, place=first.place - 1, steps=9)
    spool.split(first, (half, first), Tally())
    assert spool.first() == half
    spool.close()


FORK = """
import os, sys, warnings
from pathlib import Path
from gradcanary.shelf import Entry, Tally
from gradcanary.spool import Spool
warnings.simplefilter("ignore", DeprecationWarning)
spool = Spool.create(Path(sys.argv[1]), "run", "session", "http://x", b"{}", Tally())
for _ in range(50):
    spool.append(Entry(bytes(20_000), 1, 1))
# In the middle of a change, part of which is in the file already:
spool._connection.execute("UPDATE batch SET body = zeroblob(30000)")
if os.fork() == 0:
    del spool
    sys.exit(0)
assert os.wait()[1] == 0
spool._connection.commit()
spool.append(Entry(b"new", 1, 1))
spool.close()
spool = Spool.open(spool.path)
assert spool._connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
assert (spool.totals.count, spool.totals.size) == (51, 50 * 30000 + 3), (spool.totals.count, spool.totals.size)
spool.close()
"""


def test_a_child_that_ends_in_the_middle_of_a_change_undoes_nothing(tmp_path):
    done = subprocess.run([sys.executable, "-c", FORK, tmp_path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
