"""A run's sparkline as an SVG image. Pure."""

from __future__ import annotations

import math
from urllib.parse import quote

import numpy as np
import numpy.typing as npt

WIDTH, HEIGHT = 132, 20
MARGIN = 1.5
LOW, HIGH = -8.0, 0.0
"""The decades of every image, so that rows can be compared; what is beyond them is drawn at the edge."""


def sparkline(values: npt.NDArray[np.float32], colour: str, enter: float) -> str | None:
    """Return a data URI of log10 values over time and of the threshold ``enter``; None without a finite value."""
    known = np.isfinite(values)
    if not known.any():
        return None
    across = np.linspace(MARGIN, WIDTH - MARGIN, len(values))
    path, drawing = [], False
    for x, value, seen in zip(across.tolist(), values.tolist(), known.tolist(), strict=True):
        if seen:
            path.append(f"{'L' if drawing else 'M'}{x:.0f} {_down(value):.1f}")
        drawing = seen
    threshold = f"M0 {_down(math.log10(enter)):.1f}H{WIDTH}"
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' fill='none'>"
        f"<path d='{threshold}' stroke='#8b949e' stroke-dasharray='2 2'/>"
        f"<path d='{' '.join(path)}' stroke='{colour}' stroke-width='1.6' stroke-linejoin='round' "
        "stroke-linecap='round'/></svg>"
    )
    return "data:image/svg+xml," + quote(svg, safe=" '/:=")


def _down(decades: float) -> float:
    """Return the distance from the top of the image."""
    return MARGIN + (HIGH - min(max(decades, LOW), HIGH)) / (HIGH - LOW) * (HEIGHT - 2 * MARGIN)
