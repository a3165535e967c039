"""The pages in a process of their own (``gradcanary up --pages-apart``), and the way to them from the collector's port.

In one interpreter batches wait while a page is drawn (docs/results/performance.md, "A team").
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx
from starlette.background import BackgroundTask
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from gradcanary_server.errors import SettingsError
from gradcanary_server.ops.workers import BACKOFF_S, STEADY_S

SILENCE_S = 60.0
"""Without a byte of an answer; a change may take 30 s (the dashboard's collector.client.CHANGE_S)."""

END_S = 0.4
"""A process that has not ended by then is killed; by then its requests have been answered."""

HOP_BY_HOP = frozenset((b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"))
"""Headers that are about one connection, not about the answer (RFC 9110, 7.6.1)."""

logger = logging.getLogger(__name__)


class PagesProcess:
    """Keeps ``python -m module`` running inside the block, and answers requests with what it answers.

    The process reads ``told`` from its first line of input, with the descriptor ``fd`` of the socket to serve. It ends
    with its input, which ends with this process, however that ends. What it prints is logged. The socket is this
    process's: a request that comes while the pages are started again waits for them.
    """

    def __init__(self, module: str, told: Mapping[str, object]) -> None:
        if sys.platform == "win32":
            raise SettingsError("--pages-apart needs the sockets of Linux or macOS. Leave it out.")
        # -P: no module of the folder in which the collector was started.
        self._command = [sys.executable, "-P", "-m", module]
        self._told = told
        self._starting = threading.Lock()
        self._closing = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._folder = tempfile.TemporaryDirectory(prefix="gradcanary-pages-")  # only this user may enter it
            path = str(Path(self._folder.name) / "socket")
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.bind(path)
            self._socket.listen(1024)
        except OSError as error:
            raise SettingsError(
                f"--pages-apart needs a socket in {tempfile.gettempdir()}, TMPDIR ({error})."
            ) from error
        # The expiry: uvicorn drops a connection that is idle for 5 s; such a connection must not be used again.
        limits = httpx.Limits(max_connections=None, keepalive_expiry=2.0)
        self._http = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=path, limits=limits), timeout=SILENCE_S, trust_env=False
        )
        self._thread = threading.Thread(target=self._keep_running, name="gradcanary-pages-process", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._starting:
            self._closing.set()
            process = self._process
        if process is not None:
            if process.stdin is not None:
                process.stdin.close()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
        self._thread.join()
        self._socket.close()
        self._folder.cleanup()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that the collector has no route for."""
        request = Request(scope, receive)
        try:
            answer = await self._answer(request)
        except httpx.HTTPError:
            # A page asks again; a program reads why.
            words = "The process of the pages does not answer. The collector goes on, and starts it again if it ended."
            answer = PlainTextResponse(words, HTTPStatus.BAD_GATEWAY)
        except ClientDisconnect:
            return
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        try:
            answer = await self._pass_on(request, has_body=has_body)
        except httpx.RemoteProtocolError:  # it has ended since its last answer
            if has_body or request.method not in ("GET", "HEAD"):
                raise
            answer = await self._pass_on(request, has_body=False)
        if answer.status_code == HTTPStatus.NOT_FOUND and answer.headers.get("content-type") == "application/json":
            await answer.aclose()
            raise HTTPException(HTTPStatus.NOT_FOUND)  # in the words of the API
        passed: Response
        if "content-length" in answer.headers:
            # In one piece: else the collector would compress again what is too small for it.
            passed = Response(b"".join([piece async for piece in answer.aiter_raw()]), answer.status_code)
        else:
            passed = StreamingResponse(answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose))
        passed.raw_headers = _of_message(answer.headers.raw)
        return passed

    async def _pass_on(self, request: Request, *, has_body: bool) -> httpx.Response:
        query = request.scope["query_string"]
        # As it came, byte by byte: what the collector has admitted is what is answered.
        target = request.scope["raw_path"] + (b"?" + query if query else b"")
        passed = httpx.Request(  # a client's own would add headers
            request.method,
            "http://pages/",
            headers=_of_message(request.headers.raw),
            content=request.stream() if has_body else None,
            extensions={"target": target},
        )
        return await self._http.send(passed, stream=True)

    def _keep_running(self) -> None:
        ends = 0
        while not self._closing.is_set():
            started = time.monotonic()
            how = self._run()
            if self._closing.is_set():
                return
            ends = 0 if time.monotonic() - started > STEADY_S else ends
            wait_s = BACKOFF_S[min(ends, len(BACKOFF_S) - 1)]
            logger.warning("the process of the pages %s: it is started again in %s s", how, wait_s)
            ends += 1
            self._closing.wait(wait_s)

    def _run(self) -> str:
        """Run the process until it ends; return how it did."""
        with self._starting:
            if self._closing.is_set():
                return "is not wanted"
            try:
                self._process = process = self._start()
            except OSError as error:  # no memory, or a limit of processes
                return f"could not be started ({error.strerror})"
        with process:
            for line in process.stdout or ():
                logger.warning("the pages: %s", line.decode(errors="replace").rstrip())
        return f"ended (status {process.returncode})"

    def _start(self) -> subprocess.Popen[bytes]:
        ours = ("GRADCANARY_", "NOTIFY_SOCKET")  # secrets, and systemd's line to this process
        process = subprocess.Popen(  # noqa: S603 -- our own module
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[self._socket.fileno()],
            env={name: value for name, value in os.environ.items() if not name.startswith(ours)},
            start_new_session=True,  # Ctrl-C reaches all processes of a terminal, and this one ends with its input
        )
        if process.stdin is not None:
            with contextlib.suppress(OSError):  # it has ended
                process.stdin.write(json.dumps({**self._told, "fd": self._socket.fileno()}).encode() + b"\n")
                process.stdin.flush()
        return process


def _of_message(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in HOP_BY_HOP]
