"""Each stored sample is read, in a bucket of its own, through answers of few buckets."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gradcanary.client.buckets import Buckets, Envelope, Page, decode, read_finest
from gradcanary_server.api import charts
from gradcanary_server.api.http import encode_array
from gradcanary_server.rules.config import Rules
from gradcanary_server.tsdb.query import StepRange
from support.server import stories
from support.server.archives import LAYERS, Store

quick = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


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
        for place, step in enumerate(sorted(samples)):
            (values,) = samples[step]
            value = float(values[number])
            found = (line.min[place], line.mean[place], line.max[place])
            is_finite = np.isfinite(value)
            assert (line.count[place], line.nonfinite[place]) == (int(is_finite), int(np.isinf(value)))
            np.testing.assert_array_equal(found, [value if is_finite else np.nan] * 3)
    assert all(second[0] > first[1] for first, second in pairwise(windows))


@given(st.lists(st.floats(width=32)), st.sampled_from(["float32", "float64"]))
def test_arrays_are_those_of_the_api(values, dtype):
    array = np.array(values, dtype)
    np.testing.assert_array_equal(np.array(decode(encode_array(array)), dtype), array)


def test_an_array_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="has 3 values"):
        decode({**encode_array(np.zeros(3)), "shape": [4]})
