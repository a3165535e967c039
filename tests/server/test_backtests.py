"""What rules would have said of the last runs: as `test-rules` has it, within bounds, changing nothing."""

import io
from dataclasses import replace

import httpx
import pytest
import shapes
from collectors import Collector
from sqlalchemy import select
from streams import Session, Stream, collapsed, healthy
from waiting import eventually

from gradcanary_server import backtest, backtest_rows, replays, takes
from gradcanary_server.backtest_rows import Found
from gradcanary_server.backtests import Backtests
from gradcanary_server.database import Database
from gradcanary_server.rules import Collapse, LayerRule, Rules
from gradcanary_server.schema import backtest as backtest_table

LAYERS, AT, STEPS = 24, 130, 300
DEAF = "version: 1\nrules:\n  collapse: {enabled: false}\nlayers:\n- match: lora_A\n  explosion: {ratio: 50}\n"
PATIENCE_S = 300.0
"""The process that counts lets others have the processor."""

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)


def settled(ask):
    return eventually(lambda: None if (found := ask())["state"] in ("waiting", "counting") else found, PATIENCE_S)


@pytest.fixture(scope="module")
def trained(module_collector):
    """A run of which four layers collapse, one that is well and goes on, one in the archive."""
    url = module_collector.url
    Session(url, run="aside").send(Stream(collapsed(STEPS, LAYERS, range(4), AT)))
    httpx.patch(f"{url}/api/v1/runs/aside", json={"archived": True}).raise_for_status()
    fell = Session(url, run="fell")
    fell.send(Stream(collapsed(STEPS, LAYERS, range(4), AT)))
    fell.end(last_step=STEPS - 1).raise_for_status()
    Session(url, run="well").send(Stream(healthy(60, 6)))
    return module_collector


@pytest.fixture
def attempt(trained):
    def post(text):
        return httpx.post(f"{trained.url}/api/v1/rules/trials", json={"text": text})

    return post


def test_the_rules_in_force_and_others_are_tried_on_the_last_runs(trained, attempt):
    incidents = trained.get("/api/v1/incidents").json()
    found = settled(lambda: shapes.hold("backtest", trained.get("/api/v1/rules/backtest")))
    well, fell = found["outcomes"]
    assert (found["id"], found["runs"], found["left"], found["state"]) == (None, 2, 0, "counted")
    assert (well["run"], well["messages"], well["incidents"], well["by_rule"]) == ("well", 0, 0, {})
    assert (well["samples"], well["first_step"], well["last_step"], well["is_whole"]) == (60, 0, 59, True)
    assert fell["by_rule"] == {"collapse": fell["messages"]}
    assert fell["messages"] == found["messages"] >= 1
    assert found["incidents"] == 1
    assert fell["matched"] == [], "these rules have no entry of layers"

    tried = attempt(DEAF)
    assert tried.status_code == 201
    other = settled(lambda: trained.get(f"/api/v1/rules/trials/{tried.json()['id']}").json())
    assert (other["messages"], other["incidents"], other["runs"]) == (0, 0, 2)
    assert [each["matched"] for each in other["outcomes"]] == [[3], [LAYERS // 2]]
    assert attempt(DEAF).json()["id"] == other["id"], "the same rules are counted once"

    assert trained.get("/api/v1/incidents").json() == incidents
    assert trained.get("/api/v1/rules").json()["collapse"]["enabled"] is True
    assert trained.get("/api/v1/rules/backtest").json() == found, "and not counted anew so soon"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("version: 1\nrules:\n  colapse: {}\n", "rules.yaml, line 3: unknown key 'colapse' in rules"),
        ("version: 1\nrules: {collapse: {enter: -1}}\n", "rules.yaml, line 2: enter is -1"),
        ("a: &a [1]\nb: *a\n", "write out what *alias stands for"),
        ("[" * 60_000, "nested more than 100 deep"),
        ("- " * 5_000, "nested too deep"),
        ("version: 1\nrules: {", "rules.yaml is not YAML"),
        ("", "text"),
        ("#" * 64_001, "text"),
    ],
)
def test_rules_that_are_none_are_refused_with_the_line(attempt, text, said):
    answer = attempt(text)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "text")
    assert said in answer.json()["error"]["message"]


def test_rules_that_nobody_tried_are_unknown(trained):
    for name in ("0123456789abcdef", "%00", "x" * 3_000):
        answer = trained.get(f"/api/v1/rules/trials/{name}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_trial"), name


@pytest.fixture
def another(trained, tmp_path):
    """Another collector of the store; of SQLite, which has one, that one after a restart."""
    if trained.db is None:
        trained.stop()
        yield trained.start()
        return
    beside = Collector(tmp_path / "beside", db=trained.db)
    yield beside.start()
    beside.kill()


def test_what_one_collector_was_asked_another_one_answers(trained, attempt, request):
    tried = attempt(DEAF.replace("50", "51")).json()["id"]
    asked = f"/api/v1/rules/trials/{tried}"
    mine = settled(lambda: trained.get(asked).json())
    other = request.getfixturevalue("another")
    assert other.get(asked).json() == mine
    assert other.get("/api/v1/rules/backtest").json()["state"] == "counted", "and it is not counted anew"
    newer = httpx.post(f"{other.url}/api/v1/rules/trials", json={"text": DEAF.replace("50", "52")}).json()["id"]
    found = settled(lambda: trained.get(f"/api/v1/rules/trials/{newer}").json())
    assert (found["state"], found["runs"], found["left"]) == ("counted", 2, 0)


class Clocked(Database):
    """A store whose clock is set."""

    ahead_s = 0.0

    def now(self, connection):
        return super().now(connection) + self.ahead_s


@pytest.fixture
def store(trained):
    database = Clocked(trained.store_url)
    yield database
    database.close()


@pytest.fixture
def counter(trained, store):
    """What counts in a collector, with rules that nobody else has."""
    made = Backtests(store, trained.store_url, Rules(layers=(LayerRule("nowhere", collapse=Collapse(enabled=False)),)))
    yield made
    made.stop()


def stored(store, name):
    with store.read() as connection:
        return backtest_rows.find(connection, name, store.now(connection))


def test_a_run_that_did_not_change_is_not_played_again(trained, store, counter):
    first = settled(lambda: vars(counter.present()))["found"].counts
    forged = {number: replace(each, messages=99) for number, each in first.items()}
    with store.write() as connection:
        claim = backtest_rows.claim(connection, counter.name, store.now(connection) + backtest_rows.FOR_S + 1)
        found = Found(tuple(forged), 0, forged)
        backtest_rows.conclude(connection, claim, found, store.now(connection), is_whole=True)
    Session(trained.url, run="well", session="session-1").heartbeat()
    Session(trained.url, run="well").post_batch(1, Stream(healthy(80, 6)).batch(60, 80)).raise_for_status()
    assert counter.present().state == "counted"
    store.ahead_s = backtest_rows.FOR_S + 1
    assert counter.present().state == "waiting"
    now = settled(lambda: vars(counter.present()))["found"].counts.values()
    assert {each.run: each.messages for each in now} == {"fell": 99, "well": 0}
    assert {each.run: each.samples for each in now} == {"fell": STEPS, "well": 80}


def test_of_several_that_count_one_does_until_it_is_not_heard_of(store, counter):
    name = counter.try_rules(Rules(layers=(LayerRule("lora_A", collapse=Collapse(enter=1e-6)),)))
    with store.write() as connection:
        claim = backtest_rows.claim(connection, name, store.now(connection))
        assert backtest_rows.claim(connection, name, store.now(connection)) is None
    assert counter.tried(name).state == "counting"
    store.ahead_s = backtest_rows.LEASE_S + 1
    found = settled(lambda: vars(counter.tried(name)))["found"]
    assert (len(found.counts), found.left) == (2, 0)
    with store.write() as connection:
        now = store.now(connection)
        assert not backtest_rows.keep(connection, claim, Found(), now), "who comes back late writes nothing"
        assert not backtest_rows.conclude(connection, claim, Found(), now, is_whole=False)
    assert stored(store, name).found == found


def test_what_is_being_counted_as_a_collector_stops_is_left_to_others(store, counter, monkeypatch):
    monkeypatch.setattr(replays, "_START", "import time; time.sleep(600)")
    assert counter.present().state == "waiting"
    eventually(lambda: counter.present().state != "waiting", PATIENCE_S)
    counter.stop(PATIENCE_S)
    assert stored(store, counter.name).state == "waiting"
    assert counter.present().state == "waiting", "and it counts no more"


def test_a_process_that_fails_is_said_to_have_and_not_started_each_second(store, counter, monkeypatch, caplog):
    monkeypatch.setattr(replays, "_START", "raise SystemExit(3)")
    assert settled(lambda: vars(counter.present()))["state"] == "failed"
    assert "ended with 3" in caplog.text
    assert counter.present().state == "failed"
    store.ahead_s = backtest_rows.FOR_S + 1
    assert counter.present().state == "waiting"


def test_rules_are_remembered_for_a_day_and_only_so_many(store, counter):
    store.ahead_s = backtest_rows.FOR_S * 2  # later than anything here was counted
    names = [counter.try_rules(Rules(layers=(LayerRule(f"x{each}"),))) for each in range(backtest_rows.KEPT + 1)]
    assert [name for name in names if stored(store, name) is None] == names[:1]
    store.ahead_s += backtest_rows.KEPT_S + 1
    assert stored(store, names[-1]) is None
    last = counter.try_rules(Rules())
    with store.read() as connection:
        assert connection.scalars(select(backtest_table.c.name)).all() == [last]


def test_what_was_counted_of_the_rules_in_force_outlasts_trials_and_days(store, counter):
    store.ahead_s = 3 * backtest_rows.KEPT_S  # of what others tried nothing is left
    runs = settled(lambda: vars(counter.present()))["found"].runs
    for _ in range(3):
        store.ahead_s += 0.6 * backtest_rows.KEPT_S
        for each in range(backtest_rows.KEPT + 1):
            counter.try_rules(Rules(layers=(LayerRule(f"y{each}"),)))
        assert counter.present().found.runs == runs
        settled(lambda: vars(counter.present()))


def test_what_is_being_counted_is_not_forgotten(store, counter):
    store.ahead_s = 9 * backtest_rows.KEPT_S
    name = counter.try_rules(Rules(layers=(LayerRule("z"),)))
    with store.write() as connection:
        claim = backtest_rows.claim(connection, name, store.now(connection))
    for each in range(backtest_rows.KEPT + 1):
        counter.try_rules(Rules(layers=(LayerRule(f"z{each}"),)))
    with store.write() as connection:
        assert backtest_rows.keep(connection, claim, Found(), store.now(connection))


def test_whatever_fails_as_a_count_is_kept_it_is_tried_again(store, counter, monkeypatch, caplog):
    real, calls = backtest_rows.keep, []

    def keep(*of):
        calls.append(of)
        if len(calls) == 1:
            raise OSError("a descriptor too many")
        return real(*of)

    monkeypatch.setattr(backtest_rows, "keep", keep)
    monkeypatch.setattr(replays, "KEEP_S", 0.05)
    monkeypatch.setattr(replays, "RENEW_S", 0.0)
    monkeypatch.setattr(replays, "_START", "import time; time.sleep(3)")
    store.ahead_s = 20 * backtest_rows.KEPT_S
    settled(lambda: vars(counter.present()))
    assert len(calls) > 1
    assert "a descriptor too many" in caplog.text


def source(steps, layers):
    """A run of which a quarter of the layers collapses, as a CSV file has it."""
    absmax = collapsed(steps, layers, range(layers // 4), AT)
    head = ",".join(["step", "time", *(f"blocks.{number}.lora_A" for number in range(layers))])
    rows = [
        f"{step},2026-01-01T00:{step // 60:02}:{step % 60:02}Z," + ",".join(map(repr, row.tolist()))
        for step, row in enumerate(absmax)
    ]
    return takes.of_csv("run", io.StringIO("\n".join([head, *rows])))


def test_of_a_long_run_the_beginning_is_played(monkeypatch):
    whole = backtest.count(source(600, 8), Rules(), 1)
    assert (whole.samples, whole.is_whole, whole.messages) == (600, True, 1)
    monkeypatch.setattr(backtest, "POINTS", 8 * 100)
    cut = backtest.count(source(600, 8), Rules(), 1)
    assert (cut.samples, cut.last_step, cut.is_whole) == (256, 255, False)
    monkeypatch.setattr(backtest, "POINTS", 8 * 300)
    assert backtest.count(source(600, 8), Rules(), 1).samples == 512
    monkeypatch.setattr(backtest, "SAMPLES", 10)
    assert backtest.count(source(600, 8), Rules(), 1).samples == 256


def test_an_entry_of_layers_tells_how_many_it_holds_for():
    rules = Rules(
        layers=(LayerRule("blocks.[0-4]", collapse=Collapse(enabled=False)), LayerRule("lora_A"), LayerRule("x"))
    )
    assert backtest.count(source(10, 8), rules, 1).matched == (5, 3, 0)
