"""How answers are cut: never over their bound, nothing lost without being counted."""

import json
import math

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from gradcanary_server.api.http import encode_array
from gradcanary_server.mcp import answers


@given(st.lists(st.text(max_size=300), max_size=40), st.integers(1, 50), st.integers(10, 3_000))
def test_a_list_is_cut_by_number_and_by_bytes(items, most, most_bytes):
    kept, left_out = answers.fit(items, most, most_bytes)
    assert kept == items[: len(kept)]
    assert len(kept) + left_out == len(items)
    assert len(kept) <= most
    size = sum(len(json.dumps(each, ensure_ascii=False).encode()) + 1 for each in kept)
    assert size <= most_bytes or len(kept) == 1, "one item is always there"
    assert kept or not items


@given(st.text(max_size=900), st.integers(1, 700))
def test_a_text_is_cut(text, most):
    found = answers.cut(text, most)
    assert len(found) <= most
    assert found == text or (found[:-1] == text[: most - 1] and found[-1] == "…")


@given(st.none() | st.floats())
@example(1.795e308)
def test_a_number_has_three_digits_and_is_json(value):
    found = answers.rounded(value)
    if value is None or not math.isfinite(value):
        assert found is None
    else:
        assert found is not None
        assert math.isclose(found, value, rel_tol=0.006, abs_tol=1e-323)
        json.dumps(found, allow_nan=False)


def test_arrays_and_series_of_the_api_are_read():
    plane = np.array([[1, 2, 3], [4, 5, 6]], np.int16)
    assert answers.decode(encode_array(plane)).tolist() == plane.tolist()
    column = encode_array(np.array([1.23456e-5, np.nan, np.inf], np.float32))
    given_series = {"name": "a", "min": column, "mean": column, "max": column}
    numbers = [1.23e-5, None, None]
    none = answers.envelope({**given_series, "nonfinite": encode_array(np.zeros(3, np.int32))})
    assert none == {"name": "a", "tags": {}, "min": numbers, "mean": numbers, "max": numbers, "not_finite": []}
    some = answers.envelope({**given_series, "nonfinite": encode_array(np.array([0, 0, 2], np.int32))})
    assert some["not_finite"] == [0, 0, 2]
