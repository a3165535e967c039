"""Whatever is repeated, cut off, killed and compacted when: a store is as if undisturbed, and has what an oracle has.

The oracle is a dict of steps for the series, a number for each session, and a second collector which is told the same
once, at the same moments, and is neither disturbed nor compacted: of that one every column has to agree. Of launches
whose ranks send shards the dict has what all of them sent, up to the step that they were waited for.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import select

from gradcanary import wire
from gradcanary_server.api import charts
from gradcanary_server.api import runs as api_runs
from gradcanary_server.errors import RequestError
from gradcanary_server.rules.config import Rules
from gradcanary_server.storage.schema import launch, run, session
from gradcanary_server.tsdb import compaction, tiles
from gradcanary_server.tsdb.query import StepRange
from support import streams
from support.effort import EFFORT
from support.server.archives import LAYERS, RUN, Store, decoded
from support.server.frail import CutOffError, Frail, Killed
from support.strategies import QUICK

ROWS = 300
LEVELS = (1e-2, 3e-3, 1e-7, 0.0, np.nan, np.inf)
SHAPES = ((8, 64), (4, 4))
LOOK_S, SIX_MINUTES, HOUR, SEVEN_HOURS = 40.0, 360.0, 3600.0, 7 * 3600.0
NUMEL = ((4, 3, 5), (4, 2, 0), (0, 1, 5))
"""Elements of each layer that a rank has of a shard."""

NEWS = ("ok", "stored", "gone", "done")
"""Answers to what changes the store."""

some, newest = st.integers(0, 5), st.integers(-3, -1)


def broken(most):
    """Draw after how many statements and commits it breaks, if at all, and whether the process lives on."""
    return st.one_of(st.none(), st.none(), st.tuples(st.integers(1, most), st.sampled_from([Killed, CutOffError])))


troubles = broken(14)
"""A batch takes about as many."""


def shard_of(layers, rank):
    """Return a layer set as a rank describes it that has some elements of each layer."""
    mine = tuple(replace(layer, local_numel=numel) for layer, numel in zip(layers.layers, NUMEL[rank], strict=True))
    return wire.LayerSet(wire.layer_set_id(mine), mine)


def drawn_absmax(seed, rows=ROWS):
    """Layers that go from one level to another now and then, mostly well."""
    rng = np.random.default_rng(seed)
    level = np.where(rng.random((rows // 10, LAYERS)) < 0.7, 5e-3, rng.choice(LEVELS, (rows // 10, LAYERS)))
    return np.repeat(level, 10, axis=0) * 10 ** rng.normal(0, 0.1, (rows, LAYERS))


@dataclass
class Agent:
    """A session: what its process made and heard of, and what the collector has of it."""

    name: str
    stream: streams.Stream
    hello: bytes
    launch: "Started"
    rank: int = 0
    row: int = 0
    next_seq: int = 0
    made: dict[int, tuple[int, int, bytes]] = field(default_factory=dict)
    is_known: bool = False
    is_deleted: bool = False
    taken: list[int] = field(default_factory=list)
    late: set[int] = field(default_factory=set)
    """Steps that came when the others were not waiting for them any more."""

    def measured(self):
        """Return absmax by step of what was taken in time."""
        rows = [row for seq in self.taken for row in range(*self.made[seq][:2])]
        found = {int(self.stream.steps()[row]): self.stream.absmax[row] for row in rows}
        return {step: values for step, values in found.items() if step not in self.late}


@dataclass(eq=False)
class Started:
    """A launch: when it began, by the clock of the store, and its ranks; of more than one each sends a shard."""

    name: str
    at: float
    place: int = -1
    agents: list[Agent] = field(default_factory=list)

    def measured(self, settled):
        """Return absmax by step: of shards the largest, NaN where one is missing that has elements of the layer."""
        if len(self.agents) == 1:
            return self.agents[0].measured()
        parts = [agent.measured() for agent in self.agents]
        steps = sorted(set().union(*parts))
        return {step: self._whole([part.get(step) for part in parts]) for step in steps if step <= settled}

    def _whole(self, parts):
        whole = np.full(LAYERS, np.nan, np.float32)
        for layer in range(LAYERS):
            mine = [
                None if part is None else part[layer] for part, has in zip(parts, NUMEL, strict=False) if has[layer]
            ]
            there = [value for value in mine if value is not None and not np.isnan(value)]
            if there and (np.inf in there or None not in [each if each is None else 0 for each in mine]):
                whole[layer] = max(there)
        return whole


class ExactlyOnce(RuleBasedStateMachine):
    """One run, its launches one after another or side by side, deleted and begun again."""

    store = undisturbed = None

    def __init__(self):
        super().__init__()
        self.agents, self.history, self.launches = [], [], []
        self.revision = 0
        self.database = self.store.database
        self.database.time = Frail.time
        for each in (self.store, self.undisturbed):
            each.clear()
            each.forget(QUICK)

    @initialize(seed=st.integers(0, 2**16))
    def begin_one(self, seed):
        self.listen()
        self.begin(seed, 0, 0, SHAPES[0], 1 + seed % 3, None)

    @rule(
        seed=st.integers(0, 2**16),
        back=st.integers(0, 30),
        ago=st.sampled_from([0, 0, 50]),
        shape=st.sampled_from(SHAPES),
        ranks=st.sampled_from([1, 1, 2, 3]),
        trouble=troubles,
    )
    def begin(self, seed, back, ago, shape, ranks, trouble):
        """A launch begins where the last one was, or a little before; of one that began ``ago`` we hear late."""
        reached = max((each.stream.first_step + each.row for each in self.agents), default=0)
        begun = Started(f"l{len(self.launches)}", self.database.time - ago)
        self.launches.append(begun)
        for rank in range(ranks):
            stream = streams.Stream(drawn_absmax(seed + rank), streams.falling_loss(ROWS), max(0, reached - back))
            stream.layers = streams.layer_set(stream.names, shape)
            place = {"rank": rank, "world_size": ranks, "sharded": ranks > 1}
            if ranks > 1:
                stream.layers = shard_of(stream.layers, rank)
            hello = wire.dump(stream.hello(launch=begun.name, started=begun.at, **place))
            begun.agents.append(Agent(f"{begun.name}r{rank}", stream, hello, begun, rank))
        self.agents += begun.agents
        self.greet(-ranks, trouble)
        for rank in range(ranks if ranks > 1 else 0):
            self.greet(rank - ranks, None)

    @rule(which=some, trouble=troubles)
    def greet(self, which, trouble):
        agent = self.agent(which)

        def note():
            if agent.launch.place < 0:
                agent.launch.place, agent.launch.at = len(self.history), min(agent.launch.at, self.database.time)
            agent.is_known = True

        expected = "run_deleted" if agent.is_deleted else "ok"
        self.tell(lambda store: store.ingest.hello(RUN, agent.name, agent.hello).status, expected, trouble, note)

    @rule(
        which=newest,
        sizes=st.lists(st.sampled_from([1, 5, 13]), min_size=1, max_size=6),
        lagging=st.sampled_from([None, None, 0, 1]),
        trouble=troubles,
    )
    def send(self, which, sizes, lagging, trouble):
        """Send what comes next, or again what was not acknowledged; the last of it with trouble.

        Of a launch of several ranks each does, but for one that lags.
        """
        ranks = self.agent(which).launch.agents
        for agent in ranks:
            if len(ranks) == 1 or agent.rank != lagging:
                self.send_on(agent, sizes[agent.rank :] or sizes, trouble if agent is ranks[-1] else None)

    def send_on(self, agent, sizes, trouble):
        for number, size in enumerate(sizes, start=1):
            if agent.next_seq not in agent.made:
                end = min(agent.row + size, ROWS)
                made = agent.stream.batch(agent.row, end, change_records=agent.next_seq == 0)
                agent.made[agent.next_seq] = agent.row, end, wire.dump(made)
            if self.post(agent, agent.next_seq, trouble if number == len(sizes) else None) in ("stored", "duplicate"):
                self.go_on(agent)

    @rule(which=newest)
    def set_aside(self, which):
        """What is not acknowledged is left for later, and what comes next is sent before it."""
        if self.agent(which).next_seq in self.agent(which).made:
            self.go_on(self.agent(which))

    def go_on(self, agent):
        agent.row = agent.made[agent.next_seq][1]
        agent.next_seq += 1

    @rule(which=some, seq=st.integers(0, 40), trouble=troubles)
    def repeat(self, which, seq, trouble):
        """A batch comes again, at once or long after it was sealed, or late for the first time."""
        agent = self.agent(which)
        if agent.made:
            self.post(agent, sorted(agent.made)[seq % len(agent.made)], trouble)

    def post(self, agent, seq, trouble):
        raw, last = agent.made[seq][2], max(agent.taken, default=-1)
        is_gone = seq < self.sealed(agent)
        late = "duplicate" if is_gone else "superseded"
        expected = "duplicate" if seq in agent.taken else "stored" if seq > last else late
        act = lambda store: store.ingest.batch(RUN, agent.name, seq, raw).status  # noqa: E731
        settled = self.settled(agent.launch)

        def note():
            agent.taken.append(seq)
            steps = agent.stream.steps()[slice(*agent.made[seq][:2])]
            agent.late.update(steps[steps <= settled].tolist())

        return self.tell(act, self.of(agent, expected), trouble, note)

    @rule(which=some, seq=st.integers(0, 40))
    def forge(self, which, seq):
        """Another body comes under a number that is taken."""
        agent = self.agent(which)
        if agent.taken:
            number = agent.taken[seq % len(agent.taken)]
            raw = wire.dump(replace(agent.stream.batch(*agent.made[number][:2]), dropped_steps=1))
            expected = "duplicate" if number < self.sealed(agent) else "conflict"
            act = lambda store: store.ingest.batch(RUN, agent.name, number, raw).status  # noqa: E731
            self.tell(act, self.of(agent, expected), None)

    @rule(which=some, trouble=troubles)
    def beat(self, which, trouble):
        agent = self.agent(which)
        raw = wire.dump(wire.Heartbeat(agent.stream.first_step + agent.row, 0, 0, 0.001))
        act = lambda store: store.ingest.heartbeat(RUN, agent.name, raw).status  # noqa: E731
        self.tell(act, self.of(agent, "ok"), trouble)

    @rule(which=some, state=st.sampled_from(["finished", "crashed"]), trouble=troubles)
    def end(self, which, state, trouble):
        agent, raw = self.agent(which), wire.dump(wire.End(state, None, None))
        self.tell(lambda store: store.ingest.end(RUN, agent.name, raw).status, self.of(agent, "ok"), trouble)

    @precondition(lambda self: len(self.history) > 20)
    @rule(trouble=troubles)
    def delete(self, trouble):
        def act(store):
            with store.database.write() as connection:
                api_runs.end_and_delete(connection, RUN, Rules(), "", store.database.now(connection))
            return "gone"

        def note():
            self.revision = 0
            for each in self.agents:
                each.is_deleted |= each.is_known

        is_there = any(each.is_known and not each.is_deleted for each in self.agents)
        self.tell(act, "gone" if is_there else "unknown_run", trouble, note)

    @rule(seconds=st.sampled_from([LOOK_S, SIX_MINUTES, SEVEN_HOURS]))
    def wait(self, seconds):
        """Time goes by while somebody listens, or nobody does."""
        self.go_by(seconds, min(seconds, LOOK_S) if seconds < SEVEN_HOURS else seconds)

    @rule(seconds=st.sampled_from([HOUR, -SEVEN_HOURS, -SEVEN_HOURS]))
    def set_clock(self, seconds):
        """Launches began as much earlier where it is set back."""
        self.go_by(seconds, seconds)
        for each in self.launches:
            each.at += min(seconds, 0.0)

    def go_by(self, seconds, jump):
        for _ in range(round(seconds / jump)):
            self.database.time += jump
            self.listen()
        self.tell(lambda store: store.watchdog.look() or "done", "done", None)

    def listen(self):
        self.tell(lambda store: store.watchdog.listen() or "done", "done", None)

    @rule(trouble=broken(50))
    def compact(self, trouble):
        """A round: what waits in vain for a rank is put together, in the next one if it breaks, and then sealed."""
        before, settle = self.database.commits, lambda store: store.ingest.merge_overdue()
        self.attempt(self.store.ingest.merge_overdue, trouble)
        settle(self.store)
        if self.database.commits > before:
            self.note(settle, self.store.ingest)
        self.attempt(self.store.compactor.compact, trouble)

    @rule()
    def restart(self):
        self.store.forget(QUICK)
        self.database.close()

    def tell(self, act, expected, trouble, note=lambda: None):
        """Let the store act, and note what it commits, once, whether an answer comes or not; return the answer."""
        before, ingest = self.database.commits, self.store.ingest
        try:
            answer = self.attempt(lambda: act(self.store), trouble)
        except RequestError as error:
            answer = error.code
        assert answer in (expected, None)
        if expected in NEWS and self.database.commits > before:
            self.note(act, ingest)
            note()
        return answer

    def note(self, act, ingest):
        """Keep what was done for the other collector, and since when this one listened."""
        self.history.append((self.database.time, ingest.listening_since, act))

    def attempt(self, act, trouble):
        """Return what comes of it, None where it broke; whoever is killed remembers nothing."""
        self.database.break_at(*trouble or (0, CutOffError))
        try:
            return act()
        except CutOffError:
            return None
        except Killed:
            self.restart()
            return None
        finally:
            self.database.mend()

    def agent(self, which):
        return self.agents[which % len(self.agents)] if which >= 0 else self.agents[max(which, -len(self.agents))]

    def of(self, agent, expected):
        return "run_deleted" if agent.is_deleted else expected if agent.is_known else "unknown_session"

    def settled(self, begun):
        """Return the step up to which the shards of a launch were put together."""
        with self.database.read() as connection:
            its = select(launch.c.merged_step).where(launch.c.launch == begun.name)
            settled = connection.execute(its).scalar_one_or_none()
        return -1 if settled is None else settled

    def sealed(self, agent):
        with self.database.read() as connection:
            its = select(session.c.sealed_seq).where(session.c.session == agent.name)
            return connection.execute(its).scalar_one_or_none() or 0

    @invariant()
    def numbers_only_rise(self):
        with self.database.read() as connection:
            revision = connection.execute(select(run.c.revision)).scalar_one_or_none() or 0
            mine = select(session.c.session, session.c.next_seq).where(session.c.rank >= 0)
            told = connection.execute(mine).all()
        assert revision >= self.revision
        self.revision = revision
        here = [each for each in self.agents if each.is_known and not each.is_deleted]
        assert dict(told) == {each.name: max(each.taken, default=-1) + 1 for each in here}

    def teardown(self):
        self.compact(None)
        self.wait(SIX_MINUTES)
        self.compact(None)
        self.check_nothing_waits()
        self.check()
        for _ in range(2):  # the caches of who compacted, and those of a new process
            self.store.compactor.compact()
            self.check_pictures()
            self.store.forget(QUICK)
        self.check_columns()
        for agent in self.agents:
            for seq in agent.made:
                if seq <= max(agent.taken, default=-1):
                    self.post(agent, seq, None)
        self.check_columns()
        self.check_pictures()

    def check_nothing_waits(self):
        """Nobody spoke for six minutes, so nobody is waited for."""
        for each in (each for each in self.launches if len(each.agents) > 1 and not each.agents[0].is_deleted):
            steps = [agent.stream.steps()[agent.made[max(agent.taken)][1] - 1] for agent in each.agents if agent.taken]
            assert self.settled(each) == max(steps, default=-1)

    def check(self):
        clock = self.undisturbed.database
        for clock.time, began, act in self.history:
            self.undisturbed.ingest.listening_since = began
            act(self.undisturbed)
        self.check_columns()
        self.check_pictures()

    def check_columns(self):
        expected = self.undisturbed.rows()
        for table, rows in self.store.rows().items():
            assert rows == expected[table], table

    def check_pictures(self):
        if any(each.is_known and not each.is_deleted for each in self.agents):
            assert self.store.pictures(5000) == self.undisturbed.pictures(5000)  # in wider buckets they differ a little
            assert self.drawn() == self.expected()

    def drawn(self):
        """Return absmax by step and layer as pages get it; inf is not finite."""
        span = StepRange(None, None, 5000)
        wanted = [str(number) for number in range(LAYERS)]
        told = self.store.read(
            lambda c, row: charts.build_series(c, self.store.archive, QUICK, row, "absmax", wanted, span)
        )
        assert told["bucket_steps"] == 1
        found = {}
        for column, line in enumerate(told["series"]):
            parts = (decoded(line[name]).tolist() for name in ("min", "count", "nonfinite"))
            for step, value, count, bad in zip(decoded(told["steps"]).tolist(), *parts, strict=True):
                if count or bad:
                    found[int(step), column] = np.inf if bad else value
        return found

    def expected(self):
        """Return the same of what was taken: a later launch stands before earlier ones wherever it measured."""
        steps = {}
        here = (each for each in self.launches if not each.agents[0].is_deleted)
        for each in sorted(here, key=lambda one: (one.at, one.place)):
            mine = each.measured(self.settled(each))
            if mine:
                steps = {step: row for step, row in steps.items() if not min(mine) <= step <= max(mine)} | mine
        return {
            (step, column): float(value)
            for step, row in steps.items()
            for column, value in enumerate(row)
            if not np.isnan(value)
        }


@pytest.fixture
def stores(new_store_url, monkeypatch):
    """Small tiles, so that short runs have many and rollups of them."""
    monkeypatch.setattr(tiles, "TILE_ROWS", 8)
    monkeypatch.setattr(compaction, "MOST_BATCHES", 3)
    made = [Store(new_store_url(), Frail) for _ in range(2)]
    for each in made:
        with each.database.write():
            pass  # the first write of a process makes sure of the log: by so many statements the next ones are fewer
    yield made
    for each in made:
        each.database.close()


def test_any_story_of_a_run_is_stored_once(stores):
    machine = type("ExactlyOnceInAStore", (ExactlyOnce,), {"store": stores[0], "undisturbed": stores[1]})
    effort = settings(max_examples=10 * EFFORT, stateful_step_count=30, phases=[Phase.generate])
    run_state_machine_as_test(machine, settings=effort)


def test_a_launch_whose_layers_a_later_one_describes_anew_is_judged_as_before(stores):
    """Its batches may come after that, to a collector that never heard of it: a shape decides what is forgotten."""
    first, second = (streams.Stream(streams.healthy(60, LAYERS, seed=seed), first_step=30 * seed) for seed in (0, 1))
    second.layers = streams.layer_set(second.names, (4, 4))
    for store in stores:
        store.forget(QUICK)
        store.ingest.hello(RUN, "a", wire.dump(first.hello(launch="a", started=1.0)))
        store.ingest.batch(RUN, "a", 0, wire.dump(first.batch(0, 30)))
        store.ingest.hello(RUN, "b", wire.dump(second.hello(launch="b", started=2.0)))
        if store is stores[0]:
            store.forget(QUICK)
        store.ingest.hello(RUN, "a", wire.dump(first.hello(launch="a", started=1.0)))
        store.ingest.batch(RUN, "a", 1, wire.dump(first.batch(30, 35)))
        store.ingest.batch(RUN, "b", 0, wire.dump(second.batch(0, 30)))
    assert stores[0].rows() == stores[1].rows()
