"""The heatmap, layer x step, as a Plotly figure. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcanary_dashboard.analysis import arrays
from gradcanary_dashboard.analysis import launches as run_launches
from gradcanary_dashboard.analysis.arrays import NO_DATA, NONFINITE, ZERO, decode, encode
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.layers import Layer, worst_first
from gradcanary_dashboard.analysis.stats import STATS, Stat
from gradcanary_dashboard.figures import axes, color_bar, palette
from gradcanary_dashboard.figures import events as event_marks
from gradcanary_dashboard.text import numbers as number_text

HEIGHT = (220, 520)
ROW_PX = 7
FRAMED_ROWS = 80
MAX_COLUMNS = 4096
LABEL_PX = 15
"""The height of a block's label in pixels; labels closer than this would overlap."""

BLOCK_BORDERS = 64
SEPARATOR = "rgba(27,31,36,0.45)"


def figure(
    answer: Mapping[str, Any],
    span: axes.Span,
    selected: int | None,
    events: Events,
    layers: Sequence[Layer] = (),
) -> axes.Figure:
    """Return the heatmap; with ``layout.meta`` the page names the cell under the pointer.

    A row of several layers links to the worst of them by the order of the table of ``layers``.
    """
    rows: Sequence[Mapping[str, Any]] = answer["rows"]
    stat = STATS[answer["stat"]]
    bucket = max(1, int(answer["bucket_steps"]))
    steps, cells = regular(decode(answer["steps"]), decode(answer["cells"]), bucket)
    if (cells == NO_DATA).all():
        return axes.nothing(span, HEIGHT[0], f"{stat.title}: no value in these steps.")
    scale, codes = coded(cells, stat, answer["threshold"]["enter"])
    chosen = next((index for index, row in enumerate(rows) if selected in row["layers"]), None)
    drawn = _layout(rows, span, chosen)
    nobody = run_launches.around(_there(steps, bucket, events), span.first, span.last)
    seen = replace(events, holes=[*events.holes, *nobody])
    marked = event_marks.draw(drawn, seen, span, palette.DARK, palette.NO_DATA)
    value = stat.name if bucket <= events.every else answer["value"]
    placed = _placed(steps, bucket, codes, scale, span)
    drawn["meta"] = {
        **_row_link(rows, layers),
        **_named(steps, bucket, events.every),
        **_worded(scale),
        **_clocked(span, placed),
        "chosen": chosen,
        "value": value,
        "stat": stat.name,
        "events": marked,
        "bar": color_bar.trace(scale, drawn["height"] - axes.MARGIN["t"] - axes.MARGIN["b"]),
    }
    return {"data": [_trace(placed, bucket, scale)], "layout": drawn}


def _there(steps: arrays.Floats, bucket: int, events: Events) -> run_launches.Steps:
    """Return the first and the last step with a column or in a launch."""
    first, last = int(steps[0]), int(steps[-1]) + bucket - 1
    known = run_launches.measured(events.launches) or (first, last)
    return min(first, known[0]), max(last, known[1])


def _layout(rows: Sequence[Mapping[str, Any]], span: axes.Span, chosen: int | None) -> dict[str, Any]:
    """Return the layout, with lines between the blocks and around the chosen row."""
    height = min(HEIGHT[1], max(HEIGHT[0], ROW_PX * len(rows)))
    return {
        **axes.layout(span, height + axes.MARGIN["t"] + axes.MARGIN["b"], _rows_axis(rows, height)),
        "shapes": [*_separators(rows), *_outline(chosen, len(rows))],
        "annotations": _pointer(chosen),
        "hovermode": "closest",
    }


@dataclass(frozen=True)
class Placed:
    """Codes [row, column] and the positions of the columns: their middles, or on a time axis their edges, one more.

    ``columns`` are the buckets of the columns; -1 is a pause of the training.
    """

    x: arrays.Floats
    codes: npt.NDArray[np.int16]
    columns: Sequence[int]


def _placed(
    steps: arrays.Floats, bucket: int, codes: npt.NDArray[np.int16], scale: palette.Scale, span: axes.Span
) -> Placed:
    """Return the cells on the axis; a pause is a column without data, as it would widen its neighbour otherwise."""
    everything = range(len(steps))
    if span.clock is None:
        return Placed(steps + (bucket - 1) / 2, codes, everything)
    left = span.clock.at(steps)
    right = np.minimum(span.clock.at(steps + bucket - 0.5), np.append(left[1:], np.inf))
    apart = np.append(left[1:] - right[:-1] > span.clock.pace * bucket, [False])
    edges = [edge for place in everything for edge in ((left[place], right[place]) if apart[place] else (left[place],))]
    columns = [column for place in everything for column in ((place, -1) if apart[place] else (place,))]
    wide = np.full((len(codes), len(columns)), scale.no_data, np.int16)
    held = np.array(columns) >= 0
    wide[:, held] = codes
    return Placed(np.array([*edges, right[-1]]), wide, columns)


def _clocked(span: axes.Span, placed: Placed) -> dict[str, Any]:
    """Return the data from which the browser finds column and step on a time axis; empty for a step axis."""
    if span.clock is None:
        return {}
    return {"clock": span.clock.knots(), "edges": placed.x.tolist(), "columns": list(placed.columns)}


@dataclass(frozen=True)
class RowLink:
    """A row's title, the name or number of its linked layer, and the numbers of all its layers, that one first."""

    name: str
    layer: str
    numbers: Sequence[int]

    @classmethod
    def of(cls, row: Mapping[str, Any], known: Mapping[int, Layer]) -> RowLink:
        """Return the link of a row: to the worst of its layers, as its cells show the minimum of all."""
        numbers: Sequence[int] = row["layers"]
        if len(numbers) == 1:
            return cls(row["name"], row["name"], numbers)
        ranked = worst_first([known[number] for number in numbers if number in known])
        if not ranked:
            return cls(row["name"], str(numbers[0]), numbers)
        name, worst = str(ranked[0]["name"]), ranked[0]["layer"]
        others = [number for number in numbers if number != worst]
        return cls(f"{name} and {number_text.plural(len(others), 'other parameter')}", name, [worst, *others])


def _row_link(rows: Sequence[Mapping[str, Any]], layers: Sequence[Layer]) -> dict[str, Any]:
    """Return titles and links of the rows."""
    known = {layer["layer"]: layer for layer in layers}
    leads = [RowLink.of(row, known) for row in rows]
    return {
        "names": [lead.name for lead in leads],
        "layers": [lead.layer for lead in leads],
        "numbers": [lead.numbers for lead in leads],
    }


def _named(steps: arrays.Floats, bucket: int, every: int) -> dict[str, Any]:
    """Return the data that describe a cell by its column, and the precision of its value."""
    return {
        "first": float(steps[0]),
        "bucket": bucket,
        "steps": axes.steps_text(steps, bucket, every),
        "middle": float(steps[0]) + (bucket - 1) / 2,
        "width": float(steps[1] - steps[0]) if len(steps) > 1 else float(bucket),
        "digits": 3 if bucket <= every else 2,
    }


def _worded(scale: palette.Scale) -> dict[str, Any]:
    """Return the special codes, the values at both ends of the scale, and those of the colours."""
    ends = [10 ** (scale.low / palette.MILLI), 10 ** (scale.high / palette.MILLI)]
    reached = [10 ** (code / palette.MILLI) for code in scale.told]
    return {"zero": scale.zero, "no_data": scale.no_data, "nonfinite": scale.nonfinite, "ends": ends, "told": reached}


def _trace(placed: Placed, bucket: int, scale: palette.Scale) -> dict[str, Any]:
    # A lone column has no neighbour to take its width from.
    width = {"xtype": "scaled", "x0": float(placed.x[0]), "dx": bucket} if len(placed.x) == 1 else {}
    return {
        "type": "heatmap",
        "z": encode(placed.codes),
        "x": encode(placed.x),
        **width,
        "zmin": scale.no_data,
        "zmax": scale.nonfinite,
        "colorscale": scale.colours(),
        "showscale": False,
        "hoverinfo": "none",
        "zsmooth": False,
    }


def regular(
    steps: arrays.Floats, cells: npt.NDArray[np.int16], bucket_steps: int
) -> tuple[arrays.Floats, npt.NDArray[np.int16]]:
    """Return steps without holes: a missing bucket becomes a column without data.

    Plotly stretches a cell to its neighbour, and would draw a gap as measured.
    """
    if len(steps) < 2:
        return steps, cells
    places = np.round((steps - steps[0]) / bucket_steps).astype(np.int64)
    spacing = int(np.gcd.reduce(np.diff(places)))
    places = places // spacing
    if places[-1] >= MAX_COLUMNS:
        return steps, cells
    filled = np.full((cells.shape[0], int(places[-1]) + 1), NO_DATA, np.int16)
    filled[:, places] = cells
    return steps[0] + np.arange(filled.shape[1], dtype=np.float64) * bucket_steps * spacing, filled


def coded(cells: npt.NDArray[np.int16], stat: Stat, enter: float) -> tuple[palette.Scale, npt.NDArray[np.int16]]:
    """Return the colour scale for these cells and the cells with their sentinels moved beside the values."""
    special = (cells == NO_DATA) | (cells == ZERO) | (cells == NONFINITE)
    values = np.clip(cells[~special], -30_000, 30_000)
    threshold = round(palette.MILLI * float(np.log10(enter)))
    low, high = (int(values.min()), int(values.max())) if values.size else (threshold, threshold)
    if stat.has_threshold:
        scale = palette.Scale.around(low, threshold, high)
    else:
        scale = palette.Scale.rising(low, high, palette.WHITE if stat.zero_is_good else palette.BLACK)
    codes = np.clip(cells, scale.low, scale.high).astype(np.int16)
    for sentinel, code in ((NO_DATA, scale.no_data), (ZERO, scale.zero), (NONFINITE, scale.nonfinite)):
        codes[cells == sentinel] = code
    return scale, codes


def _rows_axis(rows: Sequence[Mapping[str, Any]], height: int) -> dict[str, Any]:
    """Return the y axis: the first row on top, a label in the middle of each block."""
    blocks = [str(row["block"]) for row in rows]
    starts = [index for index, block in enumerate(blocks) if index == 0 or block != blocks[index - 1]]
    labelled = _labelled(list(zip(starts, [*starts[1:], len(rows)], strict=True)), height / max(1, len(rows)))
    return {
        "range": [len(rows) - 0.5, -0.5],
        "tickvals": [_middle(block) for block in labelled],
        "ticktext": [axes.plain(number_text.short_block(blocks[start])) for start, _ in labelled],
        "showgrid": False,
    }


def _labelled(blocks: Sequence[tuple[int, int]], row_px: float) -> list[tuple[int, int]]:
    """Return the blocks whose labels do not overlap: the largest first, of equal ones the first."""
    kept: list[tuple[int, int]] = []
    for block in sorted(blocks, key=lambda block: block[0] - block[1]):
        if all(abs(_middle(block) - _middle(other)) * row_px >= LABEL_PX for other in kept):
            kept.append(block)
    return sorted(kept)


def _middle(block: tuple[int, int]) -> float:
    return (block[0] + block[1] - 1) / 2


def _separators(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return lines between blocks as one shape, if the blocks are large enough and each block is contiguous."""
    borders = [place for place in range(1, len(rows)) if rows[place]["block"] != rows[place - 1]["block"]]
    if not borders or len(borders) > BLOCK_BORDERS or len(rows) < 3 * len(borders):
        return []
    path = " ".join(f"M0,{border - 0.5} L1,{border - 0.5}" for border in borders)
    return [{"type": "path", "xref": "paper", "yref": "y", "path": path, "line": {"color": SEPARATOR, "width": 1}}]


def _outline(row: int | None, rows: int) -> list[dict[str, Any]]:
    """Return a frame around the chosen row, if rows are high enough to stay visible in it."""
    if row is None or rows > FRAMED_ROWS:
        return []
    sides = {"x0": 0, "x1": 1, "xref": "paper", "y0": row - 0.5, "y1": row + 0.5, "yref": "y"}
    return [{"type": "rect", **sides, "line": {"color": palette.YELLOW, "width": 1.5}}]


def _pointer(row: int | None) -> list[dict[str, Any]]:
    """Return a mark beside the chosen row."""
    if row is None:
        return []
    place = {"x": 1, "xref": "paper", "xanchor": "left", "y": row, "yref": "y", "yanchor": "middle"}
    return [{"text": "◀", **place, "showarrow": False}]
