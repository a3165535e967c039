"""What an assistant reads of the tools, and tools that fail, wait for threads, or are called all at once."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from anyio.to_thread import current_default_thread_limiter

from gradcanary_server.mcp import tools
from support.server.mcp_calls import call, post

DOCUMENT = Path(__file__).parents[4] / "docs" / "how-to" / "mcp.md"

MOST = 12_000
"""Characters of names, descriptions and arguments, about three thousand tokens: an assistant has them all the time."""


@pytest.fixture(scope="module")
def listed(served, tokens):
    return post(served, "tools/list", tokens["read"]).json()["result"]["tools"]


def test_each_tool_and_each_argument_is_described(listed):
    names = [each["name"] for each in listed]
    assert names == [each.function.__name__ for each in tools.TOOLS]
    assert names == re.findall(
        r"^\| `(\w+)` \| [a-z]", DOCUMENT.read_text("utf-8").partition("## What it may do")[0], re.MULTILINE
    )
    for each in listed:
        assert len(each["description"]) > 60, each["name"]
        assert each["outputSchema"]["type"] == "object"
        undescribed = [
            name for name, schema in each["inputSchema"]["properties"].items() if "description" not in schema
        ]
        assert undescribed in ([], ["severity"]), each["name"]
    read = [{key: each[key] for key in ("name", "description", "inputSchema")} for each in listed]
    assert len(json.dumps(read)) < MOST


def test_tools_that_change_something_say_so(listed):
    changes = [each["name"] for each in listed if not each["annotations"]["readOnlyHint"]]
    assert changes == ["ack_incident", "silence_notifications", "end_silence"]
    for each in listed:
        assert not each["annotations"]["destructiveHint"]
        assert ("Only if the user asked for it." in each["description"]) == (each["name"] in changes)


def test_a_tool_that_fails_is_logged_and_gives_nothing_away(served, tokens, caplog, monkeypatch):
    monkeypatch.setattr(tools.answers, "run_line", lambda _run: 1 / 0)
    monkeypatch.setattr(tools.knowledge, "pages", lambda: 1 / 0)
    assert call(served, "explain", tokens["read"], name="x") == "The collector failed at this; its log says where."
    assert "the tool 'explain' failed" in caplog.text


def test_many_calls_at_once_do_not_wait_for_each_other_for_ever(served, tokens):
    """A tool holds a thread while the API needs another one: with threads of one pool they would all wait."""
    threads = served.portal.call(current_default_thread_limiter)
    many, threads.total_tokens = threads.total_tokens, 1
    try:
        with ThreadPoolExecutor(16) as pool:
            found = list(pool.map(lambda _: call(served, "list_runs", tokens["read"]), range(16)))
    finally:
        threads.total_tokens = many
    assert found == [{"runs": [], "after": None}] * 16
