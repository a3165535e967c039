"""Who may start the demo's processes over HTTP: whoever is on the collector's machine, where nobody else gets in."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from gradcanary_server import demo
from gradcanary_server.app import create_app
from gradcanary_server.errors import RequestError
from gradcanary_server.settings import Certificate, Settings

URL = "http://127.0.0.1:8787"
TLS = Certificate(Path("chain.pem"), Path("key.pem"))


@pytest.fixture
def app(tmp_path):
    return create_app(Settings(tmp_path, f"sqlite:///{tmp_path / 'unopened.db'}"))


def test_it_is_offered_on_loopback_where_nobody_else_gets_in(app):
    asked = TestClient(app, base_url=URL)
    assert asked.get("/api/v1/demo").json() == {"offered": True, "state": "none", "runs": [], "why": None}


@pytest.mark.parametrize("setting", [{"hosts": ("here",)}, {"proxies": ("10.0.0.7/32",)}, {"tls": TLS}])
def test_it_is_not_where_others_may_come_through(tmp_path, setting):
    app = create_app(Settings(tmp_path, f"sqlite:///{tmp_path / 'unopened.db'}", **setting))
    asked = TestClient(app, base_url=URL)
    assert asked.get("/api/v1/demo").json()["offered"] is False
    answer = asked.post("/api/v1/demo")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "demo_not_here")
    assert "gradcanary demo" in answer.json()["error"]["message"]
    assert app.state.demo.state == "none"


def test_a_page_of_another_site_starts_nothing(app):
    for headers in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}):
        assert TestClient(app, base_url=URL).post("/api/v1/demo", headers=headers).status_code == 403
    assert app.state.demo.state == "none"


def test_with_tokens_it_is_not_offered(tmp_path):
    assert not demo.is_offered(Settings(tmp_path, "sqlite://", auth=True))


def test_one_runs_at_a_time_and_one_that_fails_says_why():
    running = demo.Demo()
    running.start("http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(RequestError, match="running already"):
        running.start("http://127.0.0.1:9")
    running.stop(within_s=60)
    assert running.state == "failed"
    assert running.why is not None
    assert "refused" in running.why
