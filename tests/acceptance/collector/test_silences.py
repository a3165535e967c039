"""Silences, acknowledgements and new baselines over HTTP, and what a receiver hears of them."""

import time
from dataclasses import replace
from datetime import datetime, timedelta, timezone

import httpx
import numpy as np
import pytest
from sqlalchemy import event, select

from gradcanary_server.errors import RequestError
from gradcanary_server.incidents import silences
from gradcanary_server.incidents.silences import Silence
from gradcanary_server.notify import endpoints, outbox, planner
from gradcanary_server.rules.config import Pace
from gradcanary_server.storage.schema import incident
from support.collectors import Collector
from support.dialects import one_store
from support.receivers import Receiver
from support.server.transitions import fired
from support.streams import Session, Stream, collapsed, healthy, shared_client
from support.waiting import eventually

LAYERS, AT, FALLEN = 24, 130, (0, 2, 4)
WAIT_S, INTERVAL_S, REMIND_S = 0.2, 0.4, 1.0
QUIET_S = 1.7
"""Without a message, after which none comes any more: more than any of the above, and two rounds of the dispatcher."""

RULES = f"""\
version: 1
pace: {{wait_s: {WAIT_S}, interval_s: {INTERVAL_S}, remind_s: {REMIND_S}}}
"""


@pytest.fixture(scope="module")
def stage(tmp_path_factory, new_db):
    """Return a collector and its receiver, which all tests share, each under a run name of its own."""
    rules = tmp_path_factory.mktemp("rules") / "rules.yaml"
    rules.write_text(RULES)
    receiver = Receiver()
    arguments = ("--webhook", receiver.url, "--rules", str(rules))
    collector = Collector(tmp_path_factory.mktemp("collector"), arguments, db=new_db())
    yield collector.start(), receiver
    collector.kill()
    receiver.close()


class Story:
    """A run whose gradients are told row by row, and what the receiver heard of it."""

    def __init__(self, stage, run, absmax, **hello):
        self.collector, self.receiver = stage
        self.run = run
        self.stream = Stream(absmax)
        self.session = Session(self.collector.url, run=run)
        self.session.put_hello(self.stream.hello(**hello)).raise_for_status()
        self.sent = self.seq = 0

    def tell(self, rows):
        while self.sent < rows:
            end = min(self.sent + 64, rows)
            batch = self.stream.batch(self.sent, end, change_records=self.seq == 0)
            self.session.post_batch(self.seq, batch).raise_for_status()
            self.sent, self.seq = end, self.seq + 1

    @property
    def heard(self):
        return [message for message in list(self.receiver.got) if message.data["run"] == self.run]

    def kinds(self):
        return [message.type.rsplit(".", 1)[1] for message in self.heard]

    def wait(self, count, seconds=30):
        end = time.monotonic() + seconds
        while len(self.heard) < count:
            assert time.monotonic() < end, (self.kinds(), count)
            time.sleep(0.05)
        return self.heard[count - 1]

    def hears_nothing(self):
        before = len(self.heard)
        time.sleep(QUIET_S)
        return len(self.heard) == before

    def incident(self):
        [listed] = self.collector.get("/api/v1/incidents", run=self.run).json()["incidents"]
        return self.collector.get(f"/api/v1/incidents/{listed['id']}").json()

    def revision(self):
        return self.collector.get(f"/api/v1/runs/{self.run}").json()["revision"]

    def ack(self, **body):
        path = f"{self.collector.url}/api/v1/incidents/{self.incident()['id']}/ack"
        return shared_client().post(path, json={"by": "ada", **body})


def silence(collector, **body):
    until = (datetime.now(timezone.utc) + timedelta(seconds=body.pop("seconds", 3600))).isoformat()
    return shared_client().post(f"{collector.url}/api/v1/silences", json={"until": until, "by": "ada", **body})


def unsilence(collector, number):
    return httpx.delete(f"{collector.url}/api/v1/silences/{number}")


def rows(*parts):
    """Return gradients of healthy layers, in parts of so many rows in which some layers are at a factor of that."""
    absmax = healthy(sum(count for count, _, _ in parts), LAYERS)
    begin = 0
    for count, low, factor in parts:
        absmax[begin : begin + count, list(low)] *= np.float32(factor)
        begin += count
    return absmax


@one_store
def test_reminders_until_acked_then_resolved_reopened_and_the_end_of_the_run(stage):
    grown = tuple(range(0, 16, 2))
    parts = ((AT, (), 1), (30, FALLEN, 1e-3), (30, grown, 1e-3), (200, (), 1), (40, (6,), 1e-3))
    ends = np.cumsum([count for count, _, _ in parts]).tolist()
    story = Story(stage, "reminded", rows(*parts))
    story.tell(ends[1])
    story.wait(3)
    assert story.kinds()[:3] == ["opened", "reminder", "reminder"]
    assert story.heard[2].at - story.heard[1].at >= REMIND_S - 0.1
    revision = story.revision()
    assert story.ack(note="restarting").json()["acked"]["note"] == "restarting"
    assert story.revision() == revision + 1
    time.sleep(INTERVAL_S)  # a reminder may have been on its way
    told = len(story.heard)
    story.tell(ends[2])
    assert story.incident()["counts"]["ever"] == len(grown)
    assert story.hears_nothing(), "neither a reminder nor growth"
    story.tell(ends[3])
    assert story.wait(told + 1).data["counts"]["ever"] == len(grown)
    assert (story.incident()["resolution"], story.incident()["acked"]["by"]) == ("recovered", "ada")
    story.tell(ends[4])
    assert story.wait(told + 2).data["state"] == "open"
    assert (story.incident()["reopened"], story.incident()["acked"]) == (1, None)
    story.session.end(last_step=ends[4] - 1)
    eventually(lambda: story.incident()["state"] == "ended")
    assert story.hears_nothing(), "the end of a run is no news"
    assert story.heard[-1].data["state"] == "open"
    assert story.kinds()[told : told + 2] == ["resolved", "reopened"]
    assert story.kinds().count("resolved") == 1


@one_store
def test_silenced_incident_is_sent_once_after_the_silence(stage):
    collector, _ = stage
    absmax = rows((AT, (), 1), (30, FALLEN, 1e-3), (200, (), 1))
    story, unheard = Story(stage, "quiet-1", absmax), Story(stage, "quiet-2", absmax)
    made = silence(collector, run="quiet-?", rule="collapse", note="maintenance")
    assert (made.status_code, made.json()["incidents"]) == (201, [])
    story.tell(AT + 30)
    unheard.tell(AT + 230)
    incident = story.incident()
    assert (incident["state"], incident["silenced"]["members"], incident["silenced"]["firing"]) == ("open", 3, 3)
    assert incident["silenced"]["until"] == made.json()["until"]
    assert unheard.incident()["resolution"] == "recovered"
    assert story.hears_nothing()
    [listed] = collector.get("/api/v1/silences").json()["silences"]
    assert listed == {**made.json(), "incidents": [incident["id"]]}
    revision = story.revision()
    assert unsilence(collector, listed["id"]).status_code == 204
    assert (story.revision(), story.incident()["silenced"]) == (revision + 1, None)
    assert story.wait(1).type == "gradient.collapse.opened"
    again = silence(collector, run="quiet-1", seconds=QUIET_S + 8).json()
    assert (again["incidents"], story.revision()) == ([incident["id"]], revision + 2)
    story.tell(AT + 230)
    assert story.incident()["resolution"] == "recovered"
    assert story.hears_nothing()
    assert story.wait(2).data["state"] == "resolved", "the silence is over, and the last word was no longer true"
    assert story.hears_nothing()
    assert unheard.heard == [], "it was over before the silence was"


def test_messages_name_only_what_is_not_silenced(stage):
    collector, _ = stage
    story = Story(stage, "partly", rows((AT, (), 1), (30, FALLEN, 1e-3)))
    number = silence(collector, run="partly", match=r"blocks\.0\.").json()["id"]
    story.tell(AT + 30)
    opened = story.wait(1).data
    assert opened["counts"] == {"firing": 2, "ever": 2, "layers": LAYERS}
    assert opened["prefixes"] == ["blocks.1-2.attn.lora_A.weight"]
    assert {layer["name"] for layer in opened["worst"]} == {f"blocks.{n}.attn.lora_A.weight" for n in (1, 2)}
    assert opened["summary"].startswith("2 of 24 parameters (blocks.1-2.attn.lora_A.weight) fell from")
    assert opened["summary"].endswith(" 1 more parameter is silenced.")
    assert story.incident()["counts"]["ever"] == 3, "the page shows all of them"
    assert story.incident()["silenced"]["members"] == 1
    unsilence(collector, number)


def test_a_silence_that_another_one_ends_meanwhile_is_not_moved(store):
    with store.database.write() as connection:
        now = store.database.now(connection)
        made = silences.create_silence(connection, Silence(0, "sd?l", None, None, now, now + 60, "ada", ""))
        silences.end_silence(connection, made.id, now)
        with pytest.raises(RequestError, match="no silence") as gone:
            silences.change_end(connection, made, now + 90)
    assert gone.value.status == 404


def test_only_the_names_of_members_are_read_to_silence_some(store):
    store.record(fired(0), fired(2))
    asked = []
    event.listen(store.database._engine, "before_cursor_execute", lambda *arguments: asked.append(arguments[2:4]))
    with store.database.read() as connection:
        rows = connection.execute(select(incident)).mappings().all()
        names = Silence(1, "*", None, r"^blocks\.0\..*lora_A", 0.0, 9.0, "ada", "")
        asked.clear()
        [veil] = silences.silenced_members_by_incident(connection, rows, [names]).values()
        read = sum(len(connection.exec_driver_sql(*each).all()) for each in list(asked))
    assert veil.covered == {0}
    assert read == 1 + 2 + 2, "the run, the members, and their names, of 300 parameters"


def test_a_silence_takes_back_what_is_not_sent_yet(store, monkeypatch):
    with store.database.write() as connection:
        now = store.database.now(connection)
        endpoints.upsert_configured(connection, endpoints.ConfiguredEndpoint("http://127.0.0.1:9/hook"), None, now)
    store.record(fired(0))
    pace, key = Pace(wait_s=0.0), planner.DeliveryKey(1, 1, 1, 1)
    with store.database.write() as connection:
        [seal] = outbox.plan_deliveries(connection, pace, now + 1)
        outbox.apply_step(connection, seal, outbox.compose_drafts(connection, [seal], "", now + 1), now + 1)
        made = silences.create_silence(connection, Silence(0, "sd?l", None, r"^blocks\.0\.", now, now + 60, "ada", ""))
        outbox.claim_delivery(connection, key, now + 2)
        assert outbox.plan_deliveries(connection, pace, now + 2) == [], "it is on its way"
        late = now + 3 + outbox.LEASE_S
        [expire] = outbox.plan_deliveries(connection, pace, late)
        assert expire == outbox.Expire(key)
        outbox.apply_step(connection, expire, {}, late)
        assert outbox.plan_deliveries(connection, pace, late) == []
        monkeypatch.setattr(silences, "MAX_SILENCES", 1)
        with pytest.raises(RequestError, match="There are 1 silences already: end some"):
            silences.create_silence(connection, made)
        silences.end_silence(connection, made.id, late)
        [again] = outbox.plan_deliveries(connection, pace, late)
        assert (again.key.version, again.due.kind) == (2, "opened")
        silences.create_silence(connection, replace(made, until=late + 1))
        assert silences.create_silence(connection, replace(made, created=late + 1, until=late + 9)).id > made.id, (
            "one was over"
        )


def test_a_new_baseline_ends_an_incident_and_only_a_further_fall_opens_it_again(stage):
    parts = ((AT, (), 1), (30, FALLEN, 1e-3), (80, FALLEN, 1e-3), (40, FALLEN, 1e-6))
    story = Story(stage, "accepted", rows(*parts))
    story.tell(AT + 30)
    answer = story.ack(new_baseline=True).json()
    assert (answer["state"], answer["resolution"], answer["acked"]["by"]) == ("resolved", "rebaselined", "ada")
    assert answer["summary"].endswith("Accepted at step 159: a new baseline is learnt.")
    story.tell(AT + 110)
    assert story.incident()["state"] == "resolved", "neither by their past nor by their siblings"
    layers = story.collector.get("/api/v1/runs/accepted/layers").json()["layers"]
    assert [0.3e-6 < layers[number]["baseline"] < 3e-6 for number in FALLEN] == [True] * 3
    assert story.ack(new_baseline=True).json()["error"]["field"] == "new_baseline"
    story.tell(AT + 150)
    assert (story.incident()["state"], story.incident()["reopened"]) == ("open", 1)
    story.session.end(last_step=AT + 149)
    assert story.incident()["resolution"] == "run_finished"
    assert story.ack(new_baseline=True).json()["resolution"] == "rebaselined", "the next launch begins anew"


def test_a_rescaled_loss_can_be_a_new_baseline_of_all_layers(stage):
    story = Story(stage, "rescaled", rows((AT, range(LAYERS), 100), (110, (), 1)))
    story.tell(AT + 30)
    assert story.incident()["rule"] == "scale_drop"
    assert story.ack(new_baseline=True).json()["resolution"] == "rebaselined"
    story.tell(AT + 110)
    assert story.incident()["state"] == "resolved"
    layers = story.collector.get("/api/v1/runs/rescaled/layers").json()["layers"]
    assert all(0.3e-3 < layer["baseline"] < 3e-3 for layer in layers)


def test_a_silence_is_tried_before_it_is_made_and_its_end_is_moved(stage):
    story = Story(stage, "tried-1", rows((AT, (), 1), (30, FALLEN, 1e-3)))
    story.tell(AT + 30)
    number, revision = story.incident()["id"], story.revision()

    def preview(**wished):
        return story.collector.get("/api/v1/silences/preview", **wished)

    hidden = {"id": number, "run": "tried-1", "rule": "collapse", "members": 3, "firing": 3}
    assert preview(run="tried-?").json() == {"runs": 1, "incidents": [hidden]}
    some = {**hidden, "members": 1}
    assert preview(run="tried-1", rule="collapse", match=r"\.2\.").json()["incidents"] == [some]
    assert preview(run="tried-*", rule="explosion").json() == {"runs": 1, "incidents": []}
    assert preview(run="nobody-*").json() == {"runs": 0, "incidents": []}
    for wished, field in (
        ({"run": "a b"}, "run"),
        ({"run": "*", "rule": "x"}, "rule"),
        ({"run": "*", "match": "("}, "match"),
    ):
        assert preview(**wished).json()["error"]["field"] == field
    assert preview().status_code == 422
    assert (story.incident()["silenced"], story.revision()) == (None, revision)

    made = silence(story.collector, run="tried-?").json()
    changed = f"{story.collector.url}/api/v1/silences/{made['id']}"
    until = (datetime.now(timezone.utc) + timedelta(days=3)).replace(microsecond=0)
    moved = shared_client().patch(changed, json={"until": until.isoformat()})
    assert (moved.status_code, moved.json()["incidents"]) == (200, [number])
    assert datetime.fromisoformat(moved.json()["until"]) == until
    assert story.incident()["silenced"]["until"] == moved.json()["until"]
    wrong = shared_client().patch(changed, json={"until": "2020-01-01T00:00:00Z"})
    assert (wrong.status_code, "in the future" in wrong.json()["error"]["message"]) == (422, True)
    assert shared_client().patch(changed, json={"until": until.isoformat(), "run": "*"}).status_code == 422
    assert story.collector.get("/api/v1/silences").json()["silences"] == [moved.json()]
    unsilence(story.collector, made["id"])
    gone = shared_client().patch(changed, json={"until": until.isoformat()})
    assert (gone.status_code, gone.json()["error"]["code"]) == (404, "unknown_silence")


def test_a_wrong_silence_is_refused_with_what_would_work(stage):
    for changes, words in (
        ({"run": "a b"}, "every run"),
        ({"run": ""}, "every run"),
        ({"run": "x" * 101}, "every run"),
        ({"rule": "colapse"}, "'collapse', "),
        ({"match": "(a"}, "does not work"),
        ({"match": r"(?=a)"}, "does not work"),
        ({"match": "a" * 201}, "characters"),
        ({"match": ""}, "characters"),
        ({"until": "tomorrow"}, "2030-01-31T12:00:00Z"),
        ({"until": "2020-01-01T00:00:00Z"}, "in the future"),
        ({"until": "9999-12-31T23:59:59-23:59"}, "366 days"),
        ({"until": "0001-01-01T00:00:00+23:59"}, "in the future"),
        ({"until": 7}, "string"),
        ({"by": ""}, "characters"),
        ({"by": "a\0"}, "control"),
        ({"note": "\0"}, "control"),
        ({"forever": True}, "not permitted"),
    ):
        answer = silence(stage[0], **{"run": "nobody", **changes})
        assert answer.status_code == 422, changes
        assert [answer.json()["error"]["field"]] == list(changes)
        assert words in answer.json()["error"]["message"]
    assert stage[0].get("/api/v1/silences").json() == {"silences": []}


def test_a_silence_that_is_not_there_cannot_be_ended(stage):
    for number in (999, 2**70, -1):
        answer = unsilence(stage[0], number)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_silence")
    assert unsilence(stage[0], "x").status_code == 422


def test_only_what_is_held_against_a_baseline_learns_a_new_one(stage):
    absmax = collapsed(AT, LAYERS, (), AT)
    absmax[100:, 3] = np.inf
    story = Story(stage, "infinite", absmax)
    story.tell(AT)
    answer = story.ack(new_baseline=True)
    assert (answer.status_code, answer.json()["error"]["field"]) == (422, "new_baseline")
    assert "silence nonfinite instead" in answer.json()["error"]["message"]
    assert story.incident()["acked"] is None, "nothing was noted"
    given = Story(stage, "given", rows((30, FALLEN, 1e-3)), absmax_below=1e-4)
    given.tell(30)
    assert "a threshold that was given" in given.ack(new_baseline=True).json()["error"]["message"]
