"""Launches whose ranks train different layers: each sends its own, and they become one series of the run."""

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from gradcanary import wire
from gradcanary_server.api import charts
from gradcanary_server.incidents import repository
from gradcanary_server.incidents.briefs import Briefs
from gradcanary_server.ingest import rank_layers
from gradcanary_server.ingest.shard_stream import BACKOFF_S, LAG_S
from gradcanary_server.rules.config import Rules
from gradcanary_server.storage import layers, runs
from gradcanary_server.storage.schema import batch, launch, layer, rule_state, session
from gradcanary_server.tsdb.query import StepRange
from support import streams
from support.server.archives import LAYERS, RUN, decoded

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


def greet(archive, rank, stream, world_size=3, **changes):
    place = {"rank": rank, "world_size": world_size, "launch": "one"}
    return archive.ingest.hello(RUN, f"r{rank}", wire.dump(stream.hello(**{**place, **changes}))).has_other_layers


def post(archive, rank, seq, message):
    return archive.ingest.batch(RUN, f"r{rank}", seq, wire.dump(message)).status


def beat(archive, rank):
    return archive.ingest.heartbeat(RUN, f"r{rank}", BEAT).has_other_layers


def finish(archive, ranks):
    for rank in ranks:
        archive.ingest.end(RUN, f"r{rank}", wire.dump(wire.End("finished", None, None)))


def seen(archive):
    """Every cell of every layer, and what the rules know."""
    span, rules = StepRange(None, None, 1000), Rules()
    wanted = [str(number) for number in range(archive.count(layer))]
    found = {}
    for stat in ("absmax", "norm", "nonfinite"):
        found[stat] = archive.read(
            lambda c, run, s=stat: charts.build_series(c, archive.archive, rules, run, s, wanted, span)
        )["series"]
    found["metrics"] = archive.read(
        lambda c, run: charts.build_metrics(c, archive.archive, run, charts.MetricSelector((), ()), span)
    )["metrics"]
    with archive.database.read() as connection:
        packed = connection.scalars(select(rule_state.c.packed).order_by(rule_state.c.part)).all()
    return json.loads(json.dumps(found)), packed


def counts(archive, layer):
    return decoded(seen(archive)[0]["absmax"][layer]["count"]).tolist()


def names_of(archive):
    """The name and the shape of each layer, by number."""
    rows = archive.read(lambda c, run: layers.read_layers(c, run.run_id))
    return [(row.name, tuple(json.loads(row.shape))) for row in rows]


@pytest.fixture
def clock(archive, monkeypatch):
    """The database's clock, which tests move on."""
    real, ahead = archive.database.now, [0.0]
    monkeypatch.setattr(archive.database, "now", lambda connection: real(connection) + ahead[0])
    archive.ingest.merge_overdue()  # it listens from now on

    def move(by_s):
        ahead[0] += by_s

    return move


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_any_interleaving_is_the_stream_of_one_process_with_all_layers(module_archive, data):
    ranks = data.draw(st.integers(2, 3))
    parts = measured(data.draw(st.integers(0, 2**32 - 1)), 60, ranks, data.draw(st.sampled_from([1, 10])))
    sizes = [data.draw(st.integers(3, 25)) for _ in parts]
    module_archive.clear()
    module_archive.send("one", together(parts), 7, end="finished")
    expected = seen(module_archive)
    module_archive.clear()
    assert [greet(module_archive, rank, part) for rank, part in enumerate(parts)] == [False, True, True][:ranks]
    left = [list(enumerate(part.batches(size))) for part, size in zip(parts, sizes, strict=True)]
    while any(left):
        rank = data.draw(st.sampled_from([rank for rank in range(ranks) if left[rank]]))
        seq, message = left[rank].pop(0)
        assert post(module_archive, rank, seq, message) == "stored"
        if data.draw(st.booleans()):
            assert post(module_archive, rank, seq, message) == "duplicate"
        if data.draw(st.sampled_from([False, False, True])):
            module_archive.forget()  # as after a restart
            module_archive.compactor.compact()
    finish(module_archive, data.draw(st.permutations(range(ranks))))
    assert seen(module_archive) == expected
    module_archive.compactor.compact()
    assert seen(module_archive) == expected


@pytest.mark.parametrize("is_compacted", [False, True])
def test_the_series_of_rank_0_goes_on_when_another_rank_joins(archive, is_compacted):
    first, second = measured(1, 600, 2)
    first.absmax[:] = second.absmax[:] = 1e-3
    greet(archive, 0, first)
    for seq in range(30):
        post(archive, 0, seq, first.batch(10 * seq, 10 * seq + 10))
    if is_compacted:
        archive.compactor.compact()
    before = seen(archive)[0]
    assert greet(archive, 1, second)
    after = seen(archive)[0]
    assert after["absmax"][0] == before["absmax"][0]
    assert after["metrics"] == before["metrics"]
    assert post(archive, 0, 29, first.batch(290, 300)) == "duplicate"
    post(archive, 0, 30, first.batch(300, 310))
    assert archive.read(lambda _, run: run.step) == 299, "rank 1 is waited for"
    post(archive, 1, 0, second.batch(305, 320))
    post(archive, 0, 31, first.batch(310, 320))
    archive.forget()
    archive.compactor.compact()
    assert counts(archive, 0) == [1] * 320
    assert counts(archive, 3)[-15:] == [1] * 15
    assert sum(counts(archive, 3)) == 15


def test_nothing_is_decided_before_the_layers_of_rank_0_are_known(archive):
    first, second = measured(2, 20, 2)
    assert not greet(archive, 1, second)
    assert not beat(archive, 1)
    greet(archive, 0, first)
    assert beat(archive, 1)
    assert beat(archive, 1)
    assert greet(archive, 1, second)
    assert not beat(archive, 0)


def test_ranks_with_the_layers_of_rank_0_send_none(archive):
    (first,) = measured(3, 20, 1)
    for rank in (1, 0, 2):
        assert not greet(archive, rank, first)
    assert [beat(archive, rank) for rank in range(3)] == [False] * 3
    post(archive, 0, 0, first.batch(0, 20))
    assert archive.count(session) == 3, "no merged session"
    with archive.database.read() as connection:
        assert not connection.execute(select(launch.c.has_own_layers)).scalar_one()
        roles = connection.execute(select(session.c.is_primary, session.c.is_sharded).order_by(session.c.rank)).all()
    assert roles == [(True, False), (False, False), (False, False)]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_layer_with_the_name_of_another_ranks_has_a_prefix(archive, order):
    """As of parts of one tensor in several ranks, or of two jobs: other tensors with the same name."""
    absmax = np.full((10, LAYERS), 1e-3, np.float32)
    first, second = streams.Stream(absmax, names=tuple("abc")), streams.Stream(10 * absmax, names=tuple("abd"))
    second.layers = streams.layer_set(second.names, shape=(4, 64))
    for rank in order:
        greet(archive, rank, (first, second)[rank], world_size=2)
    assert beat(archive, 1)
    described = dict(names_of(archive))
    assert described == {**dict.fromkeys("abc", (8, 64)), **dict.fromkeys(("d", "rank1.a", "rank1.b"), (4, 64))}
    post(archive, 0, 0, first.batch(0, 10))
    post(archive, 1, 0, second.batch(0, 10))
    found = dict(zip([name for name, _ in names_of(archive)], seen(archive)[0]["absmax"], strict=True))
    levels = {name: float(decoded(each["max"]).max()) for name, each in found.items()}
    assert levels == pytest.approx({name: 1e-3 if name in "abc" else 1e-2 for name in described})


def test_a_layer_set_that_comes_later_has_the_prefix_as_well(archive):
    absmax = np.full((10, LAYERS), 1e-3, np.float32)
    first, second = streams.Stream(absmax, names=tuple("abc")), streams.Stream(absmax, names=tuple("def"))
    greet(archive, 0, first)
    greet(archive, 1, second)
    later = streams.Stream(10 * absmax, names=tuple("dea"), first_step=10)
    greet(archive, 1, later, first_step=0)
    post(archive, 0, 0, first.batch(0, 10))
    post(archive, 1, 0, later.batch(0, 10))
    finish(archive, (0, 1))
    assert [name for name, _ in names_of(archive)] == [*"abcdef", "rank1.a"]


def test_a_replica_of_another_stage_names_the_rank_of_a_nan(archive):
    first, second = measured(4, 30, 2)
    first.absmax[:] = second.absmax[:] = 1e-3
    second.absmax[12, 0] = np.inf
    assert [greet(archive, rank, part) for rank, part in ((0, first), (1, second), (2, second))] == [False, True, False]
    assert not beat(archive, 2)
    post(archive, 0, 0, first.batch(0, 30))
    post(archive, 1, 0, second.batch(0, 30))
    state = bytearray([wire.STATES.index("partial")]) * LAYERS
    state[0] = wire.STATES.index("nonfinite")
    bad = wire.Block("nonfinite", "micro", (12,), (0,), wire.column("f", [1.0]))
    columns = {"steps": (12,), "times": wire.column("d", [1.7e9]), "state": wire.column("B", state)}
    per_step = dict.fromkeys(("micro_steps", "skipped", "clipped"), (0,))
    own = wire.Batch(**{**vars(second.batch(12, 13)), **columns, **per_step, "blocks": (bad,), "metrics": ()})
    post(archive, 2, 0, own)
    case = archive.read(lambda c, run: repository.latest_incident(c, run.run_id, "nonfinite"))
    assert {layer: member.rank for layer, member in case.members.items()} == {3: 2}


def test_a_rank_that_never_came_is_not_waited_for_and_hides_nothing(archive):
    first, second = measured(5, 20, 2)
    first.absmax[:] = second.absmax[:] = 1e-3
    greet(archive, 0, first, world_size=8)
    greet(archive, 1, second, world_size=8)
    greet(archive, 2, first, world_size=8, layer_sets=(), sharded=None)
    post(archive, 0, 0, first.batch(0, 20))
    post(archive, 1, 0, second.batch(0, 20))
    assert [counts(archive, layer) for layer in range(6)] == [[1] * 20] * 6


def test_what_a_killed_rank_sent_is_kept_and_the_others_go_on(archive, clock):
    first, second = measured(6, 40, 2)
    first.absmax[:] = second.absmax[:] = 1e-3
    greet(archive, 0, first)
    greet(archive, 1, second)
    post(archive, 0, 0, first.batch(0, 20))
    post(archive, 1, 0, second.batch(0, 17))
    clock(LAG_S + BACKOFF_S)
    archive.ingest.merge_overdue()
    assert (counts(archive, 0), sum(counts(archive, 3))) == ([1] * 20, 17)
    post(archive, 0, 1, first.batch(20, 40))
    assert (counts(archive, 0), sum(counts(archive, 3))) == ([1] * 40, 17)


def test_a_join_that_fails_leaves_nothing_and_is_tried_again(archive, monkeypatch):
    first, second = measured(7, 20, 2)
    greet(archive, 0, first)
    post(archive, 0, 0, first.batch(0, 10))
    before = archive.rows()
    with monkeypatch.context() as patched:
        patched.setattr(rank_layers, "separate_sets", killed)
        with pytest.raises(KeyboardInterrupt):
            greet(archive, 1, second)
    assert archive.rows() == before
    assert greet(archive, 1, second)
    assert post(archive, 0, 0, first.batch(0, 10)) == "duplicate"
    post(archive, 0, 1, first.batch(10, 20))
    post(archive, 1, 0, second.batch(10, 20))
    assert archive.read(lambda _, run: run.step) == 19


def killed(*_):
    raise KeyboardInterrupt


def test_a_collapse_of_another_rank_opens_an_incident_with_its_layers(archive):
    first, second = measured(8, 400, 2)
    first.absmax[:] = second.absmax[:] = 1e-2
    second.absmax[200:] = 1e-8
    greet(archive, 0, first)
    post(archive, 0, 0, first.batch(0, 50))
    greet(archive, 1, second)
    for seq in range(1, 8):
        post(archive, 0, seq, first.batch(50 * seq, 50 * seq + 50))
        post(archive, 1, seq, second.batch(50 * seq, 50 * seq + 50))
    (brief,) = archive.read(lambda c, run: Briefs("http://here").read(c, run.run_id, 0.0))
    assert (brief.rule, brief.layers) == ("collapse", 3)
    case = archive.read(lambda c, run: repository.latest_incident(c, run.run_id, "collapse"))
    assert set(case.members) == {3, 4, 5}


def test_sessions_that_end_end_the_run(archive):
    first, second = measured(9, 20, 2)
    greet(archive, 0, first)
    greet(archive, 1, second)
    post(archive, 0, 0, first.batch(0, 20))
    finish(archive, (0,))
    post(archive, 1, 0, second.batch(0, 20))
    finish(archive, (1,))
    assert archive.read(lambda _, run: run.ended) == "finished"
    archive.compactor.compact()
    assert archive.count(batch) == 0
    with archive.database.read() as connection:
        assert runs.get_run(connection, RUN).step == 19
