"""The heatmap of a run as a small PNG, layer x step, in the colours of its page. Pure.

A pixel is what the page draws there: the columns lie on the same axis of steps, the rows in the same order.
"""

from __future__ import annotations

import math
import re
import struct
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from gradcanary.client.buckets import Buckets
from gradcanary.client.heatmap import Heatmap
from gradcanary.display.colours import (
    ABOVE,
    BELOW,
    BETWEEN,
    BLACK,
    FROZEN,
    MAGENTA,
    MILLI,
    NO_DATA,
    NO_DATA_GREY,
    NO_GRADIENT,
    NO_GRADIENT_STRIPES,
    NONFINITE,
    NOT_TRAINABLE,
    UNSAMPLED,
    ZERO,
)
from gradcanary.wording import count, number

COLUMNS, ROWS = 240, 60
"""The most columns and rows to ask of the collector for a picture of this size."""

WIDTH_PX = 2 * COLUMNS
"""Twice as many pixels as columns: a narrow column of several widths keeps at least one."""

HEIGHT_PX, ROW_PX = 180, 12
"""The greatest height of a picture, and of a row."""

STRIPE_PX = 4

KINDS = {
    BETWEEN: ("gaps without a colour not measured", (UNSAMPLED,)),
    NO_DATA: ("grey not received", (NO_DATA_GREY,)),
    NOT_TRAINABLE: ("pale stripes not trainable", FROZEN),
    NO_GRADIENT: ("yellow stripes no gradient", NO_GRADIENT_STRIPES),
    ZERO: ("black exactly 0", (BLACK,)),
    NONFINITE: ("magenta not finite", (MAGENTA,)),
}
"""What a cell without a value means, and its colour or the two of its stripes."""

_SPECIAL = {code: (2 * place, 2 * place + len(shades) - 1) for place, (code, (_, shades)) in enumerate(KINDS.items())}
"""The entries of the palette for the stripes of such a cell."""

_FIRST, _SHADES = 2 * len(KINDS), 241
"""Entries for values, 33 milli-decades apart; an odd number, so that one is the threshold's white."""


@dataclass(frozen=True)
class Picture:
    """A PNG, its size in pixels, and what it shows in words."""

    png: bytes
    width: int
    height: int
    caption: str


def draw(heatmap: Heatmap) -> Picture | None:
    """Return the picture of a heatmap of absmax; None if no cell of it has a value."""
    if all(cell == NO_DATA for cell in heatmap.cells):
        return None
    width, is_sampled = len(heatmap.buckets.steps), list(map(math.isfinite, heatmap.buckets.times))
    columns, enter = _columns(heatmap.buckets), round(MILLI * math.log10(heatmap.enter))
    row_px = min(ROW_PX, HEIGHT_PX // len(heatmap.rows) or 1)
    lines: list[bytes] = []
    kinds: set[int] = set()
    for place in range(len(heatmap.rows)):
        row = heatmap.cells[place * width : (place + 1) * width]
        cells = [BETWEEN if cell == NO_DATA and is_sampled[at] else cell for at, cell in enumerate(row)]
        kinds |= KINDS.keys() & set(cells)
        entries = [_entries(cell, enter) for cell in [*cells, BETWEEN]]  # the last one: column -1
        line = bytes(entries[column][(x // STRIPE_PX + place) % 2] for x, column in enumerate(columns))
        lines += [line] * row_px
    if -1 in columns:
        kinds.add(BETWEEN)
    return Picture(_png(lines), len(columns), len(lines), _caption(heatmap, kinds))


def _caption(heatmap: Heatmap, kinds: set[int]) -> str:
    layers, rows = sum(len(row.layers) for row in heatmap.rows), len(heatmap.rows)
    shared = "" if layers == rows else f" in {rows} rows"
    words = [words for code, (words, _) in KINDS.items() if code in kinds]
    colours = ", ".join([f"white is the threshold {number(heatmap.enter)}", "red below it", "blue above it", *words])
    first = heatmap.buckets.steps[0]
    return f"Smallest gradient absmax of {count(layers, 'parameter')}{shared} by step, from {first:,}: {colours}."


def _columns(buckets: Buckets) -> list[int]:
    """Return the column of each pixel on the axis of steps, -1 between two columns."""
    first, after = buckets.steps[0], buckets.last_step(-1) + 1
    steps = [first + (x + 0.5) / WIDTH_PX * (after - first) for x in range(WIDTH_PX)]
    found = [(bisect_right(buckets.steps, step) - 1, step) for step in steps]
    return [column if step < buckets.last_step(column) + 1 else -1 for column, step in found]


def _entries(cell: int, enter: int) -> tuple[int, int]:
    """Return the entries of the palette for the two stripes of a cell; those of a value are one."""
    if cell in _SPECIAL:
        return _SPECIAL[cell]
    reach = round(MILLI * ABOVE[-1][0])
    place = (max(-reach, min(cell - enter, reach)) + reach) / (2 * reach)
    shade = _FIRST + round(place * (_SHADES - 1))
    return shade, shade


def _palette() -> list[tuple[int, int, int, int]]:
    """Return red, green, blue and opacity of each entry, 0 to 255."""
    special = [_rgba(shade) for _, shades in KINDS.values() for shade in (shades[0], shades[-1])]
    reach = ABOVE[-1][0]
    return [*special, *(_value_colour(reach * (2 * at / (_SHADES - 1) - 1)) for at in range(_SHADES))]


def _value_colour(decades: float) -> tuple[int, int, int, int]:
    """Return the colour of a value ``decades`` above the threshold, between two of the ramp."""
    ramp = ABOVE if decades >= 0 else BELOW
    place = min(bisect_right([stop for stop, _ in ramp], abs(decades)), len(ramp) - 1)
    (low, before), (high, after) = ramp[place - 1 : place + 1]
    share = (abs(decades) - low) / (high - low)
    red, green, blue, alpha = (
        round(one + share * (other - one)) for one, other in zip(_rgba(before), _rgba(after), strict=True)
    )
    return red, green, blue, alpha


def _rgba(colour: str) -> tuple[int, int, int, int]:
    """Return ``#e620e6`` or ``rgba(134,142,150,0.5)`` as numbers."""
    if colour.startswith("#"):
        red, green, blue = bytes.fromhex(colour[1:])
        return red, green, blue, 255
    red, green, blue, alpha = re.findall(r"[\d.]+", colour)
    return int(red), int(green), int(blue), round(255 * float(alpha))


def _png(lines: Sequence[bytes]) -> bytes:
    """Return a PNG with a palette; each line has a byte per pixel."""
    colours = _palette()
    header = struct.pack(">IIBBBBB", len(lines[0]), len(lines), 8, 3, 0, 0, 0)
    parts = {
        b"IHDR": header,
        b"PLTE": bytes(chain.from_iterable(colour[:3] for colour in colours)),
        b"tRNS": bytes(colour[3] for colour in colours[:_FIRST]),  # all others are opaque
        b"IDAT": zlib.compress(b"".join(b"\0" + line for line in lines), 9),
        b"IEND": b"",
    }
    chunks = (
        struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))
        for kind, part in parts.items()
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)
