"""What can go wrong, as one tree.

CollectorError              the operator's business: the message says what to do
  SettingsError             an argument or an environment variable cannot work
  StoreError                the database cannot be opened or migrated
  RulesError                a rules.yaml that cannot be used
  TraceError                nothing to try rules on: no such run, or a CSV file that is none
  RequestError              the sender's business: becomes ``{"error": {"code", "message", "field"}}``
"""


class CollectorError(Exception):
    """Base of every error that the collector raises on purpose."""


class SettingsError(CollectorError):
    """An argument or an environment variable cannot work; names key, value and what is allowed."""


class StoreError(CollectorError):
    """The database cannot be opened or migrated."""


class RulesError(CollectorError):
    """A rules.yaml that cannot be used; names file, line, key and what is allowed."""


class TraceError(CollectorError):
    """Rules cannot be tried on this; names the file and line, or what the collector answered."""


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


def invalid(message: str, field: str | None = None) -> RequestError:
    """Return the 422 for a request that is well-formed and wrong."""
    return RequestError(422, "invalid", message, field)


def unknown_run(name: str) -> RequestError:
    """Return the 404 for a run that nobody reported."""
    return RequestError(404, "unknown_run", f"There is no run {name!r} here.", "run")
