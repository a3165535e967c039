"""Pictures against a plain float64 reading of the same samples, over any cutting and any overlap of launches."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import streams
from archives import LAYERS, ROUGH, RUN, Store, decoded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradcanary import wire
from gradcanary_server import nodes

quick = settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    # How it is stored is tested in test_tiles, on both databases.
    made = Store(f"sqlite:///{tmp_path_factory.mktemp('store') / 'gradcanary.db'}")
    yield made
    made.database.close()


@st.composite
def launches(draw):
    """Launches as (first step, every, absmax [step][layer]): a later one may go back."""
    made = []
    for _ in range(draw(st.integers(1, 3))):
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        absmax = 10 ** rng.uniform(-12, 3, (draw(st.integers(1, 40)), LAYERS))
        absmax[rng.random(absmax.shape) < 0.1] = 0
        absmax[rng.random(absmax.shape) < 0.1] = np.nan
        absmax[rng.random(absmax.shape) < 0.1] = np.inf
        every = draw(st.sampled_from([1, 10]))
        made.append((draw(st.integers(0, 60)) * every, every, absmax.astype(np.float32)))
    return made


def send(store, made, cut):
    store.clear()
    for number, (first, every, absmax) in enumerate(made):
        store.send(f"s{number}", streams.Stream(absmax, first_step=first, every=every), cut)


def winners(made):
    """Every sample that counts: {step: absmax[layer]}; a later launch hides what it went over again."""
    found = {}
    for first, every, absmax in made:
        last = first + (len(absmax) - 1) * every
        found = {step: values for step, values in found.items() if not first <= step <= last}
        found |= {first + row * every: values for row, values in enumerate(absmax)}
    return found


def expected(samples, width, start, layer):
    """What a bucket must hold, read one sample at a time in float64."""
    values = [float(samples[step][layer]) for step in sorted(samples) if start <= step < start + width]
    finite = [value for value in values if np.isfinite(value)]
    return SimpleNamespace(finite=finite, nonfinite=sum(np.isinf(value) for value in values))


@quick
@given(launches(), st.sampled_from([4, 30]), st.sampled_from([1, 2, 7, 50, 1000]))
def test_every_bucket_equals_a_plain_reading(store, made, cut, points):
    send(store, made, cut)
    samples = winners(made)
    answer = json.loads(store.pictures(points))["absmax"]
    starts, width = decoded(answer["steps"]), answer["bucket_steps"]
    rough = 0 if width % nodes.FACTOR else ROUGH
    assert len(starts) <= points
    assert starts[0] <= min(samples) < starts[0] + width
    assert starts[-1] <= max(samples) < starts[-1] + width
    assert (starts % width == 0).all()
    for layer, series in enumerate(answer["series"]):
        line = {name: decoded(series[name]) for name in ("min", "mean", "max", "count", "nonfinite")}
        for bucket, start in enumerate(starts):
            wanted = expected(samples, width, start, layer)
            assert line["count"][bucket] == len(wanted.finite)
            assert line["nonfinite"][bucket] == wanted.nonfinite
            drawn = [line[name][bucket] for name in ("min", "mean", "max")]
            if not wanted.finite:
                assert np.isnan(drawn).all()
                continue
            low, high = min(wanted.finite), max(wanted.finite)
            assert low * (1 - rough) <= drawn[0] <= low
            assert high <= drawn[2] <= high * (1 + rough)
            np.testing.assert_allclose(drawn[1], np.mean(wanted.finite), rtol=1e-6 + rough)


@quick
@given(launches(), st.sampled_from([3, 100]))
def test_the_cutting_of_the_stream_does_not_show(store, made, points):
    found = []
    for cut in (1000, 7):
        send(store, made, cut)
        answer = json.loads(store.pictures(points))
        found.append({name: {**answer[name], "revision": 0} for name in ("absmax", "norm", "min")})
    assert found[0] == found[1]


def test_layers_that_a_launch_does_not_have_and_a_stat_nobody_sent_are_no_data(store):
    store.clear()
    store.send("s0", streams.Stream(streams.healthy(10, LAYERS)), 10)
    store.send("s1", streams.Stream(streams.healthy(10, 1), first_step=10), 10)
    answer = json.loads(store.pictures(100))
    counts = [decoded(series["count"]).tolist() for series in answer["absmax"]["series"]]
    assert counts == [[1] * 20, *[[1] * 10 + [0] * 10] * (LAYERS - 1)]
    assert answer["absmax"]["phases"] == ["accumulated"]


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
