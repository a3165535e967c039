"""The client of the read API, against a real HTTP server."""

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from gradcanary_dashboard.__main__ import main
from gradcanary_dashboard.collector import client
from gradcanary_dashboard.collector.client import Collector
from gradcanary_dashboard.collector.errors import DeniedError, NotFoundError, RefusedError, UnreachableError


class Script:
    """What the server answers next, and what it was asked."""

    def __init__(self) -> None:
        self.status = 200
        self.body: bytes = b"{}"
        self.etag: str | None = '"1"'
        self.asked: list[tuple[str, str | None]] = []
        self.shown: list[tuple[str | None, str | None]] = []
        self.packing: list[str | None] = []


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def collector(script: Script) -> Iterator[Collector]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers.get("If-None-Match")
            script.asked.append((self.path, known))
            script.packing.append(self.headers.get("Accept-Encoding"))
            script.shown.append((self.headers.get("Authorization"), self.headers.get("Cookie")))
            fresh = script.status == 200 and known is not None and known == script.etag
            self.send_response(304 if fresh else script.status)
            if script.etag is not None:
                self.send_header("ETag", script.etag)
            self.send_header("Content-Length", "0" if fresh else str(len(script.body)))
            self.end_headers()
            if not fresh:
                self.wfile.write(script.body)

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    asked = Collector(f"http://127.0.0.1:{server.server_port}/")
    yield asked
    asked.close()
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_change_is_waited_for_longer_than_a_question() -> None:
    """A test message is: its receiver has ten seconds."""
    go = threading.Event()

    class Slow(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            assert go.wait(30)
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(b"{}")

        do_POST = do_GET  # noqa: N815 -- the name that http.server looks for

        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server, ThreadPoolExecutor(2) as pool:
        pool.submit(server.serve_forever)
        collector = Collector(f"http://127.0.0.1:{server.server_port}", timeout_s=0.1)
        changed = pool.submit(collector.change, "POST", "/endpoints/1/test", {})
        try:
            with pytest.raises(UnreachableError, match="ReadTimeout"):
                collector.ask("/endpoints")
        finally:
            go.set()
        assert changed.result(30) == {}
        collector.close()
        server.shutdown()


def test_unchanged_answers_are_not_sent_again(script: Script, collector: Collector) -> None:
    script.body = json.dumps({"runs": [1]}).encode()
    first = collector.runs()
    again = collector.runs()
    assert again is first
    assert script.asked == [("/api/v1/runs", None), ("/api/v1/runs", '"1"')]
    script.etag, script.body = '"2"', b'{"runs": []}'
    assert collector.runs().body == {"runs": []}
    assert collector.runs().version != first.version


def test_question_is_asked_once_per_page(script: Script, collector: Collector) -> None:
    with client.one_answer_per_question():
        first = collector.runs()
        script.etag, script.body = '"2"', b'{"runs": [2]}'
        assert collector.runs() is first
        collector.run("a")
    assert [path for path, _ in script.asked] == ["/api/v1/runs", "/api/v1/runs/a"]
    assert collector.runs().body == {"runs": [2]}, "the next page asks anew"


def test_failed_questions_are_asked_again(script: Script, collector: Collector) -> None:
    script.status = 503
    with client.one_answer_per_question():
        with pytest.raises(UnreachableError):
            collector.runs()
        script.status = 200
        assert collector.runs().body == {}


def test_loopback_answers_are_not_compressed(script: Script, collector: Collector) -> None:
    collector.runs()
    assert script.packing == ["identity"]


def test_another_question_has_its_own_answer(script: Script, collector: Collector) -> None:
    collector.run("a", "heatmap", columns=600, **{"from": None})
    collector.run("a", "heatmap", columns=600, **{"from": 3})
    assert script.asked == [
        ("/api/v1/runs/a/heatmap?columns=600", None),
        ("/api/v1/runs/a/heatmap?columns=600&from=3", None),
    ]


def test_without_an_etag_the_body_is_the_version(script: Script, collector: Collector) -> None:
    script.etag = None
    first = collector.run("a")
    assert collector.run("a").version == first.version
    script.body = b'{"step": 1}'
    assert collector.run("a").version != first.version


def test_a_name_cannot_leave_its_path(script: Script, collector: Collector) -> None:
    collector.run("../incidents?x=1")
    for dots in (".", ".."):
        collector.run(dots, "layers")
    paths = [path.removeprefix("/api/v1/runs/") for path, _ in script.asked]
    assert paths == ["..%2Fincidents%3Fx%3D1", "%2E/layers", "%2E%2E/layers"]


def test_kept_answers_have_a_limit_in_bytes(script: Script, collector: Collector) -> None:
    script.body = json.dumps("x" * (client.KEPT_BYTES // 4)).encode()
    for number in range(4):
        collector.incident(number)
    collector.incident(0)
    collector.incident(3)
    assert [known for _, known in script.asked[-2:]] == [None, '"1"']


def test_kept_answers_small_ones_of_many_tabs_stay(script: Script, collector: Collector) -> None:
    for _ in range(2):
        for number in range(500):
            collector.incident(number)
    assert {known for _, known in script.asked[500:]} == {'"1"'}


def test_unknown_is_not_unreachable(script: Script, collector: Collector) -> None:
    script.status = 404
    with pytest.raises(NotFoundError):
        collector.run("a")


def test_a_refusal_comes_in_the_collectors_words(script: Script, collector: Collector) -> None:
    script.status = 422
    script.body = json.dumps({"error": {"code": "invalid", "message": "missing ): a(", "field": "match"}}).encode()
    with pytest.raises(RefusedError, match=r"missing \): a\("):
        collector.run("a", "heatmap", match="a(")
    script.body = b"<html>"
    with pytest.raises(RefusedError, match="does not take"):
        collector.run("a", "heatmap", match="a(")


@pytest.mark.parametrize(("status", "body"), [(500, b"{}"), (503, b""), (200, b"<html>")])
def test_an_unusable_answer_is_an_outage(script: Script, collector: Collector, status: int, body: bytes) -> None:
    script.status, script.body = status, body
    with pytest.raises(UnreachableError, match=r"http://127\.0\.0\.1:\d+ answered"):
        collector.run("a")


def test_unreachable_collector_is_named_by_its_address() -> None:
    with pytest.raises(UnreachableError, match=r"http://127\.0\.0\.1:9 does not answer"):
        Collector("http://127.0.0.1:9").runs()


READER = {"authorization": "Bearer gc_read_theirs", "cookie": "gradcanary=visit", "x-other": "not passed on"}


def test_a_question_is_the_readers_own(script: Script, collector: Collector) -> None:
    own = Collector(collector.url, as_reader=True)

    async def in_a_thread() -> None:
        with client.as_reader(READER):
            await asyncio.to_thread(own.runs)

    with ThreadPoolExecutor(1) as thread:  # Playwright, once used, keeps an event loop in the main one
        thread.submit(lambda: asyncio.run(in_a_thread())).result()
    own.runs()
    own.close()
    assert script.shown == [("Bearer gc_read_theirs", "gradcanary=visit"), (None, None)]


def test_standalone_pages_send_their_own_token(script: Script, collector: Collector) -> None:
    alone = Collector(collector.url, token="gc_read_ours")
    with client.as_reader(READER):
        alone.runs()
        collector.runs()
    alone.close()
    assert script.shown == [("Bearer gc_read_ours", None), (None, None)]


def test_cached_answers_are_not_given_to_refused_visitors(script: Script, collector: Collector) -> None:
    collector.runs()
    script.etag, script.status = '"2"', 401
    script.body = json.dumps({"error": {"code": "unauthorized", "message": "A token, please.", "field": None}}).encode()
    with pytest.raises(DeniedError, match="A token, please"):
        collector.runs()


def test_pages_that_stand_alone_are_for_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org", ""):
        with pytest.raises(SystemExit) as ended:
            main(["--collector", "http://127.0.0.1:9", "--host", host])
        assert ended.value.code == 2
        assert "ask nobody for a token" in capsys.readouterr().err
