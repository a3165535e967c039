"""How the dashboard hangs on its server: nothing of it may run on the event loop, nothing may come from elsewhere."""

import asyncio
import inspect
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from dash import Dash, Input, Output, no_update
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.middleware import Middleware

from gradcanary_dashboard.app import create_app, mount
from gradcanary_dashboard.components.endpoint_text import SENT_AGAIN
from gradcanary_dashboard.pages.registry import PAGES
from gradcanary_dashboard.pages.settings import silences as silences_page
from gradcanary_dashboard.pages.settings import tokens as tokens_page
from gradcanary_dashboard.web import threads
from gradcanary_dashboard.web.assets import PLOTLY
from gradcanary_dashboard.web.documents import Documents
from gradcanary_dashboard.web.threads import changing, threaded

ASSETS = Path(threads.__file__).parent.parent / "assets"
NOBODY = "http://127.0.0.1:9"
TOLD = (SENT_AGAIN, silences_page.ENDED, tokens_page.REVOKED)
"""Stores that a list of buttons tells what to do something to."""


def test_every_callback_is_a_coroutine_function() -> None:
    app = mount(FastAPI(), NOBODY)
    served = [entry["callback"] for entry in app.callback_map.values() if "callback" in entry]
    assert len(served) > len(PAGES)
    assert all(inspect.iscoroutinefunction(callback) for callback in served)


def test_a_handler_runs_in_another_thread() -> None:
    app = Dash("test", server=FastAPI())  # type: ignore[arg-type]
    threads: list[int] = []

    @threaded(app, {"one": Output("a", "children"), "two": Output("b", "children")}, Input("c", "value"))
    def handler(_value: object) -> dict[str, object]:
        threads.append(threading.get_ident())
        return {"one": "said"}

    (entry,) = app.callback_map.values()
    # In a thread of its own: the browser tests leave an event loop running in this one.
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(lambda: asyncio.run(entry["callback"].__wrapped__(1))).result()
    assert said == {"one": "said", "two": no_update}
    assert threads != [threading.get_ident()]


def test_two_handlers_run_at_a_time_and_the_others_wait() -> None:
    app = Dash("test", server=FastAPI())  # type: ignore[arg-type]
    begun, go = threading.Semaphore(0), threading.Semaphore(0)
    under_way: list[int] = []
    most: list[int] = []

    @threaded(app, {"one": Output("a", "children")}, Input("c", "value"))
    def handler(value: int) -> dict[str, object]:
        under_way.append(value)
        most.append(len(under_way))
        begun.release()
        assert go.acquire(timeout=30)
        under_way.remove(value)
        return {"one": value}

    (entry,) = app.callback_map.values()
    ask = entry["callback"].__wrapped__
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(lambda value=value: asyncio.run(ask(value))) for value in range(4)]
        assert begun.acquire(timeout=30)
        assert begun.acquire(timeout=30)
        is_more = begun.acquire(timeout=0.3)
        go.release(4)
        assert [each.result(30) for each in asked] == [{"one": value} for value in range(4)]
    assert not is_more
    assert max(most) == 2


def test_pages_do_not_wait_for_what_people_change() -> None:
    app = Dash("test", server=FastAPI())  # type: ignore[arg-type]
    go = threading.Event()

    @changing(app, {"one": Output("a", "children")}, Input("c", "n_clicks"))
    def change(value: int) -> dict[str, object]:
        assert go.wait(30)
        return {"one": value}

    @threaded(app, {"one": Output("b", "children")}, Input("c", "value"))
    def page(value: int) -> dict[str, object]:
        return {"one": value}

    click, ask = (entry["callback"].__wrapped__ for entry in app.callback_map.values())
    with ThreadPoolExecutor(8) as pool:
        clicked = [pool.submit(lambda value=value: asyncio.run(click(value))) for value in range(6)]
        try:
            assert pool.submit(lambda: asyncio.run(ask(7))).result(30) == {"one": 7}
        finally:
            go.set()
        assert [each.result(30) for each in clicked] == [{"one": value} for value in range(6)]


@pytest.mark.parametrize("path", ["/", "/runs/some-run", "/runs/some-run?layer=x", "/runs/a/layers/b%2Fc"])
def test_every_page_is_served_first(path: str) -> None:
    with TestClient(create_app(NOBODY)) as server:
        answer = server.get(path)
    assert answer.status_code == 200
    assert '<html lang="en">' in answer.text
    assert not re.findall(r'(?:src|href)="(?:https?:)?//', answer.text)


def test_files_are_small_and_asked_for_once() -> None:
    with TestClient(create_app(NOBODY)) as server:
        addresses = [*re.findall(r'(?:src|href)="(/[^"]+)"', server.get("/").text), f"/assets/{PLOTLY}"]
        assert len(addresses) > 10
        for address in set(addresses) - {"/assets/icon.svg"}:
            answer = server.get(address, headers={"accept-encoding": "gzip"})
            assert "max-age=31536000" in answer.headers["cache-control"], address
            assert len(answer.content) < 1000 or answer.headers["content-encoding"] == "gzip", address
        for address in ("/assets/css/gradcanary.css", "/assets/icon.svg"):
            assert "max-age" not in server.get(address).headers.get("cache-control", ""), (
                "its name stays when it changes"
            )


def test_a_process_may_hold_two_dashboards() -> None:
    with TestClient(create_app("http://127.0.0.1:1")) as one, TestClient(create_app("http://127.0.0.1:2")) as two:
        assert "127.0.0.1:1" in one.get("/_dash-layout").text
        assert "127.0.0.1:2" in two.get("/_dash-layout").text


def test_nothing_but_a_refresh_writes_into_a_slot() -> None:
    """What a page has in its slots is told by digests of what a refresh put there."""
    slots = {f"{slot}.{kind}" for page in PAGES for slot, kind in page.slots.items()}
    app = mount(FastAPI(), NOBODY)
    registered = app._callback_list  # what the browser is told of each
    assert len(registered) > len(PAGES)
    for each in registered:
        told = {name.partition("@")[0] for name in each["output"].strip(".").split("...")}
        running = each.get("running") or {"running": {}, "runningOff": {}}
        assert not slots & {*told, *running["running"], *running["runningOff"]}


def test_scripts_do_not_write_into_a_slot() -> None:
    slots = {f"{slot}.{kind}" for page in PAGES for slot, kind in page.slots.items()}
    kinds = {kind for page in PAGES for kind in page.slots.values()}
    scripts = [each.read_text() for each in (ASSETS / "js").iterdir() if each.stem != "refresh"]
    written = [found for script in scripts for found in re.findall(r"""set_props\(([^,]+), \{ *"?([\w-]+)""", script)]
    assert len(written) == sum(script.count("set_props(") for script in scripts) > 2
    for name, kind in written:
        # Of one that is put together at least what is written there is in no slot.
        assert kind not in kinds if '"' not in name or "+" in name else f"{json.loads(name)}.{kind}" not in slots


def test_changing_actions_cannot_be_sent_twice() -> None:
    """Until a click is answered its button is disabled, or what a list of buttons is answered in is busy."""
    app = mount(FastAPI(), NOBODY)
    clicked = 0
    for each in app._callback_list:
        pressed = [asked["id"] for asked in each["inputs"] if asked["property"] == "n_clicks"]
        held = (each.get("running") or {"running": {}})["running"]
        assert {f"{name}.disabled" for name in pressed} <= set(held), each["output"]
        clicked += len(pressed)
        if any(asked["id"] in TOLD for asked in each["inputs"]):
            assert any(name.endswith(".aria-busy") for name in held), each["output"]
    assert clicked > 12


class Own:
    """A middleware of the collector's."""

    def __init__(self, app: object) -> None:
        self.app = app


class Late(FastAPI):
    """A server that puts each new middleware behind the others; Starlette puts it before them."""

    def add_middleware(self, middleware_class: Any, *args: Any, **kwargs: Any) -> None:
        self.user_middleware.append(Middleware(middleware_class, *args, **kwargs))


@pytest.mark.parametrize("kind", [FastAPI, Late])
def test_middleware_of_the_collector_stays_before_that_of_dash(kind: type[FastAPI]) -> None:
    server = kind()
    server.add_middleware(Own)
    mount(server, "http://127.0.0.1:9")
    names = [each.cls for each in server.user_middleware]
    assert names[:2] == [Own, Documents]
    assert len(names) > 2, "Dash adds its own"
    assert Own not in names[2:]


def test_opening_of_a_page_is_the_request_that_the_scripts_repeat() -> None:
    """They know it by the first output of its callback, which depends on the order in a dict."""
    scripts = [script.read_text("utf-8") for script in ASSETS.rglob("*.js")]
    found = [re.search(r"""includes\('"output":"([^']+)'\)""", script) for script in scripts]
    [start] = [match.group(1) for match in found if match is not None]
    with TestClient(create_app("http://127.0.0.1:9")) as pages:
        outputs = [each["output"] for each in pages.get("/_dash-dependencies").json()]
    assert len([output for output in outputs if output.startswith(start)]) == 1
