"""A collector that asks for tokens, with a token of each scope; on both databases."""

import pytest
from starlette.testclient import TestClient

from gradcanary_dashboard.app import mount
from gradcanary_server.app import create_app
from gradcanary_server.settings import Settings


@pytest.fixture(scope="module")
def served(new_store_url, tmp_path_factory):
    app = create_app(Settings(tmp_path_factory.mktemp("unused"), new_store_url(), auth=True))
    mount(app, "http://127.0.0.1:9", signs_in=True)
    with TestClient(app, follow_redirects=False) as client:
        yield client


@pytest.fixture(scope="module")
def tokens(served):
    """Return a token of each scope; the name of each is its scope."""
    made = dict(served.app.state.services.new_tokens)
    headers = {"authorization": f"Bearer {made['admin']}"}
    answer = served.post("/api/v1/tokens", json={"name": "wall", "scope": "read", "days": None}, headers=headers)
    return {**made, "read": answer.json()["secret"]}
