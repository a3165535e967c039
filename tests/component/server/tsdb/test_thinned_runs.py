"""Runs whose single samples are gone: whatever part of them is asked for, no dip is hidden and none told twice."""

import json
import time

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gradcanary import wire
from gradcanary_server.api import charts
from gradcanary_server.rules.config import Rules
from gradcanary_server.storage import runs
from gradcanary_server.storage.layers import LayerSetCache
from gradcanary_server.tsdb import tiles
from gradcanary_server.tsdb.log import BatchLog
from gradcanary_server.tsdb.query import StepRange
from gradcanary_server.tsdb.reader import Reader
from support.server import stories
from support.server.archives import LAYERS, ROUGH, RUN, Store, decoded


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    # That both databases let go of the same samples is tested in test_deletion.
    made = Store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'gradcanary.db'}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "TILE_ROWS", 8)
        yield made
    made.database.close()


def thin(store, story, keeping=0, **how):
    """Store it, let go of its single samples; tell from which step on they are there, by place and interval."""
    stories.send(store, story, **how)
    store.compactor.compact()
    store.thin(time.time() + 60, keeping)
    with store.database.read() as connection:
        streams = [
            stream
            for _, stream in tiles.streams_of(connection, [store.read(lambda _, run: run.run_id)])
            if stream.every != tiles.METRIC_STREAM
        ]
    return {(stream.launch_no - 1, stream.every): stream.raw_start for stream in streams}


def answered(store, archive, points, begin, end):
    wanted, span = [str(number) for number in range(LAYERS)], StepRange(begin, end, points)
    return store.read(lambda c, run: charts.build_series(c, archive, Rules(), run, "absmax", wanted, span))


def drawn(store, points, begin, end):
    """The series of absmax between two steps, and each layer's lines."""
    answer = answered(store, store.archive, points, begin, end)
    lines = [
        {name: decoded(series[name]) for name in ("min", "mean", "max", "count", "nonfinite")}
        for series in answer["series"]
    ]
    return decoded(answer["steps"]), stories.widths_of(answer)[0], lines


@pytest.mark.slow
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stories.launches(longest=150),
    st.sampled_from([0, 0, 5]),
    st.sampled_from([1, 9, 600]),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=3),
)
@example([stories.Told((stories.Part(101, 1, 2, 7), stories.Part(110, 10, 9, 8)))], 0, 9, [])  # 96 to 103, and from 100
def test_any_part_equals_a_plain_reading(store, story, keeping, points, parts):
    raw_start = thin(store, story, keeping)
    low, high = min(told.span()[0] for told in story), max(told.span()[1] for told in story)
    assert_plain(store, story, raw_start, points, None, None)
    for part in parts:
        begin, end = sorted(round(low + each * (high - low)) for each in part)
        assert_plain(store, story, raw_start, points, begin, end)


def assert_plain(store, story, raw_start, points, begin, end):
    """Hold what is drawn of the steps between two, both included, against each sample of them."""
    samples = stories.counted(story, begin or 0, 2**31 if end is None else end, raw_start)
    starts, widths, lines = drawn(store, points, begin, end)
    assert len(starts) <= points
    if samples:
        assert starts[0] <= min(samples) < starts[0] + widths[0]
        assert starts[-1] <= max(samples) < starts[-1] + widths[-1]
    for layer, line in enumerate(lines):
        for bucket, (start, width) in enumerate(zip(starts, widths, strict=True)):
            stories.assert_counted(line, bucket, samples, width, start, layer, ROUGH)


LONG = stories.Told((stories.Part(0, 1, 300, 1),))


@pytest.mark.parametrize(
    ("story", "begin", "end"),
    [
        ([LONG], 102, 199),  # what an edge cuts of an aggregate is in it
        ([LONG], 105, 107),  # even if that is all
        ([stories.Told((stories.Part(0, 1, 300, 1), stories.Part(300, 10, 30, 2)))], None, None),  # 8 and 10
        ([LONG, stories.Told((stories.Part(101, 1, 2, 2),))], None, None),  # a launch within one aggregate
        ([LONG, stories.Told((stories.Part(101, 1, 99, 2),))], 95, 204),
    ],
)
def test_an_aggregate_is_in_one_bucket_and_once(store, story, begin, end):
    raw_start = thin(store, story)
    assert raw_start[0, 1] >= 256
    for points in (1, 50, 600):
        assert_plain(store, story, raw_start, points, begin, end)


def test_a_dip_is_there_wherever_somebody_looks_from(store):
    told = stories.Told(LONG.parts)
    told.streams[0].absmax[107, 1] = 1e-30
    thin(store, [told])
    for begin in range(100, 108):
        assert min(drawn(store, 600, begin, 299)[2][1]["min"]) <= 1e-30


def empty_archive():
    """A reader that has read nothing yet, as in a new process."""
    return Reader(BatchLog(LayerSetCache()), tiles.TileStore())


def assert_nothing_kept_shows(store, archive, points):
    for begin, end in ((None, None), (7, 640), (100, None)):
        found, fresh = (answered(store, each, points, begin, end) for each in (archive, empty_archive()))
        assert json.dumps(found | {"marks": []}) == json.dumps(fresh | {"marks": []})


@pytest.mark.slow
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stories.launches(longest=60), st.randoms(use_true_random=False), st.sampled_from([9, 50, 600]))
def test_a_reader_that_stays_open_answers_as_a_new_one(store, story, random, points):
    """Between its questions launches send by turns, each batch twice; another process compacts, thins and deletes."""
    store.clear()
    archive = empty_archive()
    for deleted in (False, True):
        if deleted:
            with store.database.write() as connection:
                runs.delete_run(connection, runs.get_run(connection, RUN), time.time())
        sent = {f"{deleted}{number}": told for number, told in enumerate(story)}
        waiting = {name: list(batches_of(told)) for name, told in sent.items()}
        for name, told in sent.items():
            store.ingest.hello(RUN, name, wire.dump(told.streams[0].hello(launch=name)))
        while any(waiting.values()):
            name = random.choice([name for name, batches in waiting.items() if batches])
            seq = len(list(batches_of(sent[name]))) - len(waiting[name])
            body = wire.dump(waiting[name].pop(0))
            for _ in range(2):
                store.ingest.batch(RUN, name, seq, body)
            if not waiting[name] and sent[name].end:
                store.ingest.end(RUN, name, wire.dump(wire.End(sent[name].end, None, None)))
            if random.random() < 0.5:
                store.compactor.compact()
            if random.random() < 0.3:
                store.thin(time.time() + 60, random.choice([0, 2]))
            assert_nothing_kept_shows(store, archive, points)


def batches_of(told):
    for each in told.streams:
        yield from each.batches(told.size)
