"""Requests of tools to the API in the same process: rights, queries and refusals."""

from datetime import datetime, timedelta, timezone
from functools import partial

import anyio
import pytest
from starlette.requests import Request

from gradcanary_server.mcp.own_api import ApiError, OwnApi

TOMORROW = (datetime.now(timezone.utc) + timedelta(days=1)).isoformat()


@pytest.fixture
def ask(served, tokens):
    """Send a request as a tool does, from a thread, with the token of a scope."""

    def request(scope, *args, **query):
        sent = {"type": "http", "http_version": "1.1", "scheme": "http", "server": ("testserver", 80), "root_path": ""}
        headers = [(b"host", b"testserver"), (b"authorization", f"Bearer {tokens[scope]}".encode())]
        headers += [(b"accept-encoding", b"gzip"), (b"if-none-match", b"*")]
        api = OwnApi(Request({**sent, "client": ("10.1.2.3", 5), "headers": headers, "app": served.app}))
        return served.portal.call(anyio.to_thread.run_sync, partial(api.request, *args, **query))

    return request


def test_a_request_has_the_rights_of_its_sender(ask):
    assert ask("read", "GET", "/runs", sort="name", archived=True, state=None) == {"runs": [], "next": None}
    for scope in ("read", "ingest"):
        with pytest.raises(ApiError, match="takes admin") as refused:
            ask(scope, "POST", "/silences", body={})
        assert (refused.value.status, refused.value.code) == (403, "forbidden")


def test_a_list_is_a_parameter_that_repeats(ask):
    assert ask("read", "GET", "/incidents", state=["open", "ended"]) == {"incidents": [], "next": None}
    with pytest.raises(ApiError, match="not 'new'") as refused:
        ask("read", "GET", "/incidents", state=["open", "new"])
    assert refused.value.field == "state"


def test_a_change_is_audited_with_the_address_of_its_sender(ask):
    made = ask("admin", "POST", "/silences", body={"run": "a", "until": TOMORROW})
    assert ask("admin", "DELETE", f"/silences/{made['id']}") is None
    first = ask("admin", "GET", "/audit")["audit"][0]
    assert (first["action"], first["address"]) == (f"DELETE /silences/{made['id']}", "10.1.2.3")
