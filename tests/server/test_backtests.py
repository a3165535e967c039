"""What rules would have said of the last runs: as `test-rules` has it, within bounds, changing nothing."""

import io
import math

import httpx
import pytest
import shapes
from streams import Session, Stream, collapsed, healthy
from waiting import eventually

from gradcanary_server import backtest, backtests, takes
from gradcanary_server.backtests import Backtests
from gradcanary_server.rules import Collapse, LayerRule, Rules

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
    answer = trained.get("/api/v1/rules/trials/0123456789abcdef")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_trial")


def test_a_run_that_did_not_change_is_not_played_again(trained, monkeypatch):
    counter = Backtests(trained.store_url, Rules())
    settled(lambda: vars(counter.present()))
    first = counter.present().counts
    monkeypatch.setattr(backtests, "FOR_S", -1.0)
    Session(trained.url, run="well", session="session-1").heartbeat()
    Session(trained.url, run="well").post_batch(1, Stream(healthy(80, 6)).batch(60, 80)).raise_for_status()
    again = counter.present()
    monkeypatch.setattr(backtests, "FOR_S", math.inf)
    settled(lambda: vars(again))
    now = again.counts
    same = [number for number in now if now[number] is first[number]]
    assert [now[number].run for number in same] == ["fell"]
    assert {each.run: each.samples for each in now.values()} == {"fell": STEPS, "well": 80}
    counter.stop()


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
