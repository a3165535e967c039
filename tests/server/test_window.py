"""window() against a plain float64 reading of the same samples, over any cutting and any overlap of launches."""

from types import SimpleNamespace

import numpy as np
import streams
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_server import batches
from gradcanary_server.log import Piece, later_wins
from gradcanary_server.window import MetricPart, metric_window, window

LAYERS = 4


@st.composite
def launches(draw):
    """Launches as (first step, every, absmax [step][layer]): a later one may go back, leave layers out, or be empty."""
    made = []
    for _ in range(draw(st.integers(1, 3))):
        steps = draw(st.integers(0, 40))
        seed = draw(st.integers(0, 2**32 - 1))
        rng = np.random.default_rng(seed)
        absmax = 10 ** rng.uniform(-12, 3, (steps, LAYERS))
        absmax[rng.random(absmax.shape) < 0.1] = 0
        absmax[rng.random(absmax.shape) < 0.1] = np.nan
        absmax[rng.random(absmax.shape) < 0.1] = np.inf
        every = draw(st.sampled_from([1, 10]))
        first = draw(st.integers(0, 60)) * every
        made.append((first, every, absmax.astype(np.float32)))
    return made


def pieces_of(made, cut):
    """The launches as pieces of ``cut`` steps each, the later launch winning per step as the log decides it."""
    pieces = []
    for number, (first, every, absmax) in enumerate(made, start=1):
        stream = streams.Stream(absmax, first_step=first, every=every)
        for batch in stream.batches(cut):
            columns = batches.decode(batch)
            rows = np.arange(len(columns.steps))
            pieces.append(Piece((number, 0.0, "s"), np.arange(LAYERS, dtype=np.int32), columns, rows))
    won = later_wins((piece.priority, piece.steps()) for piece in pieces)
    return [
        Piece(piece.priority, piece.numbers, piece.columns, piece.rows[rows])
        for piece, rows in zip(pieces, won, strict=True)
    ]


def winners(made):
    """Every sample that counts: {step: absmax[layer]}, one at a time."""
    found = {}
    for first, every, absmax in made:
        for row, values in enumerate(absmax):
            found[first + row * every] = values
    return found


def expected(samples, width, start, layer):
    """What a bucket must hold, read one sample at a time in float64."""
    values = [float(samples[step][layer]) for step in sorted(samples) if start <= step < start + width]
    finite = [value for value in values if np.isfinite(value)]
    return SimpleNamespace(
        finite=finite,
        count=len(finite),
        nonfinite=sum(np.isinf(value) for value in values),
    )


@given(launches(), st.integers(1, 30), st.sampled_from([1, 2, 7, 50, 1000]))
def test_every_bucket_equals_a_plain_reading(made, cut, points):
    samples = winners(made)
    chosen = np.array([2, 0], np.int32)
    found = window(pieces_of(made, cut), "absmax", chosen, points)

    starts = found.buckets.steps()
    assert len(starts) <= points
    if not samples:
        assert len(starts) == 0
        return
    width = found.buckets.width
    assert starts[0] <= min(samples) < starts[0] + width
    assert starts[-1] <= max(samples) < starts[-1] + width
    assert (starts % width == 0).all()
    for bucket, start in enumerate(starts):
        for column, layer in enumerate(chosen):
            wanted = expected(samples, width, start, layer)
            envelope = found.envelope
            assert envelope.count[bucket, column] == wanted.count
            assert envelope.nonfinite[bucket, column] == wanted.nonfinite
            drawn = [plane[bucket, column] for plane in (envelope.minimum, envelope.mean, envelope.maximum)]
            if wanted.count == 0:
                assert np.isnan(drawn).all()
                continue
            assert drawn[0] == np.float32(min(wanted.finite))
            assert drawn[2] == np.float32(max(wanted.finite))
            np.testing.assert_allclose(drawn[1], np.mean(wanted.finite), rtol=1e-6)


@given(launches(), st.sampled_from([3, 100]))
def test_the_cutting_of_the_stream_does_not_show(made, points):
    layers = np.arange(LAYERS, dtype=np.int32)
    whole, cut = (window(pieces_of(made, size), "absmax", layers, points) for size in (1000, 7))
    np.testing.assert_array_equal(whole.times, cut.times)
    for name, plane in vars(whole.envelope).items():
        np.testing.assert_allclose(plane, getattr(cut.envelope, name), rtol=1e-6)


def test_a_dip_of_one_step_in_a_million_is_drawn():
    absmax = np.full((100_000, 1), 1e-3, np.float32)
    absmax[77_777] = 1e-9
    stream = streams.Stream(absmax)
    columns = batches.decode(stream.batch(0, len(absmax)))
    piece = Piece((1, 0.0, "s"), np.array([0], np.int32), columns, np.arange(len(absmax)))
    found = window([piece], "absmax", np.array([0], np.int32), 600)
    assert np.nanmin(found.envelope.minimum) == np.float32(1e-9)


def test_layers_that_a_launch_does_not_have_and_a_stat_nobody_sent_are_no_data():
    columns = batches.decode(streams.Stream(streams.healthy(10, 2)).batch(0, 10))
    piece = Piece((1, 0.0, "s"), np.array([3, 5], np.int32), columns, np.arange(10))
    found = window([piece], "absmax", np.array([5, 4], np.int32), 10)
    assert found.envelope.count[:, 0].tolist() == [1] * 10
    assert found.envelope.count[:, 1].tolist() == [0] * 10
    assert window([piece], "update_ratio", np.array([5], np.int32), 10).envelope.count.sum() == 0
    assert found.phases == ("accumulated",)


@given(
    st.lists(
        st.tuples(
            st.integers(1, 3),
            st.lists(
                st.tuples(st.integers(0, 200), st.floats(width=64)), max_size=30, unique_by=lambda point: point[0]
            ),
        ),
        max_size=4,
        unique_by=lambda part: part[0],
    ),
    st.sampled_from([1, 9, 500]),
)
def test_metrics_equal_a_plain_reading(listed, points):
    parts = [
        MetricPart(
            (launch, 0.0, "s"),
            np.array([step for step, _ in logged], np.int64),
            np.array([value for _, value in logged], np.float64),
            np.full(len(logged), np.nan),
        )
        for launch, logged in listed
    ]
    samples = {}
    for _, logged in sorted(listed):
        samples.update(dict(logged))
    found = metric_window([parts], points)
    assert found.buckets.count <= points
    assert found.envelope.count.sum() == sum(np.isfinite(list(samples.values())))
    assert found.envelope.nonfinite.sum() == sum(~np.isfinite(list(samples.values())))
    for bucket, start in enumerate(found.buckets.steps()):
        inside = [v for s, v in samples.items() if start <= s < start + found.buckets.width and np.isfinite(v)]
        if inside:
            assert found.envelope.minimum[bucket, 0] == min(inside)
            assert found.envelope.maximum[bucket, 0] == max(inside)
