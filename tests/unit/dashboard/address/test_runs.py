"""The part of the list's state that lives in its URL."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.address.runs import GROUPS, MAX_TEXT, SORTS, STATES, Listing, parse

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=MAX_TEXT)


LISTINGS = st.builds(
    Listing,
    text=WORDS,
    state=st.sampled_from([None, *STATES]),
    sort=st.sampled_from(list(SORTS)),
    is_reverse=st.booleans(),
    group=st.sampled_from([None, *GROUPS]),
    is_archived=st.booleans(),
    needs_attention=st.booleans(),
    after=WORDS.map(lambda text: text or None),
)


@given(LISTINGS)
def test_a_listing_is_what_its_address_says(listed: Listing) -> None:
    assert parse(listed.url(after=listed.after).removeprefix("/")) == listed
    assert listed.question().get("after") == listed.after


@given(LISTINGS)
def test_no_run_is_in_the_section_and_among_the_others(listed: Listing) -> None:
    section, others = listed.sections()
    if section is None:
        assert listed.after or listed.is_archived or listed.needs_attention
    else:
        assert (section["unacked"], others["unacked"]) == ("true", "false")
        assert {**section, "unacked": "", "limit": 0} == {**others, "unacked": "", "limit": 0}


def test_the_head_of_a_column_turns_its_order_round() -> None:
    by_loss = Listing(after="x").sorted_by("loss")
    assert by_loss == Listing(sort="loss")
    assert by_loss.sorted_by("loss") == Listing(sort="loss", is_reverse=True)
    assert by_loss.sorted_by("loss").sorted_by("loss") == by_loss
    assert by_loss.sorted_by("loss").sorted_by("name") == Listing(sort="name")


@pytest.mark.parametrize("search", ["?state=ended&sort=x&archived=yes", "?&&=", "?text=" + "x" * 200])
def test_unreadable_listing_parameters_count_as_absent(search: str) -> None:
    assert parse(search) == Listing("x" * MAX_TEXT if "text" in search else "")
