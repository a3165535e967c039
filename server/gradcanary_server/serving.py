"""The process of ``gradcanary up``: uvicorn, which opens and closes the app in the open."""

import contextlib
import gc
import logging
import os
import resource
import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import NoReturn
from urllib.parse import urlsplit

import uvicorn
from fastapi import FastAPI

from gradcanary_server import allocation, log_lines, outages, store_files
from gradcanary_server.connections import Connection
from gradcanary_server.settings import Settings

GRACE_S = 5
"""For the requests that are under way when it ends; with the loops' time (app.STOP_S) it is over within 10 s."""

SWITCH_S = 0.001
"""How long a thread that computes keeps the interpreter from others, a fifth of what Python has. A transaction asks for
it back after each statement: while a tab's answer or a tile was made, batches waited three times as long.
"""

OPEN_FILES = 65_536
"""Files and connections at once, where the system lets it: each training and each open page holds a connection."""

logger = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """Opens and closes the app itself: uvicorn would turn a refusal of ours into a stack trace."""

    def __init__(self, app: FastAPI, url: str) -> None:
        """``url`` is where requests are taken, which is said once they are."""
        settings: Settings = app.state.settings
        log_lines.begin(settings.log)
        config = uvicorn.Config(
            app,
            http=Connection,
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            timeout_graceful_shutdown=GRACE_S,
            server_header=False,
            # Nobody's, unless the operator says whose: else whoever is on this machine could say who he is.
            proxy_headers=bool(settings.proxies),
            forwarded_allow_ips=list(settings.proxies),
            ssl_certfile=None if settings.tls is None else settings.tls.chain,
            ssl_keyfile=None if settings.tls is None else settings.tls.key,
        )
        super().__init__(config)
        self._app = app
        self._url = url
        self._lifetime = contextlib.AsyncExitStack()

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until Ctrl-C or SIGTERM, by which it ends as it should."""
        allocation.keep()
        _raise_limit()
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
            # Modules stay: each look for garbage among all of them kept every batch waiting for 0.2 s.
            gc.freeze()
            state = self._app.state
            lines = (*told(state.settings, state.told), *admitted(state.settings, state.new_tokens))
            lines = (*lines, f"gradcanary is listening on {self._url}")
            print("\n".join(lines), flush=True)  # noqa: T201 -- what the operator waits for
            logger.info("serving at %s", self._url)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer what is under way, then close the app."""
        logger.info("stopping: what is under way is finished, nothing new is taken")
        await super().shutdown(sockets)
        await self._lifetime.aclose()
        logger.info("stopped")


def give_up(end_others: Callable[[], None]) -> NoReturn:
    """End this process where it is: to close the store in order would write what the disk may not have.

    ``end_others`` ends processes of ours that have the store open: they may have read what it lost.
    """
    logger.critical("%s Ending, so that whatever keeps this service running does that.", outages.LOST)
    try:
        end_others()
    finally:
        os._exit(os.EX_IOERR)


def _raise_limit() -> None:
    """Let this process have as many files and connections open as it may: a shell gives it 1,024, or on macOS 256."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # macOS has a limit that it does not tell
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@contextlib.contextmanager
def _interrupted_by(number: signal.Signals) -> Iterator[None]:
    """Let a signal be as Ctrl-C: uvicorn, which takes it first, gives it again once all is done."""
    if threading.current_thread() is not threading.main_thread():
        yield  # no other one hears of signals
        return
    before = signal.signal(number, _interrupt)
    try:
        yield
    finally:
        signal.signal(number, before)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


def told(settings: Settings, whom: Sequence[str]) -> Iterator[str]:
    """Yield what an operator who starts a collector should know: where data is, which rules hold, and who is told."""
    place = settings.db.removeprefix("sqlite:///")
    yield f"data is kept in {'the database of --db' if '://' in place else place}"
    yield "rules are the defaults: --rules FILE" if settings.rules is None else f"rules are those of {settings.rules}"
    yield from whom or ("incidents are told to nobody: --webhook URL",)


def admitted(settings: Settings, new_tokens: Mapping[str, str]) -> Iterator[str]:
    """Yield how one gets in; the secrets of tokens that were made just now are said here and never again."""
    if not settings.auth:
        if settings.hosts:
            yield f"whoever comes through {', '.join(settings.hosts)} is asked for no token: --auth"
        return
    url = urlsplit(settings.public_url)
    if url.hostname == socket.gethostname().lower():
        other = f"GRADCANARY_PUBLIC_URL={url.scheme}://NAME:{url.port}"
        yield f"{url.hostname} is what this machine calls itself; where others know it by another name: {other}"
    admin, ingest = new_tokens.get("admin"), new_tokens.get("ingest", "TOKEN")
    if admin is not None:
        yield f"token to administer and to sign in at {settings.public_url} (shown once): {admin}"
    else:
        make = f"gradcanary token create --scope read --name YOU{_store(settings)}"
        yield f"people sign in at {settings.public_url} with a token: {make}"
    make = f"gradcanary token create --scope ingest --name JOBS{_store(settings)}"
    shown = " (shown once)" if new_tokens else f", with one of {make}"
    yield f"where trainings run{shown}: export GRADCANARY_URL={settings.public_url} GRADCANARY_TOKEN={ingest}"


def _store(settings: Settings) -> str:
    """Return what names the store to a command that works in it."""
    file = store_files.file_of(settings.db)
    if file == settings.data / "gradcanary.db":
        return f" --data {shlex.quote(str(settings.data))}"
    return f" --db {shlex.quote(store_files.shown(settings.db) if file is None else f'sqlite:///{file}')}"
