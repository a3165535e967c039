"""The process of the pages from its collector's side: it may end or hang by itself, and ends with the collector."""

import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from support.collectors import Collector
from support.streams import Session, Stream, collapsed
from support.waiting import eventually

STREAM = Stream(collapsed(160, 8, (0, 2), 100))


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    collector = Collector(tmp_path_factory.mktemp("apart"), ("--pages-apart",)).start()
    yield collector
    collector.kill()


def test_a_program_is_told_of_an_unknown_address_as_by_the_api(apart: Collector) -> None:
    answer = httpx.get(f"{apart.url}/nowhere", timeout=60)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_a_path_is_passed_on_as_it_was_admitted(apart: Collector) -> None:
    with socket.create_connection(("127.0.0.1", apart.port), timeout=60) as plain:
        plain.sendall(b"GET /nowhere/../assets/icon.svg HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert plain.makefile("rb").readline().split()[1] == b"404"


def test_pages_that_end_are_started_again(apart: Collector) -> None:
    assert httpx.get(apart.url, timeout=60).status_code == 200
    [before] = apart.pages()
    before.kill()
    before.wait(30)
    assert httpx.get(f"{apart.url}/api/v1/runs").status_code == 200
    assert httpx.get(apart.url, timeout=60).status_code == 200
    [after] = apart.pages()
    assert after.pid != before.pid
    assert any("the process of the pages ended" in line for line in apart.output)


def test_batches_are_taken_while_the_pages_hang(apart: Collector) -> None:
    [pages] = eventually(lambda: apart.pages())
    pages.send_signal(signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(8) as readers:
            asked = [readers.submit(httpx.get, f"{apart.url}/runs/meanwhile", timeout=60) for _ in range(8)]
            Session(apart.url, run="meanwhile").send(STREAM)
            assert not any(each.done() for each in asked)
            pages.send_signal(signal.SIGCONT)
            assert {each.result().status_code for each in asked} == {200}
    finally:
        pages.send_signal(signal.SIGCONT)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Collector]:
    collector = Collector(tmp_path, ("--pages-apart",)).start()
    yield collector
    collector.kill()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_pages_end_with_their_collector(own: Collector, end: str) -> None:
    [pages] = eventually(own.pages)
    getattr(own, end)()
    pages.wait(30)
