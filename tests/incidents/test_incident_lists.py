"""Incidents over HTTP: which ones are listed, what is said of whom was told, and when an asker has the same already."""

import pytest
from changes import fired, resolved
from clocks import Clocked
from sqlalchemy import event, insert, update
from starlette.testclient import TestClient
from stores import Store

from gradcanary_dashboard import run_data
from gradcanary_dashboard.client import Answer
from gradcanary_dashboard.errors import NotFoundError
from gradcanary_server import attempts, deliveries, endpoints, incidents, sessions, silences
from gradcanary_server.app import create_app
from gradcanary_server.pace import Pace
from gradcanary_server.schema import endpoint, launch, run
from gradcanary_server.settings import Settings
from gradcanary_server.silences import Silence

HOOK = "http://127.0.0.1:9/hook"


class Desk:
    """A store with incidents in it, and the API on top; nothing of it runs by itself."""

    def __init__(self, url, folder):
        self.store = Store(url, kind=Clocked)
        self.app = create_app(Settings(folder, url))
        self.app.state.database = self.store.database  # whose clock can be moved on
        self.api = TestClient(self.app, base_url="http://localhost")

    def write(self, change):
        with self.store.database.write() as connection:
            return change(connection, self.store.database.now(connection))

    def add_run(self, number, name):
        def begin(connection, now):
            empty = {"note": "", "tags": "[]", "archived": False, "facts": "[]", "framework": ""}
            known = {"run_id": number, "name": name, "created": now, "last_seen": now, "revision": 1, "step": 0}
            connection.execute(insert(run).values(**known, **empty))
            connection.execute(insert(launch).values(run_id=number, launch_no=1, launch="a", world_size=1, late=False))

        self.write(begin)

    def record(self, run_id, *changes):
        self.write(lambda connection, now: incidents.record(connection, run_id, 1, changes, now))

    def listed(self, **query):
        answer = self.api.get("/api/v1/incidents", params=query)
        assert answer.status_code == 200, answer.text
        return [each["id"] for each in answer.json()["incidents"]], answer.json()["next"]

    def close(self):
        self.api.close()
        self.app.state.gate.database.close()
        self.store.database.close()


@pytest.fixture
def desk(new_store_url, tmp_path):
    made = Desk(new_store_url(), tmp_path)
    yield made
    made.close()


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
        ({"named": "sdxl"}, [3, 2, 1]),
        ({"named": "100%_"}, [2]),
        ({"named": "_"}, [2]),
        ({"named": "sdxl", "severity": "warning", "state": "open", "rule": "vanished", "before": 3}, []),
        ({"run": "sdxl", "severity": "critical"}, [1]),
    ):
        assert desk.listed(**query) == (ids, None), query
    assert desk.listed(limit=2) == ([3, 2], 2)
    assert desk.listed(limit=2, before=2) == ([1], None)
    assert desk.listed(limit=3) == ([3, 2, 1], None), "there is no page without any"
    for query, field in (
        ({"rule": "colapse"}, "rule"),
        ({"severity": "bad"}, "severity"),
        ({"named": "x" * 101}, "named"),
        ({"limit": 101}, "limit"),
        ({"before": -1}, "before"),
        ({"before": 2**31}, "before"),
        ({"before": 13 * 2**31, "sort": "worst"}, "before"),
    ):
        refused = desk.api.get("/api/v1/incidents", params=query)
        assert (refused.status_code, refused.json()["error"]["field"]) == (422, field)


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
        desk.write(lambda connection, now, of=number + 1: incidents.close_run(connection, of, 900, now, "run_finished"))

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
        return Answer(self.api.get("/api/v1/incidents", params=query).json(), "1")

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


def test_a_list_says_of_each_what_it_says_by_itself_and_reads_less(desk):
    """Of causes that are looked for in all layers of a run, and of those that are not."""
    desk.record(1, *(fired(number) for number in range(0, 300, 2)))
    desk.record(1, fired(2, step=400, rule="vanished", severity="warning", evidence="steady"))
    desk.record(1, *(fired(number, step=401, rule="nonfinite", evidence=None) for number in range(4)))
    desk.record(1, fired(None, step=402, rule="scale_drop", evidence=None))
    listed = desk.api.get("/api/v1/incidents").json()["incidents"]
    causes = ["loss_rescaled", "nonfinite_gradient", "cut_off", "lora_partner"]
    assert [each["likely_cause"]["code"] for each in listed] == causes
    for each in listed:
        alone = desk.api.get(f"/api/v1/incidents/{each['id']}").json()
        assert {name: alone[name] for name in each} == each

    read = []
    event.listen(desk.store.database._engine, "before_cursor_execute", lambda *asked: read.append(asked[2]))
    desk.listed(rule="nonfinite")
    asked = [statement for statement in read if "FROM layer" in statement]
    assert len(asked) == 1
    assert " IN (" in asked[0]


def seal(connection, now):
    for each in deliveries.plan(connection, Pace(wait_s=0.0), now + 1):
        deliveries.carry_out(connection, each, "", now + 1)


def deliver(connection, now):
    claim = attempts.claim(connection, deliveries.Key(1, 1, 1), now + 2)
    attempts.conclude(connection, claim, 200, 12, now + 3, 0.0)


def hush(connection, now):
    silences.add(connection, Silence(0, "sdxl", None, r"^blocks\.0\.", now, now + 60, "ada", ""))


def call(table, key, name):
    return lambda connection, _now: connection.execute(update(table).where(key == 1).values(name=name))


def test_an_asker_has_the_same_exactly_until_something_of_it_changes(desk):
    def wait(seconds):
        desk.store.database.ahead_s += seconds

    desk.add_run(2, "other")
    desk.record(1, fired(0), fired(1))
    desk.write(lambda connection, now: endpoints.ensure_operator_endpoint(connection, HOOK, None, now))
    changes = {
        "a message is sealed": (seal, True),
        "it arrives": (deliver, True),
        "the endpoint has a name": (call(endpoint, endpoint.c.endpoint_id, "on call"), True),
        "a silence": (hush, True),
        "time goes by": (lambda *_: wait(1), False),
        "the silence is over": (lambda *_: wait(100), True),
        "the run has another name": (call(run, run.c.run_id, "sdxl-best"), True),
        "another run goes on": (lambda connection, _now: sessions.revise(connection, 2), False),
    }
    held = {path: desk.api.get(path) for path in ("/api/v1/incidents?before=2", "/api/v1/incidents/1")}
    for words, (change, is_news) in changes.items():
        desk.write(change)
        for path, before in held.items():
            again = desk.api.get(path, headers={"if-none-match": before.headers["etag"]})
            assert again.status_code == (200 if is_news else 304), (words, path)
            if is_news:
                assert again.json() != before.json(), (words, path)
                held[path] = again
    told = held["/api/v1/incidents?before=2"].json()["incidents"][0]["told"]
    assert told == [{"endpoint": 1, "name": "on call", "kind": "opened", "state": "delivered"}]


def test_who_does_something_is_the_name_given_or_the_tokens(desk):
    desk.record(1, fired(0))
    nobody = desk.api.post("/api/v1/incidents/1/ack", json={})
    assert (nobody.status_code, nobody.json()["error"]["field"]) == (422, "by")
    assert desk.api.post("/api/v1/incidents/1/ack", json={"by": "ada"}).json()["acked"]["by"] == "ada"
