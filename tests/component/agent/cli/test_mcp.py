"""The bridge of ``gradcanary mcp``: what it sends for a line, and a line for whatever comes back."""

import io
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gradcanary.cli import mcp
from gradcanary.export.collector import CollectorClient
from support.receivers import Receiver, accepted, status

Served = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


@pytest.fixture
def bridged(receiver: Receiver) -> Served:
    """Pass messages through a bridge, and return the lines that come back."""

    def serve(*messages: object, url: str = f"http://127.0.0.1:{receiver.port}/team/", token: str | None = None) -> Any:
        lines = b"".join(each if isinstance(each, bytes) else json.dumps(each).encode() + b"\n" for each in messages)
        output = io.BytesIO()
        mcp.Bridge(CollectorClient(url, token), output).serve(io.BytesIO(lines))
        return [json.loads(line) for line in output.getvalue().splitlines()]

    return serve


def request(number: int, method: str, **params: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


def answer(number: int, **result: object) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "result": result}


def test_a_message_goes_there_and_its_answer_comes_back(receiver: Receiver, bridged: Served) -> None:
    receiver.answers += [accepted(json.dumps(answer(7, tools=[]), indent=2).encode())]
    assert bridged(request(7, "tools/list"), token="gc_read_x") == [answer(7, tools=[])]
    (got,) = receiver.got
    assert (got.path, json.loads(got.body)) == ("/team/mcp", request(7, "tools/list"))
    assert got.headers["authorization"] == "Bearer gc_read_x"
    assert got.headers["accept"] == "application/json, text/event-stream"
    assert "mcp-protocol-version" not in got.headers


def test_the_agreed_version_of_the_protocol_is_sent(receiver: Receiver, bridged: Served) -> None:
    receiver.answers += [accepted(json.dumps(answer(1, protocolVersion="2025-11-25")).encode()), accepted(b"")]
    note = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert bridged(request(1, "initialize"), note) == [answer(1, protocolVersion="2025-11-25")]
    assert receiver.got[1].headers["mcp-protocol-version"] == "2025-11-25"


def test_a_message_with_a_version_of_its_own_has_it_in_the_headers(receiver: Receiver, bridged: Served) -> None:
    receiver.answers += [accepted(json.dumps(answer(1, content=[])).encode())]
    bridged(request(1, "tools/call", name="list_runs", _meta={mcp.VERSION_KEY: "2026-07-28"}))
    headers = receiver.got[0].headers
    names = ("mcp-protocol-version", "mcp-method", "mcp-name")
    assert [headers[name] for name in names] == ["2026-07-28", "tools/call", "list_runs"]


def test_what_is_no_answer_is_an_error_with_what_to_do(receiver: Receiver, bridged: Served) -> None:
    receiver.answers += [status(500), accepted(b"<html>")]
    url = f"http://127.0.0.1:{receiver.port}/team"
    for said in (f"{url} answered 500 and no JSON of a collector", f"{url} answered 202 and no JSON of a collector"):
        (found,) = bridged(request(3, "ping"))
        assert (found["id"], found["error"]["message"].replace("team/", "team")) == (3, said)
    (found,) = bridged(request(4, "ping"), url="http://127.0.0.1:9")
    assert "start it with 'gradcanary up'" in found["error"]["message"]


def test_a_line_that_is_no_message_and_one_without_an_answer(receiver: Receiver, bridged: Served) -> None:
    (found,) = bridged(b"{\n", b"\n")
    assert (found["id"], found["error"]["code"]) == (None, mcp.PARSE_ERROR)
    assert bridged(b"[]\n")[0]["error"]["message"] == "each line is one message, a JSON object"
    assert bridged({"jsonrpc": "2.0", "method": "notifications/cancelled"}, url="http://127.0.0.1:9") == []
    assert receiver.got == []
