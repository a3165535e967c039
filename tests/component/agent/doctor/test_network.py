"""The collector from here: each step that can fail is named, with what to do, and nothing hangs or is stored."""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import trustme

from component.agent.doctor.conftest import Examine
from gradcanary import __version__, wire
from gradcanary.doctor import network
from support import warm
from support.collectors import Collector

Answers = tuple[int, dict[str, str], bytes]


@contextlib.contextmanager
def serving(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def answering(*answers: Answers) -> type[BaseHTTPRequestHandler]:
    """Return a handler that answers the requests in their order, the last one again and again."""
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            status, headers, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_GET = answer  # noqa: N815 -- the names that http.server calls

        def log_message(self, *_: object) -> None:
            pass

    return Handler


def refusal(code: str, message: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": message, "field": None}}).encode()


INCOMPLETE: Answers = (422, {}, refusal("invalid", "No."))


def create_token(collector: Collector, scope: str) -> str:
    words = ["-m", "gradcanary.cli", "token", "create", "--scope", scope, "--name", scope, f"--data={collector.data}"]
    return warm.run(warm.COLLECTOR, words, os.environ).stdout.split()[0]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collector]:
    """A collector that asks for tokens."""
    guarded = Collector(tmp_path_factory.mktemp("guarded"), ("--auth",)).start()
    yield guarded
    guarded.kill()


def test_a_collector_without_tokens_is_fine_and_gets_nothing(examine: Examine, module_collector: Collector) -> None:
    status, found = examine("--url", module_collector.url)
    assert status == 0
    assert found["settings"]["found"] == f"{module_collector.url} (--url), no token"
    assert f"{module_collector.url} answers in " in found["collector"]["found"]
    assert f", gradcanary {__version__}, protocol {wire.PROTOCOL} as here" in found["collector"]["found"]
    assert found["token"]["found"] == "the collector asks for none"
    assert found["clock"]["state"] == "ok"
    assert module_collector.get("/api/v1/runs").json()["runs"] == []


def test_a_token_that_nobody_asks_for_is_not_praised(examine: Examine, module_collector: Collector) -> None:
    status, found = examine("--url", module_collector.url, "--token", "gc_wrong")
    assert (status, found["token"]["state"]) == (0, "note")
    assert "was not checked" in found["token"]["found"]


@pytest.mark.parametrize(
    ("scope", "state", "says"),
    [
        ("ingest", "ok", "it may send (scope ingest), and not read"),
        ("admin", "ok", "it may send and read"),
        ("read", "fault", "it may not send: The token 'read' has the scope read, and this takes ingest."),
    ],
)
def test_the_scope_of_a_token(examine: Examine, guarded: Collector, monkeypatch, scope, state, says) -> None:
    secret = create_token(guarded, scope)
    monkeypatch.setenv("GRADCANARY_TOKEN", secret)
    _, found = examine("--url", guarded.url)
    assert found["settings"]["found"].endswith("token of GRADCANARY_TOKEN")
    assert found["token"]["state"] == state
    assert found["token"]["found"].startswith(says)
    assert ("gradcanary token create --scope ingest" in found["token"]["do"]) == (state == "fault")
    assert (f"gradcanary {__version__}" in found["collector"]["found"]) == (scope != "ingest")
    assert ("protocol" in found["collector"]["found"]) == (scope != "read"), "a refusal comes before the protocol"
    assert secret not in str(found)


@pytest.mark.parametrize(
    ("token", "says"), [((), "asks for a token, and none is given"), (("--token", "gc_no"), "it is refused: This acc")]
)
def test_a_token_that_opens_nothing(examine: Examine, guarded: Collector, token, says) -> None:
    status, found = examine("--url", guarded.url, *token)
    assert status == 1
    assert found["collector"]["state"] == "ok"
    assert says in found["token"]["found"]


def test_nothing_listens_on_this_machine(examine: Examine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    status, found = examine("--url", f"http://127.0.0.1:{port}")
    assert status == 1
    assert found["collector"]["found"].startswith(f"nothing listens at 127.0.0.1:{port} of this machine, ")
    assert f"ssh -f -N -L {port}:127.0.0.1:{port} THAT_MACHINE" in found["collector"]["do"]
    assert "export GRADCANARY_URL=" in found["collector"]["do"]
    assert {"token", "clock"} & found.keys() == set()


def test_a_name_that_is_not_resolved_and_a_resolver_that_hangs(examine: Examine, monkeypatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.invalid:3128")
    _, found = examine("--url", "https://collector.invalid")
    assert "the name collector.invalid is not resolved on" in found["collector"]["found"]
    assert "HTTPS_PROXY is set, and not used" in found["collector"]["do"]
    over = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: over.wait())
    monkeypatch.setattr(network, "RESOLVE_S", 0.2)
    _, found = examine("--url", "http://collector.example")
    over.set()
    assert "no end within 0.2 s" in found["collector"]["found"]


def test_a_port_that_swallows_everything(examine: Examine, monkeypatch) -> None:
    """Its queue of connections is full, and no answer comes to one more."""
    monkeypatch.setattr("gradcanary.export.transport.CONNECT_S", 0.3)
    with socket.socket() as listener, contextlib.ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        _, found = examine("--url", f"http://127.0.0.1:{listener.getsockname()[1]}")
    assert "does not accept a connection within 0.3 s" in found["collector"]["found"]


def test_a_server_that_never_answers_or_trickles(examine: Examine, monkeypatch) -> None:
    monkeypatch.setattr("gradcanary.export.transport.TIMEOUT_S", 0.5)
    monkeypatch.setattr(network, "TOTAL_S", 2.0)

    def trickle(listener: socket.socket) -> None:
        with contextlib.suppress(OSError), listener.accept()[0] as connection:
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n")
            while True:
                connection.sendall(b" ")
                time.sleep(0.1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        _, found = examine("--url", url)
        assert "accepts connections, and does not answer within 0.5 s" in found["collector"]["found"]
        listener.accept()[0].close()
        thread = threading.Thread(target=trickle, args=(listener,))
        thread.start()
        _, found = examine("--url", url)
        thread.join()
    assert "does not answer within 2 s" in found["collector"]["found"]


@pytest.mark.parametrize(
    ("answer", "found", "do"),
    [
        ((404, {}, b"<html>"), "answers 404, and not as a gradcanary collector does", "that 'gradcanary up' prints"),
        ((308, {"location": "https://x.example/"}, b""), "redirects to https://x.example/", "does not follow that"),
        ((404, {}, refusal("not_found", "No.")), "answers 404, and not as", "that 'gradcanary up' prints"),
        ((502, {}, b"Bad Gateway"), "answers 502", "a proxy is between"),
        ((426, {}, refusal("unknown_protocol", "Protocol 9.")), "is another version: Protocol 9.", "the same version"),
        ((503, {}, refusal("unavailable", "The disk is full.")), "nothing now: The disk is full.", "collector's log"),
    ],
)  # fmt: skip
def test_answers_that_are_not_those_of_a_collector_of_this_version(examine: Examine, answer, found, do) -> None:
    with serving(answering(answer)) as url:
        status, findings = examine("--url", url)
    assert status == 1
    assert found in findings["collector"]["found"]
    assert do in findings["collector"]["do"]
    assert "token" not in findings


def test_a_server_that_closes_after_each_answer(examine: Examine) -> None:
    class Closing(answering(INCOMPLETE)):  # type: ignore[misc]  # a class that is made
        def answer(self) -> None:
            super().answer()
            self.close_connection = True

        do_PUT = do_GET = answer  # noqa: N815 -- the names that http.server calls

    with serving(Closing) as url:
        assert examine("--url", url)[1]["token"]["state"] == "ok"


def test_a_web_server_that_is_not_ours(examine: Examine, tmp_path: Path) -> None:
    class Files(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with serving(Files) as url:
        _, found = examine("--url", url)
    assert found["collector"]["found"] == f"{url} answers 501, and not as a gradcanary collector does"


def test_a_host_name_that_the_collector_does_not_serve(
    examine: Examine, module_collector: Collector, monkeypatch
) -> None:
    look_up = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda _, *rest, **named: look_up("127.0.0.1", *rest, **named))
    _, found = examine("--url", f"http://login-node:{module_collector.port}")
    assert "does not answer to the name login-node" in found["collector"]["found"]
    assert "GRADCANARY_HOSTS=login-node" in found["collector"]["do"]


def test_a_collector_that_is_not_ready(examine: Examine) -> None:
    unready = {"status": "not ready", "checks": {"database": "it is away", "tables": "ok", "compactor": "ok"}}
    with serving(answering(INCOMPLETE, (503, {}, json.dumps(unready).encode()))) as url:
        _, found = examine("--url", url)
    assert (found["store"]["state"], found["store"]["found"]) == ("fault", "database: it is away")


@pytest.mark.parametrize(
    ("date", "state", "says"),
    [
        ("Thu, 01 Jan 2026 00:00:00 GMT", "note", " h ahead of the collector's (± 1.0 s)"),
        ("Thu, 01 Jan 2099 00:00:00 GMT", "note", " h behind the collector's (± 1.0 s)"),
    ],
)
def test_a_clock_that_is_wrong_is_a_note(examine: Examine, date, state, says) -> None:
    with serving(answering((422, {"date": date}, INCOMPLETE[2]))) as url:
        status, found = examine("--url", url)
    assert status == 0
    assert found["clock"]["state"] == state
    assert says in found["clock"]["found"]


@pytest.mark.parametrize(
    ("date", "sent", "took_s", "says"),
    [
        (1000.0, 1000.9, 0.2, "within 1 s of the collector's"),
        (1000.0, 1006.0, 0.2, "5 s ahead of the collector's (± 1.1 s)"),
        (1000.0, 1005.8, 0.2, "within 5 s of the collector's"),
        (1000.0, 900.0, 0.0, "101 s behind the collector's (± 1.0 s)"),
        (1000.0, 1000.0, 18.0, "within 10 s of the collector's"),
    ],
)
def test_a_slow_answer_leaves_the_clock_uncertain(date, sent, took_s, says) -> None:
    assert network.judge_clock(date, sent, took_s).found.startswith(says)


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Collector, Path]]:
    """A collector with a certificate for ``localhost``, and that of its authority."""
    folder, authority = tmp_path_factory.mktemp("secure"), trustme.CA()
    certificate = authority.issue_cert("localhost")
    files = [folder / name for name in ("authority.pem", "chain.pem", "key.pem")]
    authority.cert_pem.write_to_path(str(files[0]))
    files[1].write_bytes(b"".join(blob.bytes() for blob in certificate.cert_chain_pems))
    certificate.private_key_pem.write_to_path(str(files[2]))
    collector = Collector(folder / "data", ("--tls-cert", str(files[1]), "--tls-key", str(files[2]))).start()
    yield collector, files[0]
    collector.kill()


def test_tls(examine: Examine, secure: tuple[Collector, Path], module_collector: Collector, monkeypatch) -> None:
    collector, authority = secure
    monkeypatch.delenv("GRADCANARY_CA_FILE", raising=False)

    def say(url: str) -> str:
        return examine("--url", url)[1]["collector"]["found"]

    assert "is not accepted: unable to get local issuer certificate" in say(f"https://localhost:{collector.port}")
    assert "does not answer as HTTP" in say(f"http://localhost:{collector.port}")
    assert "and its TLS fails" in say(f"https://127.0.0.1:{module_collector.port}")
    monkeypatch.setenv("GRADCANARY_CA_FILE", str(authority))
    assert examine("--url", f"https://localhost:{collector.port}")[0] == 0
    assert "IP address mismatch" in say(f"https://127.0.0.1:{collector.port}")
    monkeypatch.setenv("GRADCANARY_CA_FILE", "/no/such.pem")
    assert "GRADCANARY_CA_FILE='/no/such.pem' is not a certificate" in say(f"https://localhost:{collector.port}")
