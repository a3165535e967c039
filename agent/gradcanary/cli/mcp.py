"""``gradcanary mcp``: the collector's MCP server over stdin and stdout, for assistants that start a program.

Each line is a message that is sent to /mcp of the collector, and the answer is a line. The tools are the collector's:
here is nothing but the standard library, and nothing that could be of another version.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO

from gradcanary.cli import console
from gradcanary.export.collector import CollectorError

if TYPE_CHECKING:
    import argparse

    from gradcanary.cli.console import Commands
    from gradcanary.export.collector import CollectorClient

Json = Mapping[str, Any]

ANSWER_S = 120.0
"""For the answer of a tool: those about a run of 20,000 parameters take some seconds."""

REQUESTS = 4
"""Under way at once: one that takes long does not hold up the others."""

INTERNAL_ERROR, PARSE_ERROR = -32603, -32700
"""Codes of JSON-RPC."""

VERSION_KEY = "io.modelcontextprotocol/protocolVersion"
"""Where a message of the protocol of 2026 has its version; before that, one version is agreed on at the beginning."""


def add_command(commands: Commands) -> None:
    """Add ``mcp``."""
    text = "serve a collector's tools to an assistant over stdin and stdout (MCP); the assistant starts this"
    console.add_command(commands, "mcp", text, _serve)


def _serve(_arguments: argparse.Namespace, client: CollectorClient) -> None:
    Bridge(client, sys.stdout.buffer).serve(sys.stdin.buffer)


class Bridge:
    """Sends each line to the collector, and writes each answer as a line."""

    def __init__(self, client: CollectorClient, output: BinaryIO) -> None:
        self._client = client
        self._output = output
        self._writing = threading.Lock()
        self._version: str | None = None

    def serve(self, lines: BinaryIO) -> None:
        """Return after the last line and its answer."""
        with ThreadPoolExecutor(REQUESTS, "gradcanary-mcp") as threads:
            for line in lines:
                if line.strip():
                    self._take(line, threads)

    def _take(self, line: bytes, threads: ThreadPoolExecutor) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            self._write(_error(None, PARSE_ERROR, "each line is one message, a JSON object"))
        elif message.get("method") == "initialize":
            self._answer(message)  # before what follows: its answer has the version of the protocol
        else:
            threads.submit(self._answer, message)

    def _answer(self, message: Json) -> None:
        number = message.get("id")
        try:
            answer = self._ask(message)
        except CollectorError as error:
            answer = _error(number, INTERNAL_ERROR, str(error))
        except Exception as error:  # noqa: BLE001 -- an assistant that gets no answer waits for ever
            answer = _error(number, INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        if message.get("method") == "initialize" and "result" in answer:
            self._version = answer["result"].get("protocolVersion")
        if number is not None:
            self._write(answer)

    def _ask(self, message: Json) -> Any:  # noqa: ANN401 -- JSON
        """Return the collector's answer, None if it has none; raises CollectorError."""
        answer = self._client.post("/mcp", message, self._headers(message), ANSWER_S)
        with contextlib.suppress(ValueError, TypeError):
            found = json.loads(answer.body)
            if "jsonrpc" in found:  # also an error of the protocol
                return found
        return self._client.read(answer)

    def _headers(self, message: Json) -> dict[str, str]:
        """Return the headers in which HTTP repeats what is in the message."""
        headers = {"accept": "application/json, text/event-stream"}
        params = message.get("params")
        params = params if isinstance(params, dict) else {}
        meta = params.get("_meta")
        version = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
        if version is not None:
            headers |= {"mcp-protocol-version": str(version), "mcp-method": str(message.get("method"))}
            if "name" in params:
                headers["mcp-name"] = str(params["name"])
        elif self._version is not None:
            headers["mcp-protocol-version"] = self._version
        return headers

    def _write(self, answer: object) -> None:
        with self._writing:
            self._output.write(json.dumps(answer).encode() + b"\n")
            self._output.flush()


def _error(number: object, code: int, message: str) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}
