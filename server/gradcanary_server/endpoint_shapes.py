"""What is answered of endpoints and what they were sent, as types; see :mod:`gradcanary_server.run_shapes`."""

from __future__ import annotations

from typing import Annotated, get_args

from typing_extensions import TypedDict

from gradcanary_server.messages import Moment
from gradcanary_server.pace import Kind
from gradcanary_server.run_shapes import Count, Severity, one_of


class EndpointShape(TypedDict):
    """Who is told, and how that goes; ``url`` is null where only the configuration has it."""

    id: int
    kind: Annotated[str, one_of("webhook", "apprise")]
    origin: Annotated[str, one_of("operator", "api")]
    name: str
    url: str | None
    min_severity: Severity
    state: Annotated[str, one_of("enabled", "disabled")]
    since: Moment
    why: str | None
    disabled_by: Annotated[str, one_of("failures", "operator", "api")] | None
    failing_since: Moment | None
    last_success: Moment | None
    last_failure: Moment | None
    last_error: str | None
    pending: Count


class EndpointList(TypedDict):
    """All endpoints in the order in which they were made."""

    endpoints: list[EndpointShape]


class NewEndpointShape(EndpointShape):
    """An endpoint that was just made, with its secret."""

    secret: str


class RotatedShape(NewEndpointShape):
    """An endpoint with another secret, and until when messages are signed with both."""

    old_secret_until: Moment


class AttemptShape(TypedDict):
    """An attempt at a message; ``status`` is null where no answer came."""

    at: Moment
    status: int | None
    ms: Count
    error: str | None


class OutcomeShape(TypedDict):
    """How an attempt went that somebody asked for."""

    is_delivered: bool
    status: int | None
    ms: Count
    error: str | None


class RedeliveredShape(OutcomeShape):
    """How it went to send a message once more."""

    id: str
    webhook_id: str


class DeliveryShape(TypedDict):
    """A message to an endpoint without its bytes, and the attempts at it."""

    id: str
    webhook_id: str
    run: str
    incident: int
    endpoint: int
    version: int
    kind: Annotated[str, one_of(*get_args(Kind))]
    state: Annotated[str, one_of("pending", "delivered", "expired", "disabled")]
    sealed: Moment
    delivered: Moment | None
    next_attempt: Moment | None
    attempts: list[AttemptShape]


class DeliveryList(TypedDict):
    """What an endpoint was sent, newest first; ``next`` is the ``before`` of the following page."""

    deliveries: list[DeliveryShape]
    next: str | None
