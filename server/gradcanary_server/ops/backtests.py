"""Backtests on request: starts one child process at a time, and streams its lines. Nothing is stored."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from typing import cast

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gradcanary_server import caches
from gradcanary_server.errors import RequestError
from gradcanary_server.rules.config import Rules, rules_to_json

TIMEOUT_S = 900.0
"""After this time the process is killed; it begins no run in the last third of it (``backtest_worker.PLAY_S``)."""

TURN_S = 2.0
"""A request waits so long for the process of another one: that of a page that was reloaded is ending."""

RETRY_S = 10

REPEAT_S = 1.0
"""The last progress is sent again this often: so a client that went away is noticed, and no proxy gives up."""

LINE_BYTES = 16 * 2**20
"""Of a line. The result of 30 runs with as many entries of ``layers`` as a file can have takes a megabyte."""

NDJSON = "application/x-ndjson"

PROGRESS = b'{"kind": "progress"'
"""The beginning of each line but the last one."""

FIRST_LINE = PROGRESS + b', "runs": null, "played": 0}\n'
"""Sent at once: the process needs a second to start."""

_SCRIPT = "import sys; sys.path[:] = sys.argv[1:]; from gradcanary_server.ops.backtest_worker import main; main()"

logger = logging.getLogger(__name__)


class Backtests:
    """Starts backtests on one event loop; :meth:`end` may be called from any thread."""

    def __init__(self, db: str, rules: Rules, cache_bytes: int = caches.split_cache_budget().backtests) -> None:
        self._db = db
        self._rules = rules
        self._cache_bytes = cache_bytes
        self._turn = asyncio.Lock()
        self._child: _Child | None = None
        self._watching: asyncio.Task[None] | None = None
        self._is_ended = False

    async def begin(self, tried: Rules | None) -> BacktestResponse:
        """Start a process that plays the latest runs; raises RequestError 429 while another one runs."""
        try:
            await asyncio.wait_for(self._turn.acquire(), TURN_S)
        except asyncio.TimeoutError:
            message = "Rules are being tried already, and one trial runs at a time: try again when it is over."
            raise RequestError(429, "trial_runs", message, retry_after_s=RETRY_S) from None
        try:
            child = await self._start({"in_force": self._rules, **({} if tried is None else {"tried": tried})})
        except BaseException:
            self._turn.release()
            raise
        self._watching = asyncio.create_task(self._watch(child))
        return BacktestResponse(child)

    def end(self) -> None:
        """Kill the process, and start no other one."""
        self._is_ended = True
        if self._child is not None:
            self._child.kill("The collector is stopping.")

    async def stop(self) -> None:
        """End, and wait until the process is gone."""
        self.end()
        if self._watching is not None:
            await self._watching

    async def _start(self, rules: dict[str, Rules]) -> _Child:
        command = (sys.executable, "-c", _SCRIPT, *sys.path)
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES, env=environ)
        child = self._child = _Child(process)
        if self._is_ended:
            self.end()
        # The store's password goes in by stdin: every user of the machine sees arguments.
        contents = {name: json.loads(rules_to_json(content)) for name, content in rules.items()}
        task = {"db": self._db, "rules": contents, "cache_bytes": self._cache_bytes}
        cast(asyncio.StreamWriter, process.stdin).write(json.dumps(task).encode() + b"\n")
        return child

    async def _watch(self, child: _Child) -> None:
        """Keep the turn until the process ends, and kill it when it takes too long."""
        try:
            await asyncio.wait_for(child.process.wait(), TIMEOUT_S)
        except asyncio.TimeoutError:
            child.kill(f"It took longer than {TIMEOUT_S / 60:.0f} minutes.")
            await child.process.wait()
        finally:
            self._child = None
            self._turn.release()


class BacktestResponse(StreamingResponse):
    """The lines of the process as they come; the process ends with the answer, also when the client goes away."""

    def __init__(self, child: _Child) -> None:
        # A proxy that collects the lines would hide the progress: the first header is nginx's.
        headers = {"X-Accel-Buffering": "no", "Cache-Control": "no-store"}
        super().__init__(child.lines(), media_type=NDJSON, headers=headers)
        self._child = child

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._child.kill("The client went away.")


class _Child:
    """The process, and the reason if it was killed."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._reason: str | None = None

    def kill(self, reason: str) -> None:
        self._reason = self._reason or reason
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield each line of the process; the last one is a result or an error."""
        yield FIRST_LINE
        latest = FIRST_LINE
        while True:
            try:
                line = await asyncio.wait_for(cast(asyncio.StreamReader, self.process.stdout).readline(), REPEAT_S)
            except asyncio.TimeoutError:
                yield latest
                continue
            except ValueError:  # asyncio's, of a line beyond the limit
                self.kill("Its process wrote a line that is too long.")
                break
            if not line:
                break
            yield line
            if not line.startswith(PROGRESS):
                return
            latest = line
        yield json.dumps({"kind": "error", **await self._failure()}).encode() + b"\n"

    async def _failure(self) -> dict[str, str]:
        status = await self.process.wait()
        if self._reason is None:
            logger.warning("runs were not all played again: the process ended with status %s", status)
        reason = self._reason or f"The process that plays the runs ended with status {status}: see the collector's log."
        return {"code": "trial_failed", "message": f"The runs were not all played again. {reason}"}
