"""The small picture of a run: decoded by Pillow, each pixel is the colour that the page gives to its cell."""

import io
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from PIL import Image

from gradcanary.client import picture
from gradcanary.client.heatmap import Heatmap
from gradcanary.display import colours
from gradcanary_dashboard.analysis.buckets import Buckets
from gradcanary_dashboard.analysis.stats import STATS
from gradcanary_dashboard.figures import heatmap as page
from gradcanary_dashboard.figures import palette
from support.api_answers import axis, column, heatmap_answer

CELLS = arrays.arrays(
    np.int16,
    st.tuples(st.integers(1, 6), st.integers(1, 240)),
    elements=st.integers(-9000, 3000) | st.sampled_from(list(picture.KINDS)),
    fill=st.just(-4000),
)

ROUNDED = 3.3
"""What the nearest of 241 colours differs by at most, of 255: 17 milli-decades where the ramp is steepest, 67 in 400 of
them, and half a step by rounding."""


def answer_of(cells: np.ndarray, **more: Any) -> dict[str, Any]:
    rows, columns = cells.shape
    return {**heatmap_answer(rows, columns), "cells": column(cells, "int16"), **more}


def drawing(answer: dict[str, Any]) -> picture.Picture | None:
    return picture.draw(Heatmap.decode({"spans": [], **answer}))


def pixels(answer: dict[str, Any]) -> np.ndarray:
    """Return the picture as Pillow reads it, uint8 [y, x, red green blue opacity]."""
    drawn = drawing(answer)
    assert drawn is not None
    image = Image.open(io.BytesIO(drawn.png))
    image.load()
    assert image.mode == "P"
    assert image.size == (drawn.width, drawn.height)
    return np.asarray(image.convert("RGBA"))


Stops = list[tuple[float, list[float]]]


def stops_of(scale: palette.Scale) -> Stops:
    return [(float(stop), rgba(str(colour))) for stop, colour in scale.colours()]


def colour_on_page(scale: palette.Scale, stops: Stops, code: int) -> list[float]:
    """Return the colour that Plotly gives to a code: a share of the two stops around it, by channel."""
    place = (code - scale.first) / (scale.last - scale.first)
    for (low, before), (high, after) in pairwise(stops):
        if low <= place <= high and low < high:
            share = (place - low) / (high - low)
            return [one + share * (other - one) for one, other in zip(before, after, strict=True)]
    raise AssertionError(f"no colour for {code}")


def rgba(colour: str) -> list[float]:
    if colour.startswith("#"):
        return [*bytes.fromhex(colour[1:]), 255.0]
    *red_green_blue, alpha = map(float, colour.removeprefix("rgba(").removesuffix(")").split(","))
    return [*red_green_blue, 255 * alpha]


@settings(max_examples=20)
@given(CELLS, st.floats(1e-7, 1e-1))
def test_each_pixel_has_the_colour_of_its_cell_on_the_page(cells: np.ndarray, enter: float) -> None:
    answer = answer_of(cells, threshold={"enter": enter})
    if (cells == colours.NO_DATA).all():
        assert drawing(answer) is None
        return
    drawn = pixels(answer)
    rows, columns = cells.shape
    height, width = drawn.shape[:2]
    shown = np.where(cells == colours.NO_DATA, colours.BETWEEN, cells)  # all columns of the answer have samples
    scale, codes = page.coded(shown, STATS["absmax"], enter)
    stops = stops_of(scale)
    between = {name: scale.special[f"{name}_between"][0] for name in ("frozen", "no_gradient")}
    for row in range(rows):
        line = drawn[row * height // rows]
        for x in (0, 3, 4, width // 2, width - 1):
            at = int((x + 0.5) * columns / width)
            kind = page.KINDS.get(int(shown[row, at]))
            allowed = [int(codes[row, at]), *([between[kind]] if kind in between else [])]
            near = [
                all(abs(a - b) <= ROUNDED for a, b in zip(line[x], colour_on_page(scale, stops, code), strict=True))
                for code in allowed
            ]
            assert any(near), (row, x, cells[row, at], line[x])


def test_the_threshold_both_ends_and_special_cells_are_exact() -> None:
    cells = np.array([[-4000, colours.ZERO, colours.NONFINITE, colours.NO_DATA, -9000, 0]], np.int16)
    times = column(np.array([0.0, 1.0, 2.0, np.nan, 4.0, 5.0]), "float64")
    drawn = pixels(answer_of(cells, times=times))
    seen = ["#" + bytes(drawn[0, 40 + 80 * place, :3].tolist()).hex() for place in range(6)]
    ends = [colours.BELOW[-1][1], colours.ABOVE[-1][1]]
    assert seen == [colours.WHITE, colours.BLACK, colours.MAGENTA, colours.NO_DATA_GREY, *ends]
    assert (drawn[..., 3] == 255).all()


@pytest.mark.parametrize("kind", [colours.NOT_TRAINABLE, colours.NO_GRADIENT])
def test_cells_that_are_not_trained_are_striped(kind: int) -> None:
    drawn = pixels(answer_of(np.full((2, 3), kind, np.int16)))
    assert len({tuple(each) for each in drawn[0].tolist()}) == 2
    assert (drawn[0, 0] == drawn[0, 3]).all()
    assert (drawn[0, 0] != drawn[0, 4]).any()
    assert (drawn[0, 0] == drawn[-1, 4]).all(), "the rows alternate"


def test_columns_lie_where_the_page_has_them() -> None:
    """Of two widths, with steps between them that no column has."""
    starts = [0, 1, 2, 3, 10, 20]
    spans = [{"step": 0, "bucket_steps": 1, "every": 1}, {"step": 10, "bucket_steps": 10, "every": 10}]
    cells = np.array([[-4000, -5000, -6000, -7000, -3000, -2000]], np.int16)
    answer = answer_of(cells, **axis(starts), spans=spans, times=column(np.arange(6.0), "float64"))
    drawn, buckets = pixels(answer)[0], Buckets.of(answer)
    alone = [pixels(answer_of(cells[:, [at]]))[0, 0] for at in range(6)]
    for x in range(picture.WIDTH_PX):
        step = (x + 0.5) / picture.WIDTH_PX * 30
        there = np.flatnonzero((buckets.first <= step) & (step < buckets.first + buckets.width))
        expected = alone[there[0]] if len(there) else (134, 142, 150, 0)
        assert (drawn[x] == expected).all(), x
    shown = drawing(answer)
    assert shown is not None
    assert shown.caption.endswith("blue above it, gaps without a colour not measured.")


@pytest.mark.parametrize("rows", [1, 15, 60, 400])
def test_the_size_is_bounded(rows: int) -> None:
    drawn = drawing(heatmap_answer(rows, 240))
    assert drawn is not None
    assert drawn.width == 480
    assert drawn.height == {1: 12, 15: 180, 60: 180, 400: 400}[rows]
    assert len(drawn.png) < 60_000


def test_the_caption_names_the_colours_that_are_there() -> None:
    cells = np.array([[-3000, colours.ZERO], [-3000, -3000]], np.int16)
    drawn = drawing(answer_of(cells))
    assert drawn is not None
    assert drawn.caption == (
        "Smallest gradient absmax of 2 parameters by step, from 0: white is the threshold 1e-4, red below it, "
        "blue above it, black exactly 0."
    )


def test_nothing_is_drawn_without_a_value() -> None:
    assert drawing(answer_of(np.full((2, 2), colours.NO_DATA, np.int16))) is None
    assert drawing(answer_of(np.zeros((0, 0), np.int16))) is None
