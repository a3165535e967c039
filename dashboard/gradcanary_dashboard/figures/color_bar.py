"""The colour bar of a heatmap that is saved as a picture: on the page the legend stands above the figure. Pure."""

from __future__ import annotations

import math
from typing import Any

from gradcanary_dashboard.figures import palette
from gradcanary_dashboard.text import numbers

LABEL_PX = 18
"""The height of a label: those of cells without a value have room beside the colours, at any height of the figure."""


def trace(scale: palette.Scale, height: int) -> dict[str, Any]:
    """Return an invisible trace with the colour bar of ``scale``, for a plot area of ``height`` pixels.

    A colour that is None is that of the paper, which the browser knows (``assets/js/sharing.js``).
    """
    low, high = scale.told[0], scale.told[-1]
    label = (high - low) * LABEL_PX / (height - 4 * LABEL_PX)
    values = [stop for stop in scale.ramp if low <= stop[0] <= high]
    stops = [
        *_band(low - 2.5 * label, low - 1.5 * label, palette.NO_DATA),
        *_band(low - 1.5 * label, low - 0.5 * label, scale.zero_colour),
        *_band(low - 0.5 * label, low, None),
        *values,
        *_band(high, high + 0.5 * label, None),
        *_band(high + 0.5 * label, high + 1.5 * label, palette.MAGENTA),
    ]
    first, last = stops[0][0], stops[-1][0]
    special = [(low - 2 * label, "no data"), (low - label, "exact 0"), (high + label, "non-finite")]
    ticks = [*_ticks(scale, label), *special]
    colorbar = {
        "tickvals": [code for code, _ in ticks],
        "ticktext": [text for _, text in ticks],
        "thickness": 10,
        "outlinewidth": 1,
        "ypad": 0,
    }
    colours = [[(code - first) / (last - first), colour] for code, colour in stops]
    marker = {"color": [low], "cmin": first, "cmax": last, "colorscale": colours, "showscale": True, "opacity": 0}
    return {
        "type": "scatter",
        "mode": "markers",
        "y": [0],
        "hoverinfo": "skip",
        "marker": {**marker, "colorbar": colorbar},
    }


def _band(begin: float, end: float, colour: str | None) -> list[tuple[float, str | None]]:
    return [(begin, colour), (end, colour)]


def _ticks(scale: palette.Scale, label: float) -> list[tuple[float, str]]:
    """Return labels of the ends, of the threshold, and of the decades between them that have room."""
    low, *between, high = scale.told
    goes_on = bool(between) or scale.low < low
    found: list[tuple[float, str]] = [
        (low, f"≤ {_worded(low)}" if goes_on else _worded(low)),
        *((code, f"{_worded(code)} threshold") for code in between),
        (high, f"≥ {_worded(high)}" if between else _worded(high)),
    ]
    for decade in range(math.ceil(low / palette.MILLI), high // palette.MILLI + 1):
        code = palette.MILLI * decade
        if all(abs(other - code) >= label for other, _ in found):
            found.append((code, _worded(code)))
    return found


def _worded(code: int) -> str:
    return numbers.scientific(10 ** (code / palette.MILLI))
