"""Colours for both themes, and the colour scale of the heatmap. Pure.

Text, background and grid are transparent here and coloured by the style sheet: a change of theme redraws nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from gradcanary.display import colours
from gradcanary_dashboard.text import numbers

RED = "#e03131"
BLUE = "#1c7ed6"
GREEN = "#2f9e44"
GREY = "#868e96"
DARK = "#1b1f24"
YELLOW = "#ffd43b"
ORANGE = "#e8590c"
TEAL = "#0c8599"
VIOLET = "#7048e8"
OCHRE = "#a67c00"
BLACK, WHITE, MAGENTA, NO_DATA = colours.BLACK, colours.WHITE, colours.MAGENTA, colours.NO_DATA_GREY
NO_GRADIENT, FROZEN, UNSAMPLED = colours.NO_GRADIENT_STRIPES, colours.FROZEN, colours.UNSAMPLED
BELOW, ABOVE = colours.BELOW, colours.ABOVE


MILLI = colours.MILLI
REACH = 8
"""Decades of a colour scale without a threshold, below the highest value: a few values of 1e-30 would make all others
one colour."""

BAND = 300
"""Milli-decades that each colour of a special cell takes beside the range of the values: codes fit into int16."""


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
    def special(self) -> dict[str, tuple[int, str]]:
        """The code and the colour of each kind of cell without a value; stripes are two of them."""
        below = (
            ("no_data", NO_DATA),
            ("unsampled", UNSAMPLED),
            ("frozen", FROZEN[0]),
            ("frozen_between", FROZEN[1]),
            ("no_gradient", NO_GRADIENT[0]),
            ("no_gradient_between", NO_GRADIENT[1]),
            ("zero", self.zero_colour),
        )
        codes = {name: (self.low - BAND * (len(below) - place), colour) for place, (name, colour) in enumerate(below)}
        return codes | {"nonfinite": (self.high + BAND, MAGENTA)}

    @property
    def first(self) -> int:
        """The lowest code."""
        return self.special["no_data"][0]

    @property
    def last(self) -> int:
        """The highest code."""
        return self.special["nonfinite"][0]

    def colours(self) -> list[list[float | str]]:
        """Return Plotly's colour scale from the lowest code to the highest."""
        half, special = BAND // 2, dict(self.special)
        nonfinite = special.pop("nonfinite")
        bands = [(code + side, colour) for code, colour in special.values() for side in (-half, half)]
        stops: list[tuple[int, str]] = [
            *bands,
            (self.low - half, self.ramp[0][1]),
            *self.ramp,
            (self.high + half, self.ramp[-1][1]),
            (self.high + half, nonfinite[1]),
            nonfinite,
        ]
        width = self.last - self.first
        return [[(max(code, self.first) - self.first) / width, colour] for code, colour in stops]

    def shares(self) -> list[tuple[float, str]]:
        """Return the colours of values by their place between the first and the last of them, 0 to 1."""
        low, high = self.told[0], self.told[-1]
        return [((code - low) / (high - low), colour) for code, colour in self.ramp]

    def ticks(self, room: float) -> list[tuple[int, str]]:
        """Return labels of both ends, of the threshold, and of the decades between them with so much room."""
        low, *between, high = self.told
        goes_on = bool(between) or self.low < low
        found = [
            (low, f"≤ {_worded(low)}" if goes_on else _worded(low)),
            *((code, f"{_worded(code)} threshold") for code in between),
            (high, f"≥ {_worded(high)}" if between else _worded(high)),
        ]
        for decade in range(math.ceil(low / MILLI), high // MILLI + 1):
            code = MILLI * decade
            if all(abs(other - code) >= room for other, _ in found):
                found.append((code, _worded(code)))
        return found


def _worded(code: int) -> str:
    return numbers.scientific(10 ** (code / MILLI))
