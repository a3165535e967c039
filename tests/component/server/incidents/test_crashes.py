"""The incident of an exception that ended a training: of one process, of ranks, over launches."""

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import select

from gradcanary import wire
from gradcanary_server.incidents import detail, service
from gradcanary_server.rules.config import Crash, Rules
from gradcanary_server.storage.schema import incident, run
from support import streams
from support.server.archives import LAYERS, RUN

ERROR = wire.Crash("ValueError", "Expected input batch_size (16) to match target (8).", ("train.py:12 in step",))
LOST = wire.Crash("RuntimeError", "Connection closed by peer [127.0.0.1]:4711", ("train.py:12 in step",))
MEMORY = wire.Crash("OutOfMemoryError", "CUDA out of memory. Tried ...", ("model.py:3 in forward",), "cuda", 2**30 * 70)


class World:
    """A collector, and processes that begin, step and end."""

    def __init__(self, archive: Any) -> None:
        self.store = archive
        self.steps = 0

    def start(self, session: str = "a", launch: str = "one", rank: int = 0, world_size: int = 1) -> None:
        stream = streams.Stream(streams.healthy(1, LAYERS))
        hello = stream.hello(launch=launch, rank=rank, world_size=world_size)
        self.store.ingest.hello(RUN, session, wire.dump(hello))

    def step(self, count: int = 1, session: str = "a", nonfinite: bool = False) -> None:
        values = streams.healthy(count, LAYERS)
        if nonfinite:
            values[-1, 0] = float("inf")
        batch = streams.Stream(values, first_step=self.steps).batch(0, count)
        self.store.ingest.batch(RUN, session, 0 if not self.steps else self.steps, wire.dump(batch))
        self.steps += count

    def end(self, session: str = "a", crash: wire.Crash | None = ERROR, last_step: int | None = 11) -> None:
        state = "finished" if crash is None else "crashed"
        end = wire.End(state, last_step, None if crash is None else crash.type, crash)
        self.store.ingest.end(RUN, session, wire.dump_end(end))

    def incidents(self) -> list[detail.IncidentDetail]:
        with self.store.database.read() as connection:
            ids = connection.scalars(select(incident.c.incident_id).order_by(incident.c.incident_id)).all()
            return detail.load_details(connection, ids)

    @property
    def state(self) -> str | None:
        with self.store.database.read() as connection:
            return connection.execute(select(run.c.ended)).scalar_one()

    def headline(self) -> str:
        with self.store.database.read() as connection:
            run_id = connection.execute(select(run.c.run_id)).scalar_one()
            return service.run_headlines(connection, [run_id])[run_id].headline


@pytest.fixture
def world(archive):
    return World(archive)


def test_an_exception_is_one_critical_incident_of_the_whole_run(world):
    world.start()
    world.step(12)
    world.end()
    (found,) = world.incidents()
    assert (found.incident.rule, found.incident.severity, found.incident.resolution) == (
        "crash",
        "critical",
        "run_finished",
    )
    assert found.summary == (
        "ValueError at step 12 ended the training: Expected input batch_size (16) to match target (8)."
    )
    assert world.headline() == "ValueError at step 12: Expected input batch_size (16) to match target (8)"
    assert found.incident.crash == ERROR
    assert found.cause.evidence == ("raised in train.py:12 in step",)
    assert (found.cause.code, found.fix.framework, world.state) == ("exception", "peft", "crashed")


def test_memory_that_ran_out_is_called_by_its_name_with_its_peak(world):
    world.start()
    world.end(crash=MEMORY, last_step=1233)
    (found,) = world.incidents()
    assert world.headline() == "CUDA out of memory at step 1,234 (peak 70.0 GiB)"
    assert found.cause.code == "out_of_memory"
    assert "batches" in found.fix.text


def test_host_memory_names_no_gpu(world):
    world.start()
    world.end(crash=replace(MEMORY, type="RuntimeError", message="can't allocate memory", memory="cpu"), last_step=None)
    (found,) = world.incidents()
    assert world.headline() == "out of memory before the first step (peak 70.0 GiB)"
    assert found.summary.startswith("Out of memory before the first step (peak 70.0 GiB) ended the training: Runtime")
    words = f"{found.summary} {found.cause.text} {found.fix.text} {found.fix.code}"
    assert "CUDA" not in words
    assert "GPU" not in words


def test_an_end_without_an_exception_is_none(world):
    world.start()
    world.step(12)
    world.end(crash=None)
    assert (world.incidents(), world.state) == ([], "finished")


def test_rule_that_is_off_opens_nothing(world):
    world.store.forget(Rules(crash=Crash(enabled=False)))
    world.start()
    world.end()
    assert (world.incidents(), world.state) == ([], "crashed")


@pytest.mark.parametrize("first", [0, 1])
def test_ranks_have_one_incident_that_names_the_one_with_the_cause(world, first):
    """The other rank loses its connection; its end may come first."""
    for rank in (0, 1):
        world.start(f"r{rank}", rank=rank, world_size=2)
    ends = {0: LOST, 1: ERROR}
    for rank in (first, 1 - first):
        world.end(f"r{rank}", crash=ends[rank])
    (found,) = world.incidents()
    assert found.summary.startswith("ValueError in rank 1 at step 12 ended the training: Expected")
    assert (found.incident.reopened, found.members[None].rank, world.state) == (0, 1, "crashed")


def one_of_two_crashes(world, monkeypatch):
    """Have the second of two ranks crash, and return what lets the first one be silent for long."""
    real, ahead = world.store.database.now, [0.0]
    monkeypatch.setattr(world.store.database, "now", lambda connection: real(connection) + ahead[0])
    world.store.watchdog.listen()
    for rank in (0, 1):
        world.start(f"r{rank}", rank=rank, world_size=2)
    world.end("r1")

    def wait():
        for _ in range(10):
            ahead[0] += 40.0
            world.store.watchdog.listen()
        world.store.watchdog.look()

    return wait


def test_a_rank_that_is_killed_after_another_one_crashed_is_no_incident_of_its_own(world, monkeypatch):
    wait = one_of_two_crashes(world, monkeypatch)
    assert [(each.incident.rule, each.incident.state) for each in world.incidents()] == [("crash", "open")]
    wait()
    (found,) = world.incidents()
    assert (found.incident.rule, found.incident.resolution, world.state) == ("crash", "run_finished", "crashed")
    world.end("r0", crash=LOST)
    assert len(world.incidents()) == 1
    assert world.state == "crashed"


def test_a_rank_that_was_only_cut_off_while_another_one_crashed_goes_on(world, monkeypatch):
    """As of jobs of their own under one launcher."""
    wait = one_of_two_crashes(world, monkeypatch)
    wait()
    assert world.state == "crashed"
    world.store.ingest.heartbeat(RUN, "r0", wire.dump(wire.Heartbeat(0, 0, 0, 0.0)))
    assert world.state is None
    world.end("r0", crash=None)
    assert world.state == "crashed"


def test_the_next_launch_leaves_the_crash_behind_and_its_own_is_told_again(world):
    world.start()
    world.step(12)
    world.end()
    world.start("b", launch="two")
    assert (world.headline(), world.state) == ("", None)
    world.end("b", crash=MEMORY, last_step=20)
    (found,) = world.incidents()
    assert (found.incident.reopened, found.incident.crash) == (1, MEMORY)
    assert world.headline() == "CUDA out of memory at step 21 (peak 70.0 GiB)"
    assert found.members[None].since_step == 21


def test_a_late_end_of_an_older_launch_says_nothing_of_the_newer_one(world):
    world.start()
    world.start("b", launch="two")
    world.end("a")
    assert world.incidents() == []


def test_values_that_were_not_finite_before_come_first_and_may_have_led_to_it(world):
    world.start()
    world.step(12, nonfinite=True)
    world.end()
    before, found = world.incidents()
    assert (before.incident.rule, found.incident.rule) == ("nonfinite", "crash")
    assert before.cause.incidents == ()
    assert (found.cause.code, found.cause.incidents) == ("exception_after_fault", (before.id,))
    assert "may be a consequence" in found.cause.text
    assert world.headline().endswith("; ValueError at step 12: Expected input batch_size (16) to match target (8)")


def test_memory_is_no_consequence_of_values_that_were_not_finite(world):
    world.start()
    world.step(12, nonfinite=True)
    world.end(crash=MEMORY)
    assert world.incidents()[-1].cause.incidents == ()
