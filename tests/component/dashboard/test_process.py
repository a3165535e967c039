"""The process of a collector's pages: the same answers as those of pages in the collector, with its readers' rights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from support.collectors import Collector
from support.guarded import Guarded
from support.streams import Session, Stream, collapsed

RUN = "fell"
STREAM = Stream(collapsed(160, 8, (0, 2), 100))
BROWSER = {"accept": "text/html,*/*;q=0.8", "accept-encoding": "gzip"}
OF_CONNECTION = {"date", "content-length", "vary"}


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    collector = Collector(tmp_path_factory.mktemp("apart"), ("--pages-apart",)).start()
    yield collector
    collector.kill()


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    collector = Collector(tmp_path_factory.mktemp("together")).start()
    yield collector
    collector.kill()


@pytest.fixture(scope="module", autouse=True)
def run(apart: Collector, together: Collector) -> None:
    for collector in (apart, together):
        Session(collector.url, run=RUN).send(STREAM)


def headers_of(answer: httpx.Response) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name not in OF_CONNECTION}


def told_by(answer: httpx.Response) -> str:
    """Return a body without the addresses in it, and without the id that Dash draws for each process."""
    lines = (line for line in answer.text.splitlines() if '"end_id"' not in line)
    return "\n".join(lines).replace(f"http://127.0.0.1:{answer.request.url.port}", "")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/", 200),
        (f"/runs/{RUN}?from=10", 200),
        ("/settings/rules", 200),
        ("/nowhere", 404),
        (f"/_download?run={RUN}&search=", 200),
        (f"/_cell?run={RUN}&stat=absmax&layer=0&first=100&last=159", 200),
        ("/assets/icon.svg", 200),
    ],
)
def test_an_address_has_the_same_answer(apart: Collector, together: Collector, path: str, status: int) -> None:
    one, other = (httpx.get(each.url + path, headers=BROWSER, timeout=60) for each in (apart, together))
    assert (one.status_code, other.status_code) == (status, status)
    assert headers_of(one).keys() == headers_of(other).keys()
    assert one.headers["content-type"] == other.headers["content-type"]
    assert one.headers.get("content-security-policy") == other.headers.get("content-security-policy")
    assert told_by(one) == told_by(other)


def test_a_page_is_filled_and_other_sites_are_refused(apart: Collector) -> None:
    asked = {"path": f"/runs/{RUN}", "search": "", "shown": ""}
    slots = httpx.post(f"{apart.url}/_refresh", json=asked, timeout=60).json()["slots"]
    assert "collapsed" in slots["incidents"]
    foreign = httpx.post(f"{apart.url}/_refresh", json=asked, headers={"origin": "http://elsewhere"})
    assert foreign.status_code == 403


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Collector]:
    collector = Collector(tmp_path, ("--pages-apart",)).start()
    yield collector
    collector.kill()


def test_requests_under_way_are_answered_when_all_processes_are_told_to_end(own: Collector) -> None:
    assert httpx.get(own.url, timeout=60).status_code == 200
    [pages] = own.pages()
    pages.terminate()  # as systemd does
    assert httpx.get(own.url, timeout=60).status_code == 200
    assert pages.is_running()
    assert own.stop() == 0
    pages.wait(30)
    assert not any("started again" in line for line in own.output)


def test_readers_sign_in_and_tls_is_trusted(tmp_path: Path) -> None:
    guarded = Guarded(tmp_path, "--pages-apart")
    guarded.start()
    try:
        asked: Any = {"path": "/", "search": "", "shown": ""}
        with guarded.client() as nobody:
            assert nobody.get("/", headers=BROWSER).headers["location"] == "/sign-in"
            assert nobody.post("/_refresh", json=asked).status_code == 401
        with guarded.client(guarded.said("token to administer")) as admin:
            assert admin.get("/", headers=BROWSER).status_code == 200
            answer = admin.post("/_refresh", json=asked, timeout=60)
            assert "runs-page-state" in answer.json()["slots"]
    finally:
        guarded.kill()
