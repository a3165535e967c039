"""What rules would have sent of the last runs: as `test-rules` has it, within bounds, changing nothing."""

import io
import json
from contextlib import contextmanager

import httpx
import pytest
from fastapi.testclient import TestClient

from gradcanary_server import caches
from gradcanary_server.app import create_app
from gradcanary_server.ops import backtest_worker, backtests, replay_source
from gradcanary_server.rules.config import Collapse, LayerRule, Rules
from gradcanary_server.settings import Settings
from support import schemas
from support.backtest_processes import frozen, is_over, player_of
from support.collectors import Collector
from support.streams import Session, Stream, collapsed, healthy
from support.waiting import eventually

LAYERS, AT, STEPS = 24, 130, 300
OTHERS = "version: 1\nrules:\n  collapse: {enabled: false}\nlayers:\n- match: lora_A\n  explosion: {ratio: 50}\n"
PATIENCE_S = 300.0
"""The process that counts has a lower priority."""

pytestmark = pytest.mark.timeout(3 * PATIENCE_S)


def train(url):
    """A run of which four layers collapse, one that is well and goes on, one in the archive."""
    Session(url, run="aside").send(Stream(collapsed(STEPS, LAYERS, range(4), AT)))
    httpx.patch(f"{url}/api/v1/runs/aside", json={"archived": True}).raise_for_status()
    fell = Session(url, run="fell")
    fell.send(Stream(collapsed(STEPS, LAYERS, range(4), AT)))
    fell.end(last_step=STEPS - 1).raise_for_status()
    Session(url, run="well").send(Stream(healthy(60, 6)))


@pytest.fixture(scope="module")
def trained(module_collector):
    train(module_collector.url)
    return module_collector


@contextmanager
def asked(collector, wish=None, **headers):
    with (
        httpx.Client(base_url=collector.url, timeout=PATIENCE_S, headers=headers) as client,
        client.stream("POST", "/api/v1/rules/trials", json={} if wish is None else wish) as answer,
    ):
        yield answer


def lines_of(answer):
    """The lines of a trial, each held to its schema."""
    assert answer.status_code == 200, answer.read()
    yield from schemas.hold_lines(answer)


def tried(collector, text=None):
    with asked(collector, {"text": text}) as answer:
        assert answer.headers["content-type"] == "application/x-ndjson"
        return list(lines_of(answer))


def test_the_rules_in_force_and_others_are_tried_on_the_last_runs(trained):
    incidents = trained.get("/api/v1/incidents").json()
    *progress, result = tried(trained, OTHERS)
    assert {each["kind"] for each in progress} == {"progress"}
    assert list(dict.fromkeys((each["played"], each["runs"]) for each in progress)) == [(0, None), (0, 2), (1, 2)]
    assert (result["kind"], result["runs"], result["played"]) == ("result", 2, 2)
    well, fell = result["outcomes"]
    assert (well["run"], well["samples"], well["first_step"], well["last_step"]) == ("well", 60, 0, 59)
    assert well["is_whole"] is True
    quiet = {"incidents": 0, "messages": 0, "by_rule": {}}
    assert well["counts"] == {"in_force": quiet, "tried": quiet}
    count = fell["counts"]["in_force"]
    assert count["by_rule"] == {"collapse": count["messages"]}
    assert count["messages"] >= 1
    assert fell["counts"]["tried"] == quiet
    entries = [{"match": "lora_A", "layers": LAYERS // 2, "runs": 2}]
    in_force = {"incidents": 1, "messages": count["messages"], "entries": []}
    assert result["totals"] == {"in_force": in_force, "tried": {"incidents": 0, "messages": 0, "entries": entries}}

    assert trained.get("/api/v1/incidents").json() == incidents
    assert trained.get("/api/v1/rules").json()["collapse"]["enabled"] is True

    alone = tried(trained)[-1]
    assert alone["totals"] == {"in_force": in_force}


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
def test_rules_that_are_none_are_refused_with_the_line(trained, text, said):
    answer = httpx.post(f"{trained.url}/api/v1/rules/trials", json={"text": text})
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "text")
    assert said in answer.json()["error"]["message"]


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_lines_come_while_runs_are_played_and_one_trial_runs_at_a_time(trained, encoding):
    with asked(trained, **{"accept-encoding": encoding}) as answer:
        assert answer.headers.get("content-encoding", "identity") == encoding
        assert "no-store" in answer.headers["cache-control"]
        lines = lines_of(answer)
        assert next(lines)["played"] == 0
        player = player_of(trained)
        with frozen(player):
            for _ in range(3):
                next(lines)
            other = httpx.post(f"{trained.url}/api/v1/rules/trials", json={}, timeout=PATIENCE_S)
            assert (other.status_code, other.json()["error"]["code"]) == (429, "trial_runs")
            assert "one trial runs at a time" in other.json()["error"]["message"]
            assert int(other.headers["retry-after"]) > 0
            assert trained.get("/readyz").status_code == 200
            answer.close()
            eventually(lambda: is_over(player), 30)
    assert tried(trained)[-1]["played"] == 2, "and the next one has its turn"


def test_a_trial_that_is_left_in_the_middle_ends_its_process(trained):
    """As when a tab is closed: the connection is gone, and nothing is said."""
    with asked(trained) as answer:
        lines = lines_of(answer)  # httpx closes the connection with it
        next(lines)
        player = player_of(trained)
        assert not is_over(player)
    eventually(lambda: is_over(player), 30)
    assert tried(trained)[-1]["played"] == 2


@pytest.fixture
def another(tmp_path):
    collector = Collector(tmp_path / "another").start()
    train(collector.url)
    yield collector
    collector.kill()


def test_a_trial_ends_with_the_collector_and_says_so(another):
    with asked(another) as answer:
        lines = lines_of(answer)
        next(lines)
        player = player_of(another)
        with frozen(player):
            assert another.stop() == 0
            assert is_over(player)
        *_, last = lines
        assert (last["kind"], last["code"]) == ("error", "trial_failed")
        assert "The collector is stopping" in last["message"]


def test_a_trial_ends_with_a_collector_that_is_killed(another):
    with asked(another) as answer:
        lines = lines_of(answer)
        next(lines)
        player = player_of(another)
        another.kill()
        eventually(lambda: is_over(player), 30)


@pytest.fixture
def app(tmp_path):
    app = create_app(Settings(tmp_path, f"sqlite:///{tmp_path / 'gradcanary.db'}"))
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def lines_from(app):
    return [json.loads(line) for line in app.post("/api/v1/rules/trials", json={}).text.splitlines()]


def test_backtest_of_a_store_without_runs(app):
    none = {"incidents": 0, "messages": 0, "entries": []}
    assert lines_from(app)[-1:] == [
        {"kind": "result", "runs": 0, "played": 0, "totals": {"in_force": none}, "outcomes": []}
    ]


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit(3)", "ended with status 3: see the collector's log"),
        ("import time; time.sleep(600)", "It took longer than 0 minutes"),
        ("print('.' * 2000)", "wrote a line that is too long"),
    ],
)
def test_a_process_that_fails_is_an_error_and_the_next_one_has_its_turn(app, monkeypatch, program, said):
    with monkeypatch.context() as patch:
        patch.setattr(backtests, "_SCRIPT", program)
        patch.setattr(backtests, "TIMEOUT_S", 3.0)
        patch.setattr(backtests, "LINE_BYTES", 1000)
        line = lines_from(app)[-1]
    assert (line["kind"], line["code"]) == ("error", "trial_failed")
    assert said in line["message"]
    assert lines_from(app)[-1]["kind"] == "result"


def test_the_process_has_its_share_of_the_caches(app, monkeypatch, tmp_path):
    read = f"import sys; open({str(tmp_path / 'task')!r}, 'w').write(sys.stdin.readline()); raise SystemExit(3)"
    monkeypatch.setattr(backtests, "_SCRIPT", read)
    assert lines_from(app)[-1]["kind"] == "error"
    assert json.loads((tmp_path / "task").read_text())["cache_bytes"] == caches.split_cache_budget().backtests


def test_a_run_that_cannot_be_played_or_not_in_time_is_left_out(monkeypatch, caplog, capsys):
    class Row:
        name = "broken"

    def fail(*_):
        raise MemoryError

    monkeypatch.setattr(backtest_worker, "play_run", fail)
    assert backtest_worker._play_runs(None, None, {}, [Row, Row]) == []
    assert "run broken could not be played again" in caplog.text
    assert capsys.readouterr().out.count('"progress"') == 2
    monkeypatch.setattr(backtest_worker, "PLAY_S", -1.0)
    monkeypatch.setattr(backtest_worker, "play_run", lambda *_: pytest.fail("it is too late"))
    assert backtest_worker._play_runs(None, None, {}, [Row, Row]) == []


def source(steps, layers):
    """A run of which a quarter of the layers collapses, as a CSV file has it."""
    absmax = collapsed(steps, layers, range(layers // 4), AT)
    head = ",".join(["step", "time", *(f"blocks.{number}.lora_A" for number in range(layers))])
    rows = [
        f"{step},2026-01-01T00:{step // 60:02}:{step % 60:02}Z," + ",".join(map(repr, row.tolist()))
        for step, row in enumerate(absmax)
    ]
    return replay_source.source_of_csv("run", io.StringIO("\n".join([head, *rows])))


def played(source, rules):
    return backtest_worker.play(source, {"in_force": rules})


def test_backtest_plays_the_beginning_of_a_long_run(monkeypatch):
    whole = played(source(600, 8), Rules())
    assert (whole.samples, whole.is_whole, whole.counts["in_force"].messages) == (600, True, 1)
    monkeypatch.setattr(backtest_worker, "MAX_POINTS", 8 * 100)
    cut = played(source(600, 8), Rules())
    assert (cut.samples, cut.last_step, cut.is_whole) == (256, 255, False)
    monkeypatch.setattr(backtest_worker, "MAX_POINTS", 8 * 300)
    assert played(source(600, 8), Rules()).samples == 512
    monkeypatch.setattr(backtest_worker, "MAX_SAMPLES", 10)
    assert played(source(600, 8), Rules()).samples == 256


def test_an_entry_of_layers_tells_how_many_it_holds_for():
    rules = Rules(
        layers=(LayerRule("blocks.[0-4]", collapse=Collapse(enabled=False)), LayerRule("lora_A"), LayerRule("x"))
    )
    assert played(source(10, 8), rules).matched["in_force"] == (5, 3, 0)
