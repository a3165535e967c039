"""Names, notes, tags, the archive and the list of runs, over HTTP."""

import base64
import math
from datetime import datetime, timedelta, timezone

import httpx
import numpy as np
import pytest

from gradcanary import wire
from support.streams import Session, Stream, collapsed, healthy


@pytest.fixture
def change(module_collector):
    def patch(run, **wish):
        return httpx.patch(f"{module_collector.url}/api/v1/runs/{run}", json=wish)

    return patch


def refused(answer, status, code, field=None):
    error = answer.json()["error"]
    return (answer.status_code, error["code"], error["field"]) == (status, code, field)


def listed(collector, **asked):
    return [each["run"] for each in collector.get("/api/v1/runs", **asked).json()["runs"]]


def test_a_run_has_a_note_and_tags(module_collector, change):
    Session(module_collector.url, run="noted").send(Stream(healthy(3, 2)))
    before = module_collector.get("/api/v1/runs/noted")
    answer = change("noted", note="lr too high?\nAsk Ada.", tags=["sdxl", "für später", "sdxl"])
    assert answer.status_code == 200
    found = module_collector.get("/api/v1/runs/noted")
    assert found.json() == answer.json()
    assert (found.json()["note"], found.json()["tags"]) == ("lr too high?\nAsk Ada.", ["sdxl", "für später"])
    assert found.headers["etag"] != before.headers["etag"], "pages look again"
    assert change("noted", tags=[]).json()["note"] == "lr too high?\nAsk Ada.", "what is not named stays"
    assert change("noted", note="").json()["note"] == ""
    assert {**change("noted").json(), "revision": 0} == {**before.json(), "revision": 0}


def test_runs_are_found_by_what_people_say_of_them_and_by_state(module_collector, change):
    for number, run in enumerate(("found-Alpha", "found-beta", "found-gamma")):
        session = Session(module_collector.url, run=run)
        session.put_hello(Stream(healthy(1, 2)).hello()).raise_for_status()
        if number:
            session.end(state="crashed" if number == 1 else "finished")
    change("found-beta", tags=["50%_lr", 'a "b"'], note="Ask Ada")
    for text, names in {
        "found-": ["found-gamma", "found-beta", "found-Alpha"], "FOUND- ada": ["found-beta"], "50%_LR": ["found-beta"],
        '"b"': ["found-beta"], "found- %": ["found-beta"], "found- nobody": [], "found-\0alpha": ["found-Alpha"],
    }.items():  # fmt: skip
        assert listed(module_collector, text=text) == names, text
    for state, name in {"live": "Alpha", "stale": None, "silent": None, "crashed": "beta", "finished": "gamma"}.items():
        assert listed(module_collector, text="found-", state=state) == ([f"found-{name}"] if name else [])
    assert refused(module_collector.get("/api/v1/runs", state="ended"), 422, "invalid", "state")


def test_capitals_do_not_matter_in_any_alphabet(module_collector, change):
    dotless, dotted = "\u0131", "\u0130"  # a capital of i, and a small letter of I, in Turkish only
    notes = {"letters-1": "\u00c4\u00d6 Stra\u00dfe", "letters-2": f"{dotted}ZMIR", "letters-3": f"{dotless}rmak"}
    for run, note in notes.items():
        Session(module_collector.url, run=run).send(Stream(healthy(1, 2)))
        assert change(run, note=note, tags=[f"Tag {note}"]).status_code == 200
    change("letters-3", note="", tags=["\u00c4\u00d6", dotless])
    for text, runs in {
        "\u00c4\u00d6": [1, 3], "\u00e4\u00f6": [1, 3], "\u00e4\u00d6 STRA\u00dfE": [1], "stra\u00dfe": [1],
        "strasse": [], dotted: [2], "zMiR": [2], dotless: [3], f"{dotless}ZMIR": [],
    }.items():  # fmt: skip
        assert sorted(listed(module_collector, text=text)) == [f"letters-{number}" for number in runs], text


def paged(collector, **asked):
    """Names of all runs, from as many questions as it takes."""
    found, after = [], None
    while True:
        page = collector.get("/api/v1/runs", **asked, **({"after": after} if after else {})).json()
        assert len(page["runs"]) <= asked["limit"]
        found += [each["run"] for each in page["runs"]]
        after = page["next"]
        if after is None:
            return found


def test_each_order_goes_on_over_pages(module_collector):
    names = ["order-b", "Order-A", "order-c", "order-B2", "order-a"]
    for run in names:
        Session(module_collector.url, run=run).put_hello(Stream(healthy(1, 2)).hello())
    Session(module_collector.url, run="order-b").heartbeat()
    asked = {"text": "order-", "limit": 2}
    assert paged(module_collector, **asked, sort="last_seen") == ["order-b", *reversed(names[1:])]
    assert paged(module_collector, **asked, sort="created") == names[::-1]
    # Equal but for capitals: the one that came first.
    assert paged(module_collector, **asked, sort="name") == ["Order-A", "order-a", "order-b", "order-B2", "order-c"]
    assert paged(module_collector, **asked, sort="name", state="live") == paged(module_collector, **asked, sort="name")


def test_runs_are_in_the_order_of_a_column_and_in_reverse(module_collector):
    fell = collapsed(200, 8, [0, 1, 2], at=100)
    losses = {"column-a": 0.5, "column-b": None, "column-c": 0.25, "column-d": math.nan}
    for run, loss in losses.items():
        absmax = fell if run == "column-c" else healthy(10 if run == "column-d" else 20, 2)
        values = None if loss is None else np.full(len(absmax), loss)
        Session(module_collector.url, run=run).send(Stream(absmax, values))
    asked = {"text": "column-", "limit": 3}
    # A loss that is not finite comes last, as none does, also in reverse; it opened the newest incident.
    for sort, (names, reverse) in {
        "loss": ("cabd", "acdb"), "step": ("cbad", "dabc"), "worst": ("dcba", "abcd"),
    }.items():  # fmt: skip
        for limit in (1, 3):
            pages = {**asked, "limit": limit, "sort": sort}
            assert paged(module_collector, **pages) == [f"column-{each}" for each in names]
            assert paged(module_collector, **pages, reverse=True) == [f"column-{each}" for each in reverse]
    by_duration = paged(module_collector, **asked, sort="duration")
    assert by_duration == paged(module_collector, **asked, sort="duration", reverse=True)[::-1]
    assert len(by_duration) == len(losses)
    assert refused(module_collector.get("/api/v1/runs", sort="host"), 422, "invalid", "sort")


def test_runs_whose_critical_incident_nobody_acknowledged_are_a_list(module_collector, change):
    for run in ("need-a", "need-b"):
        session = Session(module_collector.url, run=run)
        session.send(Stream(collapsed(200, 8, [0, 1, 2], at=100), np.full(200, 1.0)))
        if run == "need-b":
            session.end()
    Session(module_collector.url, run="need-c").send(Stream(healthy(20, 2)))
    asked = {"text": "need-", "sort": "name"}
    assert listed(module_collector, **asked, unacked=True) == ["need-a", "need-b"]
    assert listed(module_collector, **asked, unacked=False) == ["need-c"]
    for run in ("need-a", "need-b"):
        told = module_collector.get(f"/api/v1/runs/{run}").json()
        worst = {"rule": "collapse", "severity": "critical", "firing": 3, "layers": 8, "acked": False}
        assert told["worst_incident"] == {"id": told["unacked"][0], **worst}
        path = f"{module_collector.url}/api/v1/incidents/{told['unacked'][0]}/ack"
        httpx.post(path, json={"by": "ada"}).raise_for_status()
        after = module_collector.get(f"/api/v1/runs/{run}").json()
        assert (after["unacked"], after["worst_incident"]["acked"]) == ([], True)
    assert listed(module_collector, **asked, unacked=True) == []
    assert listed(module_collector, **asked, unacked=False) == listed(module_collector, **asked)


def test_the_list_tells_the_host_of_the_newest_launch(module_collector):
    for launch, host in enumerate(("gpu-1", "gpu-2", None)):
        environment = host and wire.Environment("train.py", None, None, host, (), (), ())
        hello = Stream(healthy(1, 2)).hello(launch=f"l{launch}", environment=environment, started=1.7e9 + launch)
        Session(module_collector.url, run="moved", session=f"s{launch}").put_hello(hello).raise_for_status()
        told = module_collector.get("/api/v1/runs/moved").json()
        assert told["host"] == (host or None), launch


def test_an_archived_run_is_in_the_archive_until_it_trains_again(module_collector, change):
    stream = Stream(healthy(3, 2))
    Session(module_collector.url, run="archived").send(stream)
    Session(module_collector.url, run="archived").end()
    assert change("archived", archived=True).json()["archived"] is True
    assert "archived" not in listed(module_collector)
    assert listed(module_collector, archived=True) == ["archived"]
    Session(module_collector.url, run="archived").heartbeat()
    assert listed(module_collector, archived=True) == ["archived"]
    Session(module_collector.url, run="archived", session="next").send(stream, launch="launch-2")
    assert listed(module_collector, archived=True) == []
    assert "archived" in listed(module_collector)


def test_a_renamed_run_receives_under_the_name_that_its_agent_knows(module_collector, change):
    stream = Stream(collapsed(200, 8, (3,), 120))
    old = Session(module_collector.url, run="before")
    old.put_hello(stream.hello())
    batches = list(stream.batches(20))
    for seq, batch in enumerate(batches[:4]):
        old.post_batch(seq, batch).raise_for_status()
    assert change("before", name="after").json()["run"] == "after"
    for seq, batch in enumerate(batches[4:], start=4):
        assert old.post_batch(seq, batch).json()["status"] == "stored"
    assert old.post_batch(9, batches[9]).json()["status"] == "duplicate"
    assert old.put_hello(stream.hello()).json()["next_seq"] == len(batches)
    assert old.heartbeat(199).status_code == 200
    resumed = Session(module_collector.url, run="before", session="resumed")
    resumed.send(Stream(healthy(2, 8), first_step=200), launch="launch-2")
    assert old.end().status_code == 200
    found = module_collector.get("/api/v1/runs/after").json()
    assert (found["run"], found["step"], found["aliases"]) == ("after", 201, ["before"])
    assert [each["session"] for each in found["sessions"]] == ["session-1", "resumed"]
    assert found["gaps"] == []
    assert module_collector.get("/api/v1/runs/before").json() == found, "an address from before leads there"
    incidents = module_collector.get("/api/v1/incidents", run="before").json()["incidents"]
    assert [(each["run"], each["rule"]) for each in incidents] == [("after", "collapse")]
    assert "before" not in listed(module_collector)


def test_a_name_leads_to_one_run(module_collector, change):
    for name in ("one", "two"):
        Session(module_collector.url, run=name).send(Stream(healthy(3, 2)))
    assert refused(change("one", name="two"), 409, "conflict", "name")
    assert change("one", name="three").status_code == 200
    answer = change("two", name="one")
    assert refused(answer, 409, "conflict", "name")
    assert "'one' leads to run 'three'" in answer.json()["error"]["message"]
    assert change("one", name="one").json()["aliases"] == ["three"], "back again, asked by the former name"
    assert change("one", name="three").json()["aliases"] == ["one"]
    assert refused(change("one", aliases=["three"]), 422, "invalid", "aliases")
    assert change("one", aliases=[]).json()["aliases"] == []
    assert refused(change("one", note=""), 404, "unknown_run", "run")
    agent = Session(module_collector.url, run="one")
    assert refused(agent.heartbeat(), 404, "unknown_session"), "which lets an agent say hello again"
    agent.send(Stream(healthy(1, 2)))
    assert module_collector.get("/api/v1/runs/one").json()["step"] == 0
    assert module_collector.get("/api/v1/runs/three").json()["step"] == 2


def test_an_agent_is_told_that_its_renamed_run_was_deleted(module_collector, change):
    agent = Session(module_collector.url, run="doomed")
    agent.send(Stream(healthy(3, 2)))
    change("doomed", name="renamed")
    assert httpx.delete(f"{module_collector.url}/api/v1/runs/doomed").status_code == 204
    for name in ("doomed", "renamed"):
        assert module_collector.get(f"/api/v1/runs/{name}").status_code == 404
        assert refused(Session(module_collector.url, run=name).heartbeat(), 410, "run_deleted", "run")


def test_a_silence_of_a_run_goes_with_its_name(module_collector, change):
    Session(module_collector.url, run="hushed").send(Stream(collapsed(200, 8, (3,), 120)))
    until = datetime.now(timezone.utc) + timedelta(days=1)
    for glob in ("hushed", "hush*"):
        wish = {"run": glob, "until": until.isoformat(), "by": "ada"}
        httpx.post(f"{module_collector.url}/api/v1/silences", json=wish).raise_for_status()
    change("hushed", name="loud")
    found = module_collector.get("/api/v1/silences").json()["silences"]
    assert [(each["run"], len(each["incidents"])) for each in found] == [("loud", 1), ("hush*", 0)]
    again = {"run": "hushed", "until": until.isoformat(), "by": "ada"}
    made = httpx.post(f"{module_collector.url}/api/v1/silences", json=again).json()
    assert (made["run"], len(made["incidents"])) == ("loud", 1), "by the name that a message of before has"


@pytest.mark.parametrize(
    ("wish", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": ".hidden"}, "name"),
        ({"name": "a/b"}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"note": "x" * 4001}, "note"),
        ({"note": "\0"}, "note"),
        ({"tags": ["x"] * 33}, "tags"),
        ({"tags": ["a", ""]}, "tags.1"),
        ({"tags": [" a"]}, "tags.0"),
        ({"tags": ["x" * 51]}, "tags.0"),
        ({"tags": ["a\nb"]}, "tags.0"),
        ({"tags": "a"}, "tags"),
        ({"archived": 1}, "archived"),
        ({"step": 1}, "step"),
    ],
)
def test_invalid_run_changes_are_refused(module_collector, change, wish, field):
    Session(module_collector.url, run="plain").send(Stream(healthy(1, 2)))
    assert refused(change("plain", **wish), 422, "invalid", field)
    assert refused(change("nobody", note="x"), 404, "unknown_run", "run")


def test_the_list_comes_in_pages(module_collector):
    for number in range(5):
        Session(module_collector.url, run=f"Paged_{number}").put_hello(Stream(healthy(1, 2)).hello())
    found, after = [], None
    for _ in range(3):
        asked = {"name_contains": "paged_", "limit": 2, **({"after": after} if after else {})}
        page = module_collector.get("/api/v1/runs", **asked).json()
        assert len(page["runs"]) <= 2
        found += [each["run"] for each in page["runs"]]
        after = page["next"]
    assert after is None
    assert found == [f"Paged_{number}" for number in (4, 3, 2, 1, 0)]
    assert listed(module_collector, name_contains="paged%") == []
    assert module_collector.get("/api/v1/runs", limit=2).json()["next"] is not None


@pytest.mark.parametrize("after", ["x", "[1]", "[NaN,1]", "[1,2.5]", "[1,-1]", f"[1,{2**63}]", "[1e999,2]", '["a",1]'])
def test_a_place_in_the_list_that_is_none(module_collector, after):
    assert refused(module_collector.get("/api/v1/runs", after=after), 422, "invalid", "after")
    assert refused(module_collector.get("/api/v1/runs", after=cursor(after)), 422, "invalid", "after")
    for name in (r'["a\u0000",1]', r'["\ud800",1]', "[1,1]"):
        assert refused(module_collector.get("/api/v1/runs", after=cursor(name), sort="name"), 422, "invalid", "after")


def cursor(text):
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
