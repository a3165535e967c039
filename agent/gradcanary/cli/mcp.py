"""``gradcanary mcp``: the collector's MCP server over stdin and stdout, for assistants that start a program.

Each line is a message that is sent to /mcp of the collector, and the answer is a line. The tools are the collector's:
here is nothing but the standard library, and nothing that could be of another version.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO

from gradcanary.cli import console

if TYPE_CHECKING:
    import argparse

    from gradcanary.cli.console import CollectorClient, Commands

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
        except ValueError as error:
            self._write(_error(None, PARSE_ERROR, f"this line is not JSON: {error}"))
            return
        if isinstance(message, dict) and message.get("method") == "initialize":
            self._answer(message)  # before what follows: its answer has the version of the protocol
        else:
            threads.submit(self._answer, message)

    def _answer(self, message: Any) -> None:  # noqa: ANN401 -- JSON
        number = message.get("id") if isinstance(message, dict) else None
        try:
            answer = self._ask(message)
        except console.CollectorError as error:
            answer = _error(number, INTERNAL_ERROR, str(error))
        except Exception as error:  # noqa: BLE001 -- an assistant that gets no answer waits for ever
            answer = _error(number, INTERNAL_ERROR, f"{type(error).__name__}: {error}")
        if isinstance(answer, dict) and "protocolVersion" in (answer.get("result") or {}):
            self._version = answer["result"]["protocolVersion"]
        if answer is not None and number is not None:
            self._write(answer)

    def _ask(self, message: Any) -> Any:  # noqa: ANN401 -- JSON
        """Return the collector's answer, None if it has none; raises CollectorError."""
        answer = self._client.send("POST", "/mcp", json.dumps(message).encode(), self._headers(message), ANSWER_S)
        with contextlib.suppress(ValueError, TypeError):
            found = json.loads(answer.body)
            if "jsonrpc" in found:  # also an error of the protocol
                return found
        return self._client.read(answer)

    def _headers(self, message: Any) -> dict[str, str]:  # noqa: ANN401 -- JSON
        """Return the headers in which HTTP repeats what is in the message."""
        headers = {"accept": "application/json, text/event-stream"}
        params = message.get("params") if isinstance(message, dict) else None
        meta = params.get("_meta") if isinstance(params, dict) else None
        own = meta.get(VERSION_KEY) if isinstance(meta, dict) else None
        if own is not None:
            headers |= {"mcp-protocol-version": str(own), "mcp-method": str(message.get("method"))}
            if message.get("method") == "tools/call":
                headers["mcp-name"] = str(params.get("name"))
        elif self._version is not None:
            headers["mcp-protocol-version"] = self._version
        return headers

    def _write(self, answer: object) -> None:
        with self._writing:
            self._output.write(json.dumps(answer).encode() + b"\n")
            self._output.flush()


def _error(number: object, code: int, message: str) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": message}}
