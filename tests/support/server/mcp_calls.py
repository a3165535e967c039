"""Requests to /mcp as an assistant sends them, and what comes back."""

import json

VERSION = "2025-11-25"
ACCEPT = {"accept": "application/json, text/event-stream", "mcp-protocol-version": VERSION}


def post(client, method, token=None, **params):
    """Send a message of JSON-RPC, and return the response."""
    headers = ACCEPT if token is None else {**ACCEPT, "authorization": f"Bearer {token}"}
    return client.post("/mcp", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, headers=headers)


def call(client, tool, token=None, **arguments):
    """Return the answer of a tool, of which text and structure say the same; the text of an error."""
    answer = post(client, "tools/call", token, name=tool, arguments=arguments)
    assert answer.status_code == 200, answer.text
    result = answer.json()["result"]
    (text,) = (each["text"] for each in result["content"])
    if result["isError"]:
        assert "structuredContent" not in result
        return text
    assert json.loads(text) == result["structuredContent"]
    return result["structuredContent"]
