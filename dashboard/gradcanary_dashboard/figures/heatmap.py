"""The heatmap, layer x step, as a Plotly figure. Pure."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcanary.display import colours
from gradcanary_dashboard.analysis import arrays
from gradcanary_dashboard.analysis import launches as run_launches
from gradcanary_dashboard.analysis.arrays import (
    NO_DATA,
    NO_GRADIENT,
    NONFINITE,
    NOT_TRAINABLE,
    ZERO,
    decode,
    encode,
)
from gradcanary_dashboard.analysis.buckets import Buckets
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.layers import Layer, common, worst
from gradcanary_dashboard.analysis.stats import STATS, Stat
from gradcanary_dashboard.figures import axes, color_bar, palette
from gradcanary_dashboard.figures import events as event_marks
from gradcanary_dashboard.text import numbers as number_text

HEIGHT = (220, 520)
ROW_PX = 7
NAMED_ROW_PX, NAME_FONT = 12, 10.5
"""The height of a row that has its name beside it, and the size of the name."""

MOST_NAMED_PX = 1008
"""The height up to which each row has its name; of more rows, as many as have room."""

NAME_PX = 5.4
"""The mean width of a character of a name."""

MOST_NAME = 26
"""Characters of a name beside its row; a longer one has its middle left out."""

FRAMED_ROWS = 80
LABEL_PX = 15
"""The height of a block's label in pixels; labels closer than this would overlap."""

STRIPES = 110
"""About as many stripes of a hatched row lie side by side."""

BLOCK_BORDERS = 64
SEPARATOR = "rgba(27,31,36,0.45)"

NOT_SAMPLED = colours.BETWEEN
"""The code of a cell without a value in a column with samples: beside those of the API."""

KINDS = {
    NO_DATA: "no_data",
    NOT_SAMPLED: "unsampled",
    NOT_TRAINABLE: "frozen",
    NO_GRADIENT: "no_gradient",
    ZERO: "zero",
    NONFINITE: "nonfinite",
}
WORDS = {
    "no_data": "no data: these steps were not received",
    "unsampled": "no value: not measured in these steps",
    "frozen": "frozen: not trainable",
    "no_gradient": "no gradient: backward did not reach it",
    "zero": "exact 0",
    "nonfinite": "not finite: NaN or infinity",
}
"""What the pointer reads in a cell without a value, by the kind of it."""


def figure(
    answer: Mapping[str, Any],
    span: axes.Span,
    selected: int | None,
    events: Events,
    layers: Sequence[Layer] = (),
    *,
    names_rows: bool = False,
    scaled_with: Mapping[str, Any] | None = None,
    has_clock: bool = True,
) -> axes.Figure:
    """Return the heatmap; with ``layout.meta`` the page names the cell under the pointer.

    A row of several layers links to the worst of them by the order of the table of ``layers``. With ``names_rows`` each
    row has its name, as in an order in which neighbours are of different blocks; else each block has. Its colours are
    those of the values here and in ``scaled_with``, the heatmap of another run. Without ``has_clock`` the times of the
    axis are those of another run: they and its pauses are not told.
    """
    rows: Sequence[Mapping[str, Any]] = answer["rows"]
    stat = STATS[answer["stat"]]
    buckets = Buckets.of(answer, events.every)
    cells = np.array(decode(answer["cells"]))
    if (cells == NO_DATA).all():
        return axes.nothing(span, HEIGHT[0], f"{stat.title}: no value in these steps.")
    has_samples = np.isfinite(decode(answer["times"]))
    cells[(cells == NO_DATA) & has_samples] = NOT_SAMPLED
    placed = _placed(buckets, cells, span, NO_DATA if span.clock and has_clock else NOT_SAMPLED)
    others = None if scaled_with is None else decode(scaled_with["cells"])
    scale, codes = coded(placed.cells, stat, answer["threshold"]["enter"], others)
    chosen = next((index for index, row in enumerate(rows) if selected in row["layers"]), None)
    known = {layer["layer"]: layer for layer in layers}
    leads = [RowLink.of(row, known) for row in rows]
    drawn = _layout(rows, span, chosen, _short_names(leads, layers) if names_rows else [])
    height = drawn["height"] - axes.MARGIN["t"] - axes.MARGIN["b"]
    nobody = run_launches.around(_there(buckets, events), span.first, span.last)
    seen = replace(events, holes=[*events.holes, *nobody])
    marked = event_marks.draw(drawn, seen, span, palette.DARK, palette.NO_DATA)
    drawn["meta"] = {
        **_linked(leads, known if stat.has_threshold else {}),
        **_steps(buckets, placed),
        **({"clock": span.clock.knots()} if span.clock and has_clock else {}),
        "special": {str(code): WORDS[name.removesuffix("_between")] for name, (code, _) in scale.special.items()},
        "scale": {"shades": scale.shares(), "ticks": _ticks(scale), "zero": scale.zero_colour},
        "chosen": chosen,
        "value": answer["value"],
        "stat": stat.name,
        "run": answer["run"],
        "events": marked,
        "bar": color_bar.trace(scale, height),
    }
    return {"data": [_trace(placed, _hatched(codes, scale, placed, height), scale)], "layout": drawn}


def _there(buckets: Buckets, events: Events) -> run_launches.Steps:
    """Return the first and the last step with a column or in a launch."""
    first, last = int(buckets.first[0]), int(buckets.end)
    known = run_launches.measured(events.launches) or (first, last)
    return min(first, known[0]), max(last, known[1])


def _layout(
    rows: Sequence[Mapping[str, Any]], span: axes.Span, chosen: int | None, names: Sequence[str]
) -> dict[str, Any]:
    """Return the layout, with a frame around the chosen row: each row has its name, or each block, with lines between.

    Without ``names`` blocks have the labels.
    """
    row_px, most = (NAMED_ROW_PX, MOST_NAMED_PX) if names else (ROW_PX, HEIGHT[1])
    height = min(most, max(HEIGHT[0], row_px * len(rows)))
    labels = _row_labels(names, height) if names else _block_labels(rows, height)
    drawn = {
        **axes.layout(span, height + axes.MARGIN["t"] + axes.MARGIN["b"], _rows_axis(len(rows), labels)),
        "shapes": [*([] if names else _separators(rows)), *_outline(chosen, len(rows))],
        "annotations": _pointer(chosen),
        "hovermode": "closest",
    }
    if names:
        longest = max((len(text) for _, text in labels), default=0)
        drawn["margin"] = {**drawn["margin"], "l": max(axes.MARGIN["l"], round(NAME_PX * longest) + 12)}
        drawn["yaxis"]["tickfont"] = {"size": NAME_FONT}
    return drawn


@dataclass(frozen=True)
class Placed:
    """Cells [row, column] on the axis: ``edges`` of the columns, one more than columns.

    ``buckets`` are the numbers of the columns' buckets; -1 is a pause of the training, or steps between two buckets.
    """

    edges: arrays.Floats
    cells: npt.NDArray[np.int16]
    buckets: npt.NDArray[np.intp]


def _placed(buckets: Buckets, cells: npt.NDArray[np.int16], span: axes.Span, between: int) -> Placed:
    """Return the cells on the axis; a pause is a column of ``between``: else Plotly would widen its neighbour."""
    after = buckets.first + buckets.width - 0.5
    if span.clock is None:
        left, right = buckets.first - 0.5, after
        apart = np.flatnonzero(left[1:] > right[:-1])
    else:
        left = span.clock.at(buckets.first)
        right = np.minimum(span.clock.at(after), np.append(left[1:], np.inf))
        apart = np.flatnonzero(left[1:] - right[:-1] > span.clock.pace * buckets.width[:-1])
    numbers = np.insert(np.arange(len(left)), apart + 1, -1)
    wide = np.where(numbers < 0, np.int16(between), cells[:, numbers])
    return Placed(np.sort(np.concatenate([left, right[apart], right[-1:]])), wide, numbers)


def _steps(buckets: Buckets, placed: Placed) -> dict[str, Any]:
    """Return the first and the last step of each column, None of a pause: the same one where it has one sample."""
    steps = {"firsts": buckets.first, "lasts": buckets.lasts}
    return {
        name: [None if number < 0 else int(values[number]) for number in placed.buckets]
        for name, values in steps.items()
    }


def _ticks(scale: palette.Scale) -> list[tuple[float, str]]:
    """Return labels of the colours of values, by their place between the first and the last of them, 0 to 1."""
    low, high = scale.told[0], scale.told[-1]
    return [((code - low) / (high - low), text) for code, text in scale.ticks((high - low) / 5)]


def _hatched(codes: npt.NDArray[np.int16], scale: palette.Scale, placed: Placed, height: int) -> npt.NDArray[np.int16]:
    """Return the codes with stripes in cells that are frozen or have no gradient: every other stripe has another code.

    A stripe is as wide as a few narrow columns, or as one that is wider; those of flat rows alternate. It stays where
    it is as a run grows, until its width doubles: only new columns travel.
    """
    middle = (placed.edges[:-1] + placed.edges[1:]) / 2
    stripe = 2.0 ** round(math.log2((placed.edges[-1] - placed.edges[0]) / STRIPES))
    across = np.unique(np.floor(middle / stripe), return_inverse=True)[1]
    is_flat = height < 2 * ROW_PX * len(codes)
    down = np.arange(len(codes)) // max(1, ROW_PX * len(codes) // height) * is_flat
    is_between = (across[None, :] + down[:, None]) % 2 == 1
    drawn = codes.copy()
    for name in ("frozen", "no_gradient"):
        drawn[(codes == scale.special[name][0]) & is_between] = scale.special[f"{name}_between"][0]
    return drawn


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
        first = worst(known[number] for number in numbers if number in known)
        if first is None:
            return cls(row["name"], str(numbers[0]), numbers)
        name, number = str(first["name"]), first["layer"]
        others = [other for other in numbers if other != number]
        return cls(f"{name} and {number_text.plural(len(others), 'other parameter')}", name, [number, *others])


def _short_names(leads: Sequence[RowLink], layers: Sequence[Layer]) -> list[str]:
    """Return the name of each row's linked layer without what all names share."""
    shared = common(layers)
    return [shared.short(lead.layer) for lead in leads]


def _linked(leads: Sequence[RowLink], known: Mapping[int, Layer]) -> dict[str, Any]:
    """Return titles and links of the rows, and the baseline of the layer that each leads to, of those ``known``."""
    return {
        "names": [lead.name for lead in leads],
        "layers": [lead.layer for lead in leads],
        "numbers": [lead.numbers for lead in leads],
        "baselines": [known[lead.numbers[0]]["baseline"] if lead.numbers[0] in known else None for lead in leads],
    }


def _trace(placed: Placed, codes: npt.NDArray[np.int16], scale: palette.Scale) -> dict[str, Any]:
    return {
        "type": "heatmap",
        "z": encode(codes),
        "x": encode(placed.edges),
        "zmin": scale.first,
        "zmax": scale.last,
        "colorscale": scale.colours(),
        "showscale": False,
        "hoverinfo": "none",
        "zsmooth": False,
    }


def coded(
    cells: npt.NDArray[np.int16], stat: Stat, enter: float, others: npt.NDArray[np.int16] | None = None
) -> tuple[palette.Scale, npt.NDArray[np.int16]]:
    """Return the colour scale for these cells and ``others``, and the cells with their sentinels beside the values."""
    known = np.concatenate([each.ravel() for each in (cells, others) if each is not None])
    values = np.clip(known[~np.isin(known, list(KINDS))], -30_000, 30_000)
    threshold = round(palette.MILLI * float(np.log10(enter)))
    low, high = (int(values.min()), int(values.max())) if values.size else (threshold, threshold)
    if stat.has_threshold:
        scale = palette.Scale.around(low, threshold, high)
    else:
        scale = palette.Scale.rising(low, high, palette.WHITE if stat.zero_is_good else palette.BLACK)
    codes = np.clip(cells, scale.low, scale.high).astype(np.int16)
    for sentinel, name in KINDS.items():
        codes[cells == sentinel] = scale.special[name][0]
    return scale, codes


def _rows_axis(rows: int, labels: Sequence[tuple[float, str]]) -> dict[str, Any]:
    """Return the y axis: the first row on top."""
    return {
        "range": [rows - 0.5, -0.5],
        "tickvals": [place for place, _ in labels],
        "ticktext": [axes.plain(text) for _, text in labels],
        "showgrid": False,
    }


def _block_labels(rows: Sequence[Mapping[str, Any]], height: int) -> list[tuple[float, str]]:
    """Return a label in the middle of each block that has room for one."""
    blocks = [str(row["block"]) for row in rows]
    starts = [index for index, block in enumerate(blocks) if index == 0 or block != blocks[index - 1]]
    labelled = _labelled(list(zip(starts, [*starts[1:], len(rows)], strict=True)), height / max(1, len(rows)))
    return [(_middle(block), number_text.short_block(blocks[block[0]])) for block in labelled]


def _row_labels(names: Sequence[str], height: int) -> list[tuple[float, str]]:
    """Return the names of the rows that have room, the first one above all: the worst."""
    each = max(1, -(-NAMED_ROW_PX * len(names) // height))
    return [(float(place), _cut(names[place])) for place in range(0, len(names), each)]


def _cut(name: str) -> str:
    return (
        name
        if len(name) <= MOST_NAME
        else f"{name[: MOST_NAME // 3]}\N{HORIZONTAL ELLIPSIS}{name[-MOST_NAME * 2 // 3 :]}"
    )


def _labelled(blocks: Sequence[tuple[int, int]], row_px: float) -> list[tuple[int, int]]:
    """Return the blocks whose labels do not overlap: the largest first, of equal ones the first."""
    kept: list[tuple[float, tuple[int, int]]] = []  # by their middles
    for block in sorted(blocks, key=lambda block: block[0] - block[1]):
        middle = _middle(block)
        place = bisect(kept, (middle, block))
        if all(abs(middle - other) * row_px >= LABEL_PX for other, _ in kept[max(0, place - 1) : place + 1]):
            kept.insert(place, (middle, block))
    return sorted(block for _, block in kept)


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
