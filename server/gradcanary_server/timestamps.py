"""Times as people and programs read them; pure."""

from datetime import datetime, timezone
from typing import overload


@overload
def timestamp(seconds: float) -> str: ...


@overload
def timestamp(seconds: None) -> None: ...


def timestamp(seconds: float | None) -> str | None:
    """Return unix seconds as RFC 3339 in UTC, to the millisecond; None for what did not happen."""
    if seconds is None:
        return None
    told = datetime.fromtimestamp(seconds, tz=timezone.utc)
    return told.isoformat(timespec="milliseconds").replace("+00:00", "Z")
