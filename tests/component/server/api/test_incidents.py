"""Incidents over HTTP: which ones are listed, what is said of whom was told, and when an asker has the same already."""

import base64
import json
import sys
from dataclasses import replace

import pytest
from sqlalchemy import event, insert, select, update
from starlette.testclient import TestClient

from gradcanary_dashboard.collector import run as run_data
from gradcanary_dashboard.collector.client import Answer
from gradcanary_dashboard.collector.errors import NotFoundError
from gradcanary_server.app import create_app
from gradcanary_server.incidents import service, silences, text
from gradcanary_server.incidents.silences import Silence
from gradcanary_server.notify import endpoints, outbox, planner
from gradcanary_server.notify.sender import Attempt
from gradcanary_server.rules.config import Pace
from gradcanary_server.settings import Settings
from gradcanary_server.storage import runs
from gradcanary_server.storage.schema import endpoint, launch, layer, run, run_name
from support.server.clocks import Clocked
from support.server.stores import Store
from support.server.transitions import fired, resolved
from support.streams import layer_names

HOOK = "http://127.0.0.1:9/hook"


class Desk:
    """A store with incidents in it, and the API on top; nothing of it runs by itself."""

    def __init__(self, url, folder):
        self.store = Store(url, kind=Clocked)
        self.app = create_app(Settings(folder, url))
        services = self.app.state.services
        self.app.state.services = replace(services, database=self.store.database)  # whose clock can be moved on
        self.api = TestClient(self.app, base_url="http://localhost")

    def write(self, change):
        with self.store.database.write() as connection:
            return change(connection, self.store.database.now(connection))

    def add_run(self, number, name):
        def begin(connection, now):
            empty = {"note": "", "tags": "[]", "archived": False, "facts": "[]", "framework": ""}
            known = {"run_id": number, "name": name, "created": now, "last_seen": now, "revision": 1, "step": 0}
            connection.execute(insert(run).values(**known, **empty))
            connection.execute(insert(run_name).values(name=name, run_id=number))
            connection.execute(insert(launch).values(run_id=number, launch_no=1, launch="a", world_size=1, late=False))

        self.write(begin)

    def record(self, run_id, *changes):
        self.write(lambda connection, now: service.record_transitions(connection, run_id, 1, changes, now))

    def listed(self, **query):
        answer = self.api.get("/api/v1/incidents", params=query)
        assert answer.status_code == 200, answer.text
        return [each["id"] for each in answer.json()["incidents"]], answer.json()["next"]

    def close(self):
        self.api.close()
        self.app.state.services.gate.database.close()
        self.store.database.close()


@pytest.fixture
def desk(new_store_url, tmp_path):
    made = Desk(new_store_url(), tmp_path)
    yield made
    made.close()


NO_CURSORS = (
    *("", "2", "-1", "=", "e30", "W10", "W10x", "WzFdWzFd", "\u00e9", "W" * 3_000),
    *(
        base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        for text in ("[-1]", "[true]", "[1.0]", "[null]", '["1"]', "[1, 2]", "[[1]]", f"[{2**63}]", "1", "[" * 1_000)
    ),
)
"""Nothing that an answer has as next."""


def cursor(key):
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode().rstrip("=")


def test_incidents_are_chosen_by_all_that_a_page_offers(desk):
    desk.add_run(2, "SDXL_100%_b")
    desk.record(1, fired(0))
    desk.record(2, fired(None, rule="nonfinite", severity="warning"))
    desk.record(1, resolved(0))
    desk.record(1, fired(3, rule="vanished", severity="warning"))
    for query, ids in (
        ({}, [3, 2, 1]),
        ({"state": "open"}, [3, 2]),
        ({"severity": "warning"}, [3, 2]),
        ({"rule": "collapse"}, [1]),
        ({"name_contains": "sdxl"}, [3, 2, 1]),
        ({"name_contains": "100%_"}, [2]),
        ({"name_contains": "_"}, [2]),
        ({"name_contains": "sdxl", "severity": "warning", "state": "open", "rule": "vanished"}, [3]),
        ({"run": "sdxl", "severity": "critical"}, [1]),
    ):
        assert desk.listed(**query) == (ids, None), query
    newest, following = desk.listed(limit=2)
    assert (newest, desk.listed(limit=2, before=following)) == ([3, 2], ([1], None))
    assert desk.listed(limit=3) == ([3, 2, 1], None), "there is no page without any"
    for query, field in (
        ({"rule": "colapse"}, "rule"),
        ({"severity": "bad"}, "severity"),
        ({"name_contains": "x" * 101}, "name_contains"),
        ({"limit": 101}, "limit"),
        ({"before": following, "sort": "worst"}, "before"),
        *(({"before": before}, "before") for before in NO_CURSORS),
    ):
        refused = desk.api.get("/api/v1/incidents", params=query)
        assert (refused.status_code, refused.json()["error"]["field"]) == (422, field)


def test_a_list_holds_the_incidents_of_one_layer_and_of_the_whole_run(desk):
    desk.add_run(2, "other")
    desk.record(1, fired(0), fired(7))
    desk.record(1, fired(7, rule="vanished", severity="warning"))
    desk.record(1, fired(None, rule="nonfinite"))
    desk.record(2, fired(None, rule="nonfinite"))
    desk.record(1, resolved(7))
    for query, ids in (
        ({"layer": "7"}, [3, 2, 1]),
        ({"layer": layer_names(300)[7]}, [3, 2, 1]),
        ({"layer": "0"}, [3, 1]),
        ({"layer": "8"}, [3]),
        ({"layer": "7", "sort": "worst"}, [3, 1, 2]),
        ({"layer": "7", "severity": "warning"}, [2]),
    ):
        assert desk.listed(run="sdxl", **query) == (ids, None), query
    newest, following = desk.listed(run="sdxl", layer="7", limit=2)
    assert (newest, desk.listed(run="sdxl", layer="7", before=following)) == ([3, 2], ([1], None))
    for query, status, code, field in (
        ({"run": "sdxl", "layer": "300"}, 404, "unknown_layer", "layer"),
        ({"run": "sdxl", "layer": "9" * 20}, 404, "unknown_layer", "layer"),
        ({"run": "sdxl", "layer": "no such"}, 404, "unknown_layer", "layer"),
        ({"run": "sdxl", "layer": "x" * 501}, 422, "invalid", "layer"),
        ({"layer": "7"}, 422, "invalid", "run"),
    ):
        refused = desk.api.get("/api/v1/incidents", params=query)
        error = refused.json()["error"]
        assert (refused.status_code, error["code"], error["field"]) == (status, code, field), query


def test_a_layer_is_meant_by_its_number_before_another_by_that_name(desk):
    desk.write(lambda connection, _now: connection.execute(update(layer).where(layer.c.layer_no == 9).values(name="7")))
    desk.record(1, fired(9))
    desk.record(1, fired(7, rule="vanished"))
    assert desk.listed(run="sdxl", layer="7") == ([2], None)
    assert desk.listed(run="sdxl", layer="9") == ([1], None)


def test_the_worst_of_any_number_come_first_over_all_pages(desk):
    """On a page, and not of a page: the store sorts, and a page goes on where the one before it ended."""
    severities = ("information", "warning", "critical")
    made = [(number, severities[number % 3], "silent" if number % 4 == 0 else "collapse") for number in range(1, 31)]
    for number, severity, rule in made:
        desk.add_run(number + 1, f"run-{number}")
        desk.record(number + 1, fired(None, rule=rule, severity=severity))
    for number in (3, 6, 9, 12):
        desk.record(number + 1, resolved(None, rule=made[number - 1][2]))
    for number in (5, 10, 15):
        desk.write(lambda connection, now, of=number + 1: service.close_run(connection, of, 900, now, "run_finished"))

    def place(of):
        number, severity, rule = of
        return -severities.index(severity), rule == "silent", -number

    over, ended = (3, 6, 9, 12), (5, 10, 15)
    opened = [each for each in made if each[0] not in (*over, *ended)]
    expected = [
        *(each[0] for each in sorted(opened, key=place)),
        *(each[0] for each in sorted((made[number - 1] for number in ended), key=place)),
        *sorted(over, reverse=True),
    ]
    found, before = [], {}
    while True:
        ids, following = desk.listed(sort="worst", limit=4, **before)
        found += ids
        if following is None:
            break
        before = {"before": following}
    assert found == expected
    assert desk.listed(sort="worst", state="open", limit=100) == (expected[: len(opened)], None)

    ids, following = desk.listed(sort="worst", state="open", limit=4)
    desk.record(ids[-1] + 1, resolved(None, rule=made[ids[-1] - 1][2]))
    assert desk.listed(sort="worst", state="open", limit=4, before=following)[0] == expected[4:8], "one was over"
    refused = desk.api.get("/api/v1/incidents", params={"sort": "best"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "sort")


class Reader:
    """What a page asks of its collector, answered by a desk."""

    def __init__(self, desk):
        self.api = desk.api

    def incidents(self, **query):
        given = {name: value for name, value in query.items() if value is not None}
        return Answer(self.api.get("/api/v1/incidents", params=given).json(), "1")

    def incident(self, number):
        answer = self.api.get(f"/api/v1/incidents/{number}")
        if answer.status_code == 404:
            raise NotFoundError("it is gone")
        return Answer(answer.json(), "1")


def test_the_page_of_a_run_has_the_incident_somebody_came_for_behind_however_many(desk):
    desk.add_run(2, "other")
    for number in range(102):
        desk.record(2 if number == 0 else 1, fired(None, rule="nonfinite"))
        desk.record(2 if number == 0 else 1, resolved(None, rule="nonfinite"))
        desk.store.database.ahead_s += Pace().reopen_s + 1  # or it would be the same incident again

    def shown(number):
        found, _ = run_data.load_incidents(Reader(desk), "sdxl", number)
        return [each["id"] for each in found]

    newest = list(range(102, 2, -1))
    assert shown(None) == newest
    assert shown(2) == [2, *newest], "of the run, and behind a hundred"
    assert shown(50) == [50, *(each for each in newest if each != 50)]
    assert shown(1) == newest, "another run's"
    assert shown(1_000) == newest, "there is none"


def test_the_page_of_a_layer_has_each_of_its_incidents_however_many_the_run_has(desk):
    desk.record(1, fired(3))
    desk.record(1, resolved(3))
    for _ in range(110):
        desk.record(1, fired(9, rule="vanished", severity="warning"))
        desk.record(1, resolved(9, rule="vanished"))
        desk.store.database.ahead_s += Pace().reopen_s + 1  # or it would be the same incident again

    def shown(layer, named=None):
        found, _ = run_data.load_incidents(Reader(desk), "sdxl", named, layer=layer)
        return [each["id"] for each in found]

    assert shown(3) == [1], "the oldest of 111"
    assert shown(9) == list(range(111, 11, -1)), "as many as one answer holds"
    assert shown(9, named=5) == [5, *range(111, 11, -1)]
    assert shown(9, named=1) == list(range(111, 11, -1)), "another layer's"
    assert shown(4) == []


def test_a_list_says_of_each_what_it_says_by_itself_and_reads_less(desk):
    """Of causes that are looked for in all layers of a run, and of those that are not."""
    desk.record(1, *(fired(number) for number in range(0, 300, 2)))
    desk.record(1, fired(2, step=400, rule="vanished", severity="warning", evidence="stopped"))
    desk.record(1, *(fired(number, step=401, rule="nonfinite", evidence=None) for number in range(4)))
    desk.record(1, fired(None, step=402, rule="scale_drop", evidence=None))
    listed = desk.api.get("/api/v1/incidents").json()["incidents"]
    causes = ["after_nonfinite", "nonfinite_gradient", "cut_off", "lora_partner"]
    assert [each["likely_cause"]["code"] for each in listed] == causes
    for each in listed:
        alone = desk.api.get(f"/api/v1/incidents/{each['id']}").json()
        assert {name: alone[name] for name in each} == each

    desk.write(lambda connection, _: text.store_summaries(connection, text.compose_missing(connection)))
    assert desk.api.get("/api/v1/incidents").json()["incidents"] == listed
    read = []
    event.listen(desk.store.database._engine, "before_cursor_execute", lambda *asked: read.append(asked[2]))
    desk.listed(rule="nonfinite")
    asked = [statement for statement in read if "FROM layer" in statement]
    assert len(asked) == 1
    assert " IN (" in asked[0]


def test_list_details_are_those_of_each_incident(desk):
    desk.write(add_endpoint)
    for number in range(3):
        desk.record(1, fired(number, rule=("collapse", "vanished", "accumulation_loss")[number]))
    desk.write(seal)
    desk.write(deliver)
    listed = desk.api.get("/api/v1/incidents", params={"detailed": 2}).json()["incidents"]
    answers = [desk.api.get(f"/api/v1/incidents/{number}").json() for number in (3, 2, 1)]
    assert [(answer["previous"], answer["next"]) for answer in answers] == [(2, None), (1, 3), (None, 2)]
    alone = [{key: told for key, told in each.items() if key not in {"previous", "next", "names"}} for each in answers]
    assert listed[:2] == alone[:2]
    assert listed[2] == {name: alone[2][name] for name in alone[2].keys() - {"layers", "deliveries"}}
    whole = desk.api.get("/api/v1/incidents", params={"detailed": 100}).json()["incidents"]
    assert whole == alone
    assert [len(each["deliveries"]) for each in whole] == [1, 1, 1]
    assert any(delivery["attempts"] for each in whole for delivery in each["deliveries"])


def test_an_incident_tells_what_all_names_of_its_run_share(desk):
    desk.record(1, fired(0))
    assert desk.api.get("/api/v1/incidents/1").json()["names"] == {"prefix": "", "suffix": ".weight"}
    added = {"run_id": 1, "layer_no": 300, "name": "head.bias"}
    row = desk.write(lambda connection, _: connection.execute(select(layer).limit(1)).mappings().one())
    desk.write(lambda connection, _: connection.execute(insert(layer).values({**row, **added})))
    assert desk.api.get("/api/v1/incidents/1").json()["names"] == {"prefix": "", "suffix": ""}


def test_an_incident_tells_its_neighbours_and_the_state_of_its_run(desk):
    desk.add_run(2, "b")
    desk.add_run(3, "c")
    for run_id, rule in ((2, "nonfinite"), (1, "nonfinite"), (3, "nonfinite"), (1, "silent")):
        desk.record(run_id, fired(None, rule=rule))
    path = "/api/v1/incidents"
    answers = {number: desk.api.get(f"{path}/{number}") for number in (2, 4, 1, 3)}
    beside = [(told.json()["previous"], told.json()["next"]) for told in answers.values()]
    assert beside == [(None, 4), (2, 1), (4, 3), (1, None)], "those of its run first"
    desk.record(1, fired(None, rule="stalled"))
    again = desk.api.get(f"{path}/1", headers={"if-none-match": answers[1].headers["etag"]})
    assert (again.status_code, again.json()["previous"]) == (200, 5)
    assert {each["run_state"] for each in desk.api.get(path).json()["incidents"]} == {"silent"}
    etag = desk.api.get(path).headers["etag"]
    desk.write(lambda connection, _: connection.execute(update(run).where(run.c.run_id == 3).values(ended="finished")))
    after = desk.api.get(path, headers={"if-none-match": etag}).json()["incidents"]
    assert {each["run"]: each["run_state"] for each in after}["c"] == "finished"


def test_a_member_tells_its_block(desk):
    desk.record(1, fired(7))
    [member] = desk.api.get("/api/v1/incidents/1").json()["layers"]
    assert member["name"].startswith(member["block"])
    assert member["block"] != member["name"]


def test_list_details_take_as_many_statements_for_ten_incidents_as_for_one(desk):
    """Beside the members of each, which a list without details reads as well."""
    desk.write(add_endpoint)
    for number in range(10):
        desk.record(1, fired(number))
        desk.record(1, resolved(number))
        desk.store.database.ahead_s += Pace().reopen_s + 1  # or it would be the same incident again
    desk.write(seal)
    statements = []
    event.listen(desk.store.database._engine, "before_cursor_execute", lambda *asked: statements.append(asked[2]))
    counts = []
    for detailed in (0, 1, 10):
        statements.clear()
        assert len(desk.api.get("/api/v1/incidents", params={"detailed": detailed}).json()["incidents"]) == 10
        counts.append(len(statements))
    assert counts[1] - counts[0] <= 2
    assert counts[2] == counts[1]


def add_endpoint(connection, now):
    endpoints.upsert_configured(connection, endpoints.ConfiguredEndpoint(HOOK), None, now)


def seal(connection, now):
    for step in outbox.plan_deliveries(connection, Pace(wait_s=0.0), now + 1):
        outbox.apply_step(connection, step, outbox.compose_drafts(connection, [step], "", now + 1), now + 1)


def deliver(connection, now):
    claim = outbox.claim_delivery(connection, planner.DeliveryKey(1, 1, 1, 1), now + 2)
    outbox.finish_attempt(connection, claim, Attempt(200, 12), now + 3, 0.0)


def hush(connection, now):
    silences.create_silence(connection, Silence(0, "sdxl", None, r"^blocks\.0\.", now, now + 60, "ada", ""))


def call(table, key, name):
    return lambda connection, _now: connection.execute(update(table).where(key == 1).values(name=name))


def test_an_asker_has_the_same_exactly_until_something_of_it_changes(desk):
    def wait(seconds):
        desk.store.database.ahead_s += seconds

    desk.add_run(2, "other")
    desk.record(1, fired(0), fired(1))
    desk.write(add_endpoint)
    changes = {
        "a message is sealed": (seal, True),
        "it arrives": (deliver, True),
        "the endpoint has a name": (call(endpoint, endpoint.c.endpoint_id, "on call"), True),
        "a silence": (hush, True),
        "time goes by": (lambda *_: wait(1), False),
        "the silence is over": (lambda *_: wait(100), True),
        "the run has another name": (call(run, run.c.run_id, "sdxl-best"), True),
        "another run goes on": (lambda connection, _now: runs.bump_revision(connection, 2), False),
    }
    page = f"/api/v1/incidents?before={cursor([2])}"
    held = {path: desk.api.get(path) for path in (page, "/api/v1/incidents/1")}
    for words, (change, is_news) in changes.items():
        desk.write(change)
        for path, before in held.items():
            again = desk.api.get(path, headers={"if-none-match": before.headers["etag"]})
            assert again.status_code == (200 if is_news else 304), (words, path)
            if is_news:
                assert again.json() != before.json(), (words, path)
                held[path] = again
    told = held[page].json()["incidents"][0]["last_deliveries"]
    assert told == [{"endpoint": 1, "name": "on call", "kind": "opened", "state": "delivered"}]


def test_the_picture_of_an_incident(desk, monkeypatch):
    desk.record(1, fired(0))
    path = "/api/v1/incidents/1/picture.png"
    answer = desk.api.get(path)
    assert (answer.status_code, answer.headers["content-type"], answer.content[:4]) == (200, "image/png", b"\x89PNG")
    assert len(answer.content) <= 60_000
    tag = {"if-none-match": answer.headers["etag"]}
    assert desk.api.get(path, headers=tag).status_code == 304
    desk.write(lambda connection, _now: runs.bump_revision(connection, 1))
    assert desk.api.get(path, headers=tag).status_code == 200
    assert desk.api.get("/api/v1/incidents/7/picture.png").status_code == 404
    monkeypatch.setitem(sys.modules, "PIL", None)
    refused = desk.api.get(path)
    assert (refused.status_code, refused.json()["error"]["code"]) == (501, "no_pillow")
    assert "pip install 'gradcanary[notify]'" in refused.json()["error"]["message"]


def test_actor_is_the_given_name_or_that_of_the_token(desk):
    desk.record(1, fired(0))
    nobody = desk.api.post("/api/v1/incidents/1/ack", json={})
    assert (nobody.status_code, nobody.json()["error"]["field"]) == (422, "by")
    assert desk.api.post("/api/v1/incidents/1/ack", json={"by": "ada"}).json()["acked"]["by"] == "ada"
