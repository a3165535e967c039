"""Pictures against a plain float64 reading of the same samples, over any cutting and any overlap of launches."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from gradcanary import wire
from gradcanary_server.api import charts
from gradcanary_server.api.charts import HeatmapOptions
from gradcanary_server.rules.config import Rules
from gradcanary_server.storage import runs
from gradcanary_server.storage.layers import LayerSetCache
from gradcanary_server.tsdb import query, rollup
from gradcanary_server.tsdb.log import BatchLog
from gradcanary_server.tsdb.query import StepRange
from gradcanary_server.tsdb.reader import Reader
from gradcanary_server.tsdb.rollup import COUNT, MEAN, NONFINITE
from gradcanary_server.tsdb.tiles import TileStore
from support import streams, wide_runs
from support.server import stories
from support.server.archives import LAYERS, ROUGH, RUN, Store, decoded

quick = settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    # How it is stored is tested in test_tiles, on both databases.
    made = Store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'gradcanary.db'}")
    yield made
    made.database.close()


launches = stories.launches(20, (1, 10))

WIDE_THEN_NARROW = [
    stories.Told((stories.Part(0, 1, 1, 0),)),
    stories.Told((stories.Part(254, 1, 11, 0),)),
    stories.Told((stories.Part(270, 10, 1, 0), stories.Part(271, 1, 1, 0))),
]
"""A wide bucket reaches further than the narrow ones that it is made a part of."""


@quick
@given(launches, st.sampled_from([4, 30]), st.sampled_from([1, 2, 7, 50, 1000]))
@example(WIDE_THEN_NARROW, 4, 50)
def test_every_bucket_equals_a_plain_reading(store, story, cut, points):
    stories.send(store, story, cut)
    samples = stories.counted(story)
    answer = json.loads(store.pictures(points))["absmax"]
    starts, (widths, of_span) = decoded(answer["steps"]), stories.widths_of(answer)
    assert len(starts) <= points
    assert starts[0] <= min(samples) < starts[0] + widths[0]
    assert starts[-1] <= max(samples) < starts[-1] + widths[-1]
    assert (np.diff(starts) >= widths[:-1]).all()
    for layer, series in enumerate(answer["series"]):
        line = {name: decoded(series[name]) for name in ("min", "mean", "max", "count", "nonfinite")}
        for bucket, (start, width) in enumerate(zip(starts, widths, strict=True)):
            rough = 0 if of_span[bucket] % rollup.FACTOR else ROUGH
            stories.assert_counted(line, bucket, samples, width, start, layer, rough)


@pytest.mark.parametrize(
    ("points", "widths"), [(2_000, [1, 10, 100]), (600, [2, 10, 100]), (100, [32, 20, 100]), (17, [200])]
)
def test_buckets_are_as_narrow_as_the_interval_of_their_samples_allows(store, points, widths):
    """As of a new run: each of its first steps is sampled, then each tenth one and each hundredth."""
    store.clear()
    streamed = [(0, 1, 1000), (1000, 10, 50), (1500, 100, 4)]
    first = streams.Stream(streams.healthy(1, LAYERS))
    store.ingest.hello(RUN, "s", wire.dump(first.hello(launch="s")))
    for seq, (begin, every, count) in enumerate(streamed):
        stream = streams.Stream(streams.healthy(count, LAYERS), first_step=begin, every=every)
        store.ingest.batch(RUN, "s", seq, wire.dump(stream.batch(0, count)))
    answer = json.loads(store.pictures(points))["absmax"]
    assert [span["bucket_steps"] for span in answer["spans"] or [answer]] == widths
    assert [span["every"] for span in answer["spans"]] == ([1, 10, 100] if len(widths) > 1 else [])
    counts = decoded(answer["series"][0]["count"])
    assert len(counts) <= points
    assert (counts > 0).all()
    assert counts.sum() == 1054


@quick
@given(launches, st.sampled_from([3, 100]))
def test_the_cutting_of_the_stream_does_not_show(store, story, points):
    found = []
    for cut in (1000, 7):
        stories.send(store, story, cut)
        answer = json.loads(store.pictures(points))
        found.append({name: {**answer[name], "revision": 0} for name in ("absmax", "norm", "min")})
    assert found[0] == found[1]


@pytest.mark.parametrize("points", [30, 200, 2_000])
def test_buckets_of_sealed_samples_that_are_kept_do_not_show(store, points):
    """A page reads a run again and again while it grows and its tiles are written; a new process has kept nothing."""
    store.clear()
    stream = streams.Stream(streams.healthy(900, LAYERS))
    store.ingest.hello(RUN, "s", wire.dump(stream.hello(launch="s")))
    for seq, begin in enumerate(range(0, 900, 100)):
        store.ingest.batch(RUN, "s", seq, wire.dump(stream.batch(begin, begin + 100)))
        store.compactor.compact()
        found, warm = [store.pictures(points), store.pictures(points, 7, 640)], store.archive
        store.archive = Reader(BatchLog(LayerSetCache()), TileStore())
        assert found == [store.pictures(points), store.pictures(points, 7, 640)]
        store.archive = warm


def test_layers_that_a_launch_does_not_have_and_a_stat_nobody_sent_are_no_data(store):
    store.clear()
    store.send("s0", streams.Stream(streams.healthy(10, LAYERS)), 10)
    store.send("s1", streams.Stream(streams.healthy(10, 1), first_step=10), 10)
    answer = json.loads(store.pictures(100))
    counts = [decoded(series["count"]).tolist() for series in answer["absmax"]["series"]]
    assert counts == [[1] * 20, *[[1] * 10 + [0] * 10] * (LAYERS - 1)]
    assert answer["absmax"]["phases"] == ["accumulated"]


def layer_and_series(store, begin=None, end=None):
    """Return the answer of a layer, and those of the series that it replaces, each by stat."""
    span, rules, archive = StepRange(begin, end, 7), Rules(), store.archive
    whole = store.read(lambda c, run: charts.build_layer(c, archive, rules, run, "1", span))
    alone = {
        stat: store.read(lambda c, run, stat=stat: charts.build_series(c, archive, rules, run, stat, ["1"], span))
        for stat in wire.STATS
    }
    return whole, alone


@quick
@given(launches, st.tuples(st.integers(0, 900), st.integers(0, 900)))
def test_layer_holds_what_its_series_hold(store, story, some):
    stories.send(store, story)
    for begin, end in ((None, None), (min(some), None), (min(some), max(some))):
        whole, alone = layer_and_series(store, begin, end)
        for line in whole["series"]:
            answer = alone[line["stat"]]
            series = {name: part for name, part in answer["series"][0].items() if name not in ("layer", "name")}
            assert line == {"stat": line["stat"], "phases": answer["phases"], **series}
            assert [whole[key] for key in ("steps", "times", "bucket_steps")] == [
                answer[key] for key in ("steps", "times", "bucket_steps")
            ]
        held = {line["stat"] for line in whole["series"]}
        assert {stat for stat, answer in alone.items() if decoded(answer["series"][0]["count"]).any()} <= held


def test_layer_reads_the_store_in_one_pass(store):
    """Fewer statements than its series together, and hardly more than one of them: of a run in tiles and in the log."""
    store.clear()
    made = streams.Stream(streams.healthy(2_000, LAYERS))
    for seq, batch in enumerate(made.batches(100)):
        if seq == 0:
            store.ingest.hello(RUN, "s", wire.dump(made.hello()))
        store.ingest.batch(RUN, "s", seq, wire.dump(batch))
        if seq == 15:
            store.compactor.compact()
    statements = []
    event.listen(store.database._engine, "before_cursor_execute", lambda *given: statements.append(given[2]))
    counts = []
    for begin in (None, 100):
        span = StepRange(begin, None, 600)
        for build in (
            lambda c, run, span=span: charts.build_layer(c, store.archive, Rules(), run, "1", span),
            lambda c, run, span=span: charts.build_series(c, store.archive, Rules(), run, "absmax", ["1"], span),
        ):
            store.forget()
            statements.clear()
            store.read(build)
            counts.append(len(statements))
    whole, one, zoomed, one_zoomed = counts
    assert whole <= 2 * one
    assert zoomed <= 4 * one_zoomed, "a second pass asks which stats have a value beyond these steps"


points = st.lists(st.tuples(st.integers(0, 200), st.floats(width=64)), max_size=20, unique_by=lambda point: point[0])


@quick
@given(points, points, st.sampled_from([1, 9, 500]))
def test_metrics_equal_a_plain_reading(store, first, second, wide):
    store.clear()
    stream = streams.Stream(streams.healthy(1, LAYERS))
    store.ingest.hello(RUN, "s", wire.dump(stream.hello()))
    for seq, logged in enumerate((first, [point for point in second if point[0] not in dict(first)])):
        metric = wire.Metric("mine", (), tuple(s for s, _ in logged), wire.column("d", [v for _, v in logged]))
        empty = wire.Batch(stream.layers.id, 1, (), "", (), (), (), "", (), (), (metric,), 0)
        store.ingest.batch(RUN, "s", seq, wire.dump(empty))
    samples = dict(second) | dict(first)
    for _ in range(2):
        answer = json.loads(store.pictures(wide))["metrics"]
        [line] = answer["metrics"] or [None]
        if line is None:
            assert not samples
            return
        found = {name: decoded(line[name]) for name in ("min", "max", "count", "nonfinite")}
        assert found["count"].sum() == sum(np.isfinite(list(samples.values())))
        assert found["nonfinite"].sum() == sum(~np.isfinite(list(samples.values())))
        for bucket, start in enumerate(decoded(answer["steps"])):
            inside = [v for s, v in samples.items() if start <= s < start + answer["bucket_steps"] and np.isfinite(v)]
            if inside:
                assert (found["min"][bucket], found["max"][bucket]) == (min(inside), max(inside))
        store.ingest.end(RUN, "s", wire.dump(wire.End("finished", None, None)))
        store.compactor.compact()


def drawn(store, picture, columns):
    """A heatmap of the wide run as the API sends it."""
    with store.database.read() as connection:
        row = runs.get_run(connection, wide_runs.NAME)
        span = StepRange(None, None, columns)
        return charts.build_heatmap(connection, store.archive, Rules(), row, "absmax", picture, span)


@quick
@given(launches, st.sampled_from([1, 7, 50, 1000]), st.sampled_from([1, 10, 100]))
def test_the_parts_in_which_steps_are_read_do_not_show(store, story, points, cells):
    stories.send(store, story)
    whole = store.pictures(points)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query, "CELLS", cells)
        patch.setattr(query, "TILE_LAYERS", 1)
        assert store.pictures(points) == whole


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    made = Store(f"sqlite:///{tmp_path_factory.mktemp('wide') / 'gradcanary.db'}")
    wide_runs.lay(made.database, made.ingest, 700, 300)
    yield made
    made.database.close()


@given(
    st.sampled_from(["min", "mean", "max"]),
    st.sampled_from(["model", "worst", "block"]),
    st.sampled_from([1, 3, 50, 699, 700]),
    st.sampled_from([1, 20, 300]),
    st.sampled_from([None, "[37]"]),
    st.sampled_from([5_000, 40_000]),
)
@settings(max_examples=10, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_shares_in_which_layers_are_read_do_not_show(wide, value, order, rows, columns, match, cells):
    picture = HeatmapOptions(value, order, match, rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(query, "CELLS", 10**9)
        whole = drawn(wide, picture, columns)
        patch.setattr(query, "CELLS", cells)
        assert drawn(wide, picture, columns) == whole


def test_heatmap_memory_does_not_grow_with_all_layers(tmp_path):
    made = Store(f"sqlite:///{tmp_path / 'gradcanary.db'}")
    wide_runs.lay(made.database, made.ingest, 2000, 1500)
    for picture, most in (
        (HeatmapOptions("min", "model", None, 1), 40e6),
        (HeatmapOptions("mean", "worst", None, 50), 80e6),
    ):
        drawn(made, picture, 5000)  # now its tiles are in the cache, which has a bound of its own
        tracemalloc.start()
        drawn(made, picture, 5000)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < most, f"{peak / 1e6:.0f} MB, where one float64 of each layer and step takes 24"
    made.database.close()


def test_columns_of_many_rows_are_merged_a_part_of_the_buckets_at_a_time():
    """As in the order of the worst, where the layers that are read together lie far from each other."""
    columns, buckets = 128, 5000
    rows = [charts.Row((row, columns + row), "", "") for row in range(columns)]
    cells = charts.Cells(rows, buckets, "mean")
    ones = np.ones((buckets, columns), np.int32)
    envelope = {MEAN: ones.astype(np.float32), COUNT: ones, NONFINITE: ones}
    cells.add(slice(0, columns), envelope)
    tracemalloc.start()
    cells.add(slice(columns, 2 * columns), envelope)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12e6, f"{peak / 1e6:.0f} MB, where the sums of these columns take 5"


@pytest.mark.parametrize(
    ("begin", "end", "firsts"),
    [
        (None, None, [0, 60, 120, 180, 240]),
        (59, 60, [0, 60]),
        (60, 60, [60]),
        (None, 59, [0]),
        (240, None, [240]),
        (299, 400, [240]),
        (300, None, []),
    ],
)
def test_of_some_steps_the_log_reads_only_their_batches(store, begin, end, firsts):
    store.clear()
    store.send("a", streams.Stream(streams.healthy(300, 4)), 60)
    with store.database.read() as connection:
        found = store.archive.log.read_run(connection, runs.get_run(connection, RUN).run_id, begin, end)
    assert [int(batch.columns.steps[0]) for batch in found] == firsts
