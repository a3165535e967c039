"""What all commands share: their options and errors, the client of a collector, and printing.

Whatever needs HTTP or TLS is imported by the function that uses it: ``gradcanary run`` starts a training.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode, urlsplit

from gradcanary import terminal
from gradcanary.settings import DEFAULT_URL, Settings

if TYPE_CHECKING:
    import ssl

    from gradcanary.export.transport import Answer

    Commands = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 -- argparse has no public name for it

ROW_INDENT = "    "

SEVERITIES = ("information", "warning", "critical")

TOKEN = """\
Give a token with --token or GRADCANARY_TOKEN, which ps does not show. 'gradcanary token create' makes one where the \
collector runs."""  # noqa: S105 -- a sentence

MAX_TIME_SPAN = timedelta(days=99_999)
"""Keeps the end of a time span within the years that datetime has."""

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


class UsageError(Exception):
    """The arguments of a command cannot work; the message names some that do."""


class CollectorError(Exception):
    """A request to the collector failed; ``is_refusal``: because of the arguments of the command.

    ``field`` is the argument in the API, empty if the collector names none.
    """

    def __init__(self, message: str, *, is_refusal: bool = False, field: str = "") -> None:
        super().__init__(message)
        self.is_refusal, self.field = is_refusal, field


class CollectorClient:
    """The API of one collector: JSON in, JSON out, one connection per request."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        self._token = token

    def request(self, method: str, path: str, body: object = None, **query: str | int | None) -> Any:  # noqa: ANN401 -- JSON
        """Return the JSON of the answer, None if it has no body; raises CollectorError."""
        given = urlencode({name: value for name, value in query.items() if value is not None})
        content = None if body is None else json.dumps(body).encode()
        return self.read(self.send(method, f"/api/v1{path}?{given}" if given else f"/api/v1{path}", content))

    def send(
        self, method: str, path: str, content: bytes | None, headers: Mapping[str, str] | None = None, wait_s: float = 0
    ) -> Answer:
        """Return the answer, also a refusal, that comes within ``wait_s`` (0: the default); raises CollectorError."""
        import http.client

        try:
            return self._exchange(method, path, content, headers or {}, wait_s)
        except (OSError, http.client.HTTPException) as error:
            raise CollectorError(
                f"the collector at {self.url} does not answer ({error or type(error).__name__}): "
                "start it with 'gradcanary up', or give its address with --url or GRADCANARY_URL"
            ) from error

    def read(self, answer: Answer) -> Any:  # noqa: ANN401 -- JSON
        """Return the JSON of an answer, None if it has no body; raises CollectorError."""
        if answer.status in (401, 403) and answer.message:
            raise CollectorError(f"{answer.message} {TOKEN}", is_refusal=True)
        if 400 <= answer.status < 500 and answer.message:
            raise CollectorError(answer.message, is_refusal=True, field=answer.field)
        try:
            if answer.status < 300:
                return json.loads(answer.body) if answer.body else None
        except ValueError:
            pass  # another program listens there
        raise CollectorError(f"{self.url} answered {answer.status} {answer.message or 'and no JSON of a collector'}")

    def pages(self, path: str, key: str, cursor: str, most: int, **query: str | None) -> tuple[list[Any], str | None]:
        """Return the items under ``key`` of up to ``most`` pages, and the cursor of the next page if there is one."""
        items: list[Any] = []
        for _ in range(most):
            page = self.request("GET", path, **query)
            items += page[key]
            query[cursor] = page["next"]
            if query[cursor] is None:
                break
        return items, query[cursor]

    def _exchange(
        self, method: str, path: str, content: bytes | None, given: Mapping[str, str], wait_s: float
    ) -> Answer:
        from gradcanary.export.transport import Answer, Connection

        parts = urlsplit(self.url)
        headers = {"content-type": "application/json", **given}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        connection = Connection(parts.hostname or "", parts.port, tls_context(self.url))
        try:
            connection.request(method, f"{parts.path.rstrip('/')}{path}", content, headers)
            if wait_s:
                connection.sock.settimeout(wait_s)
            response = connection.getresponse()
            return Answer(response.status, response.read(), None)
        finally:
            connection.close()


Command = Callable[[argparse.Namespace, CollectorClient], int | None]
"""A command that asks a collector; it returns the exit status, None for 0."""


def tls_context(url: str) -> ssl.SSLContext | None:
    """Return the TLS context for a collector, None for one without TLS; raises OSError on a wrong CA file."""
    from gradcanary.export import transport

    return transport.tls_context(os.environ) if urlsplit(url).scheme == "https" else None


def add_command(
    commands: Commands, name: str, text: str, run: Command, *, is_below: bool = False
) -> argparse.ArgumentParser:
    """Add a command that asks a collector, and return its parser; ``is_below`` another such command."""
    command = commands.add_parser(name, help=text, description=text)
    add_collector_options(command, argparse.SUPPRESS if is_below else None)  # None would replace the upper one's
    command.set_defaults(run=lambda arguments: run_command(run, arguments))
    return command


def add_collector_options(command: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add ``--url`` and ``--token``."""
    text = f"of the collector (default: GRADCANARY_URL, else {DEFAULT_URL})"
    command.add_argument("--url", default=default, help=text)
    command.add_argument("--token", default=default, help="for the collector (default: GRADCANARY_TOKEN)")


def run_command(command: Command, arguments: argparse.Namespace) -> int:
    """Run a command; return 1 if the collector fails, 2 if it refuses the arguments."""
    given = {name: os.environ[name] for name in ("GRADCANARY_URL", "GRADCANARY_TOKEN") if name in os.environ}
    try:
        settings = Settings.resolve(given, spelled="--{}", url=arguments.url, token=arguments.token)
        return command(arguments, CollectorClient(settings.url, settings.token)) or 0
    except CollectorError as error:
        print_error(f"gradcanary: {error}")
        return 2 if error.is_refusal else 1
    except ValueError as error:
        print_error(f"gradcanary: {error}")
        return 2


def parse_time_span(text: str) -> timedelta:
    """Return the length of ``45s``, ``30m``, ``8h`` or ``3d``; raises ArgumentTypeError."""
    matched = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    span = timedelta(**{_UNITS[matched[2]]: int(matched[1])}) if matched else None
    if span is None or not timedelta() < span <= MAX_TIME_SPAN:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time span: 45s, 30m, 8h, 3d")
    return span


def to_minute(moment: str) -> str:
    """Return a time of the API, RFC 3339 in UTC, to the minute."""
    return moment[:16].replace("T", " ")


def print_unwrapped(text: str) -> None:
    """Print a text as it is; a character that the terminal's encoding lacks is escaped."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # there may be no stdout
    print(text.encode(encoding, "backslashreplace").decode(encoding))  # noqa: T201 -- the answer of a command


def print_text(text: str) -> None:
    """Print a text, wrapped at the width of the terminal."""
    print_unwrapped(terminal.wrapped(text, terminal.width()))


def print_rows(text: str) -> None:
    """Print lines of a table; the rest of a line that is too long follows below it, indented."""
    print_unwrapped(terminal.wrapped(text, terminal.width(), ROW_INDENT))


def print_json(found: object) -> None:
    """Print an answer as JSON, which is not wrapped."""
    print_unwrapped(json.dumps(found, indent=2))


def print_error(text: str) -> None:
    """Print a text on stderr."""
    print(text, file=sys.stderr)  # noqa: T201 -- the one place where commands write errors
