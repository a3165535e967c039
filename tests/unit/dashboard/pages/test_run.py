"""The page of a run without layers, and the pages of something unknown."""

import json
from typing import Any, get_args

import pytest

from gradcanary.cli import incidents as terminal_incidents
from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.collector.run import RunData
from gradcanary_dashboard.pages import layer as layer_page
from gradcanary_dashboard.pages import run as run_page
from gradcanary_dashboard.text import numbers
from gradcanary_server.rules.types import Resolution
from support.api_answers import full, heatmap_answer, layer, run, text_of


def test_resolutions_have_the_same_words_on_pages_and_at_a_terminal() -> None:
    known = {*get_args(Resolution), "run_finished", "run_deleted"}
    assert numbers.RESOLUTIONS.keys() == known
    assert terminal_incidents.RESOLUTIONS == numbers.RESOLUTIONS


@pytest.mark.parametrize(("state", "words"), [("finished", "No parameter."), ("live", "No parameter yet.")])
def test_page_waits_for_layers_only_while_the_run_lives(state: str, words: str) -> None:
    empty = heatmap_answer(rows=0, columns=0)
    told = run(state=state, step=None, layers=0, framework=None)
    contents = run_page.fill(RunData(told, [], None, empty, None, None, None, None, [], "", clips=False), View())
    assert contents["trend"]["layout"]["annotations"][0]["text"] == words
    assert words in text_of(contents["accumulators"])


def filled(listed: list[dict[str, Any]], facts: list[dict[str, Any]]) -> dict[str, Any]:
    empty, told = heatmap_answer(rows=0, columns=0), run(facts=facts, layers=len(listed), framework=None)
    return run_page.fill(RunData(told, listed, None, empty, None, None, None, None, [], "", clips=False), View())


def test_metrics_of_the_incident_of_the_address_come_first() -> None:
    empty = heatmap_answer(rows=0, columns=0)
    series = [{"name": name, "tags": {}, "last": 1.0} for name in ("loss", "clip_score")]
    told = run(layers=0, framework=None, metrics=series)
    about = full(rule="metric", layers=[{**full()["layers"][0], "layer": None, "metric": {"name": "clip_score"}}])
    data = RunData(told, [], None, empty, None, None, None, None, [about], "", clips=False)
    for view, first, is_first in ((View(), "Loss", False), (View(incident=about["id"]), "clip_score", True)):
        contents = run_page.fill(data, view)
        assert json.loads(contents["panels"])[0][2][2][2] == first
        assert json.loads(contents["metrics-state"])["first"] is is_first


def frozen(text: str, *names: str) -> list[dict[str, Any]]:
    return [{"code": "frozen_parameters", "text": text, "layers": [*names]}]


def test_frozen_parameters_are_on_the_tile_and_listed_below_the_layers() -> None:
    facts = frozen("2 of 3 parameters are frozen: requires_grad is False.", "body.weight", "body.bias")
    contents = filled([layer(0)], facts)
    assert contents["tiles"].count("2 of 3 parameters are frozen") == 1
    assert contents["layer-rows-frozen"].startswith('[["details",{},["summary",{},"2 of 3 parameters are frozen"]')
    assert '"body.",["wbr",{}],"weight"' in contents["layer-rows-frozen"]
    assert '"body.",["wbr",{}],"bias"' in contents["layer-rows-frozen"]
    assert "frozen" not in text_of(contents["accumulators"])


@pytest.mark.parametrize(
    "facts", [[], frozen("From step 9, 0 of 3 parameters are frozen."), frozen("1 of 2: x", layer(0)["name"])]
)
def test_nothing_is_said_of_frozen_parameters_where_none_is_left(facts: list[dict[str, Any]]) -> None:
    contents = filled([layer(0)], facts)
    assert contents["layer-rows-frozen"] == "[]"
    assert "parameters are frozen" not in contents["tiles"]


def test_layers_without_a_gradient_stay_in_the_table_with_their_state() -> None:
    states = {"not_trainable": "not trainable", "no_gradient": "no gradient", None: "not measured"}
    listed = [layer(number, state=state, absmax=None, norm=None) for number, state in enumerate(states)]
    contents = filled(listed, [])
    for each, words in zip(listed, states.values(), strict=True):
        assert each["name"] in contents["layer-rows"]
        assert words in contents["layer-rows"]
    assert "1 parameter not trainable" in contents["tiles"]


@pytest.mark.parametrize("missing", [run_page.unknown("run"), layer_page.unknown("run", "layer")])
def test_a_page_of_something_unknown_has_a_heading(missing: object) -> None:
    assert text_of(missing).count('"type": "H1"') == 1
