"""The API of a collector for scripts and commands: JSON in, JSON out.

CollectorError           a request failed; the message says what to do
├── UnreachableError     nothing answers there
├── AccessError          no token, a wrong one, or one that may not do this
├── NotFoundError        there is no such run, layer, incident, silence or path
└── VersionError         the collector is older or newer than this package

Whatever needs HTTP or TLS is imported by the function that uses it: ``gradcanary run`` starts a training.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from gradcanary import __version__
from gradcanary.settings import Settings

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPResponse

    from gradcanary.export.transport import Answer

NO_HEADERS: Mapping[str, str] = MappingProxyType({})

BLOCK_BYTES = 2**18
"""Bytes of a block of an answer, at most."""

STREAM_TIMEOUT_S = 120.0
"""For the next block of an answer: the collector may have to look for samples through a long run."""

NEAREST_PAGES = 10
"""Of the last active runs, a hundred each, among which the nearest names of an unknown one are found."""

Value = str | int | Sequence[str | int] | None

Spell = Callable[[str], str]

TOKEN = """\
Give a token with {token} or GRADCANARY_TOKEN. Where the collector runs, 'gradcanary token create --scope read --name \
NAME' makes one that reads, and '--scope admin' one that may also change something."""  # noqa: S105 -- sentences


class CollectorError(Exception):
    """A request to the collector failed; ``is_refusal``: because of the arguments of the command.

    ``field`` is the argument in the API, empty if the collector names none.
    """

    def __init__(self, message: str, *, is_refusal: bool = False, field: str = "") -> None:
        super().__init__(message)
        self.is_refusal, self.field = is_refusal, field

    def _render_traceback_(self) -> list[str]:
        """Return what IPython shows in place of a traceback, which would only show the insides of the client."""
        return [f"{type(self).__name__}: {self}"]


class UnreachableError(CollectorError):
    """Nothing answers at the address of the collector."""


class AccessError(CollectorError):
    """The collector wants a token, another one, or one with more rights."""


class NotFoundError(CollectorError):
    """There is no such run, layer, incident, silence or path."""


class VersionError(CollectorError):
    """The collector and this package do not understand each other."""


class CollectorClient:
    """The API of one collector: JSON in, JSON out, one connection per request."""

    def __init__(self, url: str, token: str | None, spelled: str = "--{}", argument: Spell = "--{}".format) -> None:
        """``spelled`` is the caller's spelling of url and token, for messages; ``argument`` that of other fields."""
        self.url = url
        self._token = token
        self._spelled, self._argument = spelled, argument

    @classmethod
    def resolve(
        cls, url: str | None, token: str | None, spelled: str = "--{}", argument: Spell = "--{}".format
    ) -> CollectorClient:
        """Return the API of a collector, of ``GRADCANARY_URL`` and ``GRADCANARY_TOKEN`` if None; raises ValueError."""
        given = {name: os.environ[name] for name in ("GRADCANARY_URL", "GRADCANARY_TOKEN") if name in os.environ}
        settings = Settings.resolve(given, spelled=spelled, url=url, token=token)
        return cls(settings.url, settings.token, spelled, argument)

    def request(self, method: str, path: str, body: object = None, **query: Value) -> Any:  # noqa: ANN401 -- JSON
        """Return the JSON of the answer, None if it has no body; a sequence in ``query`` repeats its name.

        Raises CollectorError.
        """
        with self._exchange(method, path, body, query) as response:
            answer = _received(response)
        return self.read(answer)

    def change(self, path: str, body: Mapping[str, object], by: str | None) -> Any:  # noqa: ANN401 -- JSON
        """Return the answer to a change by this author; raises CollectorError.

        Without a name it is the token's, or that of the user where the collector asks for no token.
        """
        author = user_name() if by is None and self._token is None else by
        try:
            return self.request("POST", path, {**body, "by": author})
        except CollectorError as error:
            if author is not None or error.field != "by" or (user := user_name()) is None:
                raise
        return self.request("POST", path, {**body, "by": user})

    def post(self, path: str, message: object, headers: Mapping[str, str], timeout_s: float) -> Answer:
        """Return the answer, also a refusal, to a message for a path beside the API; raises CollectorError."""
        with self._exchange("POST", path, message, {}, timeout_s, headers, root="") as response:
            return _received(response)

    def read(self, answer: Answer) -> Any:  # noqa: ANN401 -- JSON
        """Return the JSON of an answer, None if it has no body; raises CollectorError."""
        self._check(answer)
        with contextlib.suppress(ValueError):  # another program listens there
            return json.loads(answer.body) if answer.body else None
        raise CollectorError(f"{self.url} answered {answer.status} and no JSON of a collector")

    def blocks(self, path: str, **query: Value) -> Generator[bytes]:
        """Yield the body of an answer in blocks as they come; raises CollectorError, also if it is cut off.

        To be closed (:func:`contextlib.closing`) where it is not read to its end.
        """
        import http.client

        with self._exchange("GET", path, None, query, STREAM_TIMEOUT_S) as response:
            if response.status >= 300:
                self._check(_received(response))
            try:
                while block := response.read1(BLOCK_BYTES):
                    yield block
                if response.length:
                    raise http.client.IncompleteRead(b"", response.length)
            except (OSError, http.client.HTTPException) as error:
                reason = f"the answer of {self.url} was cut off ({error or type(error).__name__})"
                raise CollectorError(reason) from error

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

    @contextlib.contextmanager
    def nearest_names(self, run: str | None, lists: str) -> Iterator[None]:
        """Add the nearest names to the error that there is no such ``run``, and what ``lists`` all."""
        try:
            yield
        except NotFoundError as error:
            if run is None or error.field != "run":
                raise
            hint = self._nearest(run, lists)
            raise NotFoundError(f"{error} {hint}", is_refusal=True, field="run") from None

    def _nearest(self, name: str, lists: str) -> str:
        import difflib

        names = [run["run"] for run in self.pages("/runs", "runs", "after", NEAREST_PAGES)[0]]
        near = difflib.get_close_matches(name, names, 3, 0.5) or [
            each for each in names if name.lower() in each.lower()
        ]
        if not names:
            return "It has no runs yet."
        return f"The nearest: {', '.join(near[:3])}. {lists} lists all." if near else f"{lists} lists all."

    def versions(self) -> str:
        """Return a sentence with the version of the collector and of this package, and what to do if they differ."""
        there = self._version()
        if there == __version__:
            return f"The collector at {self.url} has gradcanary {there}, as here."
        remedy = "install the same version in both places"
        return f"The collector at {self.url} has gradcanary {there}, here is {__version__}: {remedy}."

    def _version(self) -> str:
        unknown = contextlib.suppress(CollectorError, ValueError, LookupError, TypeError)
        with unknown, self._exchange("GET", "/openapi.json", None, {}) as response:
            return str(json.loads(response.read())["info"]["version"])
        return "unknown"

    def _check(self, answer: Answer) -> None:
        """Raise CollectorError if an answer is a refusal or a failure."""
        if answer.status in (401, 403) and answer.message:
            hint = TOKEN.format(token=self._spelled.format("token"))
            raise AccessError(f"{answer.message} {hint}", is_refusal=True)
        if answer.code == "not_found" and self._version() != __version__:  # no such route
            raise VersionError(f"{answer.message} {self.versions()}", is_refusal=True)
        if 400 <= answer.status < 500 and answer.message:
            kind = NotFoundError if answer.status == 404 else CollectorError
            message = answer.message
            if message.startswith("Input should ") and answer.field:  # pydantic does not name it
                message = f"{self._argument(answer.field)} {message.removeprefix('Input ')}"
            raise kind(message, is_refusal=True, field=answer.field)
        if answer.status >= 300:
            why = answer.message or "and no JSON of a collector"
            raise CollectorError(f"{self.url} answered {answer.status} {why}")

    @functools.cached_property
    def _trusted(self) -> ssl.SSLContext | None:
        return tls_context(self.url)  # once: to read the authorities takes longer than to connect

    @contextlib.contextmanager
    def _exchange(
        self,
        method: str,
        path: str,
        body: object,
        query: Mapping[str, Value],
        timeout_s: float | None = None,
        given_headers: Mapping[str, str] = NO_HEADERS,
        root: str = "/api/v1",
    ) -> Iterator[HTTPResponse]:
        """Send a request and open its answer; raises UnreachableError, also where the block reads the answer.

        ``timeout_s`` is the longest wait for its next bytes.
        """
        import http.client

        from gradcanary.export.transport import Connection

        parts = urlsplit(self.url)
        headers = {"content-type": "application/json", **given_headers}
        if self._token is not None:
            headers["authorization"] = f"Bearer {self._token}"
        given = urlencode({name: value for name, value in query.items() if value is not None}, doseq=True)
        target = f"{parts.path.rstrip('/')}{root}{path}" + (f"?{given}" if given else "")
        content = None if body is None else json.dumps(body).encode()
        try:
            with contextlib.closing(Connection(parts.hostname or "", parts.port, self._trusted)) as connection:
                connection.request(method, target, content, headers)
                if timeout_s is not None:
                    connection.sock.settimeout(timeout_s)
                yield connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            fix = "start it with 'gradcanary up', or give its address with "
            fix += f"{self._spelled.format('url')} or GRADCANARY_URL"
            if type(error).__name__ == "SSLCertVerificationError":  # ssl takes long to import
                fix = (
                    "name the certificate of its authority in GRADCANARY_CA_FILE; 'gradcanary doctor' finds the reason"
                )
            elif isinstance(error, http.client.RemoteDisconnected) and parts.scheme == "http":
                fix = f"if it is a collector with TLS, its address is https://{parts.netloc}"
            raise UnreachableError(
                f"the collector at {self.url} does not answer ({error or type(error).__name__}): {fix}"
            ) from error


def _received(response: HTTPResponse) -> Answer:
    from gradcanary.export.transport import Answer

    return Answer(response.status, response.read(), None)


def tls_context(url: str) -> ssl.SSLContext | None:
    """Return the TLS context for a collector, None for one without TLS; raises OSError on a wrong CA file."""
    from gradcanary.export import transport

    return transport.tls_context(os.environ) if urlsplit(url).scheme == "https" else None


def run_path(name: str) -> str:
    """Return the path of a run in the API."""
    return f"/runs/{quote(name, safe='')}"


def check_metrics(run: Mapping[str, Any], names: Sequence[str]) -> list[Mapping[str, Any]]:
    """Return the metrics of a run of the API with these names, all without names; raises NotFoundError."""
    known: list[Mapping[str, Any]] = run["metrics"]
    logged = dict.fromkeys(metric["name"] for metric in known)
    for name in names:
        if name not in logged:
            has = ", ".join(logged) or "none"
            raise NotFoundError(f"{run['run']} has no metric {name!r}; it has: {has}", is_refusal=True, field="name")
    return [metric for metric in known if not names or metric["name"] in names]


def user_name() -> str | None:
    """Return the name of the user, for changes; a container's user may have none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):
        return None
