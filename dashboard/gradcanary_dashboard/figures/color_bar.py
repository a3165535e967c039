"""The colour bar of a heatmap that is saved as a picture: on the page the legend stands above the figure. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradcanary_dashboard.figures import palette

LABEL_PX = 18
"""The height of a label: those of cells without a value have room beside the colours, at any height of the figure."""


def trace(scale: palette.Scale, height: int) -> dict[str, Any]:
    """Return an invisible trace with the colour bar of ``scale``, for a plot area of ``height`` pixels.

    A colour that is None is that of the paper, which the browser knows (``assets/js/sharing.js``).
    """
    low, high = scale.told[0], scale.told[-1]
    label = (high - low) * LABEL_PX / (height - 6 * LABEL_PX)
    values = [stop for stop in scale.ramp if low <= stop[0] <= high]
    below = (
        ("no data", (palette.NO_DATA,)),
        ("frozen", palette.FROZEN),
        ("no gradient", palette.NO_GRADIENT),
        ("exact 0", (scale.zero_colour,)),
    )
    special = [(low - (len(below) - place) * label, name) for place, (name, _) in enumerate(below)]
    stops = [
        *(
            stop
            for (middle, _), (_, shades) in zip(special, below, strict=True)
            for stop in _band(middle, label, shades)
        ),
        *_band(low - 0.25 * label, 0.5 * label, (None,)),
        *values,
        *_band(high + 0.25 * label, 0.5 * label, (None,)),
        *_band(high + label, label, (palette.MAGENTA,)),
    ]
    first, last = stops[0][0], stops[-1][0]
    ticks = [*scale.ticks(label), *special, (high + label, "non-finite")]
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


def _band(middle: float, width: float, shades: Sequence[str | None]) -> list[tuple[float, str | None]]:
    """Return a band of one colour, or of stripes."""
    stripes = shades if len(shades) == 1 else (*shades, *shades)
    edges = [round(middle + width * (place / len(stripes) - 0.5), 6) for place in range(len(stripes) + 1)]
    return [(edge, shade) for place, shade in enumerate(stripes) for edge in edges[place : place + 2]]
