"""A launch that arrives when a newer one is there: it is kept, and changes nothing that the newer one says."""

import json
import time
from email.utils import formatdate
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradcanary import wire
from gradcanary_server.incidents.briefs import Briefs
from gradcanary_server.storage import runs as run_store
from gradcanary_server.tsdb import tiles
from support import streams
from support.server.archives import LAYERS, RUN, Store, decoded

BEFORE, AFTER = 1_000.0, 2_000.0
"""When the first and the second launch began."""


@pytest.fixture
def runs(module_collector, request):
    """Make the sessions of a run of this test by its name: the killed launch, and the one that went on."""

    def make(name="run"):
        run = f"{request.node.originalname[:80]}-{name}"
        return [streams.Session(module_collector.url, run, session) for session in ("old", "new")]

    return make


@pytest.fixture
def told(module_collector):
    def tell(session, path="", **parameters):
        return module_collector.get(f"/api/v1/runs/{session.run}{path}", **parameters).json()

    return tell


def begin(session, stream, batches, **hello):
    session.put_hello(stream.hello(**hello)).raise_for_status()
    go_on(session, 0, batches)


def go_on(session, seq, batches):
    for number, each in enumerate(batches, start=seq):
        assert session.post_batch(number, each).json()["status"] == "stored"


def states(run):
    return [(each["session"], each["state"]) for each in run["sessions"]]


def drawn(told, session):
    answers = [told(session, "/series", layer=layer, points=4000) for layer in range(2)]
    answers += [told(session, "/metrics", points=4000), {"cells": told(session, "/heatmap")["cells"]}]
    found = [{key: each[key] for key in each if key not in ("run", "revision", "marks")} for each in answers]
    layers = told(session, "/layers")["layers"]
    return found, [(each["name"], each["step"], each["state"], each["absmax"]) for each in layers]


def test_a_synced_launch_does_not_switch_off_the_rules_for_the_live_one(runs, told, module_collector):
    first = streams.Stream(streams.healthy(200, 6, seed=1), loss=streams.falling_loss(200))
    second = streams.Stream(streams.collapsed(900, 6, [0, 1], 500), loss=streams.falling_loss(900), first_step=100)
    found = []
    for name in ("in-order", "late"):
        old, new = runs(name)

        def sync(old=old):
            begin(old, first, first.batches(50), launch="L1", started=BEFORE)
            old.end("crashed").raise_for_status()

        if name == "in-order":
            sync()
        batches = list(second.batches(50))
        begin(new, second, batches[:4], launch="L2", started=AFTER)
        if name == "late":
            sync()
            assert told(new)["step"] == 299
        go_on(new, 4, batches[4:])
        run = told(new)
        incidents = module_collector.get("/api/v1/incidents", run=new.run).json()["incidents"]
        brief = [(each["rule"], each["severity"], each["opened_step"]) for each in incidents]
        found.append((run["state"], run["step"], run["firing"], brief, states(run), drawn(told, new)))
    assert found[1] == found[0]
    assert found[1][:3] == ("live", 999, {"collapse": 2})
    assert found[1][4] == [("old", "crashed"), ("new", "live")]
    values = told(new, "/series", layer=0, **{"from": 98, "to": 101})["series"][0]["mean"]
    np.testing.assert_array_equal(decoded(values), np.r_[first.absmax[98:100, 0], second.absmax[:2, 0]])


def test_a_synced_launch_does_not_open_a_finished_run(runs, told):
    old, new = runs()
    first = streams.Stream(streams.healthy(128, 3))
    batches = list(first.batches(64))
    begin(old, first, batches[:1], launch="L1", started=BEFORE)
    second = streams.Stream(streams.healthy(128, 3), first_step=64)
    begin(new, second, second.batches(), launch="L2", started=AFTER)
    new.end().raise_for_status()
    begin(old, first, [], launch="L1", started=BEFORE)
    go_on(old, 1, batches[1:])
    old.heartbeat(127).raise_for_status()
    run = told(new)
    assert (run["state"], run["step"], states(run)) == ("finished", 191, [("old", "silent"), ("new", "finished")])
    old.end("crashed").raise_for_status()
    run = told(new)
    assert (run["state"], states(run)) == ("finished", [("old", "crashed"), ("new", "finished")])


def test_a_launch_that_nobody_had_heard_of_does_not_open_a_finished_run(runs, told):
    old, new = runs()
    stream = streams.Stream(streams.collapsed(400, 6, [0], 200))
    begin(new, stream, stream.batches(), launch="L2", started=AFTER)
    new.end().raise_for_status()
    before = told(new)
    begin(old, stream, stream.batches(), launch="L1", started=BEFORE)
    after = told(new)
    assert before["state"] == after["state"] == "finished"
    assert states(after) == [("old", "silent"), ("new", "finished")]
    assert after["open_incidents"] == []
    assert after["headline"] == before["headline"]


def test_a_run_ends_with_its_newest_launch_whatever_was_synced(runs, told, module_collector):
    old, new = runs()
    first = streams.Stream(streams.collapsed(600, 6, [0, 1], 300))
    batches = list(first.batches())
    begin(old, first, batches[:1], launch="L1", started=BEFORE)
    second = streams.Stream(streams.collapsed(600, 6, [0, 1], 200), first_step=64)
    begin(new, second, second.batches(), launch="L2", started=AFTER)
    assert told(new)["firing"] == {"collapse": 2}
    go_on(old, 1, batches[1:])
    new.end().raise_for_status()
    run = told(new)
    assert (run["state"], run["open_incidents"], run["step"]) == ("finished", [], 663)
    (incident,) = module_collector.get("/api/v1/incidents", run=new.run).json()["incidents"]
    assert (incident["state"], incident["resolution"]) == ("ended", "run_finished")


def test_late_launch_before_the_first_measurement_is_folded_first(runs, told):
    old, new = runs()
    second = streams.Stream(streams.collapsed(400, 6, [0, 1], 200), first_step=100)
    begin(new, second, [], launch="L2", started=AFTER)
    first = streams.Stream(streams.healthy(150, 6))
    begin(old, first, first.batches(), launch="L1", started=BEFORE)
    go_on(new, 0, second.batches())
    run = told(new)
    assert (run["state"], run["step"], run["firing"]) == ("live", 499, {"collapse": 2})
    assert states(run) == [("old", "silent"), ("new", "live")]


def test_late_launch_does_not_change_layers_metrics_and_framework(runs, told):
    old, new = runs()
    second = streams.Stream(streams.healthy(10, 2), names=("a", "b"), loss=np.full(10, 2.0), first_step=5)
    begin(new, second, second.batches(), launch="L2", started=AFTER, framework="peft")
    first = streams.Stream(streams.healthy(30, 3), names=("b", "c", "a"), loss=np.full(30, 1.0), stored="bfloat16")
    first.layers = streams.layer_set(first.names, (4, 4), "bfloat16")
    begin(old, first, first.batches(10), launch="L1", started=BEFORE, framework="trl")
    layers = {each["name"]: each for each in told(new, "/layers")["layers"]}
    told_of = {name: (each["shape"], each["accumulator"]["stored"]) for name, each in layers.items()}
    assert told_of == {"a": ([8, 64], "float32"), "b": ([8, 64], "float32"), "c": ([4, 4], "bfloat16")}
    run = told(new)
    assert run["framework"] == "peft"
    assert {each["name"]: each["last"] for each in run["metrics"]} == {"loss": 2.0, "lr0": 1e-3}


def test_a_clock_that_is_ahead_does_not_hold_the_place_of_the_newest(runs, told):
    old, new = runs()
    stream = streams.Stream(streams.healthy(20, 2))
    begin(old, stream, stream.batches(), launch="L1", started=9e9)
    told_no_time = vars(stream.hello(launch="L2"))  # by an older agent: now
    told_no_time.pop("started")
    body = json.dumps(told_no_time, default=vars)
    new.client.put(new.path(), content=body, headers={"Content-Type": "application/json"}).raise_for_status()
    go_on(new, 0, stream.batches())
    assert states(told(new)) == [("old", "silent"), ("new", "live")]


@pytest.mark.parametrize("first", ["hello", "heartbeat"])
def test_a_launch_that_began_after_our_clock_was_set_back_is_the_newer_one(store, monkeypatch, first):
    """Else it would not be judged for a day."""
    store.clear()
    real, set_s = store.database.now, [86_400.0]
    monkeypatch.setattr(store.database, "now", lambda connection: real(connection) + set_s[0])
    stream = streams.Stream(streams.collapsed(500, LAYERS, [0], 300))
    for number in range(3):
        store.send(f"s{number}", streams.Stream(streams.healthy(20, LAYERS)), 20)
    set_s[0] += 600.0
    store.ingest.heartbeat(RUN, "s2", wire.dump(wire.Heartbeat(19, 0, 0, 0.0)))
    set_s[0] -= 86_400.0
    if first == "heartbeat":
        store.ingest.heartbeat(RUN, "s2", wire.dump(wire.Heartbeat(19, 0, 0, 0.0)))
    with store.database.read() as connection:
        now = store.database.now(connection)
    store.send("later", stream, 100, started=now - 1.0)
    assert store.read(lambda _, run: run.step) == 499
    known = store.read(lambda connection, run: run_store.launches_in_order(connection, run.run_id))
    assert [each.launch for each in known] == ["s0", "s1", "s2", "later"]
    (brief,) = store.read(lambda connection, run: Briefs("").read(connection, run.run_id, 0.0))
    assert brief.rule == "collapse"


def test_a_clock_that_is_behind_is_set_right_by_the_date_of_its_hello(runs, told):
    """A node whose clock is an hour late goes on with a run that another node began a minute ago."""
    old, new = runs()
    stream = streams.Stream(streams.healthy(20, 2))
    now = time.time()
    begin(old, stream, stream.batches(), launch="L1", started=now - 60)
    new.client.headers["Date"] = formatdate(now - 3600, usegmt=True)
    begin(new, stream, stream.batches(), launch="L2", started=now - 3600)
    assert states(told(new)) == [("old", "silent"), ("new", "live")]
    for garbage in ("soon", "Mon, 99 Foo 2026 00:00:00 GMT", ""):
        new.client.headers["Date"] = garbage
        new.put_hello(stream.hello(launch="L2", started=now - 3600)).raise_for_status()


def test_a_launch_id_that_somebody_fixed_names_the_launch_that_began_then(runs, told):
    old, new = runs()
    stream = streams.Stream(streams.healthy(20, 2))
    begin(new, stream, stream.batches(), started=AFTER, world_size=2)
    begin(old, stream, stream.batches(), started=BEFORE, world_size=2)
    for session, rank in ((old, BEFORE + 1), (new, AFTER + 1)):
        other = streams.Session(session.url, session.run, f"{session.session}-1")
        begin(other, stream, [], started=rank, world_size=2, rank=1)
    expected = [("old", "silent"), ("old-1", "silent"), ("new", "live"), ("new-1", "live")]
    assert states(told(new)) == expected


@pytest.fixture(scope="module")
def store(new_store_url):
    made = Store(new_store_url())
    yield made
    made.database.close()


@pytest.fixture
def small_tiles(monkeypatch):
    """Tiles of so few rows that a short run has rollups."""
    monkeypatch.setattr(tiles, "TILE_ROWS", 8)


BATCH = 30


@st.composite
def stories(draw):
    """Launches in the order in which they began, and whose batch arrives when."""
    made = [
        SimpleNamespace(
            number=number,
            first=draw(st.integers(0, 200)),
            every=draw(st.sampled_from([1, 10])),
            steps=draw(st.integers(1, 150)),
            end=draw(st.sampled_from([None, "finished"])),
        )
        for number in range(draw(st.integers(2, 4)))
    ]
    turns = [each for each in made for _ in range(0, each.steps, BATCH)]
    mixed = draw(
        st.one_of(st.permutations(turns), st.permutations(made).map(lambda order: sorted(turns, key=order.index)))
    )
    return turns, mixed


def send(store, turns, compacts):
    """Let each launch send its next batch in its turn; it says hello before the first, and its end after the last."""
    store.clear()
    left = {}
    for turn in turns:
        if turn.number not in left:
            rng = np.random.default_rng(turn.number)
            absmax = (10 ** rng.uniform(-12, 3, (turn.steps, LAYERS))).astype(np.float32)
            stream = streams.Stream(absmax, rng.normal(size=turn.steps), first_step=turn.first, every=turn.every)
            hello = stream.hello(launch=f"L{turn.number}", started=1_000.0 + turn.number)
            store.ingest.hello(RUN, f"s{turn.number}", wire.dump(hello))
            left[turn.number] = list(enumerate(stream.batches(BATCH)))
        seq, batch = left[turn.number].pop(0)
        store.ingest.batch(RUN, f"s{turn.number}", seq, wire.dump(batch))
        if turn.end and not left[turn.number]:
            store.ingest.end(RUN, f"s{turn.number}", wire.dump(wire.End(turn.end, None, None)))
        if compacts:
            store.compactor.compact()


def seen(store, points):
    """Every picture; the layers are about rules, which are those of the newest launch."""
    answer = json.loads(store.pictures(points))
    del answer["layers"]
    for each in answer.values():
        if isinstance(each, dict):
            each["revision"] = 0
    return answer


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(stories(), st.sampled_from([3, 50, 1000]), st.booleans())
def test_arrival_order_of_launches_does_not_show(store, small_tiles, story, points, compacts):
    in_order, mixed = story
    send(store, in_order, compacts=False)
    expected = seen(store, points)
    send(store, mixed, compacts)
    assert seen(store, points) == expected
