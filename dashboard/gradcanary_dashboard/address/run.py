"""What is looked at: addresses, and the part of a page's state that lives in its query."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import parse_qs, quote, urlencode

from gradcanary_dashboard.analysis.stats import STATS

MAX_STEP = 2**53
"""Steps beyond what a float64 axis can hold are no steps."""

VALUES = ("min", "mean", "max")
ORDERS = ("model", "worst", "block")
AXES = ("step", "time")
SCALES = ("auto", "log", "linear")
WEIGHTS = ("0", "0.6", "0.9", "0.99")
CHOICES = {"stat": tuple(STATS), "value": VALUES, "order": ORDERS, "x": AXES, "y": SCALES, "smooth": WEIGHTS}
"""What a parameter may be; the first is meant where the address is silent."""

MAX_SOUGHT = 200
"""Characters of a part of a metric's name."""

_ID = re.compile("[0-9a-f]{10}")


@dataclass(frozen=True)
class View:
    """The layer of the trend, the steps in sight (both inclusive), the incident the reader came for, the heatmap.

    ``rows`` is the regular expression that chooses the heatmap's rows, as typed, ``metrics`` a part of the names of the
    metrics to draw; ``lines`` are the ids of the lines that are drawn of metrics with many, ``smooth`` the weight of
    what was before in their moving average, ``y`` their axis of values.
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

    @property
    def is_zoomed(self) -> bool:
        """Whether some steps are out of sight."""
        return self.from_step is not None or self.to_step is not None

    def steps(self) -> View:
        """Return the steps in sight and their axis, nothing else: what goes along to another page of the run."""
        return View(from_step=self.from_step, to_step=self.to_step, x=self.x)


def parse(text: str | None) -> View:
    """Return the view of a query string; what cannot be read counts as absent."""
    query = parse_qs((text or "").removeprefix("?"))
    first, last = _number(query, "from"), _number(query, "to")
    if first is not None and last is not None and first > last:
        first, last = None, None
    chosen = {key: _choice(query, key) for key in CHOICES}
    lines = tuple(filter(_ID.fullmatch, (_text(query, "lines") or "").split(",")))
    layer, incident, rows = _text(query, "layer"), _number(query, "incident"), _text(query, "rows")
    metrics = _text(query, "metrics")
    metrics = metrics if metrics is not None and len(metrics) <= MAX_SOUGHT else None
    return View(layer, first, last, incident, rows, metrics, lines=lines, **chosen)


def run_url(run: str, view: View | None = None) -> str:
    """Return the address of a run's page, with the parts of the view that are set."""
    return f"/runs/{quote(run, safe='')}{search(view or View())}"


def layer_url(run: str, layer: str, number: int, view: View | None = None) -> str:
    """Return the address of a layer's page, with the steps of the view."""
    # A browser takes a segment of dots for a way up, whatever its encoding.
    name = str(number) if layer.strip(".") == "" else quote(layer, safe="")
    return f"/runs/{quote(run, safe='')}/layers/{name}{search((view or View()).steps())}"


def search(view: View) -> str:
    """Return the query of an address that says a view, with its question mark; nothing for the usual one."""
    parts = {
        "layer": view.layer,
        "from": view.from_step,
        "to": view.to_step,
        "incident": view.incident,
        "rows": view.rows,
        "metrics": view.metrics,
        "lines": ",".join(view.lines) or None,
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
