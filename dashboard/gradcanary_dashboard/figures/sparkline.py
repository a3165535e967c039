"""A run's sparkline as an SVG image. Pure."""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt

WIDTH, HEIGHT = 132, 34
MARGIN = 2.0
DECADES = 3.0
"""The least range of the image in decades, so that noise does not look like a fall."""


def sparkline(values: npt.NDArray[np.float32], colour: str) -> str | None:
    """Return a data URI of log10 values over time, None without a finite value."""
    known = np.isfinite(values)
    if not known.any():
        return None
    low, high = float(values[known].min()), float(values[known].max())
    room = max(0.0, DECADES - (high - low)) / 2
    low, high = low - room, high + room
    across = np.linspace(MARGIN, WIDTH - MARGIN, len(values))
    down = MARGIN + (high - np.where(known, values, low)) / (high - low) * (HEIGHT - 2 * MARGIN)
    path, drawing = [], False
    for x, y, seen in zip(across.tolist(), down.tolist(), known.tolist(), strict=True):
        if seen:
            path.append(f"{'L' if drawing else 'M'}{x:.1f} {y:.1f}")
        drawing = seen
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}">'
        f'<path d="{" ".join(path)}" fill="none" stroke="{colour}" stroke-width="1.6" stroke-linejoin="round" '
        f'stroke-linecap="round"/></svg>'
    )
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode("ascii")
