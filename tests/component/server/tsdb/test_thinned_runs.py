"""Runs whose single samples are gone: whatever part of them is asked for, no dip is hidden and none told twice."""

import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradcanary_server.api import charts
from gradcanary_server.rules.config import Rules
from gradcanary_server.tsdb import tiles
from gradcanary_server.tsdb.query import StepRange
from support.server import stories
from support.server.archives import LAYERS, ROUGH, Store, decoded


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


def drawn(store, points, begin, end):
    """The series of absmax between two steps, and each layer's lines."""
    wanted, span = [str(number) for number in range(LAYERS)], StepRange(begin, end, points)
    answer = store.read(lambda c, run: charts.build_series(c, store.archive, Rules(), run, "absmax", wanted, span))
    lines = [
        {name: decoded(series[name]) for name in ("min", "mean", "max", "count", "nonfinite")}
        for series in answer["series"]
    ]
    return decoded(answer["steps"]), stories.widths_of(answer)[0], lines


@pytest.mark.slow
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    stories.launches(longest=150),
    st.sampled_from([0, 0, 5]),
    st.sampled_from([1, 9, 600]),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=1, max_size=3),
)
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
