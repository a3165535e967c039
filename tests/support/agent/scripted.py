"""A collector that answers as its script says, and a training small enough to be run many times."""

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from torch import nn

WAIT_S = 120
LIMITS = {"max_body": 2**22, "max_points": 2_000_000, "max_layers": 20_000}


def refusal(code: str = "no", message: str = "No.") -> bytes:
    return json.dumps({"error": {"code": code, "message": message, "field": None}}).encode()


def reply(incidents: tuple[dict[str, Any], ...] = (), **more: object) -> bytes:
    return json.dumps(
        {"status": "ok", "next_seq": 0, "limits": LIMITS, "incidents": incidents, "unknown": 1, **more}
    ).encode()


@dataclass
class Told:
    """One request as it came in."""

    method: str
    path: str
    raw: bytes
    at: float

    @property
    def kind(self) -> str:
        return "hello" if self.method == "PUT" else self.path.split("/")[7]

    @property
    def seq(self) -> int:
        return int(self.path.rsplit("/", 1)[1])

    @property
    def body(self) -> dict[str, Any]:
        return json.loads(self.raw)


@dataclass
class Says:
    """One answer; ``hang`` keeps the connection open and says nothing until the server ends."""

    status: int = 200
    body: bytes = field(default_factory=reply)
    headers: dict[str, str] = field(default_factory=dict)
    hang: bool = False


class Scripted:
    """``script`` decides on each request; what is kept is every request, and those that got a 200."""

    def __init__(self, script: Callable[[Told], Says]) -> None:
        self.script = script
        self.heard: list[Told] = []
        self.accepted: list[Told] = []
        self.tokens: set[str | None] = set()
        self.ended = threading.Event()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        scripted = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                raw = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    raw = gzip.decompress(raw)
                told = Told(self.command, self.path, raw, time.monotonic())
                scripted.heard.append(told)
                scripted.tokens.add(self.headers.get("authorization"))
                says = scripted.script(told)
                if says.hang:
                    scripted.ended.wait(WAIT_S)
                    self.close_connection = True
                    return
                if says.status == 200:
                    scripted.accepted.append(told)
                self.send_response(says.status)
                for key, value in says.headers.items():
                    self.send_header(key, value)
                self.send_header("content-length", str(len(says.body)))
                self.end_headers()
                self.wfile.write(says.body)

            do_PUT = do_POST = answer  # noqa: N815 -- the names that http.server calls

            def log_message(self, *_: object) -> None:
                pass

        return Handler

    def of(self, kind: str, *, accepted: bool = False) -> list[Told]:
        return [told for told in list(self.accepted if accepted else self.heard) if told.kind == kind]

    def steps(self) -> list[int]:
        """Return the steps of all batches that were accepted, in the order of their arrival."""
        return [step for told in self.of("batches", accepted=True) for step in told.body["steps"]]

    def seqs(self) -> list[int]:
        return [told.seq for told in self.of("batches", accepted=True)]


@contextmanager
def collector_that(script: Callable[[Told], Says] = lambda _: Says()) -> Iterator[Scripted]:
    """Serve the script until the block ends."""
    scripted = Scripted(script)
    thread = threading.Thread(target=scripted.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield scripted
    finally:
        scripted.ended.set()
        scripted.server.shutdown()
        thread.join()
        scripted.server.server_close()


def once(kind: str, says: Says, times: int = 1) -> Callable[[Told], Says]:
    """Return a script: the first ``times`` requests of a kind get this answer, all others 200."""
    left = [times]

    def script(told: Told) -> Says:
        if told.kind == kind and left[0] > 0:
            left[0] -= 1
            return says
        return Says()

    return script


class Training:
    """A model that really learns, step by step when asked."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.generator = torch.Generator().manual_seed(3)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.optimizer.zero_grad()
            self.model(torch.randn(16, 4, generator=self.generator)).square().mean().backward()
            self.optimizer.step()


def until(condition: Callable[[], object]) -> None:
    """Wait for what a thread will do."""
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)
