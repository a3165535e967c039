"""Launches whose ranks train different layers: each sends its own, and they become one series of the run."""

import json

import numpy as np
import pytest
import streams
from archives import LAYERS, RUN, decoded
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from gradcanary import wire
from gradcanary_server.api import charts
from gradcanary_server.incidents import repository, service
from gradcanary_server.ingest import rank_layers
from gradcanary_server.ingest.shard_stream import BACKOFF_S, LAG_S
from gradcanary_server.rules.config import Rules
from gradcanary_server.storage import layers, runs
from gradcanary_server.storage.schema import batch, launch, layer, rule_state, session
from gradcanary_server.tsdb.query import StepRange

NAMES = ("abc", "def", "ghi")
BEAT = wire.dump(wire.Heartbeat(None, 0, 0, 0.0))


def measured(seed, steps, ranks, every=1):
    rng = np.random.default_rng(seed)
    found = []
    for rank in range(ranks):
        absmax = (10 ** rng.uniform(-6, 1, (steps, LAYERS))).astype(np.float32)
        for value in (0, np.nan, np.inf):
            absmax[rng.random(absmax.shape) < 0.08] = value
        loss = rng.normal(size=steps)
        found.append(streams.Stream(absmax, loss, every=every, names=tuple(NAMES[rank])))
    return found


def together(parts):
    absmax = np.concatenate([part.absmax for part in parts], axis=1)
    names = tuple(name for part in parts for name in part.names)
    return streams.Stream(absmax, parts[0].loss, every=parts[0].every, names=names)


def greet(store, rank, stream, world_size=3, **changes):
    place = {"rank": rank, "world_size": world_size, "launch": "one"}
    return store.ingest.hello(RUN, f"r{rank}", wire.dump(stream.hello(**{**place, **changes}))).has_other_layers


def post(store, rank, seq, message):
    return store.ingest.batch(RUN, f"r{rank}", seq, wire.dump(message)).status


def beat(store, rank):
    return store.ingest.heartbeat(RUN, f"r{rank}", BEAT).has_other_layers


def finish(store, ranks):
    for rank in ranks:
        store.ingest.end(RUN, f"r{rank}", wire.dump(wire.End("finished", None, None)))


def seen(store):
    """Every cell of every layer, and what the rules know."""
    span, rules = StepRange(None, None, 1000), Rules()
    wanted = [str(number) for number in range(store.count(layer))]
    found = {}
    for stat in ("absmax", "norm", "nonfinite"):
        found[stat] = store.read(
            lambda c, run, s=stat: charts.build_series(c, store.archive, rules, run, s, wanted, span)
        )["series"]
    found["metrics"] = store.read(
        lambda c, run: charts.build_metrics(c, store.archive, run, charts.MetricSelector((), ()), span)
    )["metrics"]
    with store.database.read() as connection:
        packed = connection.scalars(select(rule_state.c.packed).order_by(rule_state.c.part)).all()
    return json.loads(json.dumps(found)), packed


def counts(store, layer):
    return decoded(seen(store)[0]["absmax"][layer]["count"]).tolist()


def names_of(store):
    """The name and the shape of each layer, by number."""
    rows = store.read(lambda c, run: layers.read_layers(c, run.run_id))
    return [(row.name, tuple(json.loads(row.shape))) for row in rows]


@pytest.fixture
def clock(store, monkeypatch):
    """The database's clock, which tests move on."""
    real, ahead = store.database.now, [0.0]
    monkeypatch.setattr(store.database, "now", lambda connection: real(connection) + ahead[0])
    store.ingest.merge_overdue()  # it listens from now on

    def move(by_s):
        ahead[0] += by_s

    return move


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_interleaving_is_the_stream_of_one_process_with_all_layers(module_store, data):
    ranks = data.draw(st.integers(2, 3))
    parts = measured(data.draw(st.integers(0, 2**32 - 1)), 60, ranks, data.draw(st.sampled_from([1, 10])))
    sizes = [data.draw(st.integers(3, 25)) for _ in parts]
    module_store.clear()
    module_store.send("one", together(parts), 7, end="finished")
    expected = seen(module_store)
    module_store.clear()
    assert [greet(module_store, rank, part) for rank, part in enumerate(parts)] == [False, True, True][:ranks]
    left = [list(enumerate(part.batches(size))) for part, size in zip(parts, sizes, strict=True)]
    while any(left):
        rank = data.draw(st.sampled_from([rank for rank in range(ranks) if left[rank]]))
        seq, message = left[rank].pop(0)
        assert post(module_store, rank, seq, message) == "stored"
        if data.draw(st.booleans()):
            assert post(module_store, rank, seq, message) == "duplicate"
        if data.draw(st.sampled_from([False, False, True])):
            module_store.forget()  # as after a restart
            module_store.compactor.compact()
    finish(module_store, data.draw(st.permutations(range(ranks))))
    assert seen(module_store) == expected
    module_store.compactor.compact()
    assert seen(module_store) == expected


@pytest.mark.parametrize("is_compacted", [False, True])
def test_the_series_of_rank_0_goes_on_when_another_rank_joins(store, is_compacted):
    first, second = measured(1, 600, 2)
    first.absmax[:] = second.absmax[:] = 1e-3
    greet(store, 0, first)
    for seq in range(30):
        post(store, 0, seq, first.batch(10 * seq, 10 * seq + 10))
    if is_compacted:
        store.compactor.compact()
    before = seen(store)[0]
    assert greet(store, 1, second)
    after = seen(store)[0]
    assert after["absmax"][0] == before["absmax"][0]
    assert after["metrics"] == before["metrics"]
    assert post(store, 0, 29, first.batch(290, 300)) == "duplicate"
    post(store, 0, 30, first.batch(300, 310))
    assert store.read(lambda _, run: run.step) == 299, "rank 1 is waited for"
    post(store, 1, 0, second.batch(305, 320))
    post(store, 0, 31, first.batch(310, 320))
    store.forget()
    store.compactor.compact()
    assert counts(store, 0) == [1] * 320
    assert counts(store, 3)[-15:] == [1] * 15
    assert sum(counts(store, 3)) == 15


def test_nothing_is_decided_before_the_layers_of_rank_0_are_known(store):
    first, second = measured(2, 20, 2)
    assert not greet(store, 1, second)
    assert not beat(store, 1)
    greet(store, 0, first)
    assert beat(store, 1)
    assert beat(store, 1)
    assert greet(store, 1, second)
    assert not beat(store, 0)


def test_ranks_with_the_layers_of_rank_0_send_none(store):
    (first,) = measured(3, 20, 1)
    for rank in (1, 0, 2):
        assert not greet(store, rank, first)
    assert [beat(store, rank) for rank in range(3)] == [False] * 3
    post(store, 0, 0, first.batch(0, 20))
    assert store.count(session) == 3, "no merged session"
    with store.database.read() as connection:
        assert not connection.execute(select(launch.c.has_own_layers)).scalar_one()
        roles = connection.execute(select(session.c.is_primary, session.c.is_sharded).order_by(session.c.rank)).all()
    assert roles == [(True, False), (False, False), (False, False)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_layer_with_the_name_of_another_ranks_has_a_prefix(store, order):
    """As of parts of one tensor in several ranks, or of two jobs: other tensors with the same name."""
    absmax = np.full((10, LAYERS), 1e-3, np.float32)
    first, second = streams.Stream(absmax, names=tuple("abc")), streams.Stream(10 * absmax, names=tuple("abd"))
    second.layers = streams.layer_set(second.names, shape=(4, 64))
    for rank in order:
        greet(store, rank, (first, second)[rank], world_size=2)
    assert beat(store, 1)
    described = dict(names_of(store))
    assert described == {**dict.fromkeys("abc", (8, 64)), **dict.fromkeys(("d", "rank1.a", "rank1.b"), (4, 64))}
    post(store, 0, 0, first.batch(0, 10))
    post(store, 1, 0, second.batch(0, 10))
    found = dict(zip([name for name, _ in names_of(store)], seen(store)[0]["absmax"], strict=True))
    levels = {name: float(decoded(each["max"]).max()) for name, each in found.items()}
    assert levels == pytest.approx({name: 1e-3 if name in "abc" else 1e-2 for name in described})


def test_a_layer_set_that_comes_later_has_the_prefix_as_well(store):
    absmax = np.full((10, LAYERS), 1e-3, np.float32)
    first, second = streams.Stream(absmax, names=tuple("abc")), streams.Stream(absmax, names=tuple("def"))
    greet(store, 0, first)
    greet(store, 1, second)
    later = streams.Stream(10 * absmax, names=tuple("dea"), first_step=10)
    greet(store, 1, later, first_step=0)
    post(store, 0, 0, first.batch(0, 10))
    post(store, 1, 0, later.batch(0, 10))
    finish(store, (0, 1))
    assert [name for name, _ in names_of(store)] == [*"abcdef", "rank1.a"]


def test_a_replica_of_another_stage_names_the_rank_of_a_nan(store):
    first, second = measured(4, 30, 2)
    first.absmax[:] = second.absmax[:] = 1e-3
    second.absmax[12, 0] = np.inf
    assert [greet(store, rank, part) for rank, part in ((0, first), (1, second), (2, second))] == [False, True, False]
    assert not beat(store, 2)
    post(store, 0, 0, first.batch(0, 30))
    post(store, 1, 0, second.batch(0, 30))
    state = bytearray([wire.STATES.index("partial")]) * LAYERS
    state[0] = wire.STATES.index("nonfinite")
    bad = wire.Block("nonfinite", "micro", (12,), (0,), wire.column("f", [1.0]))
    columns = {"steps": (12,), "times": wire.column("d", [1.7e9]), "state": wire.column("B", state)}
    per_step = dict.fromkeys(("micro_steps", "skipped", "clipped"), (0,))
    own = wire.Batch(**{**vars(second.batch(12, 13)), **columns, **per_step, "blocks": (bad,), "metrics": ()})
    post(store, 2, 0, own)
    case = store.read(lambda c, run: repository.latest_incident(c, run.run_id, "nonfinite"))
    assert {layer: member.rank for layer, member in case.members.items()} == {3: 2}


def test_a_rank_that_never_came_is_not_waited_for_and_hides_nothing(store):
    first, second = measured(5, 20, 2)
    first.absmax[:] = second.absmax[:] = 1e-3
    greet(store, 0, first, world_size=8)
    greet(store, 1, second, world_size=8)
    greet(store, 2, first, world_size=8, layer_sets=(), sharded=None)
    post(store, 0, 0, first.batch(0, 20))
    post(store, 1, 0, second.batch(0, 20))
    assert [counts(store, layer) for layer in range(6)] == [[1] * 20] * 6


def test_what_a_killed_rank_sent_is_kept_and_the_others_go_on(store, clock):
    first, second = measured(6, 40, 2)
    first.absmax[:] = second.absmax[:] = 1e-3
    greet(store, 0, first)
    greet(store, 1, second)
    post(store, 0, 0, first.batch(0, 20))
    post(store, 1, 0, second.batch(0, 17))
    clock(LAG_S + BACKOFF_S)
    store.ingest.merge_overdue()
    assert (counts(store, 0), sum(counts(store, 3))) == ([1] * 20, 17)
    post(store, 0, 1, first.batch(20, 40))
    assert (counts(store, 0), sum(counts(store, 3))) == ([1] * 40, 17)


def test_a_join_that_fails_leaves_nothing_and_is_tried_again(store, monkeypatch):
    first, second = measured(7, 20, 2)
    greet(store, 0, first)
    post(store, 0, 0, first.batch(0, 10))
    before = store.rows()
    with monkeypatch.context() as patched:
        patched.setattr(rank_layers, "separate_sets", killed)
        with pytest.raises(KeyboardInterrupt):
            greet(store, 1, second)
    assert store.rows() == before
    assert greet(store, 1, second)
    assert post(store, 0, 0, first.batch(0, 10)) == "duplicate"
    post(store, 0, 1, first.batch(10, 20))
    post(store, 1, 0, second.batch(10, 20))
    assert store.read(lambda _, run: run.step) == 19


def killed(*_):
    raise KeyboardInterrupt


def test_a_collapse_of_another_rank_opens_an_incident_with_its_layers(store):
    first, second = measured(8, 400, 2)
    first.absmax[:] = second.absmax[:] = 1e-2
    second.absmax[200:] = 1e-8
    greet(store, 0, first)
    post(store, 0, 0, first.batch(0, 50))
    greet(store, 1, second)
    for seq in range(1, 8):
        post(store, 0, seq, first.batch(50 * seq, 50 * seq + 50))
        post(store, 1, seq, second.batch(50 * seq, 50 * seq + 50))
    (brief,) = store.read(lambda c, run: service.open_briefs(c, run.run_id, "http://here"))
    assert (brief.rule, brief.layers) == ("collapse", 3)
    case = store.read(lambda c, run: repository.latest_incident(c, run.run_id, "collapse"))
    assert set(case.members) == {3, 4, 5}


def test_sessions_that_end_end_the_run(store):
    first, second = measured(9, 20, 2)
    greet(store, 0, first)
    greet(store, 1, second)
    post(store, 0, 0, first.batch(0, 20))
    finish(store, (0,))
    post(store, 1, 0, second.batch(0, 20))
    finish(store, (1,))
    assert store.read(lambda _, run: run.ended) == "finished"
    store.compactor.compact()
    assert store.count(batch) == 0
    with store.database.read() as connection:
        assert runs.get_run(connection, RUN).step == 19
