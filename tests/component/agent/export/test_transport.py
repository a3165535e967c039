"""Each operation of a request has its time, over TLS as without, and an abort ends it at any moment."""

import contextlib
import os
import pkgutil
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

import pytest
import trustme

from gradcanary.export.transport import Answer, Connection, Transport, UnreachableError, tls_context
from support.agent.scripted import WAIT_S, until

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


def test_an_answer_is_waited_for_only_so_long(
    scheme: str, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradcanary.export.transport.TIMEOUT_S", 1.0)
    with serving(scheme, authority, hangs) as transport, pytest.raises(UnreachableError, match="TimeoutError"):
        transport.send("POST", "/batches/0", b"{}")


def test_a_body_has_the_time_of_a_slow_line(monkeypatch: pytest.MonkeyPatch, authority: trustme.CA) -> None:
    """A socket has one timeout for all that it is given at once."""
    monkeypatch.setattr("gradcanary.export.transport.TIMEOUT_S", 0.1)
    monkeypatch.setattr("gradcanary.export.transport.SLOWEST", len(LARGE) / WAIT_S)

    def reads_after_a_while(handler: BaseRequestHandler, over: threading.Event) -> None:
        over.wait(0.5)
        handler.request.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        while handler.request.recv(2**20):
            pass

    with serving("http", authority, reads_after_a_while) as transport:
        assert transport.send("POST", "/batches/0", LARGE).status == 200


def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TIMEOUT_S", "CONNECT_S"):
        monkeypatch.setattr(f"gradcanary.export.transport.{name}", 3600.0)


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
    patient(monkeypatch)
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


Address = tuple[socket.AddressFamily | int, Any]

NO_FAMILY: Address = (255, ("::1", 1, 0, 0))
"""Of a kind that the kernel does not have, as IPv6 where it was left out."""


@contextlib.contextmanager
def reached_at(addresses: list[Address], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have each name be of these addresses."""
    found = [(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", address) for family, address in addresses]
    with monkeypatch.context() as patched:
        patched.setattr(socket, "getaddrinfo", lambda *_arguments, **_options: found)
        yield


def address_of(transport: Transport) -> Address:
    return socket.AF_INET, (transport._host, transport._port)


def test_a_name_that_nothing_can_have_is_told_each_time() -> None:
    transport = Transport("http://collector..lan:8600", None, "run", "session")
    for _ in range(2):
        with pytest.raises(UnreachableError, match=r"collector\.\.lan is not the name of a machine"):
            transport.send("POST", "/end", b"{}")


def test_an_address_of_a_kind_that_the_kernel_has_not_is_passed_over(
    scheme: str, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        serving(scheme, authority, answers) as transport,
        reached_at([NO_FAMILY, address_of(transport)], monkeypatch),
    ):
        assert transport.send("POST", "/end", b"{}").status == 200


def test_an_address_that_swallows_everything_leaves_the_next_one_its_time(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gradcanary.export.transport.CONNECT_S", 1.0)
    with (
        accepted_by_nobody("http", waiting=4) as swallowing,
        serving("http", authority, answers) as transport,
        reached_at([address_of(swallowing), address_of(transport)], monkeypatch),
    ):
        assert transport.send("POST", "/end", b"{}").status == 200


def ends(transport: Transport, meanwhile: Callable[[], object]) -> None:
    """Send in a thread of its own, do something meanwhile, and see that it fails."""
    failed: list[UnreachableError] = []

    def send() -> None:
        try:
            transport.send("POST", "/batches/0", b"{}")
        except UnreachableError as error:
            failed.append(error)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    meanwhile()
    until(lambda: not thread.is_alive())
    assert len(failed) == 1


def test_a_request_that_is_aborted_does_not_go_on_to_the_next_address(monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)
    with (
        accepted_by_nobody("http", waiting=4) as transport,
        accepted_by_nobody("http", waiting=4) as other,
        reached_at([address_of(transport), address_of(other)], monkeypatch),
    ):

        def abort() -> None:
            time.sleep(0.2)
            transport.abort()  # once

        ends(transport, abort)


@pytest.mark.parametrize(
    ("scheme", "where", "waiting"),
    [
        ("http", "gradcanary.export.transport.Connection", 4),  # who aborts does not know it yet
        ("http", "socket.getaddrinfo", 4),  # there is no socket
        ("http", "socket.socket.connect", 4),  # it is not connected
        ("https", "ssl.SSLContext.wrap_socket", 0),  # it is another one now
    ],
    indirect=["scheme"],
)
def test_an_abort_holds_at_any_moment(scheme: str, where: str, waiting: int, monkeypatch: pytest.MonkeyPatch) -> None:
    patient(monkeypatch)
    real = pkgutil.resolve_name(where)

    def aborted(*arguments: Any, **options: Any) -> Any:
        if where.endswith("connect"):
            transport.abort()
            return real(*arguments, **options)
        made = real(*arguments, **options)
        transport.abort()
        return made

    with accepted_by_nobody(scheme, waiting) as transport, monkeypatch.context() as patched:
        patched.setattr(where, aborted)
        ends(transport, lambda: None)


@pytest.mark.parametrize("scheme", ["https"], indirect=True)
def test_nothing_is_sent_in_plain_text_when_tls_is_cut_off(
    scheme: str, authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bytes] = []

    def reads(handler: BaseRequestHandler, _over: threading.Event) -> None:
        seen.append(handler.request.recv(100))

    cut = socket.socket.shutdown

    def after_another_send(taken: socket.socket, how: int) -> None:
        taken.send(b"secret")
        cut(taken, how)

    with serving(scheme, authority, reads) as transport, monkeypatch.context() as patched:
        _, (host, port) = address_of(transport)
        connection = Connection(host, port, tls_context(os.environ))
        with contextlib.closing(connection):
            connection.connect()
            patched.setattr(socket.socket, "shutdown", after_another_send)
            connection.abort()
            patched.undo()
            until(lambda: seen)
    assert seen == [b"secret"]
