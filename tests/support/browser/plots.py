"""Plots as a hand and an eye use them: where a step is, what is in sight, a drag."""

import contextlib
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Error as PlaywrightError
from playwright.sync_api import Page
from playwright.sync_api import TimeoutError as PlaywrightTimeoutError

IMAGE = "#heatmap .heatmaplayer image"


def open_run(open_page: Callable[..., Page], url: str, path: str) -> Page:
    page = open_page(f"{url}/runs/{path}")
    page.wait_for_selector(IMAGE)
    page.wait_for_selector("#trend .main-svg", state="attached")
    return page


def until(page: Page, what: str, arg: Any = None) -> None:
    """Wait for an expression, or a function of ``arg``, to hold. What it reads may not be drawn yet.

    Playwright's own way evaluates text inside the page, which the page's policy forbids; asked from outside it may be.
    """
    waited_ms = 0
    while True:
        missing = ""
        try:
            if page.evaluate(what, arg):
                return
        except PlaywrightError as error:
            missing = error.message
            if "Cannot read properties of" not in missing:
                raise
        assert waited_ms < 20_000, f"{what} {missing}"
        page.wait_for_timeout(50)
        waited_ms += 50


def await_rest(page: Page, selector: str) -> None:
    """Wait for an element to stay where it is: what comes above it moves it."""
    top = "(selector) => document.querySelector(selector).getBoundingClientRect().top"
    before, now, waited_ms = None, page.evaluate(top, selector), 0
    while before != now:
        assert waited_ms < 20_000, f"{selector} moves"
        page.wait_for_timeout(300)
        waited_ms += 300
        before, now = now, page.evaluate(top, selector)


def await_figures(page: Page) -> None:
    """Wait for the page's heading and all of its figures."""
    page.wait_for_selector("main h1:visible")
    until(
        page,
        "Array.from(document.querySelectorAll('[data-figure]')).every("
        "(graph) => !graph.getClientRects().length || graph.querySelector('.main-svg'))",
    )


def meta(page: Page, figure: str = "heatmap") -> Any:
    return page.evaluate(f"document.querySelector('#{figure} .js-plotly-plot').layout.meta")


def steps_in_sight(page: Page, figure: str = "heatmap") -> Any:
    return page.evaluate(f"document.querySelector('#{figure} .js-plotly-plot').layout.xaxis.range.map(Number)")


def open_row(page: Page, down: float) -> None:
    """Click twice on a row of the heatmap, until that opens the layer's page.

    Plotly counts two clicks as one where it comes to handle them within 0.3 s, which a busy machine may not.
    """
    for _ in range(5):
        page.mouse.dblclick(*place(page, "heatmap", 0.5, down))
        with contextlib.suppress(PlaywrightTimeoutError):
            page.wait_for_selector("#layer-page-state", state="attached", timeout=3000)
            return


def place(page: Page, figure: str, across: float, down: float) -> tuple[float, float]:
    """A place on the plot area, as parts of its width and height."""
    page.locator(f"#{figure}").scroll_into_view_if_needed()
    box = page.locator(f"#{figure} .nsewdrag").bounding_box()
    assert box is not None
    return box["x"] + across * box["width"], box["y"] + down * box["height"]


def draw_over(page: Page, figure: str, begin: float, end: float) -> None:
    page.mouse.move(*place(page, figure, begin, 0.5))
    page.mouse.down()
    page.mouse.move(*place(page, figure, end, 0.5), steps=5)
    page.mouse.up()


def drag(page: Page, figure: str, begin: float, end: float) -> None:
    """Drag over a figure until that changes the address: one that is drawn anew meanwhile loses the drag."""
    address = page.url
    for _ in range(4):
        draw_over(page, figure, begin, end)
        with contextlib.suppress(PlaywrightTimeoutError):
            page.wait_for_url(lambda url: url != address, timeout=8000, wait_until="commit")
            return
    raise AssertionError(f"no drag over {figure} changed the address")


def point(page: Page, figure: str, step: float, down: float = 0.5) -> None:
    left, right = steps_in_sight(page, figure)
    page.mouse.move(0, 0)
    page.mouse.move(*place(page, figure, (step - left) / (right - left), down), steps=2)


def query(page: Page) -> dict[str, str]:
    return dict(page.evaluate("Array.from(new URLSearchParams(window.location.search))"))


def rows(page: Page) -> list[str]:
    return list(meta(page)["names"])
