"""How runs and sessions begin, live, fall silent, end, and come back; over restarts too."""

import errno
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import httpx
import pytest
from sqlalchemy import create_engine, select

from gradcanary import wire
from gradcanary_server.background import OutageLog
from gradcanary_server.errors import StoreUnavailable
from gradcanary_server.incidents.liveness import run_state, session_state
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.driver_errors import translated
from gradcanary_server.storage.schema import run
from support import streams


def detail(session, collector):
    return collector.get(f"/api/v1/runs/{session.run}").json()


@pytest.fixture
def session(module_collector, request):
    return streams.Session(module_collector.url, run=request.node.name[:100].replace("[", "-").replace("]", ""))


@pytest.fixture
def stream():
    return streams.Stream(streams.healthy(20, 4))


class Heard:
    def __init__(self, ended, last_seen, interval_s=15.0):
        self.ended, self.last_seen, self.interval_s = ended, last_seen, interval_s


@pytest.mark.parametrize(
    ("quiet_s", "interval_s", "state"),
    [(0, 15, "live"), (45, 15, "live"), (46, 15, "stale"), (300, 15, "stale"), (301, 15, "silent"),
     (599, 60, "stale"), (601, 60, "silent"), (-5, 15, "live")],
)  # fmt: skip
def test_silence_is_told_from_the_last_request(quiet_s, interval_s, state):
    heard = Heard(None, 1000.0 - quiet_s, interval_s)
    assert session_state(heard, 1000.0) == state
    assert run_state(None, [heard], 1000.0) == state


def test_a_run_lives_as_its_liveliest_session():
    assert run_state(None, [Heard(None, 0.0), Heard(None, 990.0)], 1000.0) == "live"
    assert run_state("crashed", [Heard(None, 990.0)], 1000.0) == "crashed"


def test_a_run_ends_with_its_last_session(session, stream, module_collector):
    session.send(stream, world_size=2)
    other = streams.Session(session.url, session.run, "session-2")
    other.put_hello(stream.hello(world_size=2, rank=1)).raise_for_status()
    assert session.end().json()["status"] == "ok"
    assert detail(session, module_collector)["state"] == "live"
    assert other.end("crashed").json()["status"] == "ok"
    assert detail(session, module_collector)["state"] == "crashed"
    assert session.end("crashed").json()["status"] == "ok"  # said again: nothing changes
    assert [each["state"] for each in detail(session, module_collector)["sessions"]] == ["finished", "crashed"]


def test_the_last_step_is_the_last_one_that_was_made_sampled_or_not(session, stream, module_collector):
    """Metrics say nothing of it: they may be logged for any step."""

    def shown():
        told = detail(session, module_collector)
        return told["step"], [each["last_step"] for each in told["sessions"]]

    session.put_hello(stream.hello()).raise_for_status()
    (batch,) = stream.batches()
    ahead = streams.wire.Metric("tokens", (), (10**6,), streams.wire.column("d", [1.0]))
    session.post_batch(0, replace(batch, metrics=(ahead,))).raise_for_status()
    assert shown() == (19, [19])
    session.heartbeat(57).raise_for_status()
    assert shown() == (57, [57])
    session.end(last_step=63).raise_for_status()
    assert shown() == (63, [63])
    again = streams.Session(session.url, session.run, "session-2")
    again.send(streams.Stream(streams.healthy(5, 4), first_step=20), launch="launch-2")
    assert shown() == (24, [63, 24])


def test_a_new_launch_opens_the_run_again(session, stream, module_collector):
    session.send(stream)
    session.end().raise_for_status()
    assert detail(session, module_collector)["state"] == "finished"
    again = streams.Session(session.url, session.run, "session-2")
    again.send(streams.Stream(streams.healthy(5, 4), first_step=20), launch="launch-2")
    assert detail(session, module_collector)["state"] == "live"
    again.end().raise_for_status()
    assert detail(session, module_collector)["state"] == "finished"


def test_a_killed_session_is_silent_when_the_next_launch_comes_whatever_it_says_then(session, stream, module_collector):
    session.send(stream)
    again = streams.Session(session.url, session.run, "session-2")
    again.put_hello(stream.hello(launch="launch-2")).raise_for_status()
    assert [each["state"] for each in detail(session, module_collector)["sessions"]] == ["silent", "live"]
    again.post_batch(0, stream.batch(0, 5)).raise_for_status()
    late = streams.Stream(streams.healthy(5, 4), first_step=20)
    assert session.post_batch(1, late.batch(0, 5)).json()["status"] == "stored"
    found = detail(session, module_collector)
    assert [each["state"] for each in found["sessions"]] == ["silent", "live"]
    assert found["step"] == 4  # of the newest launch


def test_a_launch_id_that_somebody_fixed_begins_the_next_launch(session, stream, module_collector):
    session.send(stream, world_size=2)
    again = streams.Session(session.url, session.run, "session-2")
    again.send(streams.Stream(streams.healthy(5, 4, seed=3)), world_size=2)
    other = streams.Session(session.url, session.run, "session-3")
    other.put_hello(stream.hello(world_size=2, rank=1)).raise_for_status()
    found = detail(session, module_collector)
    assert [(each["session"], each["state"]) for each in found["sessions"]] == [
        ("session-1", "silent"),
        ("session-2", "live"),
        ("session-3", "live"),
    ]
    assert found["step"] == 4


def test_a_heartbeat_is_shown(session, stream, module_collector):
    session.send(stream)
    before = detail(session, module_collector)
    session.heartbeat(19).raise_for_status()
    after = detail(session, module_collector)
    assert after["revision"] == before["revision"] + 1
    assert after["last_seen"] >= before["last_seen"]
    assert after["sessions"][0]["agent_share"] == 0.008


def test_layers_keep_their_numbers_over_launches(session, module_collector):
    session.send(streams.Stream(streams.healthy(5, 3), names=("a", "b", "c")))
    again = streams.Session(session.url, session.run, "session-2")
    again.send(streams.Stream(streams.healthy(5, 3), names=("c", "d", "a")), launch="launch-2")
    layers = module_collector.get(f"/api/v1/runs/{session.run}/layers").json()["layers"]
    assert [(layer["layer"], layer["name"]) for layer in layers] == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]


def test_facts_of_all_hellos_are_kept_once(session, stream, module_collector):
    fact = streams.wire.Fact("dead_config_key", "grad_accumulator_dtype does nothing.", ())
    other = streams.wire.Fact("fp16_without_scaler", "Gradients\nmay underflow.", ("a",))
    session.put_hello(stream.hello(facts=(fact,))).raise_for_status()
    session.put_hello(stream.hello(facts=(fact, other))).raise_for_status()
    assert [each["code"] for each in detail(session, module_collector)["facts"]] == [fact.code, other.code]


def test_the_last_fact_of_frozen_parameters_replaces_the_one_before(session, stream, module_collector):
    first = streams.wire.Fact("frozen_parameters", "2 of 3 parameters are frozen.", ("b", "c"))
    other = streams.wire.Fact("dead_config_key", "grad_accumulator_dtype does nothing.", ())
    later = streams.wire.Fact("frozen_parameters", "From step 9, 1 of 3 parameters is frozen.", ("c",))
    for facts in ((first, other), (other, later), (other, later)):
        session.put_hello(stream.hello(facts=facts)).raise_for_status()
    told = detail(session, module_collector)["facts"]
    assert [each["text"] for each in told] == [other.text, later.text]
    session.put_hello(stream.hello(facts=())).raise_for_status()
    assert detail(session, module_collector)["facts"] == told


def test_a_launch_begins_without_the_findings_about_the_loop_of_the_last_one(session, stream, module_collector):
    kept = streams.wire.Fact("dead_config_key", "grad_accumulator_dtype does nothing.", ())
    first, second = (streams.wire.Fact("never_cleared", f"At step {step}, ...", ()) for step in (42, 132))
    others = [streams.wire.Fact(code, code, ("a",)) for code in ("undone_updates", "own_loss")]
    for facts in ((kept, first), (kept, second, *others), ()):
        session.put_hello(stream.hello(facts=facts)).raise_for_status()
    assert [each["text"] for each in detail(session, module_collector)["facts"]] == [
        kept.text,
        second.text,
        "undone_updates",
        "own_loss",
    ]
    again = streams.Session(session.url, session.run, "session-2")
    again.put_hello(stream.hello(launch="launch-2")).raise_for_status()
    assert [each["text"] for each in detail(session, module_collector)["facts"]] == [kept.text]


def test_data_of_other_ranks_is_kept_and_not_drawn(session, stream, module_collector):
    session.send(stream, world_size=2)
    other = streams.Session(session.url, session.run, "session-2")
    other.send(streams.Stream(streams.healthy(20, 4, level=7.0)), world_size=2, rank=1)
    layers = module_collector.get(f"/api/v1/runs/{session.run}/layers").json()["layers"]
    assert all(layer["absmax"] < 1 for layer in layers)


def test_a_collapse_is_named_survives_a_restart_and_closes_with_its_run(collector):
    session = streams.Session(collector.url)
    session.send(streams.Stream(streams.collapsed(300, 40, [2, 4], 150), loss=streams.falling_loss(300)))
    questions = {"": {}, "/layers": {}, "/heatmap": {"order": "worst"}, "/series": {"layer": 2}, "/metrics": {}}

    def answers():
        return [collector.get(f"/api/v1/runs/run-1{path}", **params).json() for path, params in questions.items()]

    before = answers()
    run, layers, heatmap = before[0], before[1]["layers"], before[2]
    assert (run["worst"], run["firing"]) == ("critical", {"collapse": 2})
    assert [layer["layer"] for layer in layers if layer["rules"] == {"collapse": "firing"}] == [2, 4]
    assert all(layer["baseline"] == pytest.approx(1e-3, rel=0.15) for layer in layers)
    assert sorted(row["layers"][0] for row in heatmap["rows"][:2]) == [2, 4]
    assert {(mark["kind"], mark["step"]) for mark in heatmap["marks"]} == {("fired", 150)}

    collector.stop()
    collector.start()
    assert answers() == before
    (brief,) = session.heartbeat().json()["incidents"]
    assert (brief["rule"], brief["severity"], brief["layers"]) == ("collapse", "critical", 2)
    assert session.end().json()["incidents"] == []
    assert collector.get("/api/v1/runs/run-1").json()["open_incidents"] == []


def test_a_new_database_asks_for_the_hello(collector_factory, stream):
    old = collector_factory()
    session = streams.Session(old.url)
    session.put_hello(stream.hello()).raise_for_status()
    fresh = streams.Session(collector_factory().url)
    assert fresh.post_batch(0, stream.batch(0, 10)).json()["error"]["code"] == "unknown_session"
    fresh.put_hello(stream.hello()).raise_for_status()
    assert fresh.post_batch(0, stream.batch(0, 10)).json()["status"] == "stored"


def test_a_locked_database_is_503_and_comes_back(collector, stream):
    session = streams.Session(collector.url)
    session.put_hello(stream.hello()).raise_for_status()
    database = Database(collector.store_url)
    with database.write() as connection:
        connection.execute(select(run).with_for_update())
        answer = session.post_batch(0, stream.batch(0, 10))
        assert answer.status_code == 503
        assert answer.json()["error"]["code"] == "unavailable"
        assert int(answer.headers["retry-after"]) >= 1
        assert collector.get("/api/v1/runs").status_code == 200  # readers do not wait
    database.close()
    assert session.post_batch(0, stream.batch(0, 10)).json()["status"] == "stored"


WRONG = {
    "no JSON": (400, None, lambda raw: raw[:-1]),
    "another shape": (422, "steps.0", lambda raw: raw.replace(b'"steps":[0', b'"steps":["0"', 1)),
    "steps that do not rise": (422, "steps", lambda raw: raw.replace(b'"steps":[0,1,', b'"steps":[1,0,', 1)),
    "too few numbers": (422, "micro_steps", lambda raw: raw.replace(b'"micro_steps":[8,', b'"micro_steps":[', 1)),
    "a block that is too short": (422, "blocks.0.values", lambda raw: raw.replace(b'"values":"', b'"values":"AAAA', 1)),
}


def test_a_wrong_batch_is_refused_while_another_writer_works(collector, stream):
    session = streams.Session(collector.url)
    session.put_hello(stream.hello()).raise_for_status()
    raw, headers = wire.dump(stream.batch(0, 10)), {"Content-Type": "application/json"}
    database, found = Database(collector.store_url), {}
    with database.write() as connection:
        connection.execute(select(run).with_for_update())
        for name, (_, _, spoil) in WRONG.items():
            answer = httpx.post(session.path("/batches/0"), content=spoil(raw), headers=headers, timeout=60)
            found[name] = answer.status_code, answer.json()["error"]["field"]
    database.close()
    assert found == {name: (status, field) for name, (status, field, _) in WRONG.items()}
    assert session.post_batch(0, stream.batch(0, 10)).json()["status"] == "stored"


def test_many_sessions_at_once(collector):
    stream = streams.Stream(streams.healthy(200, 30))

    def send(number):
        streams.Session(collector.url, run=f"run-{number}").send(stream, size=10)

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(send, range(8))) == [None] * 8
    runs = collector.get("/api/v1/runs").json()["runs"]
    assert [(run["step"], run["layers"]) for run in runs] == [(199, 30)] * 8


def test_a_full_disk_asks_the_sender_to_come_back(tmp_path):
    database = Database(f"sqlite:///{tmp_path / 'x.db'}")
    database.migrate()
    with pytest.raises(StoreUnavailable) as full:
        fill(database)
    database.close()
    answer = full.value
    assert (answer.status, answer.code) == (503, "unavailable")
    assert answer.retry_after_s >= 1


def fill(database):
    with database.write() as connection:
        connection.exec_driver_sql("PRAGMA max_page_count = 1")
        connection.exec_driver_sql("INSERT INTO rule_state (run_id, packed) VALUES (1, zeroblob(10000000))")


def test_a_file_that_cannot_be_opened_now_asks_the_sender_to_come_back(tmp_path):
    """As where too many files are open, which SQLite says in the same words."""
    (tmp_path / "x.db").mkdir()
    with pytest.raises(StoreUnavailable, match="too many files"), translated():
        create_engine(f"sqlite:///{tmp_path / 'x.db'}").connect()


def test_a_process_without_a_file_descriptor_left_asks_the_sender_to_come_back():
    with pytest.raises(StoreUnavailable, match="too many files"), translated():
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    with pytest.raises(FileNotFoundError), translated():
        raise FileNotFoundError


def test_the_clock_is_the_databases(new_store_url):
    database = Database(new_store_url())
    with database.read() as connection:
        first = database.now(connection)
    with database.read() as connection:
        assert 0 <= database.now(connection) - first < 5
    database.close()


def test_an_outage_is_told_with_its_loop_and_its_end(caplog):
    caplog.set_level(logging.INFO)
    outage = OutageLog(logging.getLogger("an_outage_is_told"), "dispatcher")
    outage.end()
    for _ in range(3):
        assert outage.handles(StoreUnavailable("It is away."))
    outage.end()
    outage.end()
    assert caplog.messages == [
        "dispatcher: It is away. Trying again until it is back.",
        "dispatcher: the database is back.",
    ]
