"""Errors of the collector, as one tree.

CollectorError              for the operator: the message says what to do
  SettingsError             an argument or an environment variable cannot work
  StoreError                the database cannot be opened or migrated, or fails for good
  RulesError                a rules.yaml that cannot be used
  TraceError                no such run to try rules on, or an invalid CSV file
  ScheduleError             a schedule of a learning rate that cannot be used
  RequestError              for the client: becomes ``{"error": {"code", "message", "field"}}``
    StoreUnavailable        the store is locked, full or away for now: 503, the client tries again
      NodeUnavailable       only a node of its cluster is away: other runs are served
"""

import re

_PASSWORD = re.compile(r"(?<=//)([^:@]*):.*@")
_PASSWORD_PARAMETER = re.compile(r"(?<=[?&])\w*password=[^&]*&?")


class CollectorError(Exception):
    """Base of every error that the collector raises on purpose."""


class SettingsError(CollectorError):
    """An argument or an environment variable cannot work; names key, value and what is allowed."""


class StoreError(CollectorError):
    """The database cannot be opened or migrated, or failed in a way that does not pass by itself."""


class RulesError(CollectorError):
    """A rules.yaml that cannot be used; names file, line, key and what is allowed."""


class TraceError(CollectorError):
    """Rules cannot be tried on this; names the file and line, or what the collector answered."""


class ScheduleError(CollectorError):
    """A schedule that cannot be used; names the file and line, or the part of the expression, and what is allowed."""


class RequestError(CollectorError):
    """A request that is answered with ``status`` and an error body; ``field`` is a path such as ``blocks.0.steps``."""

    def __init__(
        self, status: int, code: str, message: str, field: str | None = None, retry_after_s: int | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.field = field
        self.retry_after_s = retry_after_s


class StoreUnavailable(RequestError):  # noqa: N818 -- a state of the store, and the code of the answer
    """The store is locked, full or away for now: a 503 with ``Retry-After``."""

    def __init__(self, message: str) -> None:
        super().__init__(503, "unavailable", message, retry_after_s=2)


class NodeUnavailable(StoreUnavailable):
    """A node of the store's cluster is away for now: the runs of the other nodes are served."""


def invalid(message: str, field: str | None = None) -> RequestError:
    """Return the 422 for a request that is well-formed and wrong."""
    return RequestError(422, "invalid", message, field)


def unknown_run(name: str) -> RequestError:
    """Return the 404 for an unknown run."""
    return RequestError(404, "unknown_run", f"There is no run {name!r} here.", "run")


def unknown_incident(number: int) -> RequestError:
    """Return the 404 for an unknown incident."""
    return RequestError(404, "unknown_incident", f"There is no incident {number} here.", "incident")


def without_password(url: str) -> str:
    """Return a URL for a message, without the passwords before its host and in its query, also if it is malformed."""
    return _PASSWORD_PARAMETER.sub("", _PASSWORD.sub(r"\1@", url)).rstrip("?&")
