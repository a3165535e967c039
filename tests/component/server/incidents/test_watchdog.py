"""Runs that are missed: silent and stalled, when they open, what ends them, and what is not held against a run."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from gradcanary import wire
from gradcanary_server.incidents import detail, liveness, service
from gradcanary_server.incidents.watchdog import Watchdog
from gradcanary_server.rules.config import Rules, Silent, Stalled
from gradcanary_server.rules.signals import RULES
from gradcanary_server.rules.types import Transition
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import incident
from support import streams
from support.server.archives import LAYERS, RUN
from support.server.asked import counted

ROUND_S, MINUTE, HOUR, YEAR = 40.0, 60.0, 3600.0, 365 * 86_400.0
"""A round is shorter than the time after which a heartbeat or a collector is missed."""


QUICK = Rules(stalled=Stalled(after_s=5 * MINUTE))
"""What takes half an hour by default is judged in fewer rounds."""


class World:
    """A collector, a clock that only this class moves, and processes that say something or do not."""

    def __init__(self, archive, monkeypatch, rules=QUICK):
        self.store, self.ahead, self.rules, self.steps = archive, 0.0, rules, {}
        real = archive.database.now
        monkeypatch.setattr(archive.database, "now", lambda connection: real(connection) + self.ahead)
        archive.forget(rules)
        self.alive = set()

    def start(self, session="a", launch="one", **hello):
        stream = streams.Stream(streams.healthy(1, LAYERS))
        self.store.ingest.hello(RUN, session, wire.dump(stream.hello(launch=launch, **hello)))
        self.steps.setdefault(session, (-1, 0))
        self.alive.add(session)

    def step(self, session="a", took_s=0.1, *, number=None, is_sampled=True):
        last, seq = self.steps[session]
        at = last + 1 if number is None else number
        batch = streams.Stream(streams.healthy(1, LAYERS), first_step=at).batch(0, 1)
        took = wire.Metric("step_time_s", (), (at,), wire.column("d", [took_s]))
        batch = replace(batch, metrics=(*batch.metrics, took))
        if not is_sampled:
            batch = replace(batch, steps=(), times="", micro_steps=(), skipped=(), clipped=(), state="", blocks=())
        self.store.ingest.batch(RUN, session, seq, wire.dump(batch))
        self.steps[session] = at, seq + 1
        if not is_sampled:  # the next heartbeat tells of it
            self.beat(session, at)

    def beat(self, session="a", step=None):
        self.store.ingest.heartbeat(RUN, session, wire.dump(wire.Heartbeat(step, 0, 0, 0.0)))

    def end(self, session="a", state="finished"):
        self.store.ingest.end(RUN, session, wire.dump(wire.End(state, None, None)))
        self.alive.discard(session)

    def look(self):
        self.store.watchdog.listen()
        self.store.watchdog.look()

    def away(self, seconds):
        """Time passes, and no collector is there."""
        self.ahead += seconds
        self.store.forget(self.rules)

    def wait(self, seconds, *beating, step=None):
        """Time passes in rounds of the watchdog, and some sessions tell that they live."""
        while seconds > 0:
            self.ahead += min(seconds, ROUND_S)
            seconds -= ROUND_S
            for session in beating:
                self.beat(session, step)
            self.store.watchdog.listen()
        self.store.watchdog.look()

    def seen(self):
        with self.store.database.read() as connection:
            return liveness.read_status(connection, RUN, self.store.database.now(connection), self.rules.silent)

    @property
    def state(self):
        return self.seen().state

    def told(self, rule=None):
        """Every incident: rule, state, resolution, reopened."""
        with self.store.database.read() as connection:
            rows = connection.execute(select(incident).order_by(incident.c.incident_id))
            return [(r.rule, r.state, r.resolution, r.reopened) for r in rows if rule in (None, r.rule)]

    def dossier(self, number):
        with self.store.database.read() as connection:
            ids = connection.scalars(select(incident.c.incident_id).order_by(incident.c.incident_id)).all()
            return detail.load_details(connection, [ids[number]])[0]


@pytest.fixture
def world(archive, monkeypatch):
    made = World(archive, monkeypatch)
    made.look()
    return made


def test_a_killed_run_is_silent_once_and_any_request_of_it_is_the_answer(world):
    world.start()
    world.step()
    world.wait(290)
    assert (world.state, world.told()) == ("stale", [])
    revision = world.seen().row.revision
    world.wait(20)
    assert (world.state, world.told()) == ("silent", [("silent", "open", None, 0)])
    assert world.seen().row.revision == revision + 1
    world.wait(10 * MINUTE)
    assert world.told() == [("silent", "open", None, 0)]
    said = world.dossier(0)
    assert said.incident.severity == "critical"
    assert said.summary.startswith("Nothing was heard of the run since 20")
    assert said.summary.endswith("UTC, and it did not say that it ended; its last step was 0.")
    assert (said.cause.code, said.fix.framework) == ("gone", "peft")
    world.beat()
    assert (world.state, world.told()) == ("live", [("silent", "resolved", "resumed", 0)])
    assert world.dossier(0).summary.endswith("It was heard of again at step 0.")
    world.wait(10 * MINUTE)
    assert world.told() == [("silent", "open", None, 1)]


def test_the_next_launch_is_the_answer_to_a_silent_one_and_the_old_one_is_not(world):
    world.start()
    world.wait(6 * MINUTE)
    assert "it had made no step" in world.dossier(0).summary
    with world.store.database.read() as connection:
        assert service.run_headlines(connection, [world.seen().row.run_id]).popitem()[1].headline == (
            "nothing heard since its start"
        )
    world.start("b", "two")
    assert (world.state, world.told()) == ("live", [("silent", "resolved", "resumed", 0)])
    world.wait(6 * MINUTE)
    world.beat("a")
    assert (world.state, world.told()) == ("silent", [("silent", "open", None, 1)])
    world.beat("b")
    assert (world.state, world.told()) == ("live", [("silent", "resolved", "resumed", 1)])


def test_a_rank_that_is_silent_while_another_one_lives_is_no_silence(world):
    world.start("a", world_size=2)
    world.start("b", world_size=2, rank=1)
    world.wait(20 * MINUTE, "b")
    assert (world.state, world.told()) == ("live", [])
    world.wait(6 * MINUTE)
    assert (world.state, world.told()) == ("silent", [("silent", "open", None, 0)])
    world.end("b")
    assert (world.state, world.told()) == ("silent", [("silent", "open", None, 0)]), "the other one is still missed"


@pytest.mark.parametrize("ending", ["finished", "crashed"])
def test_an_end_closes_what_is_open_of_every_rule_and_is_never_silent(world, ending):
    world.start()
    world.step()
    run_id = world.seen().row.run_id
    others = ("scale_drop", *RULES)
    with world.store.database.write() as connection:
        now = world.store.database.now(connection)
        changes = [
            Transition(0, rule, None if rule == "scale_drop" else 0, "fired", "warning", 0, 1.0) for rule in others
        ]
        service.record_transitions(connection, run_id, 1, changes, now)
    world.wait(6 * MINUTE, "a")
    world.wait(6 * MINUTE)
    assert {(rule, state) for rule, state, *_ in world.told()} == {
        (rule, "open") for rule in (*others, "stalled", "silent")
    }
    world.end(state=ending)
    ends = dict.fromkeys(others, "ended") | {"stalled": "resolved", "silent": "resolved"}
    assert {told[:3] for told in world.told()} == {(rule, end, "run_finished") for rule, end in ends.items()}
    for number in (-1, -2):
        assert world.dossier(number).summary.endswith("The run ended at step 0.")
    world.wait(HOUR)
    assert (world.state, len(world.told())) == (ending, len(others) + 2)
    with world.store.database.read() as connection:
        assert set(service.run_headlines(connection, [run_id])[run_id].firing) == set(others)


def test_a_detached_run_is_not_missed_and_its_incidents_stay_open(world):
    world.start()
    world.step()
    run_id = world.seen().row.run_id
    with world.store.database.write() as connection:
        now = world.store.database.now(connection)
        service.record_transitions(
            connection, run_id, 1, [Transition(0, "collapse", 0, "fired", "critical", 0, 1.0)], now
        )
    world.end(state="detached")
    world.wait(HOUR)
    assert (world.state, world.told()) == ("detached", [("collapse", "open", None, 0)])
    world.step()  # what had waited in a file
    assert (world.state, world.told()) == ("detached", [("collapse", "open", None, 0)])
    world.start("b", "two")
    world.step("b")
    assert (world.state, world.told()) == ("live", [("collapse", "open", None, 0)])
    world.end("b")
    assert (world.state, world.told()) == ("finished", [("collapse", "ended", "run_finished", 0)])


def test_a_silent_run_that_says_that_it_was_detached_is_heard_again(world):
    world.start()
    world.wait(6 * MINUTE)
    world.end(state="detached")
    assert (world.state, world.told()) == ("detached", [("silent", "resolved", "resumed", 0)])


@pytest.mark.parametrize(("first", "second"), [("detached", "finished"), ("finished", "detached")])
def test_a_job_is_detached_only_when_no_rank_says_that_the_training_ended(world, first, second):
    world.start("a", world_size=2)
    world.start("b", world_size=2, rank=1)
    world.end("a", first)
    assert world.state == "live"
    world.end("b", second)
    assert world.state == "finished"


def test_silent_incident_is_not_open_again_with_the_next_launch(world):
    world.start()
    world.wait(6 * MINUTE)
    world.end(state="crashed")
    world.start("b", "two")
    world.step("b")
    world.step("b", number=400)
    world.step("b")
    assert (world.state, world.told()) == ("live", [("silent", "resolved", "run_finished", 0)])


def test_our_own_outage_is_nobodys_silence(world):
    world.start("a")
    world.away(HOUR)
    assert world.state == "stale", "even before the first look"
    world.look()
    world.wait(4 * MINUTE)
    assert (world.state, world.told()) == ("stale", [])
    world.beat()
    world.wait(2 * MINUTE)
    assert (world.state, world.told()) == ("stale", [])
    world.away(HOUR)
    world.wait(2 * MINUTE)
    world.away(HOUR)
    world.wait(290)
    assert world.told() == []
    world.wait(MINUTE)
    assert (world.state, world.told()) == ("silent", [("silent", "open", None, 0)]), "it did not come back"
    world.away(HOUR)
    assert world.state == "silent", "it was missed before we were away"
    world.look()
    assert (world.state, world.told()) == ("silent", [("silent", "open", None, 0)])


@pytest.mark.parametrize("set_s", [HOUR, -24 * HOUR], ids=["forward", "back"])
def test_a_clock_that_is_set_hides_no_silence_and_makes_none(world, set_s):
    world.start()
    world.step()
    world.wait(6 * MINUTE)
    world.ahead += set_s
    world.look()
    assert world.state == "silent", "it is not heard of because a clock was set"
    world.beat()
    assert (world.state, world.told()) == ("live", [("silent", "resolved", "resumed", 0)])
    world.ahead += set_s
    world.wait(4 * MINUTE)
    assert (world.state, world.told()) == ("stale", [("silent", "resolved", "resumed", 0)])
    world.wait(2 * MINUTE)
    assert (world.state, world.told()) == ("silent", [("silent", "open", None, 1)])


@pytest.mark.parametrize("set_s", [HOUR, -24 * HOUR], ids=["forward", "back"])
def test_a_standstill_is_as_long_as_it_is_whatever_the_clock_says(world, set_s):
    world.start()
    world.step()
    world.wait(2 * MINUTE, "a")
    world.ahead += set_s
    world.look()
    world.wait(2 * MINUTE, "a")
    assert (world.state, world.told()) == ("live", [])
    world.wait(6 * MINUTE, "a")
    assert (world.state, world.told()) == ("live", [("stalled", "open", None, 0)])


def test_a_run_that_died_on_the_first_day_of_a_collector_whose_clock_was_ahead_is_missed(world):
    world.start()
    world.ahead -= 24 * HOUR
    world.wait(6 * MINUTE)
    assert (world.state, world.told()) == ("silent", [("silent", "open", None, 0)])
    assert "Nothing was heard of the run since 20" in world.dossier(0).summary


jumps = st.sampled_from([-30.0, 30.0, 10 * MINUTE, -10 * MINUTE, HOUR, -HOUR, 24 * HOUR, -24 * HOUR, YEAR, -YEAR])
pauses = st.sampled_from([0.0, 40.0, 180.0, 400.0])


@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    story=st.lists(st.tuples(jumps, pauses), min_size=1, max_size=6), dies_at=st.integers(0, 6), restarts=st.booleans()
)
@example(story=[(-24 * HOUR, 0.0), (YEAR, 180.0), (-24 * HOUR, 40.0)], dies_at=1, restarts=False)
@example(story=[(YEAR, 40.0), (-YEAR, 40.0)], dies_at=1, restarts=True)
@example(story=[(-10 * MINUTE, 0.0)], dies_at=0, restarts=False)
def test_a_run_that_dies_is_missed_whatever_the_clock_does_and_heard_again(module_archive, story, dies_at, restarts):
    with pytest.MonkeyPatch.context() as monkeypatch:
        module_archive.clear()
        world = World(module_archive, monkeypatch)
        world.look()
        world.start()
        world.step()
        for number, (jump, pause) in enumerate([*story, (0.0, 0.0)]):
            if number == dies_at:
                world.alive.clear()
            world.ahead += jump
            if restarts:
                world.store.forget(world.rules)
            world.wait(pause, *world.alive)
            assert not world.alive or world.told("silent") == [], "no clock makes a run silent"
        world.wait(6 * MINUTE)
        assert (world.state, world.told("silent")) == ("silent", [("silent", "open", None, 0)])
        world.beat()
        assert (world.state, world.told("silent")) == ("live", [("silent", "resolved", "resumed", 0)])
        world.wait(6 * MINUTE)
        assert (world.state, world.told("silent")) == ("silent", [("silent", "open", None, 1)])


def test_a_restart_of_a_collector_is_no_outage(world):
    world.start()
    for _ in range(7):
        world.away(45)
        world.look()
    assert world.told() == [("silent", "open", None, 0)]


def test_several_collectors_open_one_incident(world):
    world.start()
    world.step()
    world.wait(200)
    others = [Database(world.store.url) for _ in range(4)]
    for database in others:
        database.now = world.store.database.now
    dogs = [Watchdog(database, Rules()) for database in others]
    revision = world.seen().row.revision
    for rounds in range(3):
        world.ahead += 55

        def look(dog):
            dog.listen()
            dog.look()

        with ThreadPoolExecutor(len(dogs)) as pool:
            list(pool.map(look, dogs))
        assert len(world.told()) == (rounds > 0)
        assert world.seen().row.revision == revision + (rounds > 0)
    for database in others:
        database.close()


def test_a_run_that_makes_no_step_is_stalled_until_it_does(archive, monkeypatch):
    world = World(archive, monkeypatch, Rules())
    world.look()
    world.start()
    world.wait(31 * MINUTE, "a")
    assert world.told() == [], "whether its loop is one that can be watched is not known"
    for _ in range(5):
        world.step()
        world.wait(ROUND_S, "a")
    world.wait(28 * MINUTE, "a", step=4)
    assert world.told() == []
    world.wait(2 * MINUTE, "a", step=4)
    assert (world.state, world.told()) == ("live", [("stalled", "open", None, 0)])
    said = world.dossier(0)
    assert (said.incident.severity, said.cause.code) == ("warning", "waiting")
    assert said.summary.startswith("The process is alive but has made no step since step 4 (20")
    assert [told.rule for told in incidents_of(world)] == ["stalled"], "its agent hears of it"
    world.wait(2 * MINUTE)  # not heard of, and then it comes back
    world.beat(step=4)
    assert world.told() == [("stalled", "open", None, 0)]
    world.step(is_sampled=False)
    assert world.told() == [("stalled", "resolved", "resumed", 0)]
    assert world.dossier(0).summary.endswith("It went on at step 5.")


def incidents_of(world):
    return world.store.ingest.heartbeat(RUN, "a", wire.dump(wire.Heartbeat(4, 0, 0, 0.0))).incidents


def test_a_stalled_launch_that_is_killed_is_silent_too_and_its_cause_is_known(world):
    world.start()
    world.step()
    world.wait(6 * MINUTE, "a")
    world.wait(6 * MINUTE)
    assert [told[0] for told in world.told()] == ["stalled", "silent"]
    assert world.dossier(1).cause.code == "ended_while_stalled"
    world.start("b", "two")
    world.step("b", number=0)
    assert [told[2] for told in world.told()] == ["resumed", "resumed"]


def test_the_others_wait_for_a_rank_that_was_lost(world):
    for rank, session in enumerate("ab"):
        world.start(session, world_size=2, rank=rank)
        world.step(session)
    world.wait(6 * MINUTE, "a")
    assert world.told() == [("stalled", "open", None, 0)]
    assert world.dossier(0).cause.code == "lost_rank"


def test_slow_steps_are_no_standstill(world):
    world.start()
    for took_s in (60, 900, 60, 60):
        world.step(took_s=took_s)
    world.wait(29 * MINUTE, "a")
    assert world.told() == [], "twice its longest pause"
    world.wait(2 * MINUTE, "a")
    assert world.told() == [("stalled", "open", None, 0)]
    world.step()
    for _ in range(200):  # as many as the mean follows
        world.step(took_s=120)
    world.wait(39 * MINUTE, "a")
    assert world.told("stalled")[0][1] == "resolved", "twenty times the mean"
    world.wait(2 * MINUTE, "a")
    assert world.told() == [("stalled", "open", None, 1)]


def test_an_evaluation_is_told_of_once(world):
    world.start()
    for _ in range(3):
        for _ in range(3):
            world.step()
        world.wait(8 * MINUTE, "a")
        world.step(took_s=480)
        assert world.told() == [("stalled", "resolved", "resumed", 0)]
    world.wait(17 * MINUTE, "a")
    assert world.told("stalled") == [("stalled", "open", None, 1)]


def test_steps_that_are_not_sampled_are_steps(world):
    world.start()
    world.step()
    for step in range(1, 15):
        world.wait(ROUND_S, "a", step=step)
    assert world.told() == []


def test_a_run_that_could_not_reach_us_is_not_stalled_when_it_comes_back(world):
    world.start()
    world.step()
    world.wait(20 * MINUTE)
    world.beat()
    world.look()
    world.wait(4 * MINUTE, "a")
    assert world.told() == [("silent", "resolved", "resumed", 0)]


def test_the_numbers_are_those_of_the_file(archive, monkeypatch):
    rules = replace(Rules(), silent=Silent(after_s=900.0), stalled=replace(QUICK.stalled, enabled=False))
    world = World(archive, monkeypatch, rules)
    world.look()
    world.start()
    world.step()
    world.wait(10 * MINUTE, "a")
    world.wait(880)
    assert (world.state, world.told()) == ("stale", [])
    world.wait(MINUTE)
    assert (world.state, world.told()) == ("silent", [("silent", "open", None, 0)])
    world.rules = replace(rules, silent=Silent(enabled=False))
    world.store.forget(world.rules)
    world.beat()
    world.wait(10 * MINUTE)
    assert (world.state, world.told()) == ("silent", [("silent", "resolved", "resumed", 0)])


events = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([10.0, 100.0, 250.0, 310.0, 2000.0])),
    st.tuples(st.just("away"), st.sampled_from([30.0, 200.0, 400.0, 7200.0])),
    st.tuples(st.sampled_from(["kill", "step", "end", "crash"]), st.sampled_from(["a", "b"])),
    st.tuples(st.just("launch"), st.none()),
)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(story=st.lists(events, min_size=3, max_size=12))
def test_incident_and_state_agree_and_who_speaks_is_not_missed(module_archive, story):
    with pytest.MonkeyPatch.context() as monkeypatch:
        module_archive.clear()
        world = World(module_archive, monkeypatch)
        world.look()
        launches = tell(world, None, 0)
        for event in story:
            launches = tell(world, event, launches)
            world.look()
            check(world)


def tell(world, event, launches):
    what, which = event or ("launch", None)
    current = {name: f"{name}{launches}" for name in "ab"}
    if what == "launch":
        world.alive.clear()
        for rank, name in enumerate("ab"):
            world.start(f"{name}{launches + 1}", f"l{launches + 1}", world_size=2, rank=rank)
        return launches + 1
    if what in ("wait", "away"):
        (world.wait(which, *world.alive) if what == "wait" else world.away(which))
        if what == "away":
            world.wait(75, *[])  # the longest that an agent waits before it tries again
            world.wait(1, *world.alive)
    elif what == "kill":
        world.alive.discard(current[which])
    elif current[which] in world.alive:
        if what == "step":
            world.step(current[which])
        else:
            world.end(current[which], {"end": "finished", "crash": "crashed"}[what])
    return launches


def check(world):
    state, told = world.state, world.told()
    opened = [rule for rule, state_, *_ in told if state_ == "open"]
    assert len(set(opened)) == len(opened)
    assert ("silent" in opened) == (state == "silent")
    if world.alive:
        assert state in ("live", "stale"), "who speaks is not missed"
    if state in ("finished", "crashed"):
        assert opened == []


def test_many_runs_that_are_silent_at_once_are_each_looked_at_alone(archive, monkeypatch):
    """After an outage of the network all of them are: what each reads of the others would make their square."""
    real, ahead = archive.database.now, [0.0]
    monkeypatch.setattr(archive.database, "now", lambda connection: real(connection) + ahead[0])

    def rows(count):
        archive.clear()
        stream = streams.Stream(streams.healthy(1, LAYERS))
        for number in range(count):
            archive.ingest.hello(f"run-{number}", "s", wire.dump(stream.hello()))
        archive.watchdog.listen()
        for _ in range(12):
            ahead[0] += ROUND_S
            archive.watchdog.listen()
        with counted(archive.database) as asked:
            archive.watchdog.look()
        ahead[0] += ROUND_S
        archive.watchdog.listen()
        with counted(archive.database) as later:
            archive.watchdog.look()
        with archive.database.read() as connection:
            assert len(connection.scalars(select(incident.c.run_id)).all()) == count
        return asked.rows, later.rows

    (few, few_later), (many, many_later) = rows(3), rows(30)
    assert many <= 10 * few
    assert many_later == few_later, "a run that was killed is not looked at for ever"


def test_the_state_of_a_run_is_read_in_a_row_whatever_the_number_of_its_ranks(archive):
    """Each page and each scrape reads it."""

    def rows(ranks):
        archive.clear()
        stream = streams.Stream(streams.healthy(1, LAYERS))
        for rank in range(ranks):
            archive.ingest.hello(RUN, f"r{rank}", wire.dump(stream.hello(rank=rank, world_size=ranks)))
        with archive.database.read() as connection, counted(archive.database) as asked:
            found = liveness.read_status(connection, RUN, archive.database.now(connection), Silent())
        assert found.state == "live"
        return asked.rows

    assert rows(20) == rows(2)
