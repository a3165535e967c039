"""The metrics of a run: which have a figure, which lines it has, and what a legend says of them."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.address.run import View, parse, search
from gradcanary_dashboard.analysis.arrays import read
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.figures import axes
from gradcanary_dashboard.figures import metrics as metric_figures
from support.api_answers import axis, column, curve

STEPS = np.arange(20.0)
SPAN = axes.Span.of("run", View(), axis(STEPS))
NAN = float("nan")


def metric(name: str, last: float | None = 1.0, **tags: str) -> dict[str, Any]:
    return {"name": name, "tags": tags, "last": last}


def answer(*metrics: dict[str, Any], values: list[float] | None = None) -> dict[str, Any]:
    held = values or [1.0] * len(STEPS)
    drawn = [{**curve(held, held, held), "name": each["name"], "tags": each["tags"]} for each in metrics]
    times = column(STEPS, "float64")
    return {"bucket_steps": 1, "steps": column(STEPS, "float64"), "times": times, "metrics": drawn}


def drawn(metrics: list[dict[str, Any]], view: View | None = None, values: list[float] | None = None) -> dict[str, Any]:
    (panel,) = metric_figures.of(metrics)
    return metric_figures.draw(panel, answer(*metrics, values=values), SPAN, Events(), view or View())


def beside(metrics: list[dict[str, Any]], own: list[dict[str, Any]], values: list[float]) -> dict[str, Any]:
    """Draw a panel of a run and over it that of another one."""
    (panel,), (other,) = metric_figures.of(own), metric_figures.of(metrics)
    over = metric_figures.OtherPanel("other", other, answer(*metrics, values=values), Events())
    return metric_figures.draw(panel, answer(*own), SPAN, Events(), View(), over)


def lines(panel: dict[str, Any]) -> list[dict[str, Any]]:
    return [trace for trace in panel["figure"]["data"] if "meta" in trace]


def test_only_what_was_logged_has_a_figure_in_a_steady_order() -> None:
    logged = [metric("zeta"), metric("agent_share"), metric("lr1"), metric("alpha"), metric("loss"), metric("lr0")]
    found = metric_figures.of([*logged, metric("lr0", split="val")])
    assert [panel.kind.title for panel in found] == ["Loss", "Learning rate", "Agent", "alpha", "lr0", "zeta"]
    assert len({panel.key for panel in found}) == len(found)
    assert found[1].asked == ["lr0", "lr1"]
    assert metric_figures.listed(found) == (found, "")


def test_metrics_over_the_limit_are_counted() -> None:
    found = metric_figures.of([metric(f"m{number}") for number in range(130)])
    listed, more = metric_figures.listed(found)
    assert len(listed) == metric_figures.MOST_PANELS
    assert more == "30 more metrics can be found by a part of the name."
    assert metric_figures.tally(found, None) == "130 metrics, of which 100 are drawn"
    assert metric_figures.tally(found, "m") == "130 of 130 metrics, of which 100 are drawn"


def test_metrics_are_found_by_a_part_of_their_name_or_their_title() -> None:
    found = metric_figures.of(
        [metric(name) for name in ("peak_memory_bytes", "lr0", "lr1", "CLIP_score", "loss", "clip_a")]
    )

    def titles(sought: str | None) -> list[str]:
        return [each.kind.title for each in metric_figures.listed(found, sought)[0]]

    assert titles("clip_") == ["CLIP_score", "clip_a"]
    assert titles("LR1") == titles("learning") == ["Learning rate"]
    assert titles(" bytes ") == titles("Peak") == ["Peak memory"]
    assert len(titles(None)) == len(titles(" ")) == 5
    assert titles("(") == []
    _, none = metric_figures.listed(found, "(")
    assert none == "No metric has \N{LEFT DOUBLE QUOTATION MARK}(\N{RIGHT DOUBLE QUOTATION MARK} in its name."
    assert metric_figures.tally(found, "clip") == "2 of 5 metrics"


def test_each_set_of_tags_is_a_line_of_its_own() -> None:
    tags = [{"category": category, "provider": provider} for category in ("bottles", "cans") for provider in "ab"]
    found = drawn([metric("clip_score", number / 10, **each) for number, each in enumerate(tags)])
    assert found["legend"][0]["text"] == "category=bottles, provider=a"
    assert [entry["last"] for entry in found["legend"]] == ["0", "0.1", "0.2", "0.3"]
    assert [line["meta"] for line in lines(found)] == [entry["id"] for entry in found["legend"]]
    pens = {(line["line"]["color"], line["line"]["dash"]) for line in lines(found)}
    assert len(pens) == 4


def test_metric_without_tags_has_no_legend() -> None:
    found = drawn([metric("step_time_s", 0.163)])
    assert found["legend"] == []
    assert found["last"] == "last 163 ms"
    assert lines(found)[0]["customdata"][0] == ["0", "1 s"]


def test_chosen_metrics_are_drawn_and_in_the_address() -> None:
    hosts = [metric("load", host=f"n{number:02}") for number in range(40)]
    (panel,) = metric_figures.of(hosts)
    assert [each.text for each in panel.chosen(View())] == [f"host=n{number:02}" for number in range(12)]
    chosen = [panel.series[place].ident for place in (3, 30)]
    view = parse(search(View(lines=tuple(chosen))))
    found = metric_figures.draw(panel, answer(*hosts), SPAN, Events(), view)
    assert [line["meta"] for line in lines(found)] == chosen
    assert [entry["id"] for entry in found["legend"] if entry["drawn"]] == chosen
    everything = View(lines=tuple(each.ident for each in panel.series))
    crowded = lines(metric_figures.draw(panel, answer(*hosts), SPAN, Events(), everything))
    assert (
        len(crowded)
        == metric_figures.MOST_LINES
        == len({(line["line"]["color"], line["line"]["dash"]) for line in crowded})
    )
    assert panel.chosen(View(lines=("0123456789",))) == panel.chosen(View())


@given(st.text(max_size=40), st.dictionaries(st.text(min_size=1, max_size=8), st.text(max_size=8), max_size=3))
def test_any_name_and_tags_are_drawn_as_text(name: str, tags: dict[str, str]) -> None:
    metrics = [{"name": name, "tags": each, "last": 1.0} for each in ({}, {**tags, "one": "more"})]
    panel = next(panel for panel in metric_figures.of(metrics) if name in panel.names)
    found = metric_figures.draw(panel, answer(*metrics), SPAN, Events(), View())
    for line in lines(found):
        assert "<img" not in line.get("name", "")
        assert not any(tag in line["hovertemplate"] for tag in tags if len(tag) > 6)
    json.dumps(found)


def test_tags_are_never_read_as_a_template_or_as_html() -> None:
    found = drawn([metric("m", tag="<b>%{x}</b>"), metric("m")])
    line = lines(found)[1]
    assert line["name"] == "tag=&lt;b&gt;%{x}&lt;/b&gt;"
    assert line["hovertemplate"].startswith("%{fullData.name}<br>")


def test_sparse_metrics_are_one_line_and_dense_ones_break() -> None:
    """An evaluation of now and then, and a loss of which steps are missing."""
    values = [float(step) if step in (0, 3, 6, 19) else NAN for step in range(20)]
    sparse = drawn([metric("eval")], values=values)
    assert [x for x in read(lines(sparse)[0]["x"]) if x == x] == [0, 3, 6, 19]
    assert lines(sparse)[0]["mode"] == "lines+markers"
    assert np.isnan(read(lines(sparse)[0]["x"])).sum() == 1
    broken = [1.0] * 8 + [NAN] * 4 + [1.0] * 8
    assert np.isnan(read(lines(drawn([metric("loss")], values=broken))[0]["x"])).sum() == 2


def test_a_metric_without_a_value_in_sight_says_so() -> None:
    found = drawn([metric("peak_memory_bytes", 2.35e10)], values=[NAN] * 20)
    assert "Peak memory: nothing was" in found["figure"]["layout"]["annotations"][0]["text"]
    assert found["last"] == "last 21.9 GiB"


def test_nonfinite_metrics_are_crosses() -> None:
    told = answer(metric("loss"))
    told["metrics"][0]["nonfinite"] = column([0] * 5 + [2] + [0] * 14, "int32")
    (panel,) = metric_figures.of([metric("loss", None)])
    figure = metric_figures.draw(panel, told, SPAN, Events(), View())["figure"]
    cross = next(trace for trace in figure["data"] if trace.get("marker", {}).get("symbol") == "x")
    assert cross["customdata"] == ["5"]


@pytest.mark.parametrize(
    ("name", "value", "drawn_as", "unit", "told"),
    [
        ("peak_memory_bytes", 3 * 2.0**30, 3.0, " GiB", "3 GiB"),
        ("step_time_s", 0.163, 163.0, " ms", "163 ms"),
        ("step_time_s", 2.04, 2.04, " s", "2.04 s"),
    ],
)
def test_an_axis_and_the_pointer_are_in_the_same_unit(
    name: str, value: float, drawn_as: float, unit: str, told: str
) -> None:
    found = drawn([metric(name, value)], values=[value] * 20)
    line = lines(found)[0]
    assert read(line["y"])[0] == pytest.approx(drawn_as)
    assert line["customdata"][0][1] == told
    assert found["figure"]["layout"]["yaxis"]["ticksuffix"] == unit


@given(st.lists(st.floats(-1e6, 1e6), min_size=20, max_size=20), st.sampled_from(["0.6", "0.9", "0.99"]))
def test_a_moving_average_stands_before_what_was_measured(values: list[float], weight: str) -> None:
    found = drawn([metric("loss")], parse(f"?smooth={weight}"), values)
    [measured] = lines(found)
    [average] = [trace for trace in found["figure"]["data"] if trace.get("hoverinfo") == "skip" and "fill" not in trace]
    assert measured["opacity"] < 1
    held = read(measured["y"])[:20]
    weights = float(weight) ** np.arange(20)
    expected = [np.dot(weights[: at + 1], held[at::-1]) / weights[: at + 1].sum() for at in range(20)]
    np.testing.assert_allclose(read(average["y"])[:20], expected, rtol=1e-9, atol=1e-6)


def test_a_moving_average_begins_anew_behind_a_hole_and_is_off_by_default() -> None:
    values = [1.0] * 8 + [NAN] * 4 + [5.0] * 8
    found = drawn([metric("loss")], parse("?smooth=0.9"), values)
    average = read(found["figure"]["data"][-1]["y"])
    np.testing.assert_allclose(average[~np.isnan(average)], [1.0] * 8 + [5.0] * 8)
    assert "opacity" not in lines(drawn([metric("loss")], None, values))[0]
    assert search(parse("?smooth=0.9")) == "?smooth=0.9"
    assert search(parse("?smooth=2")) == ""


def yaxis(values: list[float], query: str = "") -> tuple[str, str, list[str]]:
    """Return the type of a loss's axis, what is told of it, and the words on it."""
    found = drawn([metric("loss")], parse(query), values)
    layout = found["figure"]["layout"]
    return (
        layout["yaxis"].get("type", "linear"),
        found["scale"],
        [each["text"] for each in layout.get("annotations", ())],
    )


@given(st.lists(st.floats(1e-12, 1e12), min_size=20, max_size=20))
def test_values_that_span_decades_are_on_a_log_axis_unless_somebody_chose(values: list[float]) -> None:
    is_wide = max(values) > 10 * min(values)
    assert yaxis(values)[:2] == (("log", "log axis") if is_wide else ("linear", ""))
    assert yaxis(values, "?y=log")[:2] == ("log", "log axis")
    assert yaxis(values, "?y=linear")[:2] == ("linear", "")
    low, high = drawn([metric("loss")], parse("?y=log"), values)["figure"]["layout"]["yaxis"]["range"]
    assert 10**low <= min(values)
    assert max(values) <= 10**high


@pytest.mark.parametrize(("least", "words"), [(0.0, "exact 0"), (-3.0, "0 or less")])
def test_values_without_a_logarithm_stay_visible(least: float, words: str) -> None:
    values = [least, *[10.0 ** (place - 9) for place in range(19)]]
    assert yaxis(values) == ("linear", "", [])
    assert yaxis(values, "?y=log") == ("log", "log axis, what is not above 0 on its floor", [words])
    found = drawn([metric("loss")], parse("?y=log&smooth=0.9"), values)
    [line] = lines(found)
    floor = 10 ** found["figure"]["layout"]["yaxis"]["range"][0]
    assert read(line["y"])[0] == pytest.approx(floor)
    assert line["customdata"][0][1] == f"{least:g}"


def test_log_axis_is_refused_without_positive_values() -> None:
    assert yaxis([-1.0] * 20, "?y=log") == ("linear", "linear: nothing is above 0", [])
    assert search(parse("?y=log")) == "?y=log"
    assert search(parse("?y=auto")) == ""


def test_lines_that_are_all_switched_off_stay_off() -> None:
    hosts = [metric("load", host=f"n{number}") for number in range(3)]
    (panel,) = metric_figures.of(hosts)
    view = parse(f"?lines={panel.none},0123456789")
    found = drawn(hosts, view)
    assert found["none"] == panel.none
    assert lines(found) == []
    assert "switched off" in found["figure"]["layout"]["annotations"][0]["text"]
    assert [entry["drawn"] for entry in found["legend"]] == [False] * 3
    assert len(lines(drawn(hosts, parse(f"?lines={panel.none},{panel.series[1].ident}")))) == 1


@pytest.mark.parametrize("name", ["loss", "lr0", "val/<b>"])
def test_the_same_metric_of_another_run_is_a_dashed_line_with_a_legend(name: str) -> None:
    panel = beside([metric(name, 2.0)], [metric(name)], [2.0] * len(STEPS))
    own, other = lines(panel)
    assert own["line"].get("dash", "solid") == "solid"
    assert (other["line"]["dash"], other["name"]) == ("dash", "vs")
    assert own["line"]["color"] != other["line"]["color"]
    assert [(each["text"], each["dash"]) for each in panel["legend"]] == [("this run", "solid"), ("other", "dash")]
    assert read(other["y"])[0] == 2.0
    assert panel["last"] == ""


def test_lines_with_tags_stay_without_those_of_another_run() -> None:
    tagged = [metric("score", host="a"), metric("score", host="b")]
    panel = beside([metric("score", 2.0)], tagged, [2.0] * len(STEPS))
    assert [line["line"]["dash"] for line in lines(panel)] == ["solid", "solid"]
    assert len(panel["legend"]) == 2


def test_the_axis_reaches_the_line_of_another_run() -> None:
    panel = beside([metric("loss")], [metric("loss")], [1000.0] * len(STEPS))
    assert panel["figure"]["layout"]["yaxis"]["type"] == "log"
    assert panel["figure"]["layout"]["yaxis"]["range"][1] > 3
