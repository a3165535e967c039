"""The buckets of an answer, of one width or of several."""

import pytest

from gradcanary_dashboard.analysis.buckets import Buckets, widths
from support.api_answers import column


def test_buckets_of_one_width_are_single_samples_as_far_as_the_interval_says() -> None:
    answer = {"bucket_steps": 10, "steps": column([0.0, 10, 20])}
    assert Buckets.of(answer, 10).words() == ["0", "10", "20"]
    assert Buckets.of(answer, 1).words() == ["0 to 9", "10 to 19", "20 to 29"]
    assert Buckets.of(answer, 10).words(are_single=False) == ["0 to 9", "10 to 19", "20 to 29"]
    assert Buckets.of(answer).end == 29
    assert widths(answer) == [10]


def test_each_span_has_its_width_and_its_interval_and_ends_where_the_next_begins() -> None:
    spans = [{"step": 0, "bucket_steps": 4, "every": 1}, {"step": 10, "bucket_steps": 10, "every": 10}]
    answer = {"bucket_steps": 4, "steps": column([0.0, 4, 8, 10, 20]), "spans": spans}
    found = Buckets.of(answer, 10)
    assert found.width.tolist() == [4, 4, 2, 10, 10]
    assert found.words() == ["0 to 3", "4 to 7", "8 to 9", "10", "20"]
    assert found.middle.tolist() == pytest.approx([1.5, 5.5, 8.5, 14.5, 24.5])
    assert found.end == 29
    assert found[3:].words() == ["10", "20"]
    assert found.shifted(-4).first.tolist() == [-4, 0, 4, 6, 16]
    assert widths(answer) == [4, 10]
