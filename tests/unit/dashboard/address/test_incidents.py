"""The filter of incidents, as their address says it."""

import string
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.address import incidents as incidents_address
from gradcanary_dashboard.address.incidents import Filter
from gradcanary_dashboard.pages import registry

TEXTS = st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=40)


@given(
    st.builds(
        Filter,
        state=st.sampled_from(list(incidents_address.STATES)),
        severity=st.sampled_from(list(incidents_address.SEVERITIES)),
        rule=st.text(string.ascii_lowercase + "_", max_size=20),
        run=TEXTS.map(str.strip),
    ),
    st.none() | st.text(string.ascii_letters + string.digits + "-_", min_size=1),
)
def test_a_filter_is_its_address(chosen: Filter, place: str | None) -> None:
    chosen = replace(chosen, before=place)
    path, _, search = incidents_address.url(chosen).partition("?")
    assert incidents_address.parse(search) == chosen
    assert registry.find(path) == (registry.INCIDENTS, {})


@pytest.mark.parametrize("search", [None, "?", "?state=x&severity=y&before="])
def test_unreadable_filters_are_ignored(search: str | None) -> None:
    chosen = incidents_address.parse(search)
    assert chosen == Filter(state=chosen.state)


@pytest.mark.parametrize("path", ["/incidents/31", "/incidents/31/"])
def test_an_incident_has_an_address(path: str) -> None:
    assert registry.find(path) == (registry.INCIDENT, {"incident": "31"})
    assert not registry.is_page("/incidents/x")
