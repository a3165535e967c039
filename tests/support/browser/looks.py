"""What is wrong with how a page looks, whichever page it is: for eyes, for fingers and for those who hear it."""

from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from support.browser.plots import await_figures

CUT = """() => {
    // Hidden from eyes on purpose, and figures, whose svg is as large as it is.
    const heads = ":is(.compared-runs, .runs) thead";
    const allowed = `.unseen, ${heads}, .skip, .brand .word, #link .word, .js-plotly-plot, select, option`;
    const name = (one) => one.tagName + "." + one.className + ": " + one.textContent.trim().slice(0, 40);
    const hides = (overflow) => overflow === "hidden" || overflow === "clip";
    return Array.from(document.querySelectorAll("header *, main *, dialog *")).filter((one) => {
        if (!one.textContent.trim() || !one.getClientRects().length || one.closest(allowed)) return false;
        const style = getComputedStyle(one);
        return (hides(style.overflowX) && one.scrollWidth > one.clientWidth + 1)
            || (hides(style.overflowY) && one.scrollHeight > one.clientHeight + 1);
    }).map(name);
}"""
UPON_EACH_OTHER = """() => Array.from(document.querySelectorAll(".js-plotly-plot")).flatMap((plot) => {
    const boxes = Array.from(plot.querySelectorAll(".main-svg text"))
        .filter((text) => text.textContent && text.closest(".hoverlayer") === null)
        .map((text) => [text.textContent, text.getBoundingClientRect()])
        .filter(([, box]) => box.width);
    const within = (a, b, low, high) => Math.min(a[high], b[high]) - Math.max(a[low], b[low]) > 2;
    return boxes.flatMap(([text, box], place) => boxes.slice(place + 1)
        .filter(([, other]) => within(box, other, "left", "right") && within(box, other, "top", "bottom"))
        .map(([other]) => `${plot.closest("[id]").id}: ${text} and ${other}`));
})"""
OUT_OF_FIGURES = """() => Array.from(document.querySelectorAll(".js-plotly-plot .main-svg text")).filter((text) => {
    const svg = text.closest(".main-svg").getBoundingClientRect();
    const box = text.getBoundingClientRect();
    const isOut = box.left < svg.left - 1 || box.right > svg.right + 1
        || box.bottom > svg.bottom + 1 || box.top < svg.top - 1;
    return box.width && isOut && text.closest(".hoverlayer") === null;
}).map((text) => text.closest("[id]").id + ": " + text.textContent)"""
SIDEWAYS = """() => document.documentElement.scrollWidth <= innerWidth ? [] :
    Array.from(document.querySelectorAll("body *"))
        .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
        .map((one) => one.tagName + "." + one.className).slice(0, 9)"""
PARTED = """() => {
    const found = [], texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), range = new Range();
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
        for (const number of text.data.matchAll(/[0-9.]+e-[0-9]+/g)) {
            range.setStart(text, number.index);
            range.setEnd(text, number.index + number[0].length);
            const lines = new Set(Array.from(range.getClientRects(), (box) => Math.round(box.top)));
            if (lines.size > 1) found.push(text.data.trim().slice(0, 60));
        }
    }
    return found;
}"""
"""Numbers of which a part is on the next line: browsers break after a hyphen."""

SMALL = """() => Array.from(document.querySelectorAll("button, select, input, textarea, summary, a.do, header a, nav a"
        + ", h2 a, h3 a")).filter((one) => {
    // A link that is a whole card is as large as that.
    const isCard = getComputedStyle(one, "::after").position === "absolute";
    if (!one.getClientRects().length || one.closest(".unseen") || isCard) return false;
    const box = one.getBoundingClientRect();
    return box.height < 44 || box.width < 20;
}).map((one) => one.tagName + "." + one.className + "#" + one.id + " " + one.textContent.trim().slice(0, 30))"""

OF_A_THEME = {"runOnly": ["color-contrast", "link-in-text-block"]}
"""What axe looks for that depends on the colours."""

OF_A_WIDTH = {"runOnly": [*OF_A_THEME["runOnly"], "button-name", "link-name", "scrollable-region-focusable"]}
"""And on what a phone has no room for."""

MARK_ALIKE = """() => {
    const shape = (one) => one.tagName + "." + one.className + "[" + Array.from(one.attributes, (its) => its.name) + "]"
        + Array.from(one.children, shape).join();
    for (const body of document.querySelectorAll("tbody")) {
        const seen = new Set();
        for (const row of body.rows) {
            row.removeAttribute("data-alike");
            const its = shape(row);
            row.toggleAttribute("data-alike", seen.has(its));
            seen.add(its);
        }
    }
}"""
ALIKE = "tr[data-alike]"
"""Rows of the same elements, classes and attributes as one above: axe takes as long for all as for ten pages."""

_axe = Axe()


def faults(page: Page) -> list[str]:
    """Return what is wrong with the page in the tab: wide and as narrow as a phone, each light and dark."""
    await_figures(page)
    found = [*_of_frame(page), *_heard(page, "wide"), *amiss(page, "wide")]
    page.emulate_media(color_scheme="dark")
    found += _heard(page, "wide, dark", **OF_A_THEME)
    page.set_viewport_size({"width": 390, "height": 844})
    await_figures(page)
    page.wait_for_timeout(300)  # figures follow the width when it rests
    found += [*_heard(page, "narrow, dark", **OF_A_WIDTH), *amiss(page, "narrow")]
    page.emulate_media(color_scheme="light")
    found += _heard(page, "narrow", **OF_A_THEME)
    page.set_viewport_size({"width": 1440, "height": 900})
    return found


def too_small_for_fingers(page: Page) -> list[str]:
    """Return what is to be tapped and is less than 44 pixels high; links within a sentence are as it is."""
    small: list[str] = page.evaluate(SMALL)
    return small


def _of_frame(page: Page) -> list[str]:
    counted = page.evaluate("""() => ({
        lang: document.documentElement.lang === "en",
        "one main": document.querySelectorAll("main").length === 1,
        "one h1": Array.from(document.querySelectorAll("h1")).filter((one) => one.getClientRects().length).length === 1,
        title: document.title.endsWith(" · gradcanary"),
    })""")
    return [what for what, holds in counted.items() if not holds]


def _heard(page: Page, how: str, **options: Any) -> list[str]:
    page.evaluate(MARK_ALIKE)
    found = _axe.run(page, {"exclude": [ALIKE]}, {"resultTypes": ["violations"], **options})
    violations = found.response["violations"]
    return [
        f"{how}, {each['id']}: {node['html'][:160]} {node['target']}" for each in violations for node in each["nodes"]
    ]


def amiss(page: Page, how: str) -> list[str]:
    """Return what eyes would mind: what is cut, upon something else or out of the page."""
    found = {
        "sideways": SIDEWAYS,
        "cut": CUT,
        "out of its figure": OUT_OF_FIGURES,
        "upon each other": UPON_EACH_OTHER,
        "parted": PARTED,
    }
    return [f"{how}, {what}: {each}" for what, asked in found.items() for each in page.evaluate(asked)]
