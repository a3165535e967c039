"""Times in messages and answers: RFC 3339 in UTC. Pure."""

from datetime import datetime, timezone
from typing import Annotated, overload

from pydantic import Field, PlainSerializer


@overload
def timestamp(seconds: float) -> str: ...


@overload
def timestamp(seconds: None) -> None: ...


def timestamp(seconds: float | None) -> str | None:
    """Return unix seconds as RFC 3339 in UTC, to the millisecond; None for None."""
    if seconds is None:
        return None
    at = datetime.fromtimestamp(seconds, tz=timezone.utc)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"}, description="RFC 3339, UTC")]
UnixTime = Annotated[float, PlainSerializer(timestamp, Moment)]
"""Unix seconds, which FastAPI serializes as RFC 3339."""
