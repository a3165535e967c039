"""A collector that takes everything and keeps it: what the agent sent, in numbers, by step and layer name."""

import gzip
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from gradcanary import wire

LIMITS = wire.Limits(max_body=4 * 2**20, max_points=2_000_000, max_layers=20_000)
TAKEN = wire.dump(wire.Reply("stored", 0, LIMITS, ()))


class Recorded:
    """The hellos, batches, heartbeats and ends of one session as JSON objects, and what they say."""

    def __init__(self) -> None:
        self.url = ""
        self.hellos: list[dict[str, Any]] = []
        self.batches: list[dict[str, Any]] = []
        self.heartbeats: list[dict[str, Any]] = []
        self.ends: list[dict[str, Any]] = []
        self.runs: set[str] = set()

    def keep(self, path: str, body: dict[str, Any]) -> None:
        self.runs.add(path.split("/")[4])
        kind = path.rpartition("/sessions/")[2].partition("/")[2].partition("/")[0]
        {"": self.hellos, "batches": self.batches, "heartbeat": self.heartbeats, "end": self.ends}.get(kind, []).append(
            body
        )

    @property
    def dropped_steps(self) -> int:
        """What was last said to be lost: by a batch, or by a heartbeat where no batch came after the loss."""
        return max(told["dropped_steps"] for told in (*self.batches, *self.heartbeats))

    @property
    def layers(self) -> list[dict[str, Any]]:
        """The layers of the only layer set."""
        (layers,) = self.sets().values()
        return layers

    @property
    def names(self) -> list[str]:
        return [layer["name"] for layer in self.layers]

    def sets(self) -> dict[str, list[dict[str, Any]]]:
        """Layer sets by id, in the order in which they were said."""
        return {each["id"]: each["layers"] for hello in self.hellos for each in hello["layer_sets"]}

    def steps(self) -> list[int]:
        return [step for batch in self.batches for step in batch["steps"]]

    def per_step(self, key: str) -> list[int]:
        """``micro_steps``, ``skipped`` or ``clipped``, one value per sampled step."""
        return [value for batch in self.batches for value in batch[key]]

    def states(self) -> dict[int, dict[str, str]]:
        found = {}
        for batch in self.batches:
            names = self._names(batch, None)
            plane = wire.uncolumn("B", batch["state"])
            for step, row in zip(batch["steps"], _rows(plane, len(names)), strict=True):
                found[step] = dict(zip(names, (wire.STATES[state] for state in row), strict=True))
        return found

    def stat(self, stat: str) -> dict[int, dict[str, float]]:
        """A stat by step and layer name, of the layers that were measured for it."""
        found: dict[int, dict[str, float]] = {}
        for batch, block in self._blocks(stat):
            names = self._names(batch, block["layers"])
            values = wire.uncolumn("f", block["values"])
            for step, row in zip(block["steps"], _rows(values, len(names)), strict=True):
                found.setdefault(step, {}).update(zip(names, row, strict=True))
        return found

    def phases(self, stat: str) -> set[str]:
        return {block["phase"] for _, block in self._blocks(stat)}

    def phase_of(self, stat: str) -> dict[int, str]:
        """The phase of each step that has the stat."""
        return {step: block["phase"] for _, block in self._blocks(stat) for step in block["steps"]}

    def metric(self, name: str) -> dict[int, float]:
        """A series by step; a step that was sent twice is an error."""
        found: dict[int, float] = {}
        for batch in self.batches:
            for metric in batch["metrics"]:
                if metric["name"] == name:
                    assert len(set(metric["steps"])) == len(metric["steps"])
                    assert not found.keys() & set(metric["steps"])
                    found.update(zip(metric["steps"], wire.uncolumn("d", metric["values"]), strict=True))
        return found

    def stored(self) -> dict[str, str]:
        """The accumulator dtype of each layer, as last said."""
        return {name: stored for name, (_, stored, _) in self.accumulators().items()}

    def accumulators(self) -> dict[str, tuple[str | None, str, str | None]]:
        """Of each layer's accumulator the dtypes declared, stored and effective, as last said."""
        found = {}
        for batch in self.batches:
            for record in batch["accumulators"]:
                dtypes = (record["declared"], record["stored"], record["effective"])
                found.update(dict.fromkeys(self._names(batch, record["layers"]), dtypes))
        return found

    def facts(self, code: str) -> list[dict[str, Any]]:
        """The findings of a kind, as last said."""
        return [fact for fact in self.hellos[-1]["facts"] if fact["code"] == code]

    def _blocks(self, stat: str) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
        for batch in self.batches:
            yield from ((batch, block) for block in batch["blocks"] if block["stat"] == stat)

    def _names(self, batch: dict[str, Any], layers: Sequence[int] | None) -> list[str]:
        names = [layer["name"] for layer in self.sets()[batch["layer_set"]]]
        return names if layers is None else [names[layer] for layer in layers]


def _rows(values: Sequence[Any], width: int) -> list[Sequence[Any]]:
    return [values[start : start + width] for start in range(0, len(values), width)]


@contextmanager
def recording() -> Iterator[Recorded]:
    """Serve on a free port of the loopback until the block ends."""
    recorded = Recorded()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            recorded.keep(self.path, json.loads(body))
            self.send_response(200)
            self.send_header("content-length", str(len(TAKEN)))
            self.end_headers()
            self.wfile.write(TAKEN)

        do_PUT = do_POST  # noqa: N815 -- the name that http.server looks for

        def log_message(self, *_: object) -> None:
            """Stay silent."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        recorded.url = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield recorded
        finally:
            server.shutdown()
            thread.join()


def spooling(folder: Path) -> dict[str, str]:
    """The environment of a training that finds nobody's spool but its own."""
    return {**os.environ, "GRADCANARY_SPOOL": str(folder / "spool")}
