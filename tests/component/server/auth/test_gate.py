"""A collector that asks for tokens, and one that does not: who gets what over HTTP. On both databases."""

import base64
import contextlib
import hashlib
import json
import re
import uuid
from datetime import datetime, timedelta, timezone

import pytest
from starlette.testclient import TestClient

from gradcanary import wire
from gradcanary_dashboard.app import mount
from gradcanary_server.api import middleware
from gradcanary_server.app import create_app
from gradcanary_server.auth import gate as auth_gate
from gradcanary_server.auth import tokens
from gradcanary_server.errors import StoreUnavailable
from gradcanary_server.settings import Settings
from support import blank_stores, streams

RUN = "/api/v1/runs/lora"
SESSION = f"{RUN}/sessions/one"
HTML = {"accept": "text/html,*/*"}
OURS = {"origin": "http://testserver"}
PROMISED = {
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""What every answer says."""

BODY = {"content-type": "application/json"}
TOMORROW = (datetime.now(timezone.utc) + timedelta(days=1)).isoformat()


@pytest.fixture(scope="module")
def module_app(new_store_url, tmp_path_factory):
    """A collector with pages that asks for tokens, on an empty store."""
    app = create_app(Settings(tmp_path_factory.mktemp("unused"), new_store_url(), auth=True))
    mount(app, "http://127.0.0.1:9", signs_in=True)
    with TestClient(app, follow_redirects=False) as client:
        yield client


@pytest.fixture
def app(module_app):
    module_app.cookies.clear()
    gate = module_app.app.state.services.gate
    fresh = auth_gate.AccessControl(gate.database, gate.settings)  # with buckets that are full
    gate.__dict__.update(fresh.__dict__)
    return module_app


@pytest.fixture
def admin(app):
    return {"authorization": f"Bearer {app.app.state.services.new_tokens['admin']}"}


@pytest.fixture
def made(app, admin):
    """Make a token by the API and return the header that holds it; its name, if none is given, is new."""

    def make(scope, name=None, days=None):
        name = name or f"{scope} {uuid.uuid4()}"
        answer = app.post("/api/v1/tokens", json={"name": name, "scope": scope, "days": days}, headers=admin)
        assert answer.status_code == 201
        return {"authorization": f"Bearer {answer.json()['secret']}"}

    return make


def code(answer):
    return answer.status_code, answer.json()["error"]["code"]


def newest(app, admin):
    return app.get("/api/v1/audit", headers=admin).json()["audit"]


def hello():
    stream = streams.Stream(streams.healthy(5, 4))
    return wire.dump(stream.hello())


def test_requests_without_a_token_are_refused(app):
    for method, path in (
        ("GET", "/api/v1/runs"), ("GET", RUN), ("DELETE", RUN), ("PUT", SESSION), ("POST", "/api/v1/silences"),
        ("GET", "/api/v1/tokens"), ("GET", "/api/v1/nothing"), ("POST", "/_dash-update-component"),
        ("POST", "/_refresh"),
        ("GET", "/assets/js/gradcanary.js"), ("GET", "/_dash-layout"), ("GET", "/anything"), ("TRACE", "/api/v1/runs"),
    ):  # fmt: skip
        answer = app.request(method, path)
        assert code(answer) == (401, "unauthorized"), path
        assert answer.headers["www-authenticate"] == "Bearer"
    assert app.get("/healthz").json() == {"status": "ok"}


@pytest.mark.parametrize("token", ["gc_admin_wrong", "x", "gc_admin_", "é"])
def test_requests_with_an_invalid_token_are_refused(app, token):
    assert code(app.get("/api/v1/runs", headers={"authorization": f"Bearer {token}".encode()})) == (401, "unauthorized")
    assert app.get(f"/api/v1/runs?token={token}").status_code == 401


def test_a_right_one_in_the_address_is_none_either(app, admin):
    secret = admin["authorization"].removeprefix("Bearer ")
    for query in (f"token={secret}", f"access_token={secret}"):
        assert app.get(f"/api/v1/runs?{query}").status_code == 401


@pytest.mark.parametrize("host", ["x/sign-in?", "x/healthz#", "x/sign-in?a=", "evil.example"])
def test_a_name_that_holds_a_path_changes_nothing(app, host):
    for path in ("/api/v1/runs", "/api/v1/tokens", "/_cell"):
        assert app.get(path, headers={"host": host}).status_code in (400, 401)
    assert app.delete(RUN, headers={"host": host}).status_code in (400, 401)


def test_a_line_feed_at_the_end_is_another_path(app, made):
    read = made("read")
    for path in ("/api/v1/tokens%0A", "/api/v1/audit%0A", "/api/v1/runs%0a", "/healthz%0A", "/sign-in%0A"):
        assert code(app.get(path, headers=read)) == (404, "not_found"), path


def test_each_scope_does_what_it_is_for(app, admin, made):
    ingest, read = made("ingest"), made("read")
    json_type = {"content-type": "application/json"}
    said = app.put(SESSION, content=hello(), headers={**ingest, **json_type})
    assert said.status_code == 200, said.text
    assert app.get(RUN, headers=read).json()["run"] == "lora"
    assert code(app.get(RUN, headers=ingest)) == (403, "forbidden")
    assert code(app.put(SESSION, content=hello(), headers={**read, **json_type})) == (403, "forbidden")
    silence = {"run": "lora", "until": TOMORROW, "by": "ada"}
    for method, path, body in (
        ("POST", "/api/v1/silences", silence), ("POST", "/api/v1/incidents/1/ack", {"by": "ada"}),
        ("DELETE", RUN, None),
        ("GET", "/api/v1/tokens", None), ("POST", "/api/v1/tokens", {"name": "x", "scope": "admin"}),
        ("DELETE", "/api/v1/tokens/1", None), ("GET", "/api/v1/audit", None),
        ("GET", "/api/v1/not-yet-named", None), ("GET", "/_not-yet-named", None),
    ):  # fmt: skip
        for token in (ingest, read):
            answer = app.request(method, path, json=body, headers=token)
            assert code(answer) == (403, "forbidden"), path
            assert "takes admin" in answer.json()["error"]["message"]
    assert app.put(SESSION, content=hello(), headers={**admin, **json_type}).status_code == 200
    assert app.delete(RUN, headers=admin).status_code == 204


FOR_EVERYBODY = {"GET /healthz", "GET /readyz", "GET /sign-in", "POST /sign-in", "POST /sign-out"}
FOR_AGENTS = {
    f"{method} /api/v1/runs/{{run}}/sessions/{{session}}{rest}"
    for method, rest in (("PUT", ""), ("POST", "/batches/{seq}"), ("POST", "/heartbeat"), ("POST", "/end"))
}
FOR_READERS = {
    "GET /api/v1/incidents/{number}/picture.png",
    "GET /metrics",
    *(f"GET /api/v1/runs{rest}" for rest in ("", "/{run}", "/{run}/layers", "/{run}/series", "/{run}/heatmap")),
    "GET /api/v1/runs/{run}/layers/{layer}",
    *(f"GET /api/v1/runs/{{run}}/{rest}" for rest in ("metrics", "metrics.csv", "export.csv")),
    *(f"GET /api/v1/runs/{{run}}/{rest}" for rest in ("samples", "points", "recording")),
    *(f"GET /api/v1/{rest}" for rest in ("incidents", "incidents/{number}", "storage")),
    *(f"GET /api/v1/silences{rest}" for rest in ("", "/preview")),
    *(f"GET /api/v1/endpoints{rest}" for rest in ("", "/{number}", "/{number}/deliveries")),
    "GET /api/v1/rules",
}
"""All other routes are for those who administer."""


def test_each_route_lets_in_whom_it_is_for(app, admin, made):
    """Of all that the document names; what is wrong with a request is said to those who may make it."""
    askers = {None: {}, "ingest": made("ingest"), "read": made("read"), "admin": admin}
    routes = {f"{method.upper()} {path}" for path, methods in app.app.openapi()["paths"].items() for method in methods}
    assert routes >= FOR_EVERYBODY | FOR_AGENTS | FOR_READERS
    for route in sorted(routes):
        method, _, path = route.partition(" ")
        path = re.sub(r"{(number|seq)}", "99", re.sub(r"{(run|session|name|layer)}", "nobody", path))
        told = {scope: app.request(method, path, headers=headers).status_code for scope, headers in askers.items()}
        refused = {scope: status for scope, status in told.items() if status in (401, 403)}
        may = {"ingest", "admin"} if route in FOR_AGENTS else {"read", "admin"} if route in FOR_READERS else {"admin"}
        if route == "POST /sign-in":
            assert set(told.values()) == {401}, "it takes a token in its form only"
        elif route in FOR_EVERYBODY:
            assert refused == {}, route
        else:
            expected = {scope: 401 if scope is None else 403 for scope in askers if scope not in may}
            assert refused == expected, (route, told)


def test_signed_in_users_are_named_by_their_token(app, made):
    ada = made("admin", "ada")
    for said, by in (({}, "ada"), ({"by": None}, "ada"), ({"by": "grace"}, "grace")):
        answer = app.post("/api/v1/silences", json={"run": "lora", "until": TOMORROW, **said}, headers=ada)
        assert (answer.status_code, answer.json()["by"]) == (201, by)
        app.delete(f"/api/v1/silences/{answer.json()['id']}", headers=ada)


def test_tokens_over_http(app, admin, made):
    mine = made("read", "ada's laptop", 3)
    secret = mine["authorization"].removeprefix("Bearer ")
    assert app.get("/api/v1/runs", headers=mine).status_code == 200
    listed = app.get("/api/v1/tokens", headers=admin)
    [found] = [each for each in listed.json()["tokens"] if each["name"] == "ada's laptop"]
    assert (found["scope"], found["active"], found["revoked"]) == ("read", True, None)
    assert secret not in listed.text
    assert "hash" not in listed.text
    assert app.delete(f"/api/v1/tokens/{found['id']}", headers=admin).status_code == 204
    assert code(app.get("/api/v1/runs", headers=mine)) == (401, "unauthorized")
    assert code(app.delete(f"/api/v1/tokens/{found['id']}", headers=admin)) == (404, "unknown_token")
    assert code(app.delete("/api/v1/tokens/99999999999999999999", headers=admin)) == (422, "invalid")
    made("read", "wall twice")
    twin = app.post("/api/v1/tokens", json={"name": "wall twice", "scope": "admin"}, headers=admin)
    assert code(twin) == (409, "conflict")
    assert "choose another one, or revoke that token before ('gradcanary token revoke " in twin.text
    for wish in (
        {"name": "", "scope": "read"},
        {"name": "a", "scope": "all"},
        {"name": "a", "scope": "read", "days": 0},
    ):
        assert code(app.post("/api/v1/tokens", json=wish, headers=admin)) == (422, "invalid")


def test_changes_are_in_the_audit_log(app, admin, made):
    secrets = [made("read", "wall")["authorization"][7:], admin["authorization"][7:]]
    silence = {"run": "lora-*", "rule": "collapse", "until": TOMORROW, "by": "mallory"}
    number = app.post("/api/v1/silences", json=silence, headers=admin).json()["id"]
    app.patch(f"/api/v1/silences/{number}", json={"until": TOMORROW}, headers=admin)
    app.delete(f"/api/v1/silences/{number}", headers=admin)
    app.delete("/api/v1/silences/999", headers=admin)  # which is not there: nothing was changed
    app.get("/api/v1/runs", headers=admin)
    app.get("/api/v1/runs", headers={"authorization": "Bearer gc_read_no"})
    told = [(each["actor"], each["action"], each["target"]) for each in newest(app, admin)]
    moved, second = told[2][2], len("until 2030-01-31T12:00:00")
    assert told[:4] == [
        ("", "refused", ""),
        ("first administrator", f"DELETE /silences/{number}", ""),
        ("first administrator", f"PATCH /silences/{number}", moved),
        ("first administrator", "POST /silences", f"{number}: collapse in lora-*"),
    ]
    assert moved[:second] == f"until {TOMORROW}"[:second]
    assert told[4][:2] == ("first administrator", "POST /tokens")
    assert told[4][2].endswith("wall (read)")
    assert {each["address"] for each in newest(app, admin)} <= {"testclient", ""}
    assert not any(secret in app.get("/api/v1/audit", headers=admin).text for secret in secrets)
    assert app.get("/api/v1/audit?before=1", headers=admin).status_code == 422


def test_the_audit_log_comes_in_pages(app, admin, monkeypatch):
    for number in range(3):
        app.post("/api/v1/tokens", json={"name": f"t{number}", "scope": "read"}, headers=admin)
    whole = app.get("/api/v1/audit", headers=admin).json()
    monkeypatch.setattr(tokens, "PAGE", 2)
    found, query = [], ""
    while query is not None:
        page = app.get(f"/api/v1/audit{query}", headers=admin).json()
        found += page["audit"]
        query = page["next"] and f"?before={page['next']}"
    assert (found, whole["next"]) == (whole["audit"], None)
    assert len(found) >= 3


def test_endpoint_and_run_changes_are_in_the_audit_log(app, admin):
    """In words that hold no secret, and nothing of a note."""

    def ask(method, path, body=None):
        answer = app.request(method, f"/api/v1{path}", headers=admin, json={} if body is None else body)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    made = ask("POST", "/endpoints", {"url": "https://hooks.example/a?key=hush"})
    number = made["id"]
    ask("PATCH", f"/endpoints/{number}", {"name": "on call", "enabled": False})
    secret = ask("POST", f"/endpoints/{number}/rotate")["secret"]
    ask("DELETE", f"/endpoints/{number}")
    assert app.put("/api/v1/runs/told/sessions/s", content=hello(), headers={**admin, **BODY}).status_code == 200
    ask("PATCH", "/runs/told", {"name": "best", "note": "hush", "tags": ["a"], "archived": True})
    ask("DELETE", "/runs/best")
    told = [(each["action"], each["target"]) for each in newest(app, admin)[:6]]
    assert told == [
        ("DELETE /runs/best", ""),
        ("PATCH /runs/told", "note, tags, archived=True, name=best"),
        (f"DELETE /endpoints/{number}", "on call"),
        (f"POST /endpoints/{number}/rotate", "on call"),
        (f"PATCH /endpoints/{number}", "on call: name, disabled"),
        ("POST /endpoints", f"{number} https://hooks.example/a?****"),
    ]
    log = app.get("/api/v1/audit", headers=admin).text
    assert not any(word in log for word in ("hush", secret, made["secret"]))


def test_a_browser_signs_in_and_out(app, admin, made):
    token = made("read")["authorization"][7:]
    sent = app.get("/runs/lora?layer=3", headers=HTML)
    assert (sent.status_code, sent.headers["location"]) == (303, "/sign-in?next=/runs/lora%3Flayer%3D3")
    page = app.get(sent.headers["location"], headers=HTML)
    assert 'value="/runs/lora?layer=3"' in page.text
    form = {"token": f" {token}\n", "next": "/runs/lora?layer=3"}
    answer = app.post("/sign-in", data=form, headers=OURS)
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs/lora?layer=3")
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "Path=/", "SameSite=lax", "Max-Age=604800"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert token not in cookie
    assert app.get("/api/v1/runs").status_code == 200
    assert app.get("/runs/lora", headers=HTML).status_code == 200
    assert code(app.get("/api/v1/tokens")) == (403, "forbidden")
    gone = app.post("/sign-out", headers=OURS)
    assert (gone.status_code, gone.headers["location"]) == (303, "/sign-in")
    assert {'gradcanary=""', "Max-Age=0", "Path=/"} <= set(gone.headers["set-cookie"].split("; "))
    assert app.get("/api/v1/runs", headers={"cookie": cookie.partition(";")[0]}).status_code == 401
    assert [each["action"] for each in newest(app, admin)][:2] == ["signed out", "signed in"]


def test_over_tls_the_cookie_stays_there(app, admin):
    token = admin["authorization"][7:]
    answer = app.post("https://testserver/sign-in", data={"token": token}, headers={"origin": "https://testserver"})
    assert answer.headers["set-cookie"].startswith("__Host-gradcanary=")
    assert "; Secure" in answer.headers["set-cookie"]
    assert app.get("https://testserver/api/v1/runs").status_code == 200
    assert app.get("http://testserver/api/v1/runs").status_code == 401
    plain = answer.headers["set-cookie"].partition(";")[0].removeprefix("__Host-")
    app.cookies.clear()
    taken = [app.get(f"{scheme}://testserver/api/v1/runs", headers={"cookie": plain}) for scheme in ("http", "https")]
    assert [each.status_code for each in taken] == [200, 401], "a neighbouring host may have set it"


def test_a_page_behind_a_proxy_asks_with_the_cookie_that_came_over_tls(app, admin):
    token = admin["authorization"][7:]
    answer = app.post("https://testserver/sign-in", data={"token": token}, headers={"origin": "https://testserver"})
    cookie = answer.headers["set-cookie"].partition(";")[0]
    app.cookies.clear()
    assert app.get("http://testserver/api/v1/runs", headers={"cookie": cookie}).status_code == 200


def test_sign_out_without_a_session_changes_nothing(app, admin, monkeypatch):
    token_cache = app.app.state.services.gate.token_cache
    monkeypatch.setattr(token_cache, "invalidate", lambda: pytest.fail("everybody's tokens were forgotten"))
    for name in ("gradcanary=nobodys", "other=x"):
        assert app.post("/sign-out", headers={**OURS, "cookie": name}).status_code == 303


@pytest.mark.parametrize("wanted", ["//evil.example", "https://evil.example", "/\\evil.example", '/"><script>'])
def test_sign_in_redirects_to_this_collector_only(app, admin, wanted):
    page = app.get("/sign-in", params={"next": wanted}).text
    assert "evil" not in page
    assert "<script>" not in page
    answer = app.post("/sign-in", data={"token": admin["authorization"][7:], "next": wanted}, headers=OURS)
    assert "evil" not in answer.headers["location"]


def test_failed_sign_ins_are_reported_and_logged(app, admin, made):
    wrong = app.post("/sign-in", data={"token": "gc_read_<b>"}, headers=OURS)
    assert wrong.status_code == 401
    assert 'role="alert">This access token is unknown, expired or revoked' in wrong.text
    assert "gc_read_" not in wrong.text
    assert "set-cookie" not in wrong.headers
    agents = app.post("/sign-in", data={"token": made("ingest")["authorization"][7:]}, headers=OURS)
    assert (agents.status_code, "only sends measurements" in agents.text) == (403, True)
    assert app.post("/sign-in", headers=OURS).status_code == 401
    assert app.post("/sign-in", content=b"x" * 9_000, headers=OURS).status_code == 413
    assert app.post("/sign-in", content=b"\xff&" * 9, headers=OURS).status_code in (400, 401)
    assert "refused" in [each["action"] for each in newest(app, admin)]


def test_a_page_of_a_stranger_changes_nothing(app, admin):
    token = admin["authorization"][7:]
    app.post("/sign-in", data={"token": token}, headers=OURS)
    made = {"name": "x", "scope": "admin"}
    for strange in (
        {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": "http://testserver:81"},
        {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site", "origin": "http://testserver"}, {},
    ):  # fmt: skip
        assert code(app.post("/api/v1/tokens", json=made, headers=strange)) == (403, "cross_site")
        assert app.delete("/api/v1/runs/lora", headers=strange).status_code == 403
        assert app.post("/_dash-update-component", json={}, headers=strange).status_code == 403
    for strange in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert app.post("/sign-in", data={"token": token}, headers=strange).status_code == 403
        assert app.post("/sign-out", headers=strange).status_code == 403
    assert app.post("/api/v1/tokens", json=made, headers=OURS).status_code == 201
    other = {**made, "name": "y"}
    assert app.post("/api/v1/tokens", json=other, headers={"sec-fetch-site": "same-origin"}).status_code == 201
    assert app.post("/api/v1/tokens", content=json.dumps(made), headers=OURS).status_code == 415


def test_rate_limit_of_a_token_leaves_room_for_others(app, made, monkeypatch):
    monkeypatch.setattr(auth_gate, "TOKEN_RATE", (3.0, 0.01))
    gate = app.app.state.services.gate
    gate.__dict__.update(auth_gate.AccessControl(gate.database, gate.settings).__dict__)
    greedy, other = made("read"), made("read")  # by an administrator, who has one left
    answers = [app.get("/api/v1/runs", headers=greedy) for _ in range(4)]
    assert [each.status_code for each in answers] == [200, 200, 200, 429]
    assert code(answers[3]) == (429, "too_many")
    assert 1 <= int(answers[3].headers["retry-after"]) <= 101
    assert app.get("/api/v1/runs", headers=other).status_code == 200


def test_guessing_is_slowed_down_and_others_at_the_address_are_not(app, admin, monkeypatch):
    monkeypatch.setattr(auth_gate, "UNKNOWN_RATE", (3.0, 0.01))
    gate = app.app.state.services.gate
    gate.__dict__.update(auth_gate.AccessControl(gate.database, gate.settings).__dict__)
    wrong = [app.get("/api/v1/runs", headers={"authorization": f"Bearer gc_read_{each}"}) for each in range(5)]
    assert [each.status_code for each in wrong] == [401] * 3 + [429] * 2
    assert int(wrong[-1].headers["retry-after"]) >= 1
    pages = [app.post("/sign-in", data={"token": f"gc_read_{each}"}, headers=OURS) for each in range(12)]
    assert [each.status_code for each in pages] == [401] * 10 + [429] * 2
    wait_s = int(pages[-1].headers["retry-after"])
    assert wait_s >= 1
    assert (
        f"Too many tokens from this address that open nothing (a right one is taken at once): try again in {wait_s} s."
        in (pages[-1].text)
    )
    assert 'name="token"' in pages[-1].text, "and it can be tried again there"
    assert app.get("/api/v1/runs", headers=admin).status_code == 200
    assert app.post("/sign-in", data={"token": admin["authorization"][7:]}, headers=OURS).status_code == 303


def test_a_store_that_is_away_is_no_reason_to_sign_out(app, monkeypatch):
    gate = app.app.state.services.gate

    def away(*_given):
        raise StoreUnavailable("The database restarts.")

    monkeypatch.setattr(gate.token_cache, "load", away)
    answer = app.get("/api/v1/runs", headers={"authorization": "Bearer gc_read_x"})
    assert (code(answer), answer.headers["retry-after"]) == ((503, "unavailable"), "2")


def test_metrics_say_that_the_store_is_away_to_a_token_that_was_valid(app, made, monkeypatch):
    services = app.app.state.services
    reader, sender = made("read"), made("ingest")

    @contextlib.contextmanager
    def away():
        raise StoreUnavailable("The database restarts.")
        yield

    assert "gradcanary_database_up 1.0" in app.get("/metrics", headers=reader).text
    services.gate.token_cache.invalidate()
    monkeypatch.setattr(services.database, "read", away)
    answer = app.get("/metrics", headers=reader)
    assert (answer.status_code, "gradcanary_database_up 0.0" in answer.text) == (200, True)
    assert code(app.get("/metrics", headers=sender)) == (403, "forbidden")
    assert code(app.get("/metrics", headers={"authorization": "Bearer gc_read_x"})) == (503, "unavailable")
    assert code(app.get("/api/v1/runs", headers=reader)) == (503, "unavailable")


def test_every_answer_says_what_browsers_may_do_with_it(app, admin):
    answers = [
        app.get("/healthz"), app.get("/api/v1/runs"), app.get("/api/v1/runs", headers=admin), app.get("/sign-in"),
        app.get("/", headers={**admin, **HTML}), app.get("/runs/x", headers=HTML),
        app.get("/api/nothing", headers=admin),
        app.get("/assets/js/gradcanary.js", headers=admin), app.post("/api/v1/silences", headers={"origin": "null"}),
    ]  # fmt: skip
    for answer in answers:
        assert PROMISED.items() <= dict(answer.headers).items(), answer.request.url
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "strict-transport-security" not in answer.headers
    for of_no_page in (answers[0], answers[1], answers[2], answers[6]):
        assert of_no_page.headers["content-security-policy"] == (
            "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
    assert answers[3].headers["cache-control"] == "no-store"
    policy = answers[4].headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self' 'sha256-")
    scripts = re.search("script-src ([^;]*);", policy)[1]
    assert "unsafe" not in scripts
    for inline in re.findall(
        r"<script(?: id=\S+ type=\"application/javascript\")?>(.*?)</script>", answers[4].text, re.DOTALL
    ):
        digest = base64.b64encode(hashlib.sha256(inline.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in scripts
    assert "unsafe" not in answers[3].headers["content-security-policy"]


def test_only_a_name_of_its_own_is_bound_to_tls(app):
    for url, is_bound in (("https://testserver", True), ("https://testserver:8787", False), ("https://[::1]", True)):
        said = app.get(f"{url}/healthz").headers.get("strict-transport-security")
        assert said == ("max-age=31536000" if is_bound else None)


def test_websockets_are_refused(app):
    async def inside(_scope, _receive, _send):
        pytest.fail("this is behind the gate")

    sent = []

    async def send(message):
        sent.append(message["type"])

    with pytest.raises(StopIteration):  # it waits for nothing
        middleware.Access(inside, app.app.state.services.gate)({"type": "websocket"}, None, send).send(None)
    assert sent == ["websocket.close"]


def test_pages_are_asked_for_in_a_few_bytes(app, admin):
    much, little = b" " * (2**20 + 1), b"{}"
    for method, path in (("POST", "/_dash-update-component"), ("GET", "/_dash-layout"), ("GET", "/"), ("POST", "/")):
        said = {}
        for name, body in (
            ("much", much),
            ("much, of no length", iter([much])),
            ("little, of no length", iter([little])),
        ):
            said[name] = app.request(method, path, content=body, headers={**admin, **OURS}).status_code
        assert set(said.values()) == {413}, (method, path, said)
    assert app.request("GET", "/_dash-layout", content=little, headers={**admin, **OURS}).status_code == 200


@pytest.fixture(scope="module")
def module_open(tmp_path_factory):
    folder = tmp_path_factory.mktemp("open")
    app = create_app(Settings(folder, f"sqlite:///{blank_stores.lay(folder)}"))
    with TestClient(app, base_url="http://localhost:8787", follow_redirects=False) as client:
        yield client


def test_without_tokens_nobody_on_this_machine_is_asked(module_open):
    assert module_open.get("/api/v1/runs").json()["runs"] == []
    silence = {"run": "*", "until": TOMORROW, "by": "ada"}
    assert module_open.post("/api/v1/silences", json=silence).status_code == 201
    ours = {"origin": "http://localhost:8787"}
    assert module_open.post("/api/v1/silences", json=silence, headers=ours).status_code == 201
    assert module_open.get("/sign-in?next=/runs/x").headers["location"] == "/runs/x"
    assert module_open.app.state.services.new_tokens == {}
    told = module_open.get("/api/v1/audit").json()["audit"]
    assert [(each["actor"], each["action"]) for each in told] == [("loopback", "POST /silences")] * 2


def test_page_of_another_origin_is_not_local(module_open):
    for strange in (
        {"origin": "https://evil.example"}, {"origin": "http://localhost:3000"}, {"sec-fetch-site": "cross-site"},
        {"host": "evil.example", "origin": "http://evil.example"},
    ):  # fmt: skip
        for method, path in (("POST", "/api/v1/silences"), ("DELETE", "/api/v1/runs/x"), ("POST", "/api/v1/tokens")):
            answer = module_open.request(method, path, json={"run": "*"}, headers=strange)
            assert answer.status_code in (400, 403), strange


def test_request_by_another_address_is_not_local(module_open):
    with_address = TestClient(module_open.app, base_url="http://192.168.1.5:8787", headers={"host": "localhost"})
    assert code(with_address.get("/api/v1/runs")) == (403, "not_here")
