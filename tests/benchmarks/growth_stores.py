"""Stores that are large in one way, each with a training that goes on in it. Imported, not run."""

import itertools
import time
from collections.abc import Callable

import big_run
import httpx
import jobs
import many_runs
import run_list

from gradcanary import wire
from gradcanary_server.storage.database import Database
from support import streams

RUN, OTHER = big_run.RUN, "other"
LAUNCH = "launch-now"
LAYERS, LAYERS_OF_SHARDS = 500, 20
"""Of the training. Beside many steps it has those of the run."""

BEFORE, FELL_AT, FELL = 240, 120, 18
"""Steps that are there at once, the one at which layers collapse, and how many do: so an incident is open."""

MOST_RANKS = 10_000
MOST_AT_ONCE = 60_000
"""Samples of one stat in a batch: of more the body would be too large."""

TILES = 20
"""Of each of many runs."""


def fill_runs(database: Database, runs: int, _layers: int) -> None:
    """Store many runs, a fifth of them killed, with tiles and incidents."""
    run_list.fill(database, runs)
    many_runs.measure_again(database, runs, TILES)


def fill_steps(database: Database, steps: int, layers: int) -> None:
    """Store one run of many steps."""
    big_run.fill(database, steps, layers)


def fill_nothing(database: Database, _size: int, _layers: int) -> None:
    """Leave the store empty: agents bring the sessions and launches."""
    database.migrate()


FILLS: dict[str, Callable[[Database, int, int], None]] = {"runs": fill_runs, "steps": fill_steps}


class Training:
    """A training with an open incident, which posts when it is told to, beside a short one.

    Of many sessions or shards all are there; of many launches each was begun again after a batch. ``posting`` is the
    number of ranks that send batches.
    """

    def __init__(self, url: str, dimension: str, size: int, layers: int, batches: int) -> None:
        self._url, self._is_sharded = url, dimension == "shards"
        self._world = size
        first_step = size if dimension == "steps" else 0
        steps = BEFORE + batches * jobs.STEPS
        absmax = streams.collapsed(steps, layers, range(FELL), FELL_AT)
        self._stream = streams.Stream(absmax, streams.falling_loss(steps), first_step=first_step)
        self._bodies = [
            wire.dump(self._stream.batch(begin, begin + jobs.STEPS)) for begin in range(BEFORE, steps, jobs.STEPS)
        ]
        self._ranks = itertools.count()
        for number in range(size - 1 if dimension == "launches" else 0):
            first = wire.dump(self._stream.batch(0, jobs.STEPS, change_records=True))
            accepted(self._greet(0, f"launch-{number}").post_batch, 0, first)
        self._sessions: list[streams.Session] = []
        for _ in range(size if dimension in ("sessions", "shards") else 1):
            self.join()
        self.posting = len(self._sessions) if self._is_sharded else 1
        at_once = min(BEFORE, MOST_AT_ONCE // layers)
        firsts = [
            wire.dump(self._stream.batch(begin, begin + at_once, change_records=not begin))
            for begin in range(0, BEFORE, at_once)
        ]
        other = streams.Session(url, OTHER)
        accepted(other.put_hello, self._stream.hello())
        for each in (*self._sessions[: self.posting], other):
            for seq, body in enumerate(firsts):
                accepted(each.post_batch, seq, body)
        self._number, self._first_seq = 0, len(firsts)

    def join(self) -> None:
        """Begin the session of one more rank."""
        self._sessions.append(self._greet(next(self._ranks), LAUNCH))

    def greet_again(self) -> None:
        """Send the hello of the last session again."""
        self._greet(len(self._sessions) - 1, LAUNCH)

    def _greet(self, rank: int, launch: str) -> streams.Session:
        session = streams.Session(self._url, RUN, f"{launch}-{rank}")
        world = self._world if self._is_sharded else MOST_RANKS
        hello = self._stream.hello(launch=launch, rank=rank, world_size=world, sharded=self._is_sharded)
        accepted(session.put_hello, hello)
        return session

    def post(self) -> None:
        """Post the next batch: of shards the next rank's, and the last one's completes the step."""
        rank, place = self._number % self.posting, self._number // self.posting
        accepted(self._sessions[rank].post_batch, self._first_seq + place, self._bodies[place])
        self._number += 1

    def post_step(self) -> None:
        """Post one batch of each rank that sends any."""
        for _ in range(self.posting):
            self.post()

    def beat(self) -> None:
        """Send a heartbeat of the last rank."""
        accepted(self._sessions[-1].heartbeat)


def accepted(send: Callable[..., httpx.Response], *message: object) -> None:
    """Send a message as an agent does: again after a second where the collector has too much to do."""
    while (answer := send(*message)).status_code == httpx.codes.SERVICE_UNAVAILABLE:
        time.sleep(1)
    answer.raise_for_status()
