"""Addresses of runs and layers, and the state of their pages in the query. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs, quote, urlencode

from gradcanary_dashboard.analysis.stats import STATS

MAX_STEP = 2**53
"""The largest integer of a float64 axis."""

VALUES = ("min", "mean", "max")
ORDERS = ("model", "worst", "block")
AXES = ("step", "time")
SCALES = ("auto", "log", "linear")
WEIGHTS = ("0", "0.6", "0.9", "0.99")
CHOICES = {"stat": tuple(STATS), "value": VALUES, "order": ORDERS, "x": AXES, "y": SCALES, "smooth": WEIGHTS}
"""The values of each parameter; the first is the default."""

MAX_SOUGHT = 200
"""Most characters of a part of a metric's name."""

MAX_TOLD = 20
"""Characters of what is no step, in the sentence that says so."""

MOST_TIMES = 3
"""The steps of the run: of more, what was measured is a stripe in a grey plot."""

_ID = re.compile("[0-9a-f]{10}")


@dataclass(frozen=True)
class View:
    """The layer of the trend, the visible steps (both inclusive), the incident of a link, the heatmap.

    ``rows`` is the regular expression for the heatmap's rows, as typed. Of the metrics ``metrics`` is a part of their
    names, ``lines`` are the ids of the drawn lines, ``smooth`` is the weight of earlier values in the moving average,
    and ``y`` the axis of values. ``vs`` is the run whose heatmap and curves stand beside those of this one.
    """

    layer: str | None = None
    from_step: int | None = None
    to_step: int | None = None
    incident: int | None = None
    rows: str | None = None
    metrics: str | None = None
    stat: str = CHOICES["stat"][0]
    value: str = CHOICES["value"][0]
    order: str = CHOICES["order"][0]
    x: str = CHOICES["x"][0]
    y: str = CHOICES["y"][0]
    lines: tuple[str, ...] = ()
    smooth: str = CHOICES["smooth"][0]
    vs: str | None = None

    @property
    def is_zoomed(self) -> bool:
        """True if not all steps are visible."""
        return self.from_step is not None or self.to_step is not None

    def steps(self) -> View:
        """Return a view with only the visible steps and their axis: for a link to another page of the run."""
        return View(from_step=self.from_step, to_step=self.to_step, x=self.x)


def parse(text: str | None) -> View:
    """Return the view of a query string; invalid parameters are ignored."""
    query = parse_qs((text or "").removeprefix("?"))
    first, last = _number(query, "from"), _number(query, "to")
    if first is not None and last is not None and first > last:
        first, last = None, None
    chosen = {key: _choice(query, key) for key in CHOICES}
    lines = tuple(filter(_ID.fullmatch, (_text(query, "lines") or "").split(",")))
    layer, incident, rows = _text(query, "layer"), _number(query, "incident"), _text(query, "rows")
    metrics = _text(query, "metrics")
    metrics = metrics if metrics is not None and len(metrics) <= MAX_SOUGHT else None
    return View(layer, first, last, incident, rows, metrics, lines=lines, vs=_text(query, "vs"), **chosen)


def find_wrong_steps(text: str | None, steps: tuple[int, int]) -> str | None:
    """Return why the steps of a query string cannot be drawn, None if they can; ``steps`` are those of the run."""
    query = parse_qs((text or "").removeprefix("?"))
    ends: list[int] = []
    for key, end in zip(("from", "to"), steps, strict=True):
        told, number = _text(query, key), _number(query, key)
        if told and number is None:
            return f"{key}={told[:MAX_TOLD]} is no step."
        ends.append(end if number is None else number)
    first, last = ends
    if first > last:
        return f"Step {first:,} is after step {last:,}."
    if last < steps[0] or first > steps[1] or last - first > MOST_TIMES * (steps[1] - steps[0] + 1):
        return f"The run has the steps {steps[0]:,} to {steps[1]:,} so far."
    return None


def run_url(run: str, view: View | None = None) -> str:
    """Return the address of a run's page for a view."""
    return f"/runs/{quote(run, safe='')}{search(view or View())}"


def layer_url(run: str, layer: str, number: int, view: View | None = None) -> str:
    """Return the address of a layer's page, with the steps of the view."""
    return layer_urls(run, view)(layer, number)


def layer_urls(run: str, view: View | None = None) -> Callable[[str, int], str]:
    """Return a function that returns the address of a layer's page for its name and number."""
    before, after = f"/runs/{quote(run, safe='')}/layers/", search((view or View()).steps())

    def url(layer: str, number: int) -> str:
        # A browser reads a segment of dots as the folder above, whatever its encoding.
        return f"{before}{number if not layer.strip('.') else quote(layer, safe='')}{after}"

    return url


def search(view: View) -> str:
    """Return the query of a view with its question mark, empty for the default view."""
    parts = {
        "layer": view.layer,
        "from": view.from_step,
        "to": view.to_step,
        "incident": view.incident,
        "rows": view.rows,
        "metrics": view.metrics,
        "lines": ",".join(view.lines) or None,
        "vs": view.vs,
        **{key: None if getattr(view, key) == allowed[0] else getattr(view, key) for key, allowed in CHOICES.items()},
    }
    query = urlencode({key: value for key, value in parts.items() if value is not None})
    return f"?{query}" if query else ""


def _text(query: dict[str, list[str]], key: str) -> str | None:
    return next(iter(query.get(key, [])), None)


def _choice(query: dict[str, list[str]], key: str) -> str:
    text = _text(query, key)
    return text if text is not None and text in CHOICES[key] else CHOICES[key][0]


def _number(query: dict[str, list[str]], key: str) -> int | None:
    text = _text(query, key) or ""
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None
    return number if number is not None and number < MAX_STEP else None
