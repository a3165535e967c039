"""The colours of a heatmap, and the codes of its cells without a value: the same on the pages and in a notebook."""

from __future__ import annotations

BLACK, WHITE, MAGENTA = "#000000", "#ffffff", "#e620e6"
NO_DATA_GREY = "#9aa1a9"

NO_GRADIENT_STRIPES = ("#ffd400", "#14181d")
"""The two colours of the stripes of a cell without a gradient: of all cells the loudest."""

FROZEN = ("rgba(134,142,150,0.5)", "rgba(134,142,150,0.12)")
"""Those of the calm stripes of what is not trained."""

UNSAMPLED = "rgba(134,142,150,0)"
"""What was not sampled is the background."""

BELOW = ((0.0, WHITE), (0.4, "#fdd0bc"), (1.0, "#fb7a5a"), (2.0, "#d7301f"), (3.0, "#a00d14"), (4.0, "#7f0a12"))
ABOVE = ((0.0, WHITE), (0.4, "#d3e5f3"), (1.0, "#9cc8e4"), (2.0, "#4a97cb"), (3.0, "#1f66ad"), (4.0, "#0b3c7d"))
"""(decades from the threshold, colour): white at the threshold, red below, blue above."""

MILLI = 1000

NO_DATA, ZERO, NO_GRADIENT, NOT_TRAINABLE, NONFINITE = -32768, -32767, -32766, -32765, 32767
"""Cells without a value; every other cell is round(1000 * log10 x)."""

BETWEEN = -32764
"""Beside the API's codes: a cell without a value in a column with samples, or steps between two columns."""
