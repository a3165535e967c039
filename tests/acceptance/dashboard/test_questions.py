"""How many questions a page costs its collector: for its first contents, and for a refresh without news."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
import pytest

from gradcanary import wire
from gradcanary_dashboard.collector.client import Collector, one_answer_per_question
from gradcanary_dashboard.pages import registry
from gradcanary_dashboard.pages.registry import Contents
from support.collectors import Collector as Process
from support.streams import Session, Stream, healthy

INCIDENTS = 30
"""More than a page of a run or a layer shows with all details."""

FINITE = 120
"""Steps after which a layer has recovered from a NaN."""

MOST = {
    "/": 3,
    "/runs/many": 8,
    "/runs/many?incident=1": 9,
    "/runs/many/layers/0": 5,
    "/runs/many/layers/0?from=100&to=200&incident=1": 6,
    "/runs/many/settings": 2,
    "/runbooks/collapse": 0,
    "/compare?run=many&run=other": 15,
    "/incidents": 3,
    "/incidents/1": 4,
    "/settings": 2,
    "/settings/endpoints/1": 3,
    "/settings/rules": 2,
    "/settings/silences": 4,
    "/settings/retention": 1,
    "/settings/tokens": 1,
}
"""Questions of one render of each page."""


def with_clips(batch: wire.Batch) -> wire.Batch:
    """Return the batch with the metrics of a training that clips."""
    ones = wire.column("d", [1.0] * len(batch.steps))
    clip = (wire.Metric(name, (), batch.steps, ones) for name in ("total_norm", "clip_factor"))
    return replace(batch, metrics=(*batch.metrics, *clip))


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("collector")
    rules = folder / "rules.yaml"
    rules.write_text("version: 1\npace:\n  reopen_s: 0.000001\n")
    process = Process(folder / "data", ("--rules", str(rules), "--webhook", "http://127.0.0.1:9/hook"))
    process.start()
    absmax = healthy(INCIDENTS * (FINITE + 1), 4)
    absmax[:: FINITE + 1, 0] = np.inf
    for run in ("many", "other"):
        stream = Stream(absmax, np.ones(len(absmax)))
        session = Session(process.url, run=run)
        session.put_hello(stream.hello()).raise_for_status()
        bounds = sorted({*range(0, len(absmax), FINITE + 1), *range(1, len(absmax), FINITE + 1), len(absmax)})
        for seq, (begin, end) in enumerate(pairwise(bounds)):
            batch = with_clips(stream.batch(begin, end, change_records=begin == 0))
            session.post_batch(seq, batch).raise_for_status()
    yield process.url
    process.kill()


@pytest.fixture
def api(url: str) -> Iterator[Collector]:
    api = Collector(url)
    yield api
    api.close()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the paths of all requests to come."""
    paths: list[str] = []
    send = httpx.Client.send

    def counted(client: httpx.Client, request: httpx.Request, **options: Any) -> httpx.Response:
        paths.append(request.url.raw_path.decode().removeprefix("/api/v1"))
        return send(client, request, **options)

    monkeypatch.setattr(httpx.Client, "send", counted)
    return paths


def render(api: Collector, address: str, shown: str = "{}") -> Contents:
    """Return the contents of a page, none if they are those that it shows already."""
    parts = urlsplit(address)
    page, arguments = registry.find(parts.path)
    with one_answer_per_question():
        return page.ask(api, arguments, f"?{parts.query}" if parts.query else "", json.loads(shown))


def test_run_has_more_incidents_than_a_page_details(api: Collector) -> None:
    listed = api.incidents(run="many").body["incidents"]
    assert len(listed) == INCIDENTS


def test_every_page_has_a_limit() -> None:
    pages = [registry.find(urlsplit(address).path)[0].name for address in MOST]
    assert sorted(set(pages)) == sorted(page.name for page in registry.PAGES)


@pytest.mark.parametrize("address", MOST)
def test_render_asks_at_most(api: Collector, asked: list[str], address: str) -> None:
    assert render(api, address)
    assert len(asked) <= MOST[address], asked
    assert len(asked) == len(set(asked)), "the same question twice"


@pytest.mark.parametrize("address", ["/runs/many", "/runs/many/layers/0"])
def test_refresh_without_news_asks_for_the_run_and_its_incidents(
    api: Collector, asked: list[str], address: str
) -> None:
    contents = render(api, address)
    asked.clear()
    known = {**json.loads(contents["shown"]), "slots": {"vs-runs": "asked for by the first refresh"}}
    assert not render(api, address, json.dumps(known))
    assert [path.partition("?")[0] for path in asked] == ["/runs/many", "/incidents"][: len(asked)]


def test_layer_page_shows_all_of_its_incidents(api: Collector) -> None:
    for address in ("/runs/many/layers/0", "/runs/many/layers/0?incident=1"):
        counts = re.findall(r"\d+", render(api, address)["layer-incidents-tally"])
        assert sum(map(int, counts)) == INCIDENTS
