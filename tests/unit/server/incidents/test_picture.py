"""The picture of an incident: what is drawn where, and its size whatever is drawn."""

import io
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageColor

from gradcanary_server.errors import RequestError
from gradcanary_server.incidents import picture
from gradcanary_server.incidents.picture import CURVES, MAX_BYTES, METRICS, NONFINITE, Curve, Panel, Picture

BLUE, ORANGE = CURVES[:2]
LOSS = METRICS[0]


def curve(values, steps=None, name="a.weight", **more):
    values = np.array(values, np.float64)
    steps = np.arange(len(values)) if steps is None else steps
    return Curve(
        name, np.array(steps, np.float64), np.where(np.isinf(values), np.nan, values), np.isinf(values), **more
    )


def drawn(*panels, first=0, last=10, since=5, legend="2 worst of 18 parameters", title="sdxl: 18 of 144 collapsed"):
    png = picture.draw(Picture(title, "critical", "critical", first, last, since, panels, legend, "baseline", "#31"))
    assert len(png) <= MAX_BYTES
    image = Image.open(io.BytesIO(png))
    assert (image.format, image.size) == ("PNG", (960, 540))
    return np.asarray(image.convert("RGB"))


def places(pixels, colour, right=700):
    """Return the rows and columns of a colour in the panels."""
    is_colour = (pixels == ImageColor.getrgb(colour)).all(axis=2)
    is_colour[:90] = is_colour[:, right:] = False
    return np.argwhere(is_colour)


def columns(pixels, colour):
    return set(places(pixels, colour)[:, 1].tolist())


def test_a_fall_is_drawn_from_its_baseline_down_on_a_logarithmic_axis():
    pixels = drawn(Panel("gradient", [curve([1e-2] * 5 + [1e-6] * 6, reference=1e-2)], is_log=True))
    rows = places(pixels, BLUE)
    left, right = rows[rows[:, 1] < 300][:, 0], rows[rows[:, 1] > 400][:, 0]
    assert left.max() < 110, "at the top until it falls"
    assert right.max() > 500, "four decades below, at the bottom"
    assert not ((right > 110) & (right < 495)).any()
    assert right.min() < 110, "the dashes of the baseline go on"


def test_zeros_are_at_the_bottom_below_the_smallest_value():
    rows = places(drawn(Panel("gradient", [curve([1e-2] * 5 + [0.0] * 6)], is_log=True)), BLUE)
    assert rows[:, 0].max() >= 503
    assert not len(places(drawn(Panel("gradient", [curve([0.0] * 11)], is_log=True)), ORANGE))


def test_a_gap_is_not_bridged_and_a_single_sample_is_a_dot():
    pixels = drawn(Panel("gradient", [curve([1, 1, 1, 1, 1], steps=[0, 1, 2, 9, 10])], is_log=True))
    assert not columns(pixels, BLUE) & set(range(250, 580))
    assert columns(pixels, BLUE) & set(range(640, 680))
    dot = columns(drawn(Panel("gradient", [curve([1], steps=[5])], is_log=True)), BLUE)
    assert 3 <= max(dot) - min(dot) <= 7


def test_what_is_not_finite_is_a_cross_at_the_top():
    pixels = drawn(
        Panel("gradient", [curve([1, 1, np.inf, np.inf, np.nan, np.nan])], is_log=True),
        Panel("loss", [curve([3.0, 2.0, np.inf])]),
        last=5,
    )
    rows = places(pixels, NONFINITE)[:, 0]
    assert set(np.unique(rows // 100)) == {1, 3}, "one row in each panel"
    assert len(places(pixels, LOSS))


def test_loss_and_learning_rate_have_the_same_steps_below():
    metrics = [Panel("loss", [curve([2.0] * 11)]), Panel("learning rate", [curve([1e-4] * 5 + [1e-1] * 6)], share=0.7)]
    pixels = drawn(Panel("gradient", [curve([1e-2] * 11)], is_log=True), *metrics)
    found = places(pixels, LOSS)
    for rows in (found[found[:, 0] < 395], found[found[:, 0] > 410]):
        assert rows[:, 1].min() <= 74
        assert rows[:, 1].max() >= 678


def test_panels_without_a_legend_take_its_room():
    pixels = drawn(Panel("loss", [curve([2.0] * 11)]), legend="")
    assert places(pixels, BLUE, 960)[:, 1].max() > 930


def test_an_empty_picture_says_so():
    assert (drawn()[250:280] != 255).any()
    assert (drawn(Panel("gradient", [curve([])], is_log=True))[250:320] != 255).any()


def test_names_of_strangers_stay_within_the_picture():
    names = ["\u202e" * 50, "\n" * 9 + "x" * 500, "日本" * 200, "é.weight", "@everyone <!channel>"]
    curves = [curve([1.0] * 11, name=name, note=name) for name in names]
    pixels = drawn(Panel("g", curves, is_log=True), title="r" * 100 + ": " + "layers " * 90)
    assert (pixels[6:, 937:] == 255).all()
    assert (pixels[6:, :21] == 255).all()
    assert picture.plain("é\n日…") == "e??..."


@pytest.mark.parametrize("points", [220, 400])
def test_noise_over_all_decades_fits(points):
    noise = np.random.default_rng(0)
    curves = [curve(10 ** noise.uniform(-30, 30, points), note="1e-30 -> 1e30") for _ in CURVES]
    metrics = [curve(noise.normal(size=points)) for _ in METRICS]
    drawn(Panel("g", curves, is_log=True, threshold=1e-4), Panel("loss", metrics), Panel("lr", metrics), last=points)


LARGEST, SMALLEST = sys.float_info.max, 5e-324
EXTREMES = [0.0, -0.0, 1.0, -1.0, 3e38, 1e308, LARGEST, -LARGEST, 1e-45, SMALLEST, -SMALLEST, sys.float_info.min]
numbers = st.floats() | st.sampled_from(EXTREMES)
levels = st.none() | st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(EXTREMES)


@pytest.mark.parametrize("is_log", [True, False, None])
@pytest.mark.parametrize(
    "values", [[1.0, 1.7e308], [-1.7e308, 1.7e308], [1e308], [SMALLEST], [0.0, SMALLEST], [1e-310, 2e-310]]
)
def test_a_loss_at_the_ends_of_all_numbers_is_drawn(values, is_log):
    assert len(places(drawn(Panel("loss", [curve(values, reference=values[-1])], is_log)), BLUE))


@given(
    st.lists(st.lists(numbers, max_size=12), max_size=7),
    st.integers(0, 2**53),
    st.text(max_size=40),
    st.sampled_from([True, False, None]),
    levels,
    levels,
)
@settings(max_examples=25, deadline=None)
def test_any_values_and_names_are_drawn(rows, since, text, is_log, threshold, reference):
    curves = [curve(row, steps=since + np.arange(len(row)), name=text, note=text, reference=reference) for row in rows]
    panels = [Panel(text, curves, is_log, threshold)] if curves else []
    drawn(*panels, first=since, last=since + 12, since=since, title=text, legend=text)


def test_without_pillow_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(RequestError, match=r"gradcanary\[notify\]") as refused:
        picture.require_pillow()
    assert (refused.value.status, refused.value.code) == (501, "no_pillow")
