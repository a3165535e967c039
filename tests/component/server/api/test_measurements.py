"""Streams of all samples: what is in memory meanwhile, and what was deleted meanwhile."""

import json
import tracemalloc
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from gradcanary.export.collector import CollectorError
from gradcanary.export.tables import Stream
from gradcanary_server.api import measurements
from gradcanary_server.api.charts import MetricSelector
from gradcanary_server.storage import runs
from gradcanary_server.tsdb.query import StepRange
from support import streams, wide_runs
from support.server.archives import RUN


def lines(archive, run, begin=None, end=None):
    reader = SimpleNamespace(database=archive.database, measurements=archive.archive)
    return measurements._table_lines(
        measurements._export_samples(reader, run, ("absmax",), (), None, StepRange(begin, end, 0))
    )


def points(archive, run):
    reader = SimpleNamespace(database=archive.database, measurements=archive.archive)
    return measurements._table_lines(
        measurements._export_points(reader, run, MetricSelector.parse((), ()), StepRange(None, None, 0))
    )


def peak(archive, samples):
    """Return the bytes that an export of a run of 100 layers has in memory at once."""
    archive.clear()
    wide_runs.lay(archive.database, archive.ingest, 100, samples)
    tracemalloc.start()
    rows = sum(json.loads(line).get("rows", 0) for line in lines(archive, wide_runs.NAME))
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert rows == samples
    return most


def test_memory_does_not_grow_with_the_steps(archive):
    peak(archive, 1_000)  # what is imported and compiled first
    assert peak(archive, 60_000) < 1.3 * peak(archive, 12_000)


@pytest.mark.parametrize("how", ["deleted", "thinned"])
def test_an_export_of_what_was_deleted_meanwhile_does_not_look_complete(archive, how):
    archive.send("s", streams.Stream(streams.healthy(9_000, 60)), 500, end="finished")
    archive.compactor.compact()
    streamed = lines(archive, RUN)
    begun = [next(streamed), next(streamed)]
    if how == "deleted":
        with archive.database.write() as connection:
            runs.delete_run(connection, runs.get_run(connection, RUN), archive.database.now(connection))
    else:
        assert archive.thin(2**40)
    with pytest.raises(CollectorError, match="were deleted while they were read"):
        list(Stream([*begun, *streamed]))


@pytest.mark.parametrize(
    ("read", "rows"),
    [
        pytest.param(points, 9_000, id="metrics"),
        pytest.param(partial(lines, begin=8_990), 10, id="later samples"),
    ],
)
def test_an_export_is_complete_if_other_samples_were_deleted_meanwhile(archive, read, rows):
    stream = streams.Stream(streams.healthy(9_000, 2), streams.falling_loss(9_000))
    archive.send("s", stream, 500, end="finished")
    archive.compactor.compact()
    streamed = read(archive, RUN)
    begun = [next(streamed), next(streamed)]
    assert archive.thin(2**40, keeping=1)
    assert sum(map(len, Stream([*begun, *streamed]))) == rows


def test_samples_that_are_gone_are_said(archive):
    archive.send("s", streams.Stream(streams.healthy(5_000, 2)), 500, end="finished")
    archive.compactor.compact()
    archive.thin(2**40, keeping=1)
    stream = Stream(lines(archive, RUN))
    steps = np.concatenate([table.steps for table in stream])
    assert stream.raw_start == steps[0] > 0
    assert steps.tolist() == list(range(stream.raw_start, 5_000))
