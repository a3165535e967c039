"""The learning rates of the parameter groups, as a figure."""

from typing import Any

import numpy as np

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.figures import axes, learning_rates
from support.api_answers import axis, curve, series_answer

STEPS = np.arange(6.0)
SPAN = axes.Span.of("run", View(), axis(STEPS))


def answer(**values: list[float]) -> dict[str, Any]:
    metrics = [{**curve(each, each, each), "name": name, "tags": {}} for name, each in values.items()]
    return {**series_answer(curve([1], [1], [1]), STEPS), "metrics": metrics}


def test_groups_with_the_same_rates_share_a_line() -> None:
    falls = [1e-3, 1e-3, 1e-3, 5e-6, 5e-6, 5e-6]
    found = learning_rates.read(answer(lr10=falls, lr0=[1e-3] * 6, lr2=falls), Events())
    assert [each.name for each in found] == ["group 0", "groups 2, 10"]
    drawn = learning_rates.figure(found, SPAN, Events())
    assert [trace["hovertemplate"].split("<br>")[0] for trace in drawn["data"]] == ["group 0", "groups 2, 10"]
    assert drawn["layout"]["yaxis"]["type"] == "log"
    assert (
        len({trace["line"]["color"] for trace in drawn["data"]}) == len(learning_rates.legend(found, [0, 2, 10])) == 2
    )


def test_single_rate_has_no_legend_and_zero_is_drawn() -> None:
    found = learning_rates.read(answer(lr0=[1e-3, 5e-4, 1e-4, 0, 0, 0]), Events())
    drawn = learning_rates.figure(found, SPAN, Events())
    assert learning_rates.legend(found, [0]) == []
    assert [each["text"] for each in drawn["layout"]["annotations"]] == ["exact 0"]


def test_other_metrics_are_no_learning_rates() -> None:
    logged = [{"name": name, "tags": {}} for name in ("loss", "lr", "lr1", "lr_max", "lr03x")]
    assert learning_rates.names([*logged, {"name": "lr0", "tags": {"split": "val"}}]) == ["lr1"]
    drawn = learning_rates.figure(learning_rates.read(answer(loss=[1.0] * 6), Events()), SPAN, Events())
    assert drawn["data"] == []
    assert "No learning" in drawn["layout"]["annotations"][0]["text"]


def test_learning_rates_of_some_groups_are_drawn() -> None:
    many = answer(**{f"lr{group}": [1e-3 * (group + 1)] * 6 for group in range(40)})
    found = learning_rates.read(many, Events())
    assert [each.name for each in found] == [f"group {group}" for group in range(len(learning_rates.COLOURS))]
    assert learning_rates.legend(found, learning_rates.groups(many["metrics"]))[-1] == {"text": "35 more groups"}


def test_those_of_another_run_are_dashed() -> None:
    found = learning_rates.read(answer(lr0=[1e-3] * 6), Events())
    others = learning_rates.read(answer(lr0=[1e-5] * 6, lr1=[1e-4] * 6), Events())
    drawn = learning_rates.figure(found, SPAN, Events(), others=others)
    assert [trace["line"].get("dash") for trace in drawn["data"]] == [None, "dash", "dash"]
    assert drawn["layout"]["yaxis"]["range"][0] < -5
