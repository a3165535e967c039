"""The process of ``gradcanary up``: socket, request deadlines, logging, limits, and the lines printed at the start."""

import asyncio
import contextlib
import gc
import json
import logging
import os
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import ip_address
from types import FrameType
from typing import NoReturn
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gradcanary_server.clock import timestamp
from gradcanary_server.errors import SettingsError
from gradcanary_server.settings import Settings
from gradcanary_server.storage import maintenance

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]  # checked before each use

REQUEST_S = 60.0
"""From the first byte of a request to its last; the largest body takes 70 kB/s."""

GRACE_S = 5
"""For the requests under way at the end; with the loops' time (app.STOP_S) a stop takes less than 10 s."""

SWITCH_S = 0.001
"""How long a thread that computes keeps the interpreter from others, a fifth of Python's default. A transaction needs
it back after each statement: with the default batches waited three times as long beside a page's answer or a tile.
"""

OPEN_FILES = 65_536
"""Files and connections at once, where the system allows it: each training and each open page holds a connection."""

LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"

logger = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """Opens and closes the app itself: uvicorn would turn our errors at the start into stack traces.

    ``is_worker``: its parent prints the lines of the start.
    """

    def __init__(self, app: FastAPI, url: str, *, is_worker: bool = False) -> None:
        settings: Settings = app.state.services.settings
        configure_logging(settings.log)
        config = uvicorn.Config(
            app,
            http=Connection,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=GRACE_S,
            server_header=False,
            # Only from proxies that the operator named: else any program on this machine could forge its address.
            proxy_headers=bool(settings.proxies),
            forwarded_allow_ips=list(settings.proxies),
            ssl_certfile=None if settings.tls is None else settings.tls.chain,
            ssl_keyfile=None if settings.tls is None else settings.tls.key,
        )
        super().__init__(config)
        self._app = app
        self._url = url
        self._is_worker = is_worker
        self._lifetime = contextlib.AsyncExitStack()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until Ctrl-C or SIGTERM, and end cleanly."""
        _raise_open_files_limit()
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        try:
            with contextlib.suppress(KeyboardInterrupt), _interrupted_by(signal.SIGTERM):
                super().run(sockets)
        finally:
            gc.unfreeze()
            sys.setswitchinterval(before)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the app, then listen; raises CollectorError where the app cannot be opened."""
        await self._lifetime.enter_async_context(self._app.router.lifespan_context(self._app))
        await super().startup(sockets)
        if self.started:
            gc.collect()
            # Modules stay: a collection that scanned all of them stopped every batch for 0.2 s.
            gc.freeze()
            if not self._is_worker:
                services = self._app.state.services
                announce_start(services.settings, services.endpoint_lines, services.new_tokens, self._url)
            logger.info("serving at %s", self._url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the requests under way, then close the app."""
        logger.info("stopping: what is under way is finished, nothing new is taken")
        self._app.state.services.backtests.end()  # its answer goes on for minutes
        await super().shutdown(sockets)
        await self._lifetime.aclose()
        logger.info("stopped")


def announce_start(settings: Settings, endpoints: Sequence[str], new_tokens: Mapping[str, str], url: str) -> None:
    """Print the lines that the operator waits for, and notify systemd."""
    lines = [
        *startup_banner(settings, endpoints),
        *encryption_warnings(settings, os.environ),
        *sign_in_hint(settings, new_tokens),
        f"gradcanary is listening on {url}",
    ]
    print("\n".join(lines), flush=True)  # noqa: T201 -- at the terminal
    _notify_systemd()


def _raise_open_files_limit() -> None:
    """Raise the limit of open files and connections: a shell's is 1,024, or on macOS 256."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS has a limit that it does not report
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _notify_systemd() -> None:
    """Notify systemd that the process serves, if it waits for that (Type=notify): one datagram, sd_notify(3)."""
    address = os.environ.pop("NOTIFY_SOCKET", None)  # not for child processes
    if not address:
        return
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
            notify.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)
    except OSError as error:
        logger.warning("systemd cannot be notified that the collector serves: NOTIFY_SOCKET=%s: %s", address, error)


@contextlib.contextmanager
def _interrupted_by(number: signal.Signals) -> Iterator[None]:
    """Handle a signal as Ctrl-C: uvicorn, which catches it first, raises it again at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    before = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


class Connection(HttpToolsProtocol):
    """A connection with a deadline for each request; the answer may take as long as it needs.

    uvicorn closes a connection that is idle between two requests, and waits for the rest of one for ever: some hundred
    that send a byte now and then (slow-loris) would be all that a process may have open.
    """

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._set_deadline()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._set_deadline()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._cancel_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def _set_deadline(self) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


class Listener:
    """A bound socket, and its addresses; ``host`` is the operator's; raises SettingsError if it cannot be bound."""

    def __init__(self, host: str, port: int, *, is_tls: bool) -> None:
        self.socket = _bind(host, port)
        self._host = host
        self._address, self._port = self.socket.getsockname()[:2]
        self._scheme = "https" if is_tls else "http"

    @property
    def is_loopback(self) -> bool:
        """Return True if only this machine reaches it, by the bound address; a name may resolve to any."""
        return ip_address(self._address.partition("%")[0]).is_loopback

    @property
    def url(self) -> str:
        return self._url(self._host)

    @property
    def own_url(self) -> str:
        """Return the URL by which this process reaches itself."""
        everywhere = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 -- that is what is replaced
        return self._url(everywhere.get(self._address, self._address))

    @property
    def public_url(self) -> str:
        """Return the URL for other machines: with this machine's name where it listens everywhere."""
        return self._url(socket.gethostname() if ip_address(self._address).is_unspecified else self._host)

    def close(self) -> None:
        self.socket.close()

    def _url(self, host: str) -> str:
        return f"{self._scheme}://{f'[{host}]' if ':' in host else host}:{self._port}"


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise SettingsError(f"--host {host!r} is no address of this machine ({error}).") from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise SettingsError(
            f"cannot listen on {host}:{port} ({error.strerror}). Is another collector running? "
            "Stop it, or choose another port with --port."
        ) from error
    return listener


class JsonLines(logging.Formatter):
    """Formats a record as an object of time (RFC 3339, UTC), level, logger, message, and the error with its trace."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields)


def configure_logging(kind: str) -> None:
    """Write the log of this process to stderr: JSON lines, or only warnings and errors as text."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if kind == "json" else logging.Formatter(LOG_FORMAT, "%Y-%m-%d %H:%M:%S"))
    logging.basicConfig(handlers=[handler], force=True)
    logging.getLogger("gradcanary_server").setLevel(logging.INFO if kind == "json" else logging.WARNING)


def startup_banner(settings: Settings, endpoints: Sequence[str]) -> Iterator[str]:
    """Yield the data's place, the rules, and a line for each configured endpoint."""
    place = settings.db.removeprefix("sqlite:///")
    yield f"data is kept in {'the database of --db' if '://' in place else place}"
    yield (
        "rules are the defaults (--rules FILE changes them)"
        if settings.rules is None
        else f"rules are those of {settings.rules}"
    )
    yield from endpoints or ("no endpoints: incidents are not sent anywhere (--webhook URL)",)


def encryption_warnings(settings: Settings, environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a line for each connection to another machine that can be read or forged on its way."""
    if settings.reached_by_others and settings.tls is None and not settings.public_url.startswith("https://"):
        yield (
            "warning: without TLS, others on the network can read tokens and measurements: --tls-cert and --tls-key, "
            "or a proxy with TLS, and GRADCANARY_PUBLIC_URL=https://..."
        )
    if maintenance.can_be_intercepted(settings.db, environ):
        yield (
            "warning: the certificate of the database's server is not checked: append ?sslmode=verify-full to --db "
            "(with &sslrootcert=FILE for an authority of your own)"
        )


def sign_in_hint(settings: Settings, new_tokens: Mapping[str, str]) -> Iterator[str]:
    """Yield the ways to sign in; the secrets of new tokens are printed here and never again."""
    if not settings.auth:
        if settings.hosts:
            yield f"whoever comes through {', '.join(settings.hosts)} is asked for no token: --auth"
        return
    url = urlsplit(settings.public_url)
    if url.hostname == socket.gethostname().lower():
        other = f"GRADCANARY_PUBLIC_URL={url.scheme}://NAME:{url.port}"
        yield f"{url.hostname} is what this machine calls itself; where others know it by another name: {other}"
    admin, ingest = new_tokens.get("admin"), new_tokens.get("ingest", "TOKEN")
    store = _store_arguments(settings)
    if admin is not None:
        yield f"token to administer and to sign in at {settings.public_url} (shown once): {admin}"
    else:
        create = f"gradcanary token create --scope read --name YOU{store}"
        yield f"people sign in at {settings.public_url} with a token: {create}"
    create = f"gradcanary token create --scope ingest --name JOBS{store}"
    origin = " (shown once)" if new_tokens else f", with one of {create}"
    yield f"where trainings run{origin}: export GRADCANARY_URL={settings.public_url} GRADCANARY_TOKEN={ingest}"


def _store_arguments(settings: Settings) -> str:
    file = maintenance.sqlite_file(settings.db)
    if file == settings.data / "gradcanary.db":
        return f" --data {shlex.quote(str(settings.data))}"
    return f" --db {shlex.quote(maintenance.display_address(settings.db) if file is None else f'sqlite:///{file}')}"
