"""The shape of messages, as types: what ``notifications`` writes and ``GET /schemas`` publishes."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field
from typing_extensions import TypedDict

from gradcanary_server import rules
from gradcanary_server.pace import Kind

Moment = Annotated[str, Field(json_schema_extra={"format": "date-time"}, description="RFC 3339, UTC")]
Step = Annotated[int, Field(ge=0)]
Type = Annotated[str, Field(pattern=rf"^gradient\.({'|'.join(rules.NAMES)})\.({'|'.join(get_args(Kind))})$")]


class Counts(TypedDict):
    """Layers: firing now, that ever fired in this incident, and of the run; 0 where it is about none of them."""

    firing: int
    ever: int
    layers: int


class Worst(TypedDict):
    """One of the layers that are worst off; its value and baseline are absmax or what the rule looks at."""

    name: str
    since_step: Step
    value: float | None
    baseline: float | None


class IncidentData(TypedDict):
    """An incident as it was when the message was sealed; ``version`` counts the messages of it to this endpoint."""

    version: Annotated[int, Field(ge=1)]
    incident: int
    run: str
    rule: str
    severity: Literal["information", "warning", "critical"]
    state: Literal["open", "resolved"]
    resolution: str | None
    step: Step
    opened_step: Step
    counts: Counts
    worst: Annotated[list[Worst], Field(max_length=10)]
    prefixes: Annotated[list[str], Field(max_length=20, description="patterns that cover every layer that fired")]
    summary: str
    likely_cause: str
    fix: str
    url: str


class IncidentMessage(TypedDict):
    """What is told of an incident."""

    type: Type
    timestamp: Moment
    data: IncidentData


class TestData(TypedDict):
    """A sentence, and where the pages are."""

    summary: str
    url: str


class TestMessage(TypedDict):
    """What is sent when somebody tries an endpoint."""

    type: Literal["gradcanary.test"]
    timestamp: Moment
    data: TestData


Notification = IncidentMessage | TestMessage
