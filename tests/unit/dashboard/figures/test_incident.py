"""The picture of an incident: curves, levels, the first sign, and what lies below over the same steps."""

from typing import Any

import numpy as np

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis.picture import Curves
from gradcanary_dashboard.figures import incident as figures
from support.api_answers import curve, full, member, run, series_answer

STEPS = np.arange(240.0, 441.0)
FALL = np.where(STEPS < 340, 3e-3, 6e-7)
VIEW = View(from_step=240, to_step=440)
METRICS = ("loss", "lr0", "total_norm")


def series(**values: Any) -> dict[str, Any]:
    answer = series_answer(curve(FALL, FALL, FALL), STEPS)
    return {**answer, "series": [{**curve(each, each, each), "layer": int(name[1:])} for name, each in values.items()]}


def logged(*names: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a run with metrics, and the answer about them."""
    one = np.ones(len(STEPS))
    answer = series_answer(curve(one, one, one), STEPS)
    found = [{**curve(one, one, one), "name": name, "tags": {}} for name in names]
    return run(metrics=[{"name": name, "tags": {}, "last": 1.0} for name in names]), {**answer, "metrics": found}


def texts(figure: dict[str, Any]) -> list[str]:
    return [each["text"] for each in figure["layout"].get("annotations", ())]


def signs(figure: dict[str, Any]) -> list[float]:
    return [shape["x0"] for shape in figure["layout"]["shapes"] if shape.get("xref") == "x"]


def test_parameters_loss_and_rates_lie_over_one_axis() -> None:
    known, metrics = logged(*METRICS)
    told = Curves(known, series(l0=FALL, l1=FALL / 10), metrics)
    drawn = figures.draw(full(), told, VIEW)
    assert list(drawn) == ["curves", "loss", "rates"]
    ranges = [figure["layout"]["xaxis"]["range"] for figure in drawn.values()]
    assert ranges == [[239.5, 440.5]] * 3
    assert [signs(figure) for figure in drawn.values()] == [[340]] * 3
    hidden = [figure["layout"]["xaxis"].get("showticklabels", True) for figure in drawn.values()]
    assert hidden == [False, False, True], "only the last one has the labels of the axis"
    assert {"first sign 340", "baseline 0.0031", "threshold 1e-4"} <= set(texts(drawn["curves"]))
    assert figures.title(full(), told) == "Gradient absmax of 2 parameters"


def test_of_many_parameters_five_are_drawn_and_numbered() -> None:
    values = {f"l{number}": FALL * (number + 1) for number in range(5)}
    incident = full(layers=[member(number) for number in range(18)])
    told = Curves(run(), series(**values), None)
    drawn = figures.draw(incident, told, VIEW)
    assert [trace["name"] for trace in drawn["curves"]["data"] if "name" in trace] == ["1", "2", "3", "4", "5"]
    assert figures.title(incident, told) == "Gradient absmax of the 5 worst of 18 parameters"


def test_a_fall_of_other_rules_has_no_threshold() -> None:
    told = Curves(run(), series(l0=FALL, l1=FALL), None)
    written = texts(figures.draw(full(rule="vanished"), told, VIEW)["curves"])
    assert "baseline 0.0031" in written
    assert not any("threshold" in text for text in written)
    alike = [member(number, baseline=None, siblings=1.9e-4) for number in range(2)]
    assert "similar parameters 1.9e-4" in texts(figures.draw(full(layers=alike), told, VIEW)["curves"])


def test_no_level_is_a_count_of_steps_or_zero() -> None:
    told = Curves(run(), series(l0=FALL, l1=FALL), None)
    for changes in ({"baseline": 13.0, "siblings": 2.0, "evidence": "sporadic"}, {"baseline": 0.0}):
        incident = full(rule="vanished", layers=[member(number, **changes) for number in range(2)])
        written = " ".join(texts(figures.draw(incident, told, VIEW)["curves"]))
        assert "baseline" not in written
        assert "similar" not in written


def test_without_parameters_the_total_norm_is_drawn() -> None:
    crash = full(rule="crash", layers=[member(0, layer=None)])
    known, metrics = logged(*METRICS)
    drawn = figures.draw(crash, Curves(known, None, metrics), VIEW)
    assert list(drawn) == ["curves", "loss", "rates"]
    assert {"<b>Total norm</b>", "first sign 340"} <= set(texts(drawn["curves"]))
    assert figures.title(crash, Curves(known, None, metrics)) == "Around the first sign"
    assert figures.draw(crash, Curves(run(), None, None), VIEW) == {}
    known, metrics = logged("loss")
    alone = figures.draw(crash, Curves(known, None, metrics), VIEW)
    assert list(alone) == ["loss"]
    assert "showticklabels" not in alone["loss"]["layout"]["xaxis"]


def test_metrics_are_asked_for_by_name_without_tags() -> None:
    known = [{"name": name, "tags": {}} for name in ("acc", "loss", "lr0", "lr1", "total_norm")]
    known += [{"name": "loss", "tags": {"split": "train"}}, {"name": "lr2", "tags": {"a": "b"}}]
    assert figures.names(known) == ["loss", "total_norm", "lr0", "lr1"]
