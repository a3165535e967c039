"""Healthy trainings that post batches while something else is measured. Imported, not run."""

import itertools
import sys
import threading
import time
from pathlib import Path
from typing import Self

import httpx

sys.path[:0] = [str(Path(__file__).parent.parent)]

import streams  # noqa: E402 -- found through the path above

from gradcanary import wire  # noqa: E402 -- likewise

STEPS, EACH_S, BATCHES = 5, 0.5, 200
"""Ten steps a second in a batch each half second, as the agent sends them; after the last one a next launch begins."""


class Jobs:
    """So many trainings, each a thread that posts to a run of its own; ``acks_s`` is how long each answer took."""

    def __init__(self, url: str, count: int, layers: int) -> None:
        self.acks_s: list[float] = []
        self.problems: list[str] = []
        self._url = url
        self._stream = streams.Stream(streams.healthy(STEPS * BATCHES, layers))
        self._bodies = [wire.dump(each) for each in self._stream.batches(STEPS)]
        self._stopping = threading.Event()
        self._threads = [threading.Thread(target=self._work, args=(number, count)) for number in range(count)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _work(self, number: int, count: int) -> None:
        self._stopping.wait(number / count * EACH_S)
        try:
            with httpx.Client(timeout=60) as client:
                for launch in itertools.count():
                    name = f"session-{launch}"
                    self._train(streams.Session(self._url, f"job-{number}", name, client), f"launch-{launch}")
                    if self._stopping.is_set():
                        return
        except httpx.HTTPError as error:
            self.problems.append(f"job {number}: {error}")

    def _train(self, session: streams.Session, launch: str) -> None:
        session.put_hello(self._stream.hello(launch=launch)).raise_for_status()
        due = time.monotonic()
        for seq, body in enumerate(self._bodies):
            due += EACH_S
            if self._stopping.wait(max(0.0, due - time.monotonic())):
                break
            began = time.perf_counter()
            session.post_batch(seq, body).raise_for_status()
            self.acks_s.append(time.perf_counter() - began)
        session.end().raise_for_status()
