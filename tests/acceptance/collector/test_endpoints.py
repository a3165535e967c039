"""Endpoints over HTTP and at the terminal, on a real collector with real receivers."""

import json
import re
from functools import partial

import httpx
import pytest
from standardwebhooks import Webhook

from gradcanary import cli, wire
from support import schemas
from support.collectors import Collector
from support.receivers import status
from support.streams import Session, Stream, collapsed
from support.waiting import eventually

SECRET = "whsec_QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="
RULES = """\
version: 1
pace: {wait_s: 0.1, interval_s: 600}
"""
LAYERS, AT = 12, 130


@pytest.fixture(scope="module")
def team(new_db, tmp_path_factory):
    """Return a collector on which endpoints on 127.0.0.1 may be made over HTTP."""
    folder = tmp_path_factory.mktemp("team")
    (folder / "rules.yaml").write_text(RULES)
    env = {"GRADCANARY_WEBHOOK_NETWORKS": "127.0.0.1/32"}
    collector = Collector(folder / "data", ("--rules", str(folder / "rules.yaml")), env, new_db())
    yield collector.start()
    collector.kill()


@pytest.fixture
def ask(team):
    """Ask the collector and return the answer; endpoints that a test makes end with it."""
    made = []
    json_only = {"content-type": "application/json"}
    with httpx.Client(base_url=f"{team.url}/api/v1", timeout=30, headers=json_only) as client:

        def run(method, path, **body):
            answer = client.request(method, path, json=body if method in ("POST", "PATCH") and body else None)
            if answer.is_success and answer.content:
                schemas.hold(answer)
            if (method, path, answer.status_code) == ("POST", "/endpoints", 201):
                made.append(answer.json()["id"])
            return answer

        yield run
        for number in made:
            client.delete(f"/endpoints/{number}")


@pytest.fixture
def typed(typed, team):
    return partial(typed, "endpoints", "--url", team.url)


@pytest.fixture
def collapse(team):
    """Let three layers of a run collapse; what is not over would be told to the endpoints of the next test, too."""
    sessions = []

    def begin(run):
        sessions.append(Session(team.url, run=run))
        sessions[-1].send(Stream(collapsed(AT + 30, LAYERS, (0, 2, 4), AT)))

    yield begin
    for session in sessions:
        session.end(last_step=AT + 29)


def test_an_endpoint_is_made_tried_changed_and_removed(ask, receiver_factory):
    receiver = receiver_factory()
    made = ask("POST", "/endpoints", url=f"{receiver.url}?key=hunter2", name="on call").json()
    mine, secret = f"/endpoints/{made['id']}", made.pop("secret")
    assert ask("GET", mine).json() == made
    assert made in ask("GET", "/endpoints").json()["endpoints"]
    assert (made["kind"], made["origin"], made["state"], made["min_severity"]) == (
        "webhook",
        "api",
        "enabled",
        "warning",
    )
    assert made["url"] == f"{receiver.url}?****"
    for path in ("/endpoints", mine):
        assert not re.search("whsec_|hunter2", ask("GET", path).text)

    tried = ask("POST", f"{mine}/test").json()
    assert (tried["is_delivered"], tried["status"], tried["error"]) == (True, 200, None)
    [message] = receiver.verified(secret)
    assert message["type"] == "gradcanary.test"
    schemas.notification().validate(message)

    rotated = ask("POST", f"{mine}/rotate").json()
    ask("POST", f"{mine}/test")
    newest = receiver.got[-1]
    for each in (secret, rotated["secret"]):
        Webhook(each).verify(newest.body, newest.headers)
    assert len(newest.headers["webhook-signature"].split()) == 2

    changed = ask("PATCH", mine, name="nights", min_severity="critical", enabled=False).json()
    assert (changed["name"], changed["min_severity"]) == ("nights", "critical")
    assert (changed["state"], changed["disabled_by"]) == ("disabled", "api")
    assert ask("PATCH", mine, enabled=True).json()["state"] == "enabled"
    moved = receiver_factory()
    assert ask("PATCH", mine, url=moved.url).json()["url"] == moved.url
    assert ask("DELETE", mine).status_code == 204
    for method, path in (("GET", mine), ("PATCH", mine), ("DELETE", mine), ("POST", f"{mine}/test")):
        assert ask(method, path, **({"name": "x"} if method == "PATCH" else {})).status_code == 404
    assert ask("POST", "/endpoints", url=moved.url).status_code == 201, "its address is free again"


def test_deliveries_are_listed_and_can_be_sent_again(team, collapse, ask, typed, capsys, receiver_factory):
    receiver, deaf = receiver_factory(), receiver_factory(*[status(500)] * 9)
    made = ask("POST", "/endpoints", url=receiver.url, name="pager").json()
    unheard = ask("POST", "/endpoints", url=deaf.url).json()
    collapse("logged")
    receiver.wait(1)
    mine = f"/endpoints/{made['id']}"
    [told] = eventually(lambda: [each for each in log(ask, mine) if each["state"] == "delivered"])
    [message] = receiver.verified(made["secret"])
    schemas.notification().validate(message)
    number = message["data"]["incident"]
    assert (told["incident"], told["run"], told["kind"], told["id"]) == (
        number,
        "logged",
        "opened",
        f"{number}-{made['id']}-1",
    )
    assert [each["status"] for each in told["attempts"]] == [200]
    shown = ask("GET", mine).json()
    assert (shown["pending"], shown["last_error"]) == (0, None)
    assert shown["last_success"] is not None

    again = ask("POST", f"/deliveries/{told['id']}/redeliver").json()
    assert (again["is_delivered"], again["status"]) == (True, 200)
    first, second = receiver.got
    assert (first.id, first.body) == (second.id, second.body) == (again["webhook_id"], first.body)
    assert [each["status"] for each in log(ask, mine)[0]["attempts"]] == [200, 200]

    failing = eventually(lambda: (row := ask("GET", f"/endpoints/{unheard['id']}").json())["failing_since"] and row)
    assert (failing["pending"], failing["last_error"]) == (1, "answered 500")
    said = typed("deliveries", str(unheard["id"]))[1]
    assert re.search(rf"\n{number}-{unheard['id']}-1 .* pending +[1-9] +answered 500\n", said)
    assert re.search(
        r" failing .*\n.* has failed since .* UTC: answered 500\.", typed("set", str(unheard["id"]), "--name=x")[1]
    )
    # 2 where the dispatcher is just at it.
    again = ("redeliver", f"{number}-{unheard['id']}-1")
    said = eventually(lambda: (tried := typed(*again))[0] == 1 and tried[1])
    assert said.startswith("The message was not delivered: answered 500 (")

    assert ask("DELETE", mine).status_code == 204
    whom = {each["name"]: each for each in ask("GET", f"/incidents/{number}").json()["deliveries"]}
    assert whom["pager (deleted)"]["state"] == "delivered"
    capsys.readouterr()
    assert cli.main(["incidents", str(number), "--url", team.url]) == 0
    assert f"Endpoint {made['id']} (pager (deleted)): opened delivered" in capsys.readouterr().out


def log(ask, mine):
    return ask("GET", f"{mine}/deliveries").json()["deliveries"]


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"url": "http://10.0.0.5/hook"}, "url", "--webhook"),
        ({"url": "http://127.0.0.2:9/hook"}, "url", "GRADCANARY_WEBHOOK_NETWORKS"),
        ({"url": "http://169.254.169.254/latest/meta-data"}, "url", "not a public address"),
        ({"url": "http://[::ffff:10.0.0.5]/"}, "url", "10.0.0.5 is not"),
        ({"url": "https://ada:hunter2@8.8.8.8/hook"}, "url", "user name or password"),
        ({"url": "ftp://8.8.8.8/"}, "url", "not an http"),
        ({"url": "http://8.8.8.8/" + "x" * 2000}, "url", "characters"),
        ({"url": "http://8.8.8.8/", "secret": "short"}, "secret", "whsec_"),
        ({"url": "http://8.8.8.8/", "min_severity": "high"}, "min_severity", "'information', 'warning' or 'critical'"),
        ({"url": "http://8.8.8.8/", "name": "a\nb"}, "name", "control"),
        ({"url": "http://8.8.8.8/", "more": 1}, "more", ""),
        ({}, None, ""),
    ],
)  # fmt: skip
def test_invalid_endpoints_are_refused(ask, body, field, words):
    answer = ask("POST", "/endpoints", **body)
    assert answer.status_code in (400, 422)
    error = answer.json()["error"]
    assert words in error["message"]
    assert "hunter2" not in answer.text
    assert field is None or error["field"] == field


def test_missing_and_invalid_endpoints_are_reported(ask, receiver_factory):
    made = ask("POST", "/endpoints", url=receiver_factory().url, secret=SECRET).json()
    assert made["secret"] == SECRET
    mine = f"/endpoints/{made['id']}"
    for method, path, body, code, word in (
        ("POST", "/endpoints", {"url": made["url"]}, 409, "known_endpoint"),
        ("PATCH", mine, {"url": "http://127.0.0.2/"}, 422, "invalid"),
        ("PATCH", mine, {"enabled": 1}, 422, "invalid"),
        ("GET", "/endpoints/99999", {}, 404, "unknown_endpoint"),
        ("GET", f"/endpoints/{2**70}/deliveries", {}, 404, "unknown_endpoint"),
        ("GET", f"{mine}/deliveries?before=x", {}, 422, "invalid"),
        ("POST", "/deliveries/x/redeliver", {}, 422, "invalid"),
        ("POST", "/deliveries/1-2-99/redeliver", {}, 404, "unknown_delivery"),
    ):
        answer = ask(method, path, **body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (code, word), (method, path)


def test_a_page_of_somebody_elses_can_send_no_message(team, ask, receiver_factory):
    receiver = receiver_factory()
    number = ask("POST", "/endpoints", url=receiver.url).json()["id"]
    for path in (f"endpoints/{number}/test", f"endpoints/{number}/rotate", f"deliveries/1-{number}-1/redeliver"):
        form = httpx.post(f"{team.url}/api/v1/{path}", headers={"content-type": "text/plain"}, content="{}")
        assert form.status_code == 415
    assert receiver.got == []


def test_endpoints_at_the_terminal(typed, receiver_factory):
    receiver = receiver_factory()
    ended, said, _ = typed("add", receiver.url, "--name", "on call", "--min-severity", "critical")
    number = re.match(r"Endpoint (\d+): on call http://\S+ gets critical and above\.\n", said)[1]
    assert ended == 0
    assert typed("list")[1] == typed()[1]
    secret = re.search(r"secret \(shown once\): (whsec_\S+)", said)[1]
    assert re.match(r"The test was delivered, answered 200 after \d+ ms\.", typed("test", number)[1])
    receiver.verified(secret)
    assert re.search(r"secret \(shown once\): whsec_\S+\nUntil .* UTC messages are signed", typed("rotate", number)[1])
    said = typed("set", number, "--min-severity", "warning", "--disable")[1]
    assert re.search(r"\n\d+ +disabled .* api +warning .*\n.* disabled over HTTP\.", said)
    assert typed("deliveries", number)[1] == "Nothing was sent to it so far.\n"
    head, *rows = typed("--json")[1], typed("set", number, "--enable")[1]
    assert "whsec" not in head + "".join(rows)
    assert typed("remove", number)[:2] == (
        0,
        f"Endpoint {number} is removed; its deliveries stay with the incidents.\n",
    )
    for words, reason in (
        (("set", number), "give what to change"),
        (("test", number), f"There is no endpoint {number} here"),
        (("add", "http://10.0.0.1/"), "10.0.0.1 is not a public address"),
        (("redeliver", "7"), "INCIDENT-ENDPOINT-VERSION"),
    ):
        ended, said, error = typed(*words)
        assert (ended, said) == (2, "")
        assert reason in error


def test_the_document_describes_what_is_sent():
    session = "/api/v1/runs/{run}/sessions/{session}"
    stream = Stream(collapsed(40, LAYERS, (0,), 20))
    for method, path, body in (
        ("put", "", stream.hello()),
        ("post", "/batches/{seq}", stream.batch(0, 40)),
        ("post", "/heartbeat", wire.Heartbeat(3, 0, 0, 0.01)),
        ("post", "/end", wire.End("finished", 3, None)),
    ):
        described = schemas.sent(schemas.document()["paths"][session + path][method])
        document = json.loads(wire.dump(body))
        described.validate(document)
        assert not described.is_valid({**document, "more": 1})
