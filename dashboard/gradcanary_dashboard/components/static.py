"""Parts of a page that hear of nothing, as JSON that the browser draws by itself: ``assets/js/static.js``.

Dash keeps account of each of its components; to fill a slot with 1,400 of them takes Chromium 2.8 s of CPU, with 120 of
them 0.2. These are elements only, which are built at once, and of which those that did not change stay as they are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from dash import html
from dash.development.base_component import Component

from gradcanary_dashboard.components import elements

Tree: TypeAlias = "str | list[Any]"
"""A text, or an element: its tag, its attributes, and what is in it."""

TREES = "data-trees"
"""The attribute that holds them."""

_NAMES = {"className": "class", "htmlFor": "for"}


def slot(name: str, trees: str | None, *, tag: type[Component] = html.Div, **more: str) -> Component:
    """Return the element that is filled by its attribute ``TREES``; ``more`` are properties of it."""
    return tag(id=name, **{TREES: trees or "[]"}, **more)


def encode(children: elements.Children) -> str:
    """Return the trees of a slot as JSON: elements and links, none of which any callback may name."""
    return json.dumps(list(trees(children)), separators=(",", ":"))


def trees(children: elements.Children) -> Iterator[Tree]:
    """Yield the trees of elements and texts."""
    if children is None:
        return
    if isinstance(children, Sequence) and not isinstance(children, str):
        for each in children:
            yield from trees(each)
    else:
        yield _element(children) if isinstance(children, Component) else str(children)


def _element(component: Component) -> list[Any]:
    described: dict[str, Any] = component.to_plotly_json()  # type: ignore[no-untyped-call]
    held = dict(described["props"])
    is_link = described["type"] == "Link"  # of dcc: it leads on without loading the page anew
    inside = list(trees(held.pop("children", None)))
    if "style" in held:
        held["style"] = "; ".join(f"{name}: {value}" for name, value in held["style"].items())
    attributes = {
        _NAMES.get(name, name.lower()): value
        for name, value in held.items()
        if value is not None and value is not False
    }
    attributes = {name: "" if value is True else str(value) for name, value in attributes.items()}
    if is_link:
        attributes["data-way"] = ""
    return ["a" if is_link else described["type"].lower(), attributes, *inside]
