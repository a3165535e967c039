"""Numbers as people read them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.text import numbers


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, numbers.NOTHING), (0, "0 B"), (1023, "1,023 B"), (1024, "1 KiB"), (3_110_578, "2.97 MiB"),
     (10.6 * 2**30, "10.6 GiB"), (2.35e10, "21.9 GiB"), (3 * 2**50, "3,072 TiB")],
)  # fmt: skip
def test_bytes_are_told_in_the_unit_of_torch(number: float | None, text: str) -> None:
    assert numbers.size(number) == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (None, numbers.NOTHING),
        (0.0004, "0.4 ms"),
        (0.163, "163 ms"),
        (2.04, "2.04 s"),
        (200, "3 min 20 s"),
        (0.9999, "1 s"),
        (119.6, "2 min 0 s"),
        (179.7, "3 min 0 s"),
        (7169, "119 min 29 s"),
        (7171, "2 h 0 min"),
        (190_000, "52 h 47 min"),
    ],
)
def test_a_duration_is_told_in_its_own_unit(number: float | None, text: str) -> None:
    assert numbers.seconds(number) == text


@given(st.floats(-(2.0**120), 2.0**120, width=32))
def test_an_exact_value_is_the_float32_that_was_sent(number: float) -> None:
    assert np.float32(numbers.exact(number).replace(",", "")) == np.float32(number)


@given(st.floats(2.0**-120, 2.0**120))
def test_number_outside_float32_has_seven_digits(number: float) -> None:
    assert float(numbers.exact(number).replace(",", "")) == pytest.approx(number, rel=5e-7)


def test_integers_have_thousands_separators() -> None:
    assert numbers.integer(19999) == "19,999"


def test_the_most_frequent_dtype_comes_first() -> None:
    assert numbers.dtypes({"bfloat16": 300}) == "bfloat16"
    assert numbers.dtypes({"bfloat16": 20, "float32": 280}) == "float32 280, bfloat16 20"
    assert numbers.dtypes({}) == numbers.NOTHING


def test_the_dtypes_of_an_accumulator_stand_side_by_side() -> None:
    told = {"declared": "float32", "stored": "bfloat16", "effective": "bfloat16"}
    assert numbers.accumulator(told) == "fp32 / bf16 / bf16"
    assert (
        numbers.accumulator({"declared": None, "stored": "float8_e5m2", "effective": None})
        == "\N{EN DASH} / float8_e5m2 / \N{EN DASH}"
    )


@given(st.text(max_size=80), st.integers(2, 30))
def test_a_short_block_is_short_and_the_end_of_the_name(name: str, limit: int) -> None:
    short = numbers.short_block(name, limit)
    assert len(short) <= limit
    assert name.endswith((short.removeprefix("…"), short))


@pytest.mark.parametrize(
    ("value", "words"), [(1e5, "100,000"), (0.9999999, "0.9999999"), (1e-8, "1e-8"), (1e20, "1e20"), ("nan", "nan")]
)
def test_value_is_shown_as_it_was_set(value: float | str, words: str) -> None:
    assert numbers.setting(value) == words
