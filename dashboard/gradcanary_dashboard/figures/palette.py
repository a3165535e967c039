"""Colours for both themes, and the colour scale of the heatmap. Pure.

Text, background and grid are transparent here and coloured by the style sheet: a change of theme redraws nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

RED = "#e03131"
BLUE = "#1c7ed6"
GREEN = "#2f9e44"
GREY = "#868e96"
DARK = "#1b1f24"
YELLOW = "#ffd43b"
ORANGE = "#e8590c"
MAGENTA = "#e620e6"
TEAL = "#0c8599"
VIOLET = "#7048e8"
OCHRE = "#a67c00"
BLACK = "#000000"
NO_DATA = "#9aa1a9"
WHITE = "#ffffff"

BELOW = ((0.0, WHITE), (0.4, "#fdd0bc"), (1.0, "#fb7a5a"), (2.0, "#d7301f"), (3.0, "#a00d14"), (4.0, "#7f0a12"))
ABOVE = ((0.0, WHITE), (0.4, "#d3e5f3"), (1.0, "#9cc8e4"), (2.0, "#4a97cb"), (3.0, "#1f66ad"), (4.0, "#0b3c7d"))
"""(decades from the threshold, colour): white at the threshold, red below, blue above."""


def _gradient(stops: Iterable[tuple[float, str]]) -> str:
    return f"linear-gradient(90deg, {', '.join(f'{colour} {share:.0%}' for share, colour in stops)})"


GRADIENTS = {
    "below": _gradient((1 - decades / BELOW[-1][0], colour) for decades, colour in reversed(BELOW)),
    "above": _gradient((decades / ABOVE[-1][0], colour) for decades, colour in ABOVE),
    "rising": _gradient((place / (len(ABOVE) - 2), colour) for place, (_, colour) in enumerate(ABOVE[1:])),
}
"""The colours as backgrounds in CSS: on both sides of a threshold, and without one."""

MILLI = 1000
REACH = 8
"""Decades of a colour scale without a threshold, below the highest value: a few values of 1e-30 would make all others
one colour."""

BAND = 300
"""Milli-decades that each colour of a special cell takes beside the range of the values."""


@dataclass(frozen=True)
class Scale:
    """The range of a heatmap's values in milli-decades, its colours there, and the codes of cells without a value."""

    low: int
    high: int
    ramp: tuple[tuple[int, str], ...]
    zero_colour: str = BLACK

    @classmethod
    def around(cls, low: int, enter: int, high: int) -> Scale:
        """Return a scale that is white at a threshold, with all colours on both sides."""
        reach = round(MILLI * BELOW[-1][0])
        below = [(enter - round(MILLI * decades), colour) for decades, colour in reversed(BELOW)]
        above = [(enter + round(MILLI * decades), colour) for decades, colour in ABOVE[1:]]
        return cls(min(low, enter - reach), max(high, enter + reach), (*below, *above))

    @classmethod
    def rising(cls, low: int, high: int, zero_colour: str) -> Scale:
        """Return a scale of a stat without a threshold: darker is more."""
        high = max(high, low + MILLI)
        shades, begin = ABOVE[1:], max(low, high - REACH * MILLI)
        rise = (high - begin) / (len(shades) - 1)
        ramp = [(begin + round(place * rise), shade[1]) for place, shade in enumerate(shades)]
        return cls(low, high, tuple(ramp), zero_colour)

    @property
    def told(self) -> tuple[int, ...]:
        """The values of the first colour, of white if there is one, and of the last colour."""
        white = [code for code, colour in self.ramp if colour == WHITE]
        return (self.ramp[0][0], *white, self.ramp[-1][0])

    @property
    def zero(self) -> int:
        """Code of an exact zero."""
        return self.low - BAND

    @property
    def no_data(self) -> int:
        """Code of a cell without data."""
        return self.low - 2 * BAND

    @property
    def nonfinite(self) -> int:
        """Code of a cell with a non-finite value."""
        return self.high + BAND

    def colours(self) -> list[list[float | str]]:
        """Return Plotly's colour scale from ``no_data`` to ``nonfinite``."""
        half = BAND // 2
        stops: list[tuple[int, str]] = [
            (self.no_data, NO_DATA),
            (self.no_data + half, NO_DATA),
            (self.zero - half, self.zero_colour),
            (self.zero + half, self.zero_colour),
            (self.low - half, self.ramp[0][1]),
            *self.ramp,
            (self.high + half, self.ramp[-1][1]),
            (self.high + half, MAGENTA),
            (self.nonfinite, MAGENTA),
        ]
        width = self.nonfinite - self.no_data
        return [[(code - self.no_data) / width, colour] for code, colour in stops]
