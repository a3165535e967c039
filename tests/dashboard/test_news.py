"""What a page asks every second, of the collector's own port: is there anything new?"""

import json
from typing import Any

import httpx
import numpy as np
import pytest
from streams import Session, Stream

from gradcanary_dashboard.client import Collector as Client
from gradcanary_dashboard.news import runs_version

RUN = "a run & more"
PAGE = "/runs/a%20run%20%26%20more"
STREAM = Stream(np.full((40, 4), 1e-3, np.float32))


def begin(collector: Any, run: str) -> Session:
    session = Session(collector.url, run=run, session=f"session-of-{run}")
    session.put_hello(STREAM.hello()).raise_for_status()
    return session


def answer(collector: Any, path: str, shown: object) -> int:
    status = httpx.get(f"{collector.url}/_news", params={"path": path, "shown": json.dumps(shown)}).status_code
    assert status in (200, 204)
    return status


def shown(collector: Any) -> dict[str, object]:
    """What a page of the run that was filled just now holds."""
    return {"version": Client(collector.url).run(RUN).version, "search": ""}


def test_there_is_news_once_a_step_arrives(module_collector: Any) -> None:
    session = begin(module_collector, RUN)
    known = shown(module_collector)
    for page in (PAGE, f"{PAGE}/layers/0"):
        assert answer(module_collector, page, known) == 204
        assert answer(module_collector, page, {**known, "incidents": "what was told before"}) == 200
        assert answer(module_collector, page, {**known, "down": True}) == 200
    session.post_batch(0, STREAM.batch(0, 40)).raise_for_status()
    for page in (PAGE, f"{PAGE}/layers/0"):
        assert answer(module_collector, page, known) == 200
        assert answer(module_collector, page, shown(module_collector)) == 204


def test_the_list_of_runs_has_news_once_a_run_says_hello(module_collector: Any) -> None:
    known = {"version": runs_version(Client(module_collector.url))}
    assert answer(module_collector, "/", known) == 204
    begin(module_collector, "another")
    assert answer(module_collector, "/", known) == 200


@pytest.mark.parametrize("held", ["", "{", "[1]", "[" * 5_000, '{"version": 3}', '{"version": "x", "search": null}'])
@pytest.mark.parametrize("path", ["/", "/runs/nobody", "/runs/x/layers/y", "/runs", "x"])
def test_what_cannot_be_told_is_news(module_collector: Any, path: str, held: str) -> None:
    asked = httpx.get(f"{module_collector.url}/_news", params={"path": path, "shown": held})
    assert asked.status_code == 200
