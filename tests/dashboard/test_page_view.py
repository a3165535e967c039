"""The part of a page's state that lives in its URL."""

import string
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.view import View, parse, run_of, run_url

RUNS = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=100).filter(lambda t: t[0] != ".")
STEPS = st.none() | st.integers(0, 2**53 - 1)


@given(RUNS, st.none() | st.text(min_size=1, max_size=60).filter(lambda t: t.isprintable()), STEPS, STEPS, STEPS)
def test_an_address_says_the_same_when_it_is_read_again(
    run: str, layer: str | None, first: int | None, last: int | None, incident: int | None
) -> None:
    if first is not None and last is not None:
        first, last = sorted((first, last))
    view = View(layer, first, last, incident)
    address = urlsplit(run_url(run, view))
    assert parse("?" + address.query) == view
    assert run_of(address.path) == run


@given(st.text(max_size=80))
def test_no_query_is_refused(search: str) -> None:
    parse(search)


@pytest.mark.parametrize(
    "search",
    [None, "", "?", "?from=-1", "?from=1e3", "?from=9&to=3", "?from=99999999999999999999", "?incident=x", "?layer="],
)
def test_what_cannot_be_read_counts_as_absent(search: str | None) -> None:
    assert parse(search) == View()


@pytest.mark.parametrize("path", ["/", "", "/runs", "/runs/", "/other/run"])
def test_other_paths_name_no_run(path: str) -> None:
    assert run_of(path) is None
