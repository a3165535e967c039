"""The heatmap figure, from the API's cells."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis.arrays import (
    NO_DATA,
    NO_GRADIENT,
    NONFINITE,
    NOT_TRAINABLE,
    ZERO,
    decode,
    encode,
    read,
)
from gradcanary_dashboard.analysis.clock import Clock
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.launches import Hole
from gradcanary_dashboard.analysis.stats import STATS
from gradcanary_dashboard.components import figure_controls
from gradcanary_dashboard.figures import axes, heatmap, palette
from support.api_answers import axis, column, heatmap_answer, layer

CELLS = arrays.arrays(
    np.int16, st.tuples(st.integers(1, 6), st.integers(1, 8)), elements=st.integers(-32768, 32767).map(int)
)


ABSMAX = STATS["absmax"]


def figure_of(
    answer: dict[str, Any],
    selected: int | None = None,
    holes: Sequence[Hole] = (),
    layers: Sequence[dict[str, Any]] = (),
    **chosen: Any,
) -> axes.Figure:
    span = axes.Span.of("run", View(), answer)
    return heatmap.figure(answer, span, selected, Events(answer["marks"], holes=holes), layers, **chosen)


def colour_at(scale: palette.Scale, code: int) -> str:
    """The colour that Plotly gives to a code that sits on a stop."""
    place = (code - scale.first) / (scale.last - scale.first)
    below = [colour for stop, colour in scale.colours() if float(stop) <= place + 1e-12]
    return str(below[-1])


@given(CELLS)
def test_no_value_looks_like_a_cell_without_one(cells: np.ndarray) -> None:
    scale, codes = heatmap.coded(cells, ABSMAX, 1e-4)
    for sentinel, kind in heatmap.KINDS.items():
        assert ((codes == scale.special[kind][0]) == (cells == sentinel)).all()
    values = ~np.isin(cells, list(heatmap.KINDS))
    assert (codes[values] == np.clip(cells[values], -30_000, 30_000)).all()


@given(CELLS, st.sampled_from(list(STATS)), st.floats(1e-8, 1e2))
def test_the_scale_rises_from_no_data_to_non_finite(cells: np.ndarray, stat: str, enter: float) -> None:
    scale, _ = heatmap.coded(cells, STATS[stat], enter)
    stops = [float(stop) for stop, _ in scale.colours()]
    assert stops[0] == 0
    assert stops[-1] == 1
    assert stops == sorted(stops)


def test_white_is_the_threshold_and_nothing_else() -> None:
    scale, _ = heatmap.coded(np.array([[-6200, -2000]], np.int16), ABSMAX, 1e-4)
    assert colour_at(scale, -4000) == palette.WHITE
    assert colour_at(scale, scale.special["zero"][0]) == palette.BLACK
    assert colour_at(scale, scale.first) == palette.NO_DATA
    assert colour_at(scale, scale.last) == palette.MAGENTA
    assert [colour for _, colour in scale.colours()].count(palette.WHITE) == 1
    assert scale.told == (-8000, -4000, 0), "where the colours end, also where values go on"
    assert heatmap.coded(np.array([[-9500, 2500]], np.int16), ABSMAX, 1e-4)[0].told == scale.told


def test_two_runs_have_the_same_colours() -> None:
    high, low = heatmap_answer(rows=2, columns=3), heatmap_answer(rows=1, columns=2)
    low |= {"stat": "norm", "cells": column([[-9000, NO_DATA]], "int16")}
    high |= {"stat": "norm", "run": "other"}
    own, other = figure_of(high, scaled_with=low), figure_of(low, scaled_with=high)
    (one,), (two,) = own["data"], other["data"]
    assert all(one[key] == two[key] for key in ("zmin", "zmax", "colorscale"))
    assert own["layout"]["meta"]["scale"] == other["layout"]["meta"]["scale"]
    assert figure_of(high)["data"][0]["zmin"] != one["zmin"]
    assert own["layout"]["meta"]["run"] == "other"


def test_beside_a_run_another_one_has_none_of_its_times_and_pauses() -> None:
    answer = heatmap_answer(rows=1, columns=4)
    clock = Clock.of({**answer, "times": column([0.0, 32.0, 9_000.0, 9_032.0], "float64")})
    span = axes.Span.of("run", View(), answer).timed(clock)
    own, other = (
        heatmap.figure(answer, span, None, Events(answer["marks"]), has_clock=has_clock) for has_clock in (True, False)
    )
    assert (own["layout"]["meta"]["firsts"][2], "clock" in own["layout"]["meta"]) == (None, True), "a pause"
    assert "clock" not in other["layout"]["meta"]
    specials = [drawn["layout"]["meta"]["special"][str(drawn_cells(drawn)[1][0][2])] for drawn in (own, other)]
    assert specials == [heatmap.WORDS["no_data"], heatmap.WORDS["unsampled"]]


def drawn_cells(drawn: axes.Figure) -> tuple[list[float], np.ndarray]:
    trace = drawn["data"][0]
    return read(trace["x"]).tolist(), read(trace["z"])


def test_columns_are_as_wide_as_their_buckets_and_steps_between_them_are_not_sampled() -> None:
    answer = heatmap_answer(rows=1, columns=4)
    answer["bucket_steps"], answer["steps"] = 2, column([6.0, 8, 100, 200])
    answer["spans"] = [{"step": 6, "bucket_steps": 2, "every": 1}, {"step": 100, "bucket_steps": 100, "every": 100}]
    drawn = figure_of(answer)
    meta, (edges, cells) = drawn["layout"]["meta"], drawn_cells(drawn)
    assert edges == [5.5, 7.5, 9.5, 99.5, 199.5, 299.5]
    assert meta["firsts"] == [6, 8, None, 100, 200]
    assert meta["lasts"] == [7, 9, None, 100, 200], "the last two have one sample each"
    assert meta["special"][str(cells[0, 2])].startswith("no value")
    assert drawn["layout"]["xaxis"]["range"] == [5.5, 299.5]


def test_each_kind_of_cell_without_a_value_looks_different_and_says_what_it_is() -> None:
    answer = heatmap_answer(rows=1, columns=7)
    kinds = [NO_DATA, NO_DATA, NO_GRADIENT, NOT_TRAINABLE, ZERO, NONFINITE, -2000]
    answer["cells"], answer["times"] = column([kinds], "int16"), column([np.nan, *range(6)], "float64")
    drawn = figure_of(answer)
    special, codes = drawn["layout"]["meta"]["special"], drawn_cells(drawn)[1][0]
    words = [special.get(str(code), "").partition(":")[0] for code in codes]
    assert words == ["no data", "no value", "no gradient", "frozen", "exact 0", "not finite", ""]
    assert len(set(codes.tolist())) == len(kinds)


@pytest.mark.parametrize("kind", [NO_GRADIENT, NOT_TRAINABLE])
@pytest.mark.parametrize("columns", [3, 600])
def test_what_is_not_trained_is_striped_in_columns_of_any_width(kind: int, columns: int) -> None:
    answer = heatmap_answer(rows=2, columns=columns)
    answer["cells"] = column(np.full((2, columns), kind), "int16")
    meta, codes = figure_of(answer)["layout"]["meta"], drawn_cells(figure_of(answer))[1]
    both = np.unique(codes)
    assert len(both) == 2
    assert len({meta["special"][str(code)] for code in both}) == 1
    changes = (np.diff(codes[0]) != 0).sum()
    assert changes == 2 if columns == 3 else abs(np.log2(changes / heatmap.STRIPES)) < 0.6
    more = {**answer, **axis(np.arange(columns + 1) * 32.0, 32), "times": column(np.zeros(columns + 1))}
    more["cells"] = column(np.full((2, columns + 1), kind), "int16")
    assert (drawn_cells(figure_of(more))[1][:, :columns] == codes).all(), "of a run that grows new columns travel alone"
    assert (codes[0] == codes[1]).all()
    flat = heatmap_answer(rows=60, columns=columns)
    flat["cells"] = column(np.full((60, columns), kind), "int16")
    codes = drawn_cells(figure_of(flat))[1]
    assert (codes[1:] != codes[:-1]).all(axis=1).sum() >= 29


def test_each_row_of_the_worst_first_has_the_part_of_its_name_that_differs() -> None:
    answer = heatmap_answer(rows=3, columns=2)
    parts = ["h.2.attn.q.lora_A", "h.2.attn.q.lora_B", "h.10.attn.q.lora_A"]
    names = [f"base_model.{part}.default.weight" for part in parts]
    for row, name in zip(answer["rows"], names, strict=True):
        row["name"] = name
    listed = [layer(number, name=name) for number, name in enumerate(names)]
    drawn = figure_of(answer, layers=listed, names_rows=True)["layout"]
    assert drawn["yaxis"]["ticktext"] == parts
    assert drawn["yaxis"]["tickvals"] == [0, 1, 2]
    assert drawn["margin"]["l"] > axes.MARGIN["l"]
    assert drawn["meta"]["names"][2] == "base_model.h.10.attn.q.lora_A.default.weight"


def test_of_too_many_rows_those_that_have_room_are_named_the_worst_above_all() -> None:
    drawn = figure_of(heatmap_answer(rows=400, columns=2), names_rows=True)["layout"]
    row_px = (drawn["height"] - drawn["margin"]["t"] - drawn["margin"]["b"]) / 400
    places = drawn["yaxis"]["tickvals"]
    assert places[0] == 0
    assert min(after - before for before, after in pairwise(places)) * row_px >= heatmap.NAMED_ROW_PX
    assert len(places) > 50


def test_the_baseline_of_a_row_is_that_of_the_layer_it_leads_to() -> None:
    layers = [layer(0, baseline=1e-3), layer(1)]
    answer = heatmap_answer(rows=3, columns=2)
    assert figure_of(answer, layers=layers)["layout"]["meta"]["baselines"] == [1e-3, None, None]
    assert figure_of({**answer, "stat": "norm"}, layers=layers)["layout"]["meta"]["baselines"] == [None] * 3


def test_the_transport_is_int16() -> None:
    drawn = figure_of(heatmap_answer(rows=3, columns=5))
    z = drawn["data"][0]["z"]
    assert z["dtype"] == "i2"
    assert z["shape"] == "3, 5"
    assert drawn["data"][0]["colorscale"][0][1] == palette.NO_DATA


def test_hostile_block_names_are_text() -> None:
    drawn = figure_of(heatmap_answer(rows=1, columns=2, block="<a href=x>&b"))
    assert drawn["layout"]["yaxis"]["ticktext"] == ["&lt;a href=x&gt;&amp;b"]
    json.dumps(drawn)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=150))
def test_no_label_of_a_block_lies_on_another(sizes: list[int]) -> None:
    answer = heatmap_answer(rows=sum(sizes), columns=2)
    blocks = [f"h.{block}" for block, size in enumerate(sizes) for _ in range(size)]
    for row, block in zip(answer["rows"], blocks, strict=True):
        row["block"] = block
    layout = figure_of(answer)["layout"]
    places = layout["yaxis"]["tickvals"]
    row_px = (layout["height"] - layout["margin"]["t"] - layout["margin"]["b"]) / len(blocks)
    assert places == sorted(places)
    assert all((below - above) * row_px >= 14 for above, below in pairwise(places))
    assert layout["yaxis"]["ticktext"] == [blocks[int(place)] for place in places]


def test_largest_of_close_blocks_are_labelled() -> None:
    answer = heatmap_answer(rows=76, columns=2)
    blocks = ["wte", "wpe", *(f"h.{row // 6}" for row in range(72)), "ln_f", "lm_head"]
    for row, block in zip(answer["rows"], blocks, strict=True):
        row["block"] = block
    labels = figure_of(answer)["layout"]["yaxis"]["ticktext"]
    assert labels == ["wte", *(f"h.{block}" for block in range(12)), "ln_f"]


def test_the_chosen_row_is_marked_beside_the_heatmap() -> None:
    drawn = figure_of(heatmap_answer(rows=3, columns=2), selected=2)
    assert [note["y"] for note in drawn["layout"]["annotations"] if note["text"] == "◀"] == [2]
    assert not figure_of(heatmap_answer(rows=3, columns=2), selected=9)["layout"]["annotations"]


def test_incident_marks_out_of_sight_are_left_out() -> None:
    answer = heatmap_answer(rows=1, columns=4)
    answer["marks"] = [
        {"step": 40, "incident": 7, "kind": "fired"},
        {"step": 90, "incident": 7, "kind": "resolved"},
        {"step": 4000, "incident": 8, "kind": "fired"},
    ]
    layout = figure_of(answer)["layout"]
    assert [shape["x0"] for shape in layout["shapes"] if shape["type"] == "line"] == [40, 90]
    assert [note["text"] for note in layout["annotations"]] == ["#7"]


@pytest.mark.parametrize(("rows", "columns"), [(0, 4), (3, 0)])
def test_a_run_without_measurements_says_so(rows: int, columns: int) -> None:
    drawn = figure_of(heatmap_answer(rows=rows, columns=columns))
    assert drawn["data"] == []
    assert "Gradient absmax: no value" in drawn["layout"]["annotations"][0]["text"]


DTYPES = st.sampled_from([np.float64, np.float32, np.int32, np.int16, np.uint8])
SIDES = st.tuples(st.integers(0, 4), st.integers(0, 4))


@given(arrays.arrays(DTYPES, SIDES, elements=st.integers(0, 99)))
def test_columns_survive_both_ways(values: np.ndarray) -> None:
    assert (decode(column(values)) == values).all()
    assert encode(values)["shape"] == ", ".join(map(str, values.shape))
    assert encode(values)["bdata"] == column(values)["data"]


def test_a_row_of_several_layers_leads_to_the_worst_of_them() -> None:
    """Its cells show the least of all: whoever clicks a red one must not see a healthy curve."""
    answer = heatmap_answer(rows=2, columns=2)
    answer["rows"][1] = {"layers": [1, 2, 3], "name": "blocks.1 … blocks.3 (3 parameters)", "block": "blocks.0"}
    listed = [layer(0), layer(1), layer(2, rules={"collapse": "firing"}), layer(3, absmax=1e-6)]
    meta = figure_of(answer, selected=2, layers=listed)["layout"]["meta"]
    assert meta["layers"] == ["blocks.0.0", "blocks.2.lora_A"]
    assert meta["names"][1] == "blocks.2.lora_A and 2 other parameters"
    assert meta["numbers"] == [[0], [2, 1, 3]]
    assert meta["chosen"] == 1


def test_a_row_of_layers_that_came_after_the_table_leads_to_its_first() -> None:
    answer = heatmap_answer(rows=2, columns=2)
    answer["rows"][1] = {"layers": [1, 2], "name": "blocks.1 … blocks.2 (2 parameters)", "block": "blocks.0"}
    meta = figure_of(answer, layers=[layer(0)])["layout"]["meta"]
    assert meta["layers"] == ["blocks.0.0", "1"]
    assert meta["names"][1].endswith("(2 parameters)")


def test_without_a_threshold_darker_is_more_and_a_good_zero_is_white() -> None:
    cells = np.array([[-3000, -500, ZERO]], np.int16)
    for stat, zero in (("norm", palette.BLACK), ("zero_fraction", palette.WHITE)):
        scale, _ = heatmap.coded(cells, STATS[stat], 1e-4)
        assert colour_at(scale, scale.special["zero"][0]) == zero
        assert colour_at(scale, -3000) == palette.ABOVE[1][1]
        assert colour_at(scale, -500) == palette.ABOVE[-1][1]


def test_a_few_tiny_values_leave_the_others_their_colours() -> None:
    scale, codes = heatmap.coded(np.array([[-30_000, -3000, -1000]], np.int16), STATS["norm"], 1e-4)
    assert scale.told == (-9000, -1000)
    assert codes.tolist() == [[-30_000, -3000, -1000]], "the pointer reads them as they are"
    assert colour_at(scale, -30_000) == palette.ABOVE[1][1]
    answer = {**heatmap_answer(rows=1, columns=3), "stat": "norm"}
    for cells, low in (([-30_000, -3000, -1000], "≤ 1e-9"), ([-9000, -3000, -1000], "1e-9")):
        answer["cells"] = column(np.array([cells]), "int16")
        _, scale = figure_controls.legend(figure_of(answer))
        assert scale.children[1].children == low


def test_a_hole_is_drawn_over_its_steps_and_told_to_the_pointer() -> None:
    drawn = figure_of(heatmap_answer(rows=2, columns=4), holes=[Hole(40, 44, ("never received",))])["layout"]
    (band,) = [shape for shape in drawn["shapes"] if shape["type"] == "path"]
    assert band["path"] == "M39.5,0 L39.5,1 L44.5,1 L44.5,0 Z"
    assert drawn["meta"]["events"] == [{"from": 40, "to": 44, "text": "Steps 40 to 44: never received"}]


def test_a_lone_step_is_as_wide_as_it_is() -> None:
    drawn = figure_of({**heatmap_answer(rows=2, columns=1), "bucket_steps": 1})
    assert read(drawn["data"][0]["x"]).tolist() == [-0.5, 0.5]
