"""A bucket lets through what it holds and what flows into it, and says when there is more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_server.auth import rate_limit
from gradcanary_server.auth.rate_limit import RateLimiter, rate_limit_key

WAITS = st.lists(st.floats(0, 20), min_size=1, max_size=60)


@given(st.integers(1, 5), st.floats(0.05, 5), WAITS)
def test_no_more_goes_through_than_was_in_it_and_came(size, per_s, waits):
    bucket, now, taken = RateLimiter(size, per_s), 0.0, []
    for wait in waits:
        now += wait
        if bucket.acquire("x", now) == 0.0:
            taken.append(now)
    for place, begin in enumerate(taken):
        for count, end in enumerate(taken[place:], start=1):
            assert count <= size + per_s * (end - begin) + 1e-6


@given(st.integers(1, 5), st.floats(0.05, 5), WAITS)
def test_after_the_time_that_it_says_there_is_one(size, per_s, waits):
    bucket, now = RateLimiter(size, per_s), 0.0
    for wait in waits:
        now += wait
        said = bucket.acquire("x", now)
        if said:
            now += said + 1e-6
            assert bucket.acquire("x", now) == 0.0


def test_others_have_their_own_and_the_longest_unused_is_forgotten(monkeypatch):
    monkeypatch.setattr(rate_limit, "MAX_BUCKETS", 2)
    bucket = RateLimiter(1, 0.001)
    assert bucket.acquire("a", 0) == 0.0
    assert bucket.acquire("a", 0) == pytest.approx(1000)
    assert bucket.acquire("b", 0) == 0.0
    assert bucket.acquire("c", 0) == 0.0
    assert bucket.acquire("a", 0) == 0.0


@pytest.mark.parametrize(
    ("address", "shared"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("testclient", "testclient"),
        ("", ""),
    ],
)
def test_rate_limit_key_of_an_address(address, shared):
    assert rate_limit_key(address) == shared
