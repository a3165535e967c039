"""The picture of an incident as PNG: curves before and after its first sign, loss and learning rate. Pure.

It is drawn with Pillow, which is optional. Names and values come from agents: any of them give at most 60 kB.
"""

from __future__ import annotations

import functools
import io
import itertools
import math
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gradcanary.wording import number
from gradcanary_server.errors import RequestError
from gradcanary_server.rules.types import Severity

if TYPE_CHECKING:
    from PIL import Image, ImageDraw, ImageFont

WIDTH, HEIGHT = 960, 540
MAX_BYTES = 60_000

NEEDS_PILLOW = (
    "Pictures need the package Pillow where the collector runs: pip install 'gradcanary[notify]', or '.[notify]' in a "
    "clone."
)

_SHARPNESS = 3
"""Lines are drawn this many times as large, and averaged."""

_SHADES = (9, 5, 3, 2)
"""Shades of each colour in the palette: the first of these that makes a picture small enough."""

_LEFT, _TOP, _BOTTOM = 72, 104, 504
"""Edges of the panels in pixels. The legend, if there is one, is to the right of them."""

_LEGEND, _EDGE = 716, 936
_TITLE_HEIGHT = 30
"""Pixels above each panel for its title."""

_MOST_TICKS = 7
_TICK_DISTANCE = 26.0
_LOG_RATIO = 30.0
"""Between the largest and the smallest value: from here on an axis that may choose is logarithmic."""

_NEARLY = 1e-9
_SMALLEST, _LARGEST = 1e-300, 1e300
"""Of an axis: what is nearer to zero, or beyond, is drawn at its edge, as sums with it may overflow."""

_ZERO_SHARE = 0.15
"""Of a logarithmic axis, below the smallest decade: the distance to zero."""

_GAP = 3.0
"""Times the usual distance of two points: a longer gap is not bridged."""

_CROSS_DISTANCE = 9.0
_FEW = 40
"""Points of a curve that are drawn as dots, too."""

PAPER, INK, DIM, GRID = "#ffffff", "#14181d", "#5b6570", "#e6e9ed"
NONFINITE = "#e620e6"
CURVES = ("#1c7ed6", "#e8590c", "#0c8599", "#7048e8", "#a67c00")
METRICS = ("#343a40", "#868e96", "#adb5bd")
"""The colours of curves in the legend, and of others."""

TONES: dict[Severity, tuple[str, str]] = {
    "critical": ("#c92a2a", "#fdf1f1"),
    "warning": ("#9a5700", "#fff7e8"),
    "information": ("#1765b3", "#eff6fc"),
}
"""The colour of the first sign, and behind all that came after it."""

Floats = NDArray[np.float64]
Point = tuple[float, float]


@dataclass(frozen=True)
class Curve:
    """Values by step, NaN where there is none; ``is_nonfinite`` is True where a value was NaN or infinite.

    ``reference`` is a level to compare with, drawn as a dashed line; ``name`` and ``note`` are in the legend.
    """

    name: str
    steps: Floats
    values: Floats
    is_nonfinite: NDArray[np.bool_]
    reference: float | None = None
    note: str = ""


@dataclass(frozen=True)
class Panel:
    """Curves on one y axis: a logarithmic one, a linear one, or (None) the one that suits the values."""

    title: str
    curves: Sequence[Curve]
    is_log: bool | None = None
    threshold: float | None = None
    share: float = 1.0
    """The height, beside those of the other panels."""

    def levels(self) -> Floats:
        """Return all numbers that the axis shows."""
        lines = [curve.reference for curve in self.curves] + [self.threshold]
        found = np.concatenate([*(curve.values for curve in self.curves), [np.nan if v is None else v for v in lines]])
        levels = found[np.isfinite(found)].clip(-_LARGEST, _LARGEST)
        return np.where(abs(levels) < _SMALLEST, 0.0, levels)


@dataclass(frozen=True)
class Picture:
    """All that a picture shows: panels from ``first`` to ``last`` step, and the step ``since`` of the first sign.

    The legend is about the first panel, and has a title; ``reference`` is the meaning of the dashed lines.
    ``corner`` is a short text at the right.
    """

    title: str
    subtitle: str
    severity: Severity
    first: int
    last: int
    since: int
    panels: Sequence[Panel]
    legend: str = ""
    reference: str = ""
    corner: str = ""

    @property
    def right(self) -> float:
        """The right edge of the panels in pixels."""
        return _LEGEND - 28 if self.legend else _EDGE

    def x(self, step: float) -> float:
        """Return the pixel of a step."""
        width = self.last - self.first
        share = (step - self.first) / width if width else 0.5
        return _LEFT + min(max(share, 0.0), 1.0) * (self.right - _LEFT)


@dataclass(frozen=True)
class _Axis:
    """A y axis from ``low`` at pixel ``bottom`` to ``high`` at pixel ``top``.

    On a logarithmic one these are powers of ten, and zero, if there is one, is at the bottom, below the ``decades``.
    """

    top: float
    bottom: float
    low: float
    high: float
    is_log: bool
    decades: range = range(0)
    has_zero: bool = False

    @classmethod
    def of(cls, panel: Panel, top: float, bottom: float) -> _Axis:
        levels = panel.levels()
        above = levels[levels > 0]
        is_log = panel.is_log
        if is_log is None:
            is_log = len(above) == len(levels) > 0 and bool(above.max() > _LOG_RATIO * above.min())
        return (cls._logarithmic if is_log else cls._linear)(levels, top, bottom)

    @classmethod
    def _linear(cls, levels: Floats, top: float, bottom: float) -> _Axis:
        low, high = (float(levels.min()), float(levels.max())) if len(levels) else (0.0, 1.0)
        margin = (high - low) / 12 or abs(high) / 10 or 1.0
        return cls(top, bottom, low - (margin if low else 0), high + margin, is_log=False)

    @classmethod
    def _logarithmic(cls, levels: Floats, top: float, bottom: float) -> _Axis:
        above = np.log10(levels[levels > 0])
        low = math.floor(above.min() + _NEARLY) if len(above) else 0
        high = max(math.ceil(above.max() - _NEARLY), low + 1) if len(above) else 0
        has_zero = bool((levels <= 0).any())
        below = max(1.0, _ZERO_SHARE * (high - low)) if has_zero else 0.0
        return cls(top, bottom, low - below, high, is_log=True, decades=range(low, high + 1), has_zero=has_zero)

    def place(self, value: float) -> float:
        """Return the pixel of a value; one outside of the axis is at its edge."""
        level = min(max(float(value), -_LARGEST), _LARGEST)
        if self.is_log:
            level = math.log10(value) if value > 0 else self.low
        share = (level - self.low) / (self.high - self.low)
        return self.bottom - min(max(share, 0.0), 1.0) * (self.bottom - self.top)

    def ticks(self) -> Iterator[tuple[float, str]]:
        """Yield pixel and text of each tick: decades and zero, or round numbers."""
        room = max(1, int((self.bottom - self.top) // _TICK_DISTANCE))
        if self.has_zero:
            yield self.bottom, "0"
        if self.is_log and len(self.decades) > 1:
            width = -(-(len(self.decades) - 1) // room)
            for decade in self.decades:
                y = self.place(10.0**decade)
                if decade % width == 0 and not (self.has_zero and self.bottom - y < _TICK_DISTANCE / 2):
                    yield y, _decade(decade)
        elif not self.is_log:
            for value in _round_numbers(self.low, self.high, room):
                yield self.place(value), number(value)


@dataclass
class _Canvas:
    """A picture in the making: lines several times as large, and texts, which are drawn when the lines are done."""

    image: Image.Image
    pen: ImageDraw.ImageDraw
    texts: list[tuple[float, float, str, int, str, str]] = field(default_factory=list)

    @classmethod
    def blank(cls) -> _Canvas:
        from PIL import Image, ImageDraw

        image = Image.new("RGB", (WIDTH * _SHARPNESS, HEIGHT * _SHARPNESS), PAPER)
        return cls(image, ImageDraw.Draw(image))

    def line(self, points: Sequence[Point], colour: str, width: float) -> None:
        self.pen.line([_scaled(point) for point in points], colour, round(width * _SHARPNESS), joint="curve")

    def dashed(self, begin: float, end: float, y: float, colour: str, width: float = 1.0) -> None:
        """Draw a level line in dashes."""
        for x in np.arange(begin, end, 9.0).tolist():
            self.line([(x, y), (min(x + 5.0, end), y)], colour, width)

    def dot(self, at: Point, colour: str, radius: float) -> None:
        (x, y), reach = _scaled(at), radius * _SHARPNESS
        self.pen.ellipse((x - reach, y - reach, x + reach, y + reach), colour)

    def cross(self, at: Point, colour: str, reach: float = 3.5) -> None:
        x, y = at
        self.line([(x - reach, y - reach), (x + reach, y + reach)], colour, 1.6)
        self.line([(x - reach, y + reach), (x + reach, y - reach)], colour, 1.6)

    def box(self, corners: tuple[float, float, float, float], colour: str, radius: float = 0.0) -> None:
        scaled = tuple(corner * _SHARPNESS for corner in corners)
        self.pen.rounded_rectangle(scaled, radius * _SHARPNESS, colour)

    def text(self, at: Point, text: str, size: int = 12, colour: str = DIM, anchor: str = "ls") -> None:
        """Draw a text; ``anchor`` is Pillow's: l, m or r, and s for the line that letters stand on."""
        self.texts.append((*at, text, size, colour, anchor))

    def finished(self) -> Image.Image:
        """Return the picture in its final size."""
        from PIL import ImageDraw

        image = self.image.reduce(_SHARPNESS)
        draw = ImageDraw.Draw(image)
        for x, y, text, size, colour, anchor in self.texts:
            draw.text((x, y), text, colour, _font(size), anchor)
        return image


def require_pillow() -> None:
    """Raise RequestError 501 without Pillow."""
    try:
        import PIL  # noqa: F401 -- optional
    except ModuleNotFoundError as error:
        raise RequestError(501, "no_pillow", NEEDS_PILLOW) from error


def draw(picture: Picture) -> bytes:
    """Return a picture as PNG of at most 60 kB. It needs Pillow."""
    canvas = _Canvas.blank()
    _draw_head(canvas, picture)
    _draw_steps(canvas, picture)
    free = _BOTTOM - _TOP - _TITLE_HEIGHT * max(len(picture.panels) - 1, 0)
    top = float(_TOP)
    for place, panel in enumerate(picture.panels):
        bottom = top + free * panel.share / sum(each.share for each in picture.panels)
        colours = CURVES if place == 0 else METRICS
        _draw_panel(canvas, picture, panel, _Axis.of(panel, top, bottom), colours)
        top = bottom + _TITLE_HEIGHT
    if picture.panels:
        _draw_sign(canvas, picture)
        _draw_legend(canvas, picture)
    else:
        canvas.text((24, HEIGHT / 2), "No values of these steps are stored.", 14)
    return _encode(canvas.finished(), picture.severity)


def _draw_head(canvas: _Canvas, picture: Picture) -> None:
    colour, _ = TONES[picture.severity]
    canvas.box((0, 0, WIDTH, 5), colour)
    size = next((size for size in (22, 20, 18) if _length(picture.title, size) <= _EDGE - 24), 16)
    canvas.text((24, 42), _fitted(picture.title, size, _EDGE - 24), size, INK)
    canvas.text((24, 66), _fitted(picture.subtitle, 13, _LEGEND), 13, DIM)
    canvas.text((_EDGE, 66), picture.corner, 13, DIM, "rs")


def _draw_panel(canvas: _Canvas, picture: Picture, panel: Panel, axis: _Axis, colours: Sequence[str]) -> None:
    tone, soft = TONES[picture.severity]
    since = picture.x(picture.since)
    canvas.box((since, axis.top, picture.right, axis.bottom), soft)
    canvas.text((_LEFT, axis.top - 9), panel.title, 12, INK)
    if not any(len(curve.steps) for curve in panel.curves):
        x = (since + max((_LEFT, picture.right), key=lambda edge: abs(edge - since))) / 2
        canvas.text((x, (axis.top + axis.bottom) / 2), "no value in these steps", 12, DIM, "mm")
    for y, label in axis.ticks():
        canvas.line([(_LEFT, y), (picture.right, y)], GRID, 1)
        canvas.text((_LEFT - 8, y), label, 12, DIM, "rm")
    if panel.threshold is not None:
        canvas.dashed(_LEFT, picture.right, axis.place(panel.threshold), tone)
    canvas.line([(since, axis.top), (since, axis.bottom)], tone, 1.5)
    drawn = list(zip(panel.curves, colours, strict=False))[::-1]  # the first one on top
    for curve, colour in drawn:
        if curve.reference is not None:
            canvas.dashed(_LEFT, picture.right, axis.place(curve.reference), colour, 1.2)
    for curve, colour in drawn:
        _draw_curve(canvas, picture, axis, curve, colour)


def _draw_curve(canvas: _Canvas, picture: Picture, axis: _Axis, curve: Curve, colour: str) -> None:
    """Draw a line through neighbouring points, dots where there are few, and crosses where a value is not finite."""
    is_point = np.isfinite(curve.values)
    steps, values = curve.steps[is_point], curve.values[is_point]
    distances = np.diff(steps)
    gaps = np.flatnonzero(distances > _GAP * np.median(distances)) if len(distances) else np.empty(0, np.intp)
    for part in np.split(np.arange(len(steps)), gaps + 1):
        points = [(picture.x(steps[at]), axis.place(values[at])) for at in part.tolist()]
        if len(points) > 1:
            canvas.line(points, colour, 2)
        for point in points if len(points) == 1 or len(steps) <= _FEW else ():
            canvas.dot(point, colour, 3)
    last = -math.inf
    for step in curve.steps[curve.is_nonfinite]:
        x = picture.x(step)
        if x - last >= _CROSS_DISTANCE:
            canvas.cross((x, axis.top + 7), NONFINITE)
            last = x


def _draw_sign(canvas: _Canvas, picture: Picture) -> None:
    """Write the step of the first sign above its line, or as near as the title of the panel lets it."""
    text = f"first sign: step {picture.since:,}"
    tone, _ = TONES[picture.severity]
    x = max(picture.x(picture.since) + 6, _LEFT + _length(picture.panels[0].title, 12) + 16)
    canvas.text((min(x, picture.right - _length(text, 12)), _TOP - 9), text, 12, tone)


def _draw_steps(canvas: _Canvas, picture: Picture) -> None:
    """Draw the axis of the steps, below all panels."""
    canvas.line([(_LEFT, _BOTTOM), (picture.right, _BOTTOM)], DIM, 1)
    canvas.text((_LEFT - 26, _BOTTOM + 19), "step", 12, DIM, "rs")
    for step in _round_numbers(picture.first, picture.last, _MOST_TICKS):
        if step == int(step):
            canvas.line([(picture.x(step), _BOTTOM), (picture.x(step), _BOTTOM + 5)], DIM, 1)
            canvas.text((picture.x(step), _BOTTOM + 19), f"{int(step):,}", 12, DIM, "ms")


def _draw_legend(canvas: _Canvas, picture: Picture) -> None:
    if not picture.legend:
        return
    curves, y, x = picture.panels[0].curves, float(_TOP), _LEGEND + 22
    canvas.text((_LEGEND, y - 9), picture.legend, 12, INK)
    for curve, colour in zip(curves, CURVES, strict=False):
        canvas.box((_LEGEND, y + 6, _LEGEND + 14, y + 9), colour)
        canvas.text((x, y + 12), _fitted(curve.name, 13, _EDGE - x), 13, INK)
        canvas.text((x, y + 28), _fitted(curve.note, 12, _EDGE - x), 12, DIM)
        y += 42 if curve.note else 26
    if any(curve.reference is not None for curve in curves):
        canvas.dashed(_LEGEND, _LEGEND + 14, y + 9, DIM, 1.2)
        canvas.text((x, y + 13), picture.reference, 12, DIM)
        y += 22
    if picture.panels[0].threshold is not None:
        canvas.dashed(_LEGEND, _LEGEND + 14, y + 9, TONES[picture.severity][0])
        canvas.text((x, y + 13), f"threshold {number(picture.panels[0].threshold)}", 12, DIM)
        y += 22
    if any(curve.is_nonfinite.any() for panel in picture.panels for curve in panel.curves):
        canvas.cross((_LEGEND + 7, y + 9), NONFINITE)
        canvas.text((x, y + 13), "NaN or infinite", 12, DIM)


def _encode(image: Image.Image, severity: Severity) -> bytes:
    """Return the PNG with the most shades that fit."""
    from PIL import Image

    pixels = np.asarray(image).astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    packed, places = np.unique(pixels, return_inverse=True)
    colours = np.stack([packed >> 16, packed >> 8 & 0xFF, packed & 0xFF], axis=1).astype(np.float32)
    found = b""
    for shades in _SHADES:
        palette = _palette(severity, shades)
        nearest = np.square(colours[:, None] - palette).sum(axis=2).argmin(axis=1).astype(np.uint8)
        indexed = Image.fromarray(nearest[places].reshape(HEIGHT, WIDTH))
        indexed.putpalette(palette.astype(np.uint8).tobytes())
        stream = io.BytesIO()
        indexed.save(stream, "PNG", optimize=True)
        found = stream.getvalue()
        if len(found) <= MAX_BYTES:
            break
    return found


def _palette(severity: Severity, shades: int) -> NDArray[np.float32]:
    """Return all colours, each from opaque to paper and to the colour behind the curves."""
    names = [PAPER, TONES[severity][1], INK, DIM, GRID, TONES[severity][0], NONFINITE, *CURVES, *METRICS]
    pure = np.array([[int(name[at : at + 2], 16) for at in (1, 3, 5)] for name in names], np.float32)
    shares = np.linspace(0, 1, shades, dtype=np.float32)[1:-1, None]
    mixed = [(1 - shares) * ink + shares * paper for ink, paper in itertools.product(pure[2:], pure[:2])]
    return np.vstack([pure, *mixed]).round()


def _round_numbers(low: float, high: float, most: int) -> list[float]:
    """Return at most ``most`` multiples of 1, 2 or 5 times a power of ten between two numbers."""
    if not high > low:
        return [low]
    power = 10.0 ** math.floor(math.log10((high - low) / most))
    for factor in (1, 2, 5, 10, 20, 50):
        width = factor * power
        first, last = math.ceil(low / width - 1e-9), math.floor(high / width + 1e-9)
        if last - first < most:
            return [place * width for place in range(first, last + 1)]
    return []


def _decade(exponent: int) -> str:
    return f"{10.0**exponent:g}" if -3 <= exponent <= 3 else f"1e{exponent}"


def _scaled(point: Point) -> Point:
    return point[0] * _SHARPNESS, point[1] * _SHARPNESS


def _fitted(text: str, size: int, width: float) -> str:
    """Return a text that is not wider: its middle is left out."""
    text = plain(text)
    if _length(text, size) <= width:
        return text
    for kept in range(min(len(text), 200) - 1, 0, -1):
        shortened = f"{text[: kept // 2]}…{text[len(text) - (kept - kept // 2) :]}"
        if _length(shortened, size) <= width:
            return shortened
    return "…"


def plain(text: str) -> str:
    """Return a text in the letters that Pillow's font has, others as their base letter or a question mark."""
    letters = (each for each in unicodedata.normalize("NFKD", text) if not unicodedata.combining(each))
    return "".join(each if " " <= each <= "~" or each in "…·" else "?" for each in letters)


def _length(text: str, size: int) -> float:
    return _font(size).getlength(text)


@functools.lru_cache(maxsize=16)
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    from PIL import ImageFont

    return ImageFont.load_default(size)
