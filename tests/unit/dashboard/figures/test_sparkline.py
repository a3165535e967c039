"""The line of a run in the list."""

import base64
import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.figures.sparkline import sparkline

LOG10 = st.floats(-45, 39, width=32) | st.sampled_from([float("nan"), float("inf"), float("-inf")])


@given(st.lists(LOG10, min_size=1, max_size=64))
def test_a_sparkline_holds_no_word_of_python(values: list[float]) -> None:
    source = sparkline(np.array(values, np.float32), "#123456")
    assert source is None or not re.search("nan|inf", base64.b64decode(source.split(",")[1]).decode())
