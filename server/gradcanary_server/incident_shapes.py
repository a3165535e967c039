"""What is answered of incidents and silences, as types; see :mod:`gradcanary_server.run_shapes`."""

from __future__ import annotations

from typing import Annotated, get_args

from typing_extensions import TypedDict

from gradcanary_server import rules
from gradcanary_server.endpoint_shapes import AttemptShape
from gradcanary_server.messages import Counts, Moment, Step
from gradcanary_server.pace import Kind
from gradcanary_server.run_shapes import Count, Severity, one_of

Rule = Annotated[str, one_of(*rules.NAMES)]
DeliveryState = Annotated[str, one_of("pending", "delivered", "expired", "disabled")]
DeliveryKind = Annotated[str, one_of(*get_args(Kind))]


class AckShape(TypedDict):
    """Who knows of it."""

    at: Moment
    by: str
    note: str


class SilencedShape(TypedDict):
    """How many of the members that fire nobody is told of, by which silences, and when the first is told of again."""

    until: Moment
    members: Count
    of: Count
    silences: list[int]


class LastToldShape(TypedDict):
    """What an endpoint was told last."""

    endpoint: int
    name: str
    kind: DeliveryKind
    state: DeliveryState


class CauseShape(TypedDict):
    """What probably was the reason; ``incidents`` are other ones that say so."""

    code: str
    text: str
    evidence: list[str]
    incidents: list[int]


class FixShape(TypedDict):
    """What to do, in the words of a framework."""

    framework: str
    text: str
    code: str


class IncidentInBrief(TypedDict):
    """An incident without its layers and deliveries."""

    id: int
    run: str
    rule: Rule
    severity: Severity
    state: Annotated[str, one_of("open", "resolved")]
    opened_step: Step
    opened: Moment
    since_step: Step
    resolved_step: Step | None
    resolved: Moment | None
    resolution: str | None
    reopened: Count
    reopened_at: Moment | None
    acked: AckShape | None
    silenced: SilencedShape | None
    told: list[LastToldShape]
    counts: Counts
    summary: str
    likely_cause: CauseShape
    fix: FixShape
    url: str


class IncidentList(TypedDict):
    """Incidents, newest first; ``next`` is the ``before`` of the following page."""

    incidents: list[IncidentInBrief]
    next: int | None


class MemberShape(TypedDict):
    """A layer of an incident; ``layer`` is null where it is the whole run, ``until_step`` while it fires."""

    layer: Count | None
    name: str
    since_step: Step
    until_step: Step | None
    value: float | None
    baseline: float | None
    siblings: float | None
    evidence: str | None
    rank: Count | None


class ToldShape(TypedDict):
    """A message of an incident to an endpoint."""

    id: str
    endpoint: int
    name: str
    version: int
    kind: DeliveryKind
    state: DeliveryState
    sealed: Moment
    delivered: Moment | None
    next_attempt: Moment | None
    attempts: list[AttemptShape]


class IncidentInFull(IncidentInBrief):
    """An incident with its layers and what was told to whom."""

    layers: list[MemberShape]
    deliveries: list[ToldShape]


class SilenceShape(TypedDict):
    """A silence, with the open incidents that it hides."""

    id: int
    run: str
    rule: Rule | None
    match: str | None
    created: Moment
    until: Moment
    by: str
    note: str
    incidents: list[int]


class SilenceList(TypedDict):
    """The silences in force, in the order in which they were made."""

    silences: list[SilenceShape]


class HiddenShape(TypedDict):
    """An open incident of which a silence would hide so many of the members that fire."""

    id: int
    run: str
    rule: Rule
    members: Count
    of: Count


class SilencePreview(TypedDict):
    """What a silence would hide now, and how many runs have such a name."""

    runs: Count
    incidents: list[HiddenShape]
