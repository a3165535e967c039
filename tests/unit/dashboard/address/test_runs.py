"""The part of the list's state that lives in its URL."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.address.runs import MAX_TEXT, SORTS, STATES, Listing, parse

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=MAX_TEXT)


@given(WORDS, st.sampled_from([None, *STATES]), st.sampled_from(list(SORTS)), st.booleans(), WORDS)
def test_a_listing_is_what_its_address_says(
    text: str, state: str | None, sort: str, archived: bool, after: str
) -> None:
    listed = Listing(text, state, sort, archived, after or None)
    assert parse(listed.url(after=listed.after).removeprefix("/")) == listed
    assert listed.question().get("after") == (after or None)


@pytest.mark.parametrize("search", ["?state=ended&sort=x&archived=yes", "?&&=", "?text=" + "x" * 200])
def test_unreadable_listing_parameters_count_as_absent(search: str) -> None:
    assert parse(search) == Listing("x" * MAX_TEXT if "text" in search else "")
