"""Healthy trainings that post batches, all of them from one process of their own. Imported, not run.

What is measured is the side that takes them: bodies are made beforehand and are the same for all, which the collector
cannot know, and connections are plain sockets.
"""

import asyncio
import gzip
import itertools
import math
import multiprocessing
import random
import re
import sys
import time
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection as Pipe
from pathlib import Path
from typing import Self
from urllib.parse import SplitResult, urlsplit

import numpy as np

sys.path[:0] = [str(Path(__file__).parent.parent)]

from gradcanary import wire
from support import streams

STEPS, EACH_S = 5, 0.5
"""Ten steps a second in a batch each half second, as the agent sends them. A collector may ask for fewer batches."""

TOGETHER = (1, 2, 4, 8, 12)
"""How many of these half seconds go into a batch, by what it asks for, and how long it took over the last one."""

AFTER_S = 0.2
"""After so long the next one begins: a first batch costs as much as ten others."""

SPARE_S = 120.0
"""For what is done before and after something is measured."""

TILE = 256
"""Steps. Trainings do not begin in the same second, so each is at another place in its tile."""

STARTED, BEGIN, STOP = "started", "begin", "stop"

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass
class Acks:
    """Of each batch the seconds from when it was due to its acknowledgement, and to when it was posted; and those that
    this asked to be left before the next one."""

    ack_s: list[float] = field(default_factory=list)
    late_s: list[float] = field(default_factory=list)
    spacing_s: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    points: int = 0
    cpu_s: float = 0.0


class Jobs:
    """So many trainings of runs of their own, until they are stopped or the block ends."""

    def __init__(self, url: str, count: int, layers: int, *, seconds: float = 100, unpaced: int = 0) -> None:
        """After so many ``seconds``, and those of the start, a training begins its next launch.

        With ``unpaced`` each posts as soon as it is acknowledged, so many half seconds (of TOGETHER) in a batch.
        """
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        batches = math.ceil((seconds + count * AFTER_S + SPARE_S) / EACH_S)
        self._process = context.Process(target=_work, args=(theirs, url, count, layers, batches, unpaced))

    def __enter__(self) -> Self:
        """Begin one after the other; return when all have."""
        self._process.start()
        self._pipe.recv()
        return self

    def begin(self) -> None:
        """Forget what was acknowledged so far."""
        self._pipe.send(BEGIN)

    def stop(self) -> Acks:
        """End all of them; return how it went since the beginning."""
        self._pipe.send(STOP)
        acks: Acks = self._pipe.recv()
        self._process.join()
        return acks

    def __exit__(self, *_: object) -> None:
        if self._process.is_alive():
            self.stop()


def _work(pipe: Pipe, url: str, count: int, layers: int, batches: int, unpaced: int) -> None:
    asyncio.run(_Trainings(pipe, url, layers, batches, unpaced).run(count))


class _Trainings:
    def __init__(self, pipe: Pipe, url: str, layers: int, batches: int, unpaced: int) -> None:
        self._pipe, self._unpaced = pipe, unpaced
        self._address = urlsplit(url)
        self._batches = batches
        self._acks, self._used = Acks(), 0.0
        self._series = Series(layers, batches)

    async def run(self, count: int) -> None:
        self._stopping = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._pipe.fileno(), self._hear)
        began = time.perf_counter() + 1
        trainings = [asyncio.create_task(self._train(number, count, began)) for number in range(count)]
        await asyncio.sleep(1 + count * AFTER_S)
        self._pipe.send(STARTED)
        await asyncio.gather(*trainings)
        self._acks.cpu_s = time.process_time() - self._used
        self._pipe.send(self._acks)

    def _hear(self) -> None:
        if self._pipe.recv() == STOP:
            self._stopping.set()
        else:
            self._acks, self._used = Acks(problems=self._acks.problems), time.process_time()

    async def _train(self, number: int, count: int, began: float) -> None:
        # Trainings do not know of each other: some of them send at the same moment, always the same ones.
        due = began + number * AFTER_S + random.Random(number).random() * EACH_S
        try:
            await asyncio.sleep(due - time.perf_counter())
            connection = await Connection.opened(self._address)
            for launch in itertools.count():
                first = 0 if launch else self._series.place(number, count)
                await self._greet(connection, number, launch, first)
                place, together = 0, self._unpaced or TOGETHER[0]
                for seq in itertools.count():
                    body = self._series.body(first + place, together, is_first=seq == 0)
                    spacing_s = await self._post(connection, _path(number, launch, f"/batches/{seq}"), body, due)
                    place += together
                    if self._stopping.is_set() or place + TOGETHER[-1] > self._batches:
                        break
                    together = self._unpaced or _together(max(spacing_s, time.perf_counter() - due))
                    due = time.perf_counter() if self._unpaced else due + together * EACH_S
                due += EACH_S
                end = wire.dump(wire.End("finished", None, None))
                await connection.ask("POST", _path(number, launch, "/end"), end)
                if self._stopping.is_set():
                    connection.close()
                    return
        except (OSError, EOFError, RuntimeError) as error:
            self._acks.problems.append(f"{run_name(number)}: {error!r}")

    async def _post(self, connection: "Connection", path: str, body: "Body", due: float) -> float:
        """Return how many seconds the collector wants to be left before the next one."""
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        posted = time.perf_counter()
        is_over = self._stopping.is_set()  # each asks for its end, too, from then on, which is twice as much to do
        spacing_s = wire.load_reply(await connection.ask("POST", path, body.raw)).spacing_s
        if not is_over:
            self._acks.ack_s.append(time.perf_counter() - due)
            self._acks.late_s.append(posted - due)
            self._acks.spacing_s.append(spacing_s)
            self._acks.points += body.points
        return spacing_s

    async def _greet(self, connection: "Connection", number: int, launch: int, first: int) -> None:
        hello = self._series.stream.hello(launch=f"launch-{launch}", first_step=first * STEPS)
        await connection.ask(
            "PUT", _path(number, launch), gzip.compress(wire.dump(hello)), "Content-Encoding: gzip\r\n"
        )


def _together(seconds: float) -> int:
    """Return how many half seconds go into a batch, as an agent sends all that has come in so many seconds."""
    return max(each for each in TOGETHER if each == TOGETHER[0] or each * EACH_S <= seconds)


def run_name(number: int) -> str:
    """Return the run of a training."""
    return f"job-{number:03}"


def _path(number: int, launch: int, rest: str = "") -> str:
    return f"/api/v1/runs/{run_name(number)}/sessions/session-{launch}{rest}"


@dataclass(frozen=True)
class Body:
    """A batch as it is sent, and how many points are in it."""

    raw: bytes
    points: int


class Series:
    """The bodies of a healthy training: absmax and norm, with mantissas as random as those of a real one."""

    def __init__(self, layers: int, batches: int) -> None:
        random = np.random.default_rng(0)
        self._places = math.ceil(TILE / STEPS)
        self._layers = layers
        steps = (self._places + batches + TOGETHER[-1]) * STEPS
        level = 10 ** random.uniform(-3, -1.5, layers)
        absmax = np.float32(level * 10 ** random.normal(0, 0.1, (steps, layers)))
        self._norm = np.float32(absmax * random.uniform(3, 9, absmax.shape))
        self.stream = streams.Stream(absmax, loss=streams.falling_loss(steps))
        self._bodies = {
            together: [self._made(place, together, is_first=False) for place in range(self._places + batches)]
            for together in TOGETHER
        }
        self._firsts = [self._made(place, TOGETHER[0], is_first=True) for place in range(self._places)]

    def place(self, number: int, count: int) -> int:
        """Return with which batch one of so many trainings begins."""
        return number * self._places // count

    def body(self, place: int, together: int, *, is_first: bool) -> Body:
        return self._firsts[place] if is_first else self._bodies[together][place]

    def _made(self, place: int, together: int, *, is_first: bool) -> Body:
        """Return a batch of healthy steps: ``nonfinite`` is sent only when there is something to count."""
        begin, end = place * STEPS, (place + together) * STEPS
        plain = self.stream.batch(begin, end, change_records=is_first)
        absmax, norm, _ = plain.blocks
        norm = replace(norm, values=wire.column("f", self._norm[begin:end].ravel().tolist()))
        raw = wire.dump(replace(plain, blocks=(absmax, norm)))
        return Body(raw, 2 * (end - begin) * self._layers)


class Connection:
    """One that is kept open, over which one request is asked at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer, self._host = reader, writer, host

    @classmethod
    async def opened(cls, address: SplitResult) -> Self:
        return cls(*await asyncio.open_connection(address.hostname, address.port), address.netloc)

    def close(self) -> None:
        self._writer.close()

    async def ask(self, method: str, path: str, body: bytes, headers: str = "") -> bytes:
        """Return the body of the answer; raises RuntimeError unless it is 200."""
        self._writer.write(
            f"{method} {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n{headers}"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        found = _LENGTH.search(head)
        answer = await self._reader.readexactly(int(found[1]) if found else 0)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{path}: {head.splitlines()[0].decode()} {answer[:300].decode()}")
        return answer
