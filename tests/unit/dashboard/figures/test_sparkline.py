"""The line of a run in the list."""

import re
from urllib.parse import unquote

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.figures.sparkline import HEIGHT, sparkline

LOG10 = st.floats(-45, 39, width=32) | st.sampled_from([float("nan"), float("inf"), float("-inf")])


def heights(*levels: float) -> tuple[list[float], float]:
    """The heights of a line's points and of the threshold 1e-4, from the top of the image."""
    source = sparkline(np.array(levels, np.float32), "#123456", 1e-4)
    assert source is not None
    threshold, line = re.findall(r"<path d='([^']*)'", unquote(source))
    return [float(each) for each in re.findall(r"[ML]\S+ ([\d.]+)", line)], float(threshold[3:].partition("H")[0])


@given(st.lists(LOG10, min_size=1, max_size=64))
def test_a_sparkline_holds_no_word_of_python(values: list[float]) -> None:
    source = sparkline(np.array(values, np.float32), "#123456", 1e-4)
    assert source is None or not re.search("nan|inf", unquote(source))


@given(st.lists(LOG10, min_size=1, max_size=64))
def test_a_sparkline_stays_in_its_image(values: list[float]) -> None:
    if np.isfinite(values).any():
        points, threshold = heights(*values)
        assert all(0 <= height <= HEIGHT for height in [*points, threshold])


def test_every_sparkline_has_the_same_scale() -> None:
    collapse, threshold = heights(-3, -3, -6.5, -6.5)
    healthy, same = heights(-3, -2.9, -3, -3)
    assert threshold == same == HEIGHT / 2, "1e-4 is in the middle of 1e-8 and 1"
    assert collapse[0] == healthy[0] < threshold < collapse[-1]
    assert heights(-12)[0] == heights(-8)[0], "an exact zero is at the edge"
