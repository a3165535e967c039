"""``python -m gradcanary_dashboard.process``: the pages of a collector in a process that the collector starts.

It reads what it needs as a line of JSON, serves a socket that it inherits, and ends when its input ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator

import uvicorn

from gradcanary_dashboard.app import create_pages
from gradcanary_dashboard.collector.client import trust_only

NICE = 10
"""Batches come before pages where both want the same core."""


class _Server(uvicorn.Server):
    """Ends by ``should_exit`` alone: systemd sends its SIGTERM to all processes, while requests are under way."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        yield


def main() -> None:
    """Serve the pages until the collector is gone."""
    told = json.loads(sys.stdin.readline())
    os.nice(NICE)
    app = create_pages(
        told["collector_url"],
        public_url=told["public_url"],
        signs_in=told["signs_in"],
        trusted=trust_only(told["chain"]) if told["chain"] else None,
        framed_by=told["framed_by"],
    )
    # The collector adds what an answer of its port has: the date, and the headers of every answer.
    config = uvicorn.Config(
        app,
        lifespan="off",  # Dash would answer unknown addresses
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        timeout_graceful_shutdown=1,
    )
    server = _Server(config)
    threading.Thread(target=_end_with_input, args=(server,), daemon=True).start()
    server.run(sockets=[socket.socket(fileno=told["fd"])])


def _end_with_input(server: uvicorn.Server) -> None:
    sys.stdin.read()
    server.should_exit = True


if __name__ == "__main__":
    main()
