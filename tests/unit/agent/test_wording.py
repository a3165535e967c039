"""Numbers and counts as people read them, the same in messages, pages and terminals."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary import wording


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (0.0, "0 %"),
        (1e-9, "under 0.01 %"),
        (0.0042, "0.42 %"),
        (0.00999, "1.0 %"),
        (0.0251, "2.5 %"),
        (0.0997, "10 %"),
        (0.25, "25 %"),
        (0.9951, "99.5 %"),
        (0.99999, "99.9 %"),
        (1.0, "100 %"),
        (1.5, "150 %"),
    ],
)
def test_share_in_percent(part: float, text: str) -> None:
    assert wording.percent(part) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (6.1e-7, "6.1e-7"),
        (1.5e-3, "0.0015"),
        (3e-3, "0.003"),
        (0.1253, "0.125"),
        (1.0, "1"),
        (12.34, "12.3"),
        (120.0, "120"),
        (12340.0, "12,340"),
        (2.5e9, "2.5e9"),
        (-6.1e-7, "-6.1e-7"),
        (1e-4, "1e-4"),
        (math.inf, "inf"),
        (None, wording.NOTHING),
    ],
)
def test_value_has_two_or_three_digits(value: float | None, text: str) -> None:
    assert wording.number(value) == text


@given(st.floats(1e-37, 3e38))
def test_value_is_never_more_than_five_percent_off(value: float) -> None:
    assert float(wording.number(value).replace(",", "")) == pytest.approx(value, rel=0.05)


@given(st.floats(0, 1))
def test_only_all_is_100_percent_and_only_nothing_is_0(share: float) -> None:
    text = wording.percent(share)
    assert (text == "100 %") == (100 * share == 100)
    assert (text == "0 %") == (share == 0)
    assert float(text.removeprefix("under ").removesuffix(" %")) == pytest.approx(100 * share, rel=0.06, abs=0.01)


def test_noun_and_verb_agree_with_the_count() -> None:
    assert wording.count(1, "layer") == "1 layer"
    assert wording.count(0, "layer") == "0 layers"
    assert wording.count(1200, "layer") == "1,200 layers"
    assert wording.count(1, "layer", ("has", "have")) == "1 layer has"
    assert wording.count(2, "layer", ("has", "have")) == "2 layers have"


def test_the_shared_ends_of_names_are_whole_parts_and_leave_no_number_alone() -> None:
    names = [f"base_model.model.h.{block}.attn.{half}.default.weight" for block in (0, 10) for half in ("A", "B")]
    assert wording.shared_ends(names) == ("base_model.model.", ".default.weight")
    assert wording.shared_ends([*names, "head.bias"]) == ("", "")
    assert wording.shared_ends(["blocks.0.lora_A", "blocks.1.lora_A"]) == ("", "")
    assert wording.shared_ends(["only.weight"]) == wording.shared_ends([]) == ("", "")


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (1023, "1023 B"), (2**20, "1.00 MiB"), (78_165_442_560, "72.8 GiB"), (2**29, "512 MiB")],
)
def test_sizes_have_three_digits(size: int, words: str) -> None:
    assert wording.format_bytes(size) == words
