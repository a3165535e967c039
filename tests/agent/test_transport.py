"""A request as a whole has its time, over TLS as without, however slowly its bytes come or are taken."""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest
import trustme
from scripted import until

from gradcanary.transport import Answer, Transport, UnreachableError

LARGE = bytes(2**26)
"""More than what two sockets of a loopback hold."""

Handles = Callable[[BaseRequestHandler, threading.Event], None]


def answers(handler: BaseRequestHandler, _over: threading.Event) -> None:
    while handler.request.recv(2**16):
        handler.request.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")


def trickles(handler: BaseRequestHandler, over: threading.Event) -> None:
    handler.request.recv(2**16)
    handler.request.sendall(b"HTTP/1.1 200 OK\r\nserver: ")
    while not over.wait(0.02):
        handler.request.sendall(b"s")


def reads_slowly(handler: BaseRequestHandler, over: threading.Event) -> None:
    while not over.wait(0.02):
        handler.request.recv(100)


def hangs(_handler: BaseRequestHandler, over: threading.Event) -> None:
    over.wait()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(params=["http", "https"])
def scheme(
    request: pytest.FixtureRequest, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("GRADCANARY_CA_FILE", str(tmp_path / "authority.pem"))
    return str(request.param)


@contextlib.contextmanager
def serving(scheme: str, authority: trustme.CA, handles: Handles) -> Iterator[Transport]:
    """Yield a transport to somebody who treats each connection so."""
    over = threading.Event()

    class Handler(BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(OSError):
                handles(self, over)

    with ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        if scheme == "https":
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert("127.0.0.1").configure_cert(context)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        transport = Transport(f"{scheme}://127.0.0.1:{server.server_address[1]}", None, "run", "session")
        try:
            yield transport
        finally:
            over.set()
            transport.close()
            server.shutdown()
            thread.join()


def test_a_connection_takes_one_request_after_another(scheme: str, authority: trustme.CA) -> None:
    with serving(scheme, authority, answers) as transport:
        assert [transport.send("POST", "/end", b"{}") for _ in range(3)] == [Answer(200, b"{}", None)] * 3


@pytest.mark.parametrize(("handles", "body"), [(trickles, b"{}"), (reads_slowly, LARGE), (hangs, b"{}")])
def test_a_request_has_its_time_as_a_whole(
    scheme: str, authority: trustme.CA, handles: Handles, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradcanary.transport.TIMEOUT_S", 1.0)
    monkeypatch.setattr("gradcanary.transport.SLOWEST", 2**28)
    with serving(scheme, authority, handles) as transport, pytest.raises(UnreachableError, match="TimeoutError"):
        transport.send("POST", "/batches/0", body)


@contextlib.contextmanager
def accepted_by_nobody(scheme: str, waiting: int) -> Iterator[Transport]:
    """Yield a transport to a port where so many others are waiting to be accepted; there is room for one."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as others:
        for _ in range(waiting):
            other = others.enter_context(socket.socket())
            other.setblocking(False)
            other.connect_ex(server.getsockname())
        yield Transport(f"{scheme}://127.0.0.1:{server.getsockname()[1]}", None, "run", "session")


@pytest.mark.parametrize("where", ["answer", "body", "connect", "handshake"])
def test_a_request_that_is_aborted_fails_at_once(
    scheme: str, authority: trustme.CA, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with its time, which here is more than the test has."""
    monkeypatch.setattr("gradcanary.transport.TIMEOUT_S", 3600.0)
    failed: list[UnreachableError] = []
    servers = {
        "answer": lambda: serving(scheme, authority, trickles),
        "body": lambda: serving(scheme, authority, reads_slowly),
        "connect": lambda: accepted_by_nobody(scheme, waiting=4),
        "handshake": lambda: accepted_by_nobody(scheme, waiting=0),
    }

    def send() -> None:
        try:
            transport.send("POST", "/batches/0", LARGE if where == "body" else b"{}")
        except UnreachableError as error:
            failed.append(error)

    def has_ended() -> bool:
        transport.abort()  # again and again: it may not have begun
        return not thread.is_alive()

    with servers[where]() as transport:
        thread = threading.Thread(target=send)
        thread.start()
        time.sleep(0.2)
        until(has_ended)
    assert len(failed) == 1
