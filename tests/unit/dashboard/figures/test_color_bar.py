"""The colour bar of a saved heatmap."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.figures import color_bar, palette

CODES = st.integers(-30_000, 30_000)
SCALES = st.builds(palette.Scale.around, CODES, st.integers(-8_000, 2_000), CODES) | st.builds(
    palette.Scale.rising, CODES, CODES, st.just(palette.WHITE)
)
HEIGHTS = st.integers(220, 520)


@given(SCALES, HEIGHTS)
def test_labels_have_room_and_colours_rise(scale: palette.Scale, height: int) -> None:
    marker = color_bar.trace(scale, height)["marker"]
    stops = [place for place, _ in marker["colorscale"]]
    assert stops == sorted(stops)
    assert stops[0] == 0
    assert stops[-1] == pytest.approx(1)
    codes = sorted(marker["colorbar"]["tickvals"])
    pixels = height / (marker["cmax"] - marker["cmin"])
    apart = [(after - before) * pixels for before, after in pairwise(codes)]
    assert min(apart) >= color_bar.LABEL_PX - 0.01


def test_the_ends_and_the_threshold_are_named() -> None:
    bar = color_bar.trace(palette.Scale.around(-9_000, -4_000, 0), 520)["marker"]["colorbar"]
    assert bar["ticktext"][:3] == ["≤ 1e-8", "1e-4 threshold", "≥ 1"]
    assert bar["ticktext"][-5:] == ["no data", "frozen", "no gradient", "exact 0", "non-finite"]


def test_a_scale_without_a_threshold_says_where_values_go_on() -> None:
    bar = color_bar.trace(palette.Scale.rising(-20_000, -3_000, palette.WHITE), 520)["marker"]["colorbar"]
    assert bar["ticktext"][:2] == ["≤ 1e-11", "0.001"]
    within = color_bar.trace(palette.Scale.rising(-9_000, -3_000, palette.WHITE), 520)["marker"]["colorbar"]
    assert within["ticktext"][0] == "1e-9"
