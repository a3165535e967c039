"""The SDK's own client, over HTTP and over stdio, asks a real collector why a run is sick."""

import asyncio
import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import httpx
import httpx2
import pytest
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

from support.collectors import Collector
from support.streams import Session, Stream, collapsed, falling_loss

AT, LAYERS = 130, 24

DOCUMENT = Path(__file__).parents[3] / "docs" / "how-to" / "mcp.md"
COMMAND = [sys.executable, "-m", "gradcanary.cli", "mcp"]


@pytest.fixture(scope="module")
def sick(tmp_path_factory, new_db):
    """Return a collector that asks for tokens, with a run that collapsed, and a token of each scope."""
    collector = Collector(tmp_path_factory.mktemp("collector"), ("--auth",), db=new_db()).start()
    said = "".join(collector.output)
    tokens = {scope: re.search(rf"gc_{scope}_[\w-]+", said)[0] for scope in ("admin", "ingest")}
    with httpx.Client(headers={"authorization": f"Bearer {tokens['ingest']}"}, timeout=60) as client:
        rows = collapsed(AT + 30, LAYERS, (0, 2, 4), AT)
        Session(collector.url, run="sdxl", client=client).send(Stream(rows, loss=falling_loss(AT + 30)))
    wish = {"name": "editor", "scope": "read", "days": None}
    admin = {"authorization": f"Bearer {tokens['admin']}"}
    made = httpx.post(f"{collector.url}/api/v1/tokens", json=wish, headers=admin, timeout=60)
    yield collector, {**tokens, "read": made.json()["secret"]}
    assert collector.stop() == 0, "what the first request to /mcp started has ended"


@asynccontextmanager
async def over_stdio(collector, token, mode):
    env = {"GRADCANARY_URL": collector.url, "GRADCANARY_TOKEN": token}
    async with Client(StdioServerParameters(command=COMMAND[0], args=COMMAND[1:], env=env), mode=mode) as client:
        yield client


@asynccontextmanager
async def over_http(collector, token, mode):
    async with (
        httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}, timeout=60) as http,
        Client(streamable_http_client(f"{collector.url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


def asked(connect, collector, token, *calls, mode="legacy"):
    """Connect, list the tools, and call some; return the names of the tools and the results."""

    async def ask():
        async with connect(collector, token, mode) as client:
            listed = (await client.list_tools()).tools
            return [each.name for each in listed], [await client.call_tool(*each) for each in calls]

    with ThreadPoolExecutor(1) as thread:  # Playwright keeps an event loop running in this one
        return thread.submit(lambda: asyncio.run(ask())).result()


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("connect", [over_http, over_stdio])
def test_why_is_this_run_sick(sick, connect, mode):
    """``legacy`` is the handshake with ``initialize``, ``auto`` the protocol of 2026, which has none."""
    collector, tokens = sick
    calls = [("why_is_run_sick", {"run": "sdxl"}), ("ack_incident", {"incident": 1})]
    names, (why, refused) = asked(connect, collector, tokens["read"], *calls, mode=mode)
    assert names[0] == "why_is_run_sick"
    answer = why.structured_content
    assert json.loads(why.content[0].text) == answer
    assert answer["verdict"] == "3 of 24 parameters collapsed at step 130"
    (incident,) = answer["incidents"]
    assert incident["why"].startswith("All 3 are lora_A; none of their 3 lora_B partners collapsed.")
    assert incident["affected"][0]["name"] == "blocks.0.attn.lora_A.weight"
    assert refused.is_error
    assert "has the scope read, and this takes admin" in refused.content[0].text


@pytest.mark.smoke
def test_an_administrator_acknowledges_over_both_ways(sick):
    collector, tokens = sick
    for connect in (over_http, over_stdio):
        call = ("ack_incident", {"incident": 1, "note": connect.__name__})
        _, (acked,) = asked(connect, collector, tokens["admin"], call)
        assert acked.structured_content["acked"]["note"] == connect.__name__


def test_a_wrong_token_is_refused_in_words(sick, caplog):
    collector, _ = sick
    caplog.set_level("INFO")
    for connect, words in ((over_stdio, "unknown, expired or revoked here"), (over_http, "Server returned an error")):
        with pytest.raises(BaseException) as failed:  # noqa: PT011 -- the SDK wraps it in groups
            asked(connect, collector, "gc_read_wrong")
        assert words in repr(failed.value)
    assert f'POST {collector.url}/mcp "HTTP/1.1 401 Unauthorized"' in caplog.text, "of which the SDK shows nothing"


def test_the_program_ends_with_its_input(sick):
    collector, tokens = sick
    given = {"GRADCANARY_URL": collector.url, "GRADCANARY_TOKEN": tokens["read"]}
    line, answer = (b'{"jsonrpc": "2.0", "id": 1, %s}' % rest for rest in (b'"method": "ping"', b'"result": {}'))
    assert f"echo '{line.decode()}' | gradcanary mcp\n\nprints `{answer.decode()}`" in DOCUMENT.read_text("utf-8")
    ended = subprocess.run(
        COMMAND, input=line + b"\n", capture_output=True, env={**os.environ, **given}, timeout=60, check=True
    )
    assert ended.stdout == answer + b"\n"
    assert ended.stderr == b""


def test_each_file_of_the_document_connects(sick):
    """With the address and the token of this collector in the place of those of the document."""
    collector, tokens = sick
    replaced = DOCUMENT.read_text("utf-8").replace("http://127.0.0.1:8787", collector.url)
    blocks = re.findall(
        r"^```json\n(.*?)^```", replaced.replace("gc_read_...", tokens["read"]), re.DOTALL | re.MULTILINE
    )
    assert len(blocks) == 3
    for block in blocks:
        ((name, entry),) = next(iter(json.loads(block).values())).items()
        assert name == "gradcanary"
        if "url" in entry:
            assert entry["url"] == f"{collector.url}/mcp"
            connect = partial(over_http, token=entry["headers"]["Authorization"].removeprefix("Bearer "))
        else:
            assert (entry["command"], entry["args"]) == ("gradcanary", COMMAND[-1:])
            connect = partial(over_stdio, token=entry["env"]["GRADCANARY_TOKEN"])
        _, (runs,) = asked(
            lambda c, _, mode, connect=connect: connect(c, mode=mode), collector, None, ("list_runs", {})
        )
        assert runs.structured_content["runs"][0]["run"] == "sdxl"
