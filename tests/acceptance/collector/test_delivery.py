"""A real collector process, a real stream, a real receiver: restarts and kills in the middle."""

import time

import httpx
import pytest

from support.dialects import one_store
from support.receivers import SECRET, hang
from support.streams import Session, Stream, collapsed, healthy
from support.waiting import eventually

LAYERS, FALLEN, AT = 330, 300, 130

RULES = """\
version: 1
pace: {wait_s: 1, interval_s: 600}
"""

MISSED = """\
version: 1
rules: {silent: {after_s: 1, intervals: 1}}
"""


@pytest.fixture
def caught(collector_factory, receiver_factory, tmp_path):
    """Start a collector with a receiver; send 300 of 330 layers collapsing; return collector, receiver and session."""

    def start(*answers):
        receiver = receiver_factory(*answers)
        rules = tmp_path / "rules.yaml"
        rules.write_text(RULES)
        collector = collector_factory(
            "--webhook", receiver.url, "--rules", str(rules), env={"GRADCANARY_WEBHOOK_SECRET": SECRET}
        )
        session = Session(collector.url, client=client)
        session.send(Stream(collapsed(AT + 40, LAYERS, range(FALLEN), AT)))
        return collector, receiver, session

    with httpx.Client(timeout=30) as client:
        yield start


def delivered(collector):
    deliveries = collector.get("/api/v1/incidents/1").json()["deliveries"]
    return deliveries if [entry["state"] for entry in deliveries] == ["delivered"] else None


def test_three_hundred_layers_at_once_are_one_webhook(caught):
    collector, receiver, session = caught()
    receiver.wait(1)
    [delivery] = eventually(lambda: delivered(collector))
    assert session.heartbeat(AT + 39).json()["incidents"][0]["layers"] == FALLEN
    session.end(last_step=AT + 39)
    time.sleep(2)
    [message] = receiver.verified(SECRET)
    assert message["type"] == "gradient.collapse.opened"
    assert message["data"]["counts"] == {"firing": FALLEN, "ever": FALLEN, "layers": LAYERS}
    assert message["data"]["prefixes"] == ["blocks.0-149.attn.*.weight"]
    assert (delivery["kind"], delivery["version"], len(delivery["attempts"])) == ("opened", 1, 1)
    assert delivery["attempts"][0]["status"] == 200
    [incident] = collector.get("/api/v1/incidents").json()["incidents"]
    assert (incident["state"], incident["resolution"]) == ("ended", "run_finished")


def test_a_restart_before_and_after_the_message_leaves_one(caught):
    collector, receiver, _ = caught()
    collector.stop()
    collector.start()
    receiver.wait(1)
    eventually(lambda: delivered(collector))
    collector.stop()
    collector.start()
    time.sleep(3)
    assert [message.type for message in receiver.got] == ["gradient.collapse.opened"]


def test_a_kill_before_the_answer_repeats_the_same_message(caught):
    collector, receiver, _ = caught(hang)
    receiver.wait(1)
    collector.kill()
    collector.start()
    receiver.wait(2)
    first, second = receiver.got
    assert (first.id, first.body) == (second.id, second.body)
    assert len(receiver.verified(SECRET)) == 2
    eventually(lambda: delivered(collector))


@one_store
def test_a_run_that_is_not_heard_of_is_told_and_so_is_its_return(collector_factory, receiver_factory, tmp_path):
    receiver = receiver_factory()
    rules = tmp_path / "rules.yaml"
    rules.write_text(f"{MISSED}pace: {{wait_s: 0.1, interval_s: 0.1}}\n")
    arguments = ("--webhook", receiver.url, "--rules", str(rules))
    collector = collector_factory(*arguments, env={"GRADCANARY_WEBHOOK_SECRET": SECRET})
    with httpx.Client(timeout=30) as client:
        session = Session(collector.url, client=client)
        session.send(Stream(healthy(5, 4)), interval_s=0.1)
        receiver.wait(1)
        seen = collector.get("/api/v1/runs/run-1").json()
        assert (seen["state"], seen["worst"], seen["headline"]) == ("silent", "critical", "nothing heard since step 4")
        assert session.heartbeat(4).json()["incidents"] == []
        receiver.wait(2)
    told = receiver.verified(SECRET)[:2]
    assert [message["type"] for message in told] == ["gradient.silent.opened", "gradient.silent.resolved"]
    assert [message["data"]["resolution"] for message in told] == [None, "resumed"]
    assert told[1]["data"]["counts"] == {"firing": 0, "ever": 0, "layers": 4}


@one_store
def test_a_run_that_fell_and_fell_silent_says_both(collector_factory, tmp_path):
    rules = tmp_path / "rules.yaml"
    rules.write_text(MISSED)
    collector = collector_factory("--rules", str(rules))
    with httpx.Client(timeout=30) as client:
        Session(collector.url, client=client).send(Stream(collapsed(400, 4, [1, 2], 240)), interval_s=0.1)
        eventually(lambda: collector.get("/api/v1/runs/run-1").json()["state"] == "silent")
        eventually(lambda: len(collector.get("/api/v1/runs/run-1").json()["open_incidents"]) == 2)
        headline = collector.get("/api/v1/runs/run-1").json()["headline"]
    assert headline == "2 of 4 parameters collapsed at step 240; nothing heard since step 399"


@one_store
@pytest.mark.parametrize("is_known", [True, False], ids=["answered", "under_way"])
def test_deleted_run_sends_its_resolution_and_is_not_shown(collector_factory, receiver_factory, tmp_path, is_known):
    """Though the collector is killed there and then, and another run takes the name.

    What was under way may have arrived, and nobody knows that: its end is told all the same.
    """
    receiver, rules = receiver_factory(*[] if is_known else [hang]), tmp_path / "rules.yaml"
    rules.write_text("version: 1\npace: {wait_s: 0.1, interval_s: 5}\n")
    arguments = ("--webhook", f"ended={receiver.url}", "--rules", str(rules))
    collector = collector_factory(*arguments, env={"GRADCANARY_WEBHOOK_SECRET": SECRET})
    session = Session(collector.url)
    session.send(Stream(collapsed(AT + 40, 4, range(1), AT)))
    receiver.wait(1)
    if is_known:
        eventually(lambda: delivered(collector))
    assert session.client.delete(f"{collector.url}/api/v1/runs/run-1").status_code == 204
    assert session.client.delete(f"{collector.url}/api/v1/runs/run-1").status_code == 404
    collector.kill()
    collector.start()
    for path in ("runs?archived=false", "runs?archived=true", "storage", "incidents"):
        answer = collector.get(f"/api/v1/{path}").json()
        assert answer.get("runs", answer.get("incidents")) == [], path
    assert collector.get("/api/v1/incidents/1").status_code == 404
    assert collector.get("/api/v1/silences/preview", run="*").json()["runs"] == 0
    assert "\ngradcanary_runs 0.0\n" in collector.get("/metrics").text
    assert (session.heartbeat().status_code, session.put_hello(Stream(healthy(9, 4)).hello()).status_code) == (410, 410)
    Session(collector.url, session="another").send(Stream(healthy(10, 4)))
    receiver.wait(2)
    assert [message.type for message in receiver.got] == ["gradient.collapse.opened", "gradient.collapse.ended"]
    told = receiver.verified(SECRET)[-1]["data"]
    assert (told["run"], told["resolution"], told["incident"]) == ("run-1", "run_deleted", 1)
    log = collector.get("/api/v1/endpoints/1/deliveries").json()["deliveries"]
    assert {(each["run"], each["incident"]) for each in log} <= {("run-1", 1)}
    eventually(lambda: collector.get("/api/v1/endpoints/1/deliveries").json()["deliveries"] == [])
    assert collector.get("/api/v1/runs/run-1").json()["step"] == 9


def test_incidents_over_http(caught):
    collector, receiver, _ = caught()
    receiver.wait(1)
    eventually(lambda: delivered(collector))
    one = collector.get("/api/v1/incidents/1")
    assert SECRET not in one.text
    incident = one.json()
    assert set(incident) == {
        "id", "run", "rule", "severity", "state", "opened_step", "opened", "resolved_step", "resolution", "reopened",
        "since_step", "resolved", "reopened_at", "last_deliveries",
        "acked", "silenced", "counts", "layers", "caused_by", "also", "crash", "explanation", "summary", "likely_cause",
        "fix", "url", "deliveries", "run_state", "previous", "next", "names", "runbook_url",
    }  # fmt: skip
    assert len(incident["layers"]) == FALLEN
    assert set(incident["layers"][0]) == {
        "layer", "name", "block", "severity", "since_step", "until_step", "value", "baseline", "siblings", "evidence",
        "rank", "metric",
    }  # fmt: skip
    assert abs(incident["layers"][0]["since_step"] - AT) <= 1
    assert 19 <= incident["opened_step"] - AT <= 30
    assert incident["fix"]["framework"] == "peft"
    [listed] = collector.get("/api/v1/incidents", run="run-1", state="open").json()["incidents"]
    assert listed.items() <= incident.items()
    assert collector.get("/api/v1/incidents", state="resolved").json() == {"incidents": [], "next": None}
    assert collector.get("/api/v1/incidents", since="2100-01-01T00:00:00Z").json()["incidents"] == []


def ack(collector, number, **body):
    return httpx.post(f"{collector.url}/api/v1/incidents/{number}/ack", json=body)


def test_an_acknowledgement_is_noted(caught):
    collector, _, _ = caught()
    revision = collector.get("/api/v1/runs/run-1").json()["revision"]
    answer = ack(collector, 1, by="ada", note="restarting").json()
    assert (answer["acked"]["by"], answer["acked"]["note"]) == ("ada", "restarting")
    assert collector.get("/api/v1/runs/run-1").json()["revision"] == revision + 1


def test_a_second_acknowledgement_keeps_the_note_unless_it_has_one(caught):
    collector, _, _ = caught()
    given = [{}, {"note": "restarting"}, {"new_baseline": True}, {"note": ""}]
    assert [ack(collector, 1, by="ada", **body).json()["acked"]["note"] for body in given] == [
        "",
        "restarting",
        "restarting",
        "",
    ]


def test_a_wrong_acknowledgement_is_refused(caught):
    collector, _, _ = caught()
    for number, body, status, field in (
        (1, {"by": "ada", "new_baseline": 1}, 422, "new_baseline"),
        (1, {"by": ""}, 422, "by"),
        (1, {"by": "a\0"}, 422, "by"),
        (1, {"by": 3}, 422, "by"),
        (1, {"by": "ada", "more": 1}, 422, "more"),
        (7, {"by": "ada"}, 404, "incident"),
        (2**70, {"by": "ada"}, 404, "incident"),
    ):
        answer = ack(collector, number, **body)
        assert (answer.status_code, answer.json()["error"]["field"]) == (status, field), body
    assert collector.get("/api/v1/incidents/1").json()["acked"] is None


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [({"run": "nobody"}, 404, "run"), ({"state": "closed"}, 422, "state"), ({"since": "tuesday"}, 422, "since")],
)
def test_a_wrong_question_is_refused(collector, query, status, field):
    answer = collector.get("/api/v1/incidents", **query)
    assert (answer.status_code, answer.json()["error"]["field"]) == (status, field)
    assert collector.get("/api/v1/incidents/7").status_code == 404
