"""The part of a page's state that lives in its URL."""

import string
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.address.run import CHOICES, MAX_SOUGHT, View, find_wrong_steps, layer_url, parse, run_url
from gradcanary_dashboard.pages import registry

RUNS = st.text(string.ascii_letters + string.digits + "._-", min_size=1, max_size=100).filter(lambda t: t[0] != ".")
STEPS = st.none() | st.integers(0, 2**53 - 1)


TEXTS = st.none() | st.text(min_size=1, max_size=60).filter(lambda t: t.isprintable())
CHOSEN = st.fixed_dictionaries({key: st.sampled_from(allowed) for key, allowed in CHOICES.items()})


@given(RUNS, TEXTS, TEXTS, TEXTS, TEXTS, STEPS, STEPS, STEPS, CHOSEN)
def test_an_address_says_the_same_when_it_is_read_again(
    run: str,
    layer: str | None,
    rows: str | None,
    metrics: str | None,
    vs: str | None,
    first: int | None,
    last: int | None,
    incident: int | None,
    chosen: dict[str, str],
) -> None:
    if first is not None and last is not None:
        first, last = sorted((first, last))
    view = View(layer, first, last, incident, rows, metrics=metrics, vs=vs, **chosen)
    address = urlsplit(run_url(run, view))
    assert parse("?" + address.query) == view
    assert registry.find(address.path) == (registry.RUN, {"run": run})


@given(RUNS, st.text(min_size=1, max_size=60).filter(lambda t: t.isprintable() and t.strip(".") != ""))
def test_a_layer_has_an_address_whatever_it_is_called(run: str, layer: str) -> None:
    address = urlsplit(layer_url(run, layer, 7, View(layer="x", from_step=3, to_step=9, stat="norm")))
    assert registry.find(address.path) == (registry.LAYER, {"run": run, "layer": layer})
    assert parse(address.query) == View(from_step=3, to_step=9)


@pytest.mark.parametrize("layer", [".", "..", "..."])
def test_a_layer_that_is_called_like_a_way_up_has_its_number_for_an_address(layer: str) -> None:
    assert layer_url("run", layer, 7) == "/runs/run/layers/7"


@given(st.text(max_size=80))
def test_any_query_is_parsed_without_an_error(search: str) -> None:
    parse(search)


@pytest.mark.parametrize(
    "search",
    [
        None,
        "",
        "?",
        "?from=-1",
        "?from=1e3",
        "?from=9&to=3",
        "?from=99999999999999999999",
        "?incident=x",
        "?layer=",
        "?stat=x&value=y&order=z",
        f"?metrics={'m' * (MAX_SOUGHT + 1)}",
    ],
)
def test_unreadable_parts_of_the_address_count_as_absent(search: str | None) -> None:
    assert parse(search) == View()


@pytest.mark.parametrize(
    ("search", "wrong"),
    [
        ("", None),
        ("?from=&to=", None),
        ("?from=100&to=950", None),
        ("?to=2000", None),
        ("?from=abc&to=9999999", "from=abc is no step."),
        (f"?to={'9' * 30}", f"to={'9' * 20} is no step."),
        ("?to=9999999", "The run has the steps 0 to 899 so far."),
        ("?from=900", "Step 900 is after step 899."),
        ("?from=900&to=950", "The run has the steps 0 to 899 so far."),
        ("?from=9&to=3", "Step 9 is after step 3."),
    ],
)
def test_steps_that_cannot_be_drawn_are_named(search: str, wrong: str | None) -> None:
    assert find_wrong_steps(search, (0, 899)) == wrong


@pytest.mark.parametrize("path", ["/", "", "/runs", "/runs/", "/other/run"])
def test_other_paths_name_no_run(path: str) -> None:
    page = registry.RUNS if path in ("/", "") else registry.NOWHERE
    assert registry.find(path) == (page, {})
