"""Each stored sample is read, in a bucket of its own, through answers of few buckets."""

import json
from array import array
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import update

from gradcanary.client.buckets import Buckets, Envelope, Page, read_finest
from gradcanary.export.tables import decode
from gradcanary_server.api import charts
from gradcanary_server.api.http import encode_array
from gradcanary_server.rules.config import Rules
from gradcanary_server.storage.schema import tile
from gradcanary_server.tsdb import tiles
from gradcanary_server.tsdb.query import StepRange
from support import streams
from support.server import stories
from support.server.archives import LAYERS, Store

quick = settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = Store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'gradcanary.db'}")
    yield made
    made.database.close()


def reader(store, most, asked, layers=LAYERS):
    """Return what reads a page of a series as over HTTP, and appends the steps to ``asked``."""

    def read(begin, end):
        asked.append((begin, end))
        span, wanted = StepRange(begin, end, most), [str(number) for number in range(layers)]
        answer = store.read(lambda c, run: charts.build_series(c, store.archive, Rules(), run, "absmax", wanted, span))
        answer.pop("marks")
        return Page.decode(json.loads(json.dumps(answer)), "series", most)

    return read


def whole(windows):
    """Return the windows together: their buckets, and the envelope of each line."""
    pages = [page for _, _, page in windows]
    lines = [Envelope.concat(list(parts)) for parts in zip(*(page.lines for page in pages), strict=True)]
    return Buckets.concat([page.buckets for page in pages]), lines


WIDE_THEN_NARROW = [
    stories.Told((stories.Part(0, 1, 1, 0),)),
    stories.Told((stories.Part(254, 1, 11, 0),)),
    stories.Told((stories.Part(270, 10, 1, 0), stories.Part(271, 1, 1, 0))),
]
"""A wide bucket holds samples of the narrow ones beside it."""

SPARSE_LAYER = [
    stories.Told((stories.Part(0, 1, 120, 3), stories.Part(200, 10, 120, 4), stories.Part(2000, 100, 90, 5)))
]


@quick
@given(stories.launches(), st.sampled_from([12, 40, 5000]), st.sampled_from([None, (50, 700)]))
@example(SPARSE_LAYER, 40, None)
@example(WIDE_THEN_NARROW, 5000, None)
@example(WIDE_THEN_NARROW, 12, None)
@example(WIDE_THEN_NARROW, 40, None)
def test_each_sample_is_read_in_a_bucket_of_its_own(store, story, most, span):
    stories.send(store, story)
    begin, end = span or (None, None)
    asked = []
    windows = list(read_finest(reader(store, most, asked), begin, end))
    buckets, lines = whole(windows)
    samples = stories.counted(story, begin or 0, 2**31 if end is None else end)
    assert buckets.steps.tolist() == sorted(samples)
    for number, line in enumerate(lines):
        values = np.array([rows[0][number] for _, rows in sorted(samples.items())])
        np.testing.assert_array_equal(line.count, np.isfinite(values))
        np.testing.assert_array_equal(line.nonfinite, np.isinf(values))
        for plane in (line.min, line.mean, line.max):
            np.testing.assert_array_equal(plane, np.where(np.isfinite(values), values, np.nan))
    assert all(second[0] > first[1] for first, second in pairwise(windows))


def test_where_samples_were_removed_each_aggregate_is_read_once(store, monkeypatch):
    monkeypatch.setattr(tiles, "TILE_ROWS", 8)
    store.clear()
    values = streams.healthy(1000, LAYERS)
    store.send("s", streams.Stream(values), 50)
    store.compactor.compact()
    with store.database.write() as connection:
        connection.execute(update(tile).where(tile.c.range_no < 80).values(stored=0.0))
    store.thin(1.0)
    for begin, end in ((None, None), (13, 930)):
        asked = []
        buckets, lines = whole(list(read_finest(reader(store, 40, asked), begin, end)))
        assert len(asked) < 120
        first, after = (0, 1000) if begin is None else (8, 931)
        assert buckets.steps[0] == first
        assert buckets.last_step(-1) == after - 1
        assert [buckets.last_step(place) + 1 for place in range(len(buckets.steps) - 1)] == buckets.steps[1:].tolist()
        for number, line in enumerate(lines):
            assert line.count.tolist() == buckets.widths.tolist()
            for step, width, low, high in zip(buckets.steps, buckets.widths, line.min, line.max, strict=True):
                samples = values[step : step + width, number]
                np.testing.assert_allclose([low, high], [samples.min(), samples.max()], rtol=3e-4)


def test_a_bucket_of_several_samples_is_read_again():
    """Also where the answer has few buckets, and no interval."""
    plane, counts = array("f", [1, 1, 1]), array("i", [1, 10, 0])
    lines = (Envelope(plane, plane, plane, counts, array("i", [0, 0, 0])),)
    buckets = Buckets(array("q", [0, 10, 20]), array("q", [10, 10, 10]), array("d", [0, 1, 2]))
    assert Page(5000, (), (("w", {}),), buckets, array("q", [0, 0, 0]), lines).are_coarse() == [False, True, False]


@given(st.lists(st.floats(width=32)), st.sampled_from(["float32", "float64"]))
def test_arrays_are_those_of_the_api(values, dtype):
    array = np.array(values, dtype)
    np.testing.assert_array_equal(np.array(decode(encode_array(array)), dtype), array)


def test_an_array_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="has 3 values"):
        decode({**encode_array(np.zeros(3)), "shape": [4]})
