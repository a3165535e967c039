"""What of a run is looked at: the part of the page's state that lives in its URL."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qs, quote, unquote, urlencode

MAX_STEP = 2**53
"""Steps beyond what a float64 axis can hold are no steps."""


@dataclass(frozen=True)
class View:
    """The layer of the trend, the steps in sight (both inclusive), the incident the reader came for."""

    layer: str | None = None
    from_step: int | None = None
    to_step: int | None = None
    incident: int | None = None


def parse(search: str | None) -> View:
    """Return the view of ``?layer=&from=&to=&incident=``; what cannot be read counts as absent."""
    query = parse_qs((search or "").removeprefix("?"))
    first, last = _number(query, "from"), _number(query, "to")
    if first is not None and last is not None and first > last:
        first, last = None, None
    return View(next(iter(query.get("layer", [])), None), first, last, _number(query, "incident"))


def run_url(run: str, view: View | None = None) -> str:
    """Return the address of a run's page, with the parts of the view that are set."""
    view = view or View()
    parts = {"layer": view.layer, "from": view.from_step, "to": view.to_step, "incident": view.incident}
    search = urlencode({key: value for key, value in parts.items() if value is not None})
    return f"/runs/{quote(run, safe='')}" + (f"?{search}" if search else "")


def run_of(pathname: str) -> str | None:
    """Return the run that a path names, None for any other page."""
    root, _, name = pathname.strip("/").partition("/")
    return unquote(name) if root == "runs" and name else None


def _number(query: dict[str, list[str]], key: str) -> int | None:
    text = next(iter(query.get(key, [])), "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 18 else None
    return number if number is not None and number < MAX_STEP else None
