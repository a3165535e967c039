"""The collector as seen from here: address, TLS, protocol, scope of the token, clock.

The requests are those of a training, over its own connection. The first one is a hello that has a protocol and nothing
else: the collector decides on token and protocol, and refuses the rest. Nothing is stored there.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass
from email.utils import formatdate, parsedate_to_datetime
from ipaddress import ip_address
from typing import TypeVar
from urllib.parse import SplitResult, urlsplit

from gradcanary import __version__, wire
from gradcanary.doctor.report import Finding
from gradcanary.export import transport
from gradcanary.export.delivery import HOW_TO_CREATE
from gradcanary.export.transport import Answer, Connection

RESOLVE_S = 5.0
"""For the look-up of a name, which the system's resolver may stretch for minutes."""

TOTAL_S = 25.0
"""For all requests. Each operation has its own timeout, but an answer that trickles has none."""

MAX_ANSWER = 8 * 2**20
"""Bytes: the OpenAPI document is the largest answer."""

CLOCK_S = 5.0
"""A smaller offset is ignored by the collector, too (``storage/runs.CLOCK_S``)."""

DATE_S = 1.0
"""A Date header has whole seconds, and servers renew it once a second."""

PROXIES = ("https_proxy", "http_proxy", "all_proxy")

HELLO = "/api/v1/runs/gradcanary-doctor/sessions/doctor"

TOKEN = f"{HOW_TO_CREATE}; then: export GRADCANARY_TOKEN=gc_..."
ELSEWHERE = """\
gradcanary up, if it shall run here. If it runs on another machine: export GRADCANARY_URL=http://THAT_MACHINE:{port} \
(it needs --host 0.0.0.0 there, and a token), or a tunnel: ssh -f -N -L {port}:127.0.0.1:{port} THAT_MACHINE"""
LISTENS = """\
on {host}: gradcanary up --host 0.0.0.0 --port {port} (on loopback, the default, only {host} itself reaches it), or a \
tunnel from here: ssh -f -N -L {port}:127.0.0.1:{port} {host}, and export GRADCANARY_URL={scheme}://127.0.0.1:{port}"""
UNWELL = "look at the collector's log; trainings keep their numbers, and send them when it works again"
ADDRESS = "give the address that 'gradcanary up' prints: export GRADCANARY_URL=http://MACHINE:8787"
CERTIFICATE = """\
export GRADCANARY_CA_FILE=authority.pem, the certificate of the authority that the collector has its own from; if it \
is named for another host, use that name in GRADCANARY_URL; if it is out of date, compare the clock: date -u"""

T = TypeVar("T")


class StepError(Exception):
    """A step on the way to the collector failed: ``found`` names it, ``do`` is the remedy."""

    def __init__(self, found: str, do: str) -> None:
        super().__init__(found)
        self.found, self.do = found, do


@dataclass(frozen=True)
class Reply:
    """An answer, the address it redirects to, and the times of it; ``date`` is that of the other side, unix seconds."""

    answer: Answer
    location: str
    date: float | None
    sent: float
    took_s: float


def call_within(seconds: float, function: Callable[[], T]) -> T:
    """Return the result of a function that may hang; raises TimeoutError, and what it raises."""
    result: Future[T] = Future()

    def call() -> None:
        try:
            result.set_result(function())
        except Exception as error:  # noqa: BLE001 -- raised again by the caller
            result.set_exception(error)

    threading.Thread(target=call, daemon=True).start()  # one that hangs does not hold up the end of the process
    try:
        return result.result(seconds)
    except FutureTimeoutError as error:  # on Python 3.10 another one than TimeoutError
        raise TimeoutError(f"no end within {seconds:g} s") from error


def check_collector(url: str, token: str | None, environ: Mapping[str, str], host: str) -> Iterator[Finding]:
    """Yield the findings about the collector; ``host`` is the name of this machine."""
    parts = urlsplit(url)
    try:
        with open_connection(parts, environ, host) as connection:
            client = Client(parts, token, connection)
            hello = client.send("PUT", HELLO, json.dumps({"protocol": wire.PROTOCOL}).encode())
            check_hello(url, hello)
            ready = client.send("GET", "/readyz")
            document = client.send("GET", "/api/v1/openapi.json").answer
            is_open = token is not None and hello.answer.status == 422 and _takes_no_token(parts, connection)
    except StepError as error:
        yield Finding("collector", "fault", error.found, error.do)
        return
    fastest = min((hello, ready), key=lambda reply: reply.took_s)
    known = f"{url} answers in {1000 * fastest.took_s:.1f} ms{_version(document)}"
    has_protocol = hello.answer.status == 422  # a token that is refused hides it
    yield Finding("collector", "ok", known + (f", protocol {wire.PROTOCOL} as here" if has_protocol else ""))
    if is_open:
        yield Finding("token", "note", "the collector asks for none, so the one given here was not checked")
    else:
        yield judge_token(token, hello.answer, document)
    yield from judge_readiness(ready.answer)
    if fastest.date is not None:
        yield judge_clock(fastest.date, fastest.sent, fastest.took_s)


def _takes_no_token(parts: SplitResult, connection: Connection) -> bool:
    """Return True if the collector answers a hello without a token as one with it; raises StepError."""
    client = Client(parts, None, connection)
    return client.send("PUT", HELLO, json.dumps({"protocol": wire.PROTOCOL}).encode()).answer.status == 422


@contextlib.contextmanager
def open_connection(parts: SplitResult, environ: Mapping[str, str], host: str) -> Iterator[Connection]:
    """Open a connection that ends after ``TOTAL_S``; raises StepError that names the step."""
    name, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    try:
        context = transport.tls_context(environ) if parts.scheme == "https" else None
    except OSError as error:
        raise StepError(str(error), "give the file of the authority's certificate, PEM: GRADCANARY_CA_FILE") from error
    try:
        call_within(RESOLVE_S, lambda: socket.getaddrinfo(name, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError) as error:
        do = f"correct the name in GRADCANARY_URL, or the resolver of this machine: getent hosts {name}"
        raise StepError(f"the name {name} is not resolved on {host} ({error})", do + proxy_hint(environ)) from error
    connection = Connection(name, port, context)
    watchdog = threading.Timer(TOTAL_S, connection.abort)
    watchdog.daemon = True
    watchdog.start()
    try:
        try:
            connection.connect()
        except OSError as error:
            raise connect_error(error, parts, port, environ, host) from error
        yield connection
    finally:
        watchdog.cancel()
        connection.close()


def connect_error(error: OSError, parts: SplitResult, port: int, environ: Mapping[str, str], host: str) -> StepError:
    """Return the reason of a connection that was not made, and the remedy."""
    name = parts.hostname or ""
    where = f"{name}:{port}"
    listens = LISTENS.format(host=name, port=port, scheme=parts.scheme)
    if isinstance(error, ssl.SSLCertVerificationError):
        return StepError(f"the certificate of {where} is not accepted: {error.verify_message}", CERTIFICATE)
    if isinstance(error, ssl.SSLError) or "handshake" in str(error):  # one that times out is no SSLError
        do = f"if the collector there has no TLS: export GRADCANARY_URL=http://{where}"
        return StepError(f"{where} accepts connections, and its TLS fails ({error})", do)
    if isinstance(error, ConnectionRefusedError) and is_loopback(name):
        return StepError(f"nothing listens at {where} of this machine, {host}", ELSEWHERE.format(port=port))
    if isinstance(error, ConnectionRefusedError):
        return StepError(f"nothing listens at {where} (connection refused)", listens)
    if isinstance(error, TimeoutError):
        found = f"{where} does not accept a connection within {transport.CONNECT_S:g} s: switched off, or a firewall"
        return StepError(found, listens + proxy_hint(environ))
    return StepError(f"{where} cannot be connected to ({error})", listens + proxy_hint(environ))


def proxy_hint(environ: Mapping[str, str]) -> str:
    """Return a sentence if a proxy is set: the agent does not use it."""
    found = [name for each in PROXIES for name in (each, each.upper()) if environ.get(name)]
    return f". {found[0]} is set, and not used: gradcanary connects directly" if found else ""


def is_loopback(name: str) -> bool:
    """Return True if a host of a URL is the machine itself."""
    try:
        return ip_address(name).is_loopback
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")


class Client:
    """Sends requests over an open connection, with the headers that a training sends."""

    def __init__(self, parts: SplitResult, token: str | None, connection: Connection) -> None:
        self._parts, self._connection, self._is_kept = parts, connection, False
        self._headers = {"content-type": "application/json"}
        if token is not None:
            self._headers["authorization"] = f"Bearer {token}"

    def send(self, method: str, path: str, body: bytes = b"") -> Reply:
        """Return the answer; raises StepError."""
        where = self._parts.netloc
        began = time.monotonic()
        try:
            sent = time.time()
            headers = {**self._headers, "date": formatdate(usegmt=True)}
            self._connection.request_within(method, f"{self._parts.path.rstrip('/')}{path}", body, headers)
            response = self._connection.getresponse()
            took_s = time.monotonic() - began
            content = response.read(MAX_ANSWER)
            if self._connection.is_aborted:  # it looks as if it were complete
                raise ConnectionAbortedError  # noqa: TRY301 -- what follows says so for all cases
        except (TimeoutError, ConnectionAbortedError) as error:
            limit_s = transport.TIMEOUT_S if isinstance(error, TimeoutError) else TOTAL_S
            found = f"{where} accepts connections, and does not answer within {limit_s:g} s"
            raise StepError(found, "look at the collector's log: it hangs, or another program listens there") from error
        except (OSError, http.client.HTTPException) as error:
            if self._is_kept and isinstance(error, ConnectionError):  # closed by the other side after an answer
                self._is_kept = False
                self._connection.close()
                return self.send(method, path, body)
            found = f"{where} accepts connections, and does not answer as HTTP ({type(error).__name__}: {error})"
            other = "http" if self._parts.scheme == "https" else "https"
            do = f"if it is a collector with{'out' if other == 'http' else ''} TLS: {other}://{where}; else {ADDRESS}"
            raise StepError(found, do) from error
        self._is_kept = True
        answer = Answer(response.status, content, None)
        return Reply(answer, response.getheader("location", ""), _seconds(response.getheader("date")), sent, took_s)


def _seconds(date: str | None) -> float | None:
    try:
        return None if date is None else parsedate_to_datetime(date).timestamp()
    except (ValueError, OverflowError):
        return None


def check_hello(url: str, hello: Reply) -> None:
    """Raise StepError unless a collector of this protocol answered a hello without content."""
    answer = hello.answer
    if answer.status == 426:
        do = "install the same version of gradcanary here and where the collector runs"
        raise StepError(f"{url} is another version: {answer.message} Here is gradcanary {__version__}", do)
    if answer.status == 503 and answer.code:
        raise StepError(f"{url} takes nothing now: {answer.message}", UNWELL)
    if answer.code and answer.status in (401, 403, 422, 429):
        return
    if hello.location:
        found = f"{url} answers {answer.status} and redirects to {hello.location}"
        raise StepError(found, f"the agent does not follow that. {ADDRESS}")
    if answer.status == 400 and b"host" in answer.body.lower():
        host = urlsplit(url).hostname
        do = f"start the collector with GRADCANARY_HOSTS={host}, or with tokens: gradcanary up --auth"
        raise StepError(f"{url} does not answer to the name {host} ({answer.body.decode(errors='replace')[:80]})", do)
    if answer.status in (407, 502, 504):
        do = f"a proxy is between here and the collector, and does not reach it: is it up? Else {ADDRESS}"
        raise StepError(f"{url} answers {answer.status}", do)
    raise StepError(f"{url} answers {answer.status}, and not as a gradcanary collector does", ADDRESS)


def judge_token(token: str | None, hello: Answer, read: Answer) -> Finding:
    """Return what a token may do, by the answers to a hello and to a request that reads."""
    if hello.status == 401 and token is None:
        return Finding("token", "fault", "the collector asks for a token, and none is given", TOKEN)
    if hello.status == 401:
        return Finding("token", "fault", f"it is refused: {hello.message}", TOKEN)
    if hello.code == "not_here":
        return Finding("token", "fault", hello.message, "start the collector with --auth, then: " + TOKEN)
    if hello.status == 403:
        return Finding("token", "fault", f"it may not send: {hello.message}", TOKEN)
    if hello.status == 429:
        return Finding("token", "note", hello.message)
    if token is None:
        return Finding("token", "ok", "the collector asks for none")
    may = "send and read" if read.status == 200 else "send (scope ingest), and not read, as other commands do"
    return Finding("token", "ok", f"it may {may}")


def _version(document: Answer) -> str:
    """Return the version of a collector as words; empty if the token may not read it."""
    try:
        version = json.loads(document.body)["info"]["version"]
    except (ValueError, LookupError, TypeError):
        return ""
    return f", gradcanary {version}" + ("" if version == __version__ else f" (here {__version__})")


def judge_readiness(ready: Answer) -> Iterator[Finding]:
    """Yield a fault if the collector is not ready; a proxy may hide that page, so anything else tells nothing."""
    try:
        checks = dict(json.loads(ready.body)["checks"]) if ready.status == 503 else {}
    except (ValueError, LookupError, TypeError):
        return
    failed = [f"{name}: {why}" for name, why in checks.items() if why != "ok"]
    if failed:
        yield Finding("store", "fault", "; ".join(failed), UNWELL)


def judge_clock(date: float, sent: float, took_s: float) -> Finding:
    """Return the offset of this clock; ``date`` is the other side's in whole seconds, at some time of ``took_s``."""
    half_s = DATE_S + took_s / 2
    offset = sent + took_s / 2 - (date + DATE_S)
    if abs(offset) <= max(CLOCK_S, half_s):
        return Finding("clock", "ok", f"within {max(abs(offset), half_s):.0f} s of the collector's")
    way = "ahead of" if offset > 0 else "behind"
    found = f"{_span(abs(offset))} {way} the collector's (± {half_s:.1f} s)"
    effect = "pages show the times of steps by this clock; the start of the run is corrected, and nothing is lost"
    return Finding(
        "clock", "note", f"{found}: {effect}", "timedatectl set-ntp true, on the machine that is wrong: date -u"
    )


def _span(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
