"""Types of the answers about runs, and types that several routes share; the OpenAPI document is made of them.

A route that returns a Response names its type in ``response_model``: FastAPI documents it and does not check it.
What other routes return FastAPI converts to the type: keys that the type does not have are left out.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypedDict

from gradcanary import wire
from gradcanary_server.api.http import Array
from gradcanary_server.clock import Moment
from gradcanary_server.incidents.service import IncidentMark, WorstIncident
from gradcanary_server.rules.types import Severity
from gradcanary_server.tsdb.metric_index import Series
from gradcanary_server.validation import Step


def one_of(*values: str) -> object:
    """Return the annotation of a text that is one of these, for the OpenAPI document."""
    return Field(json_schema_extra={"enum": list(values)})


RunState = Literal["live", "stale", "silent", "detached", "finished", "crashed"]
LayerState = Annotated[str, one_of(*wire.STATES)]
RuleState = Annotated[str, one_of("suspect", "firing", "recovering", "info")]
Phase = Annotated[str, one_of(*wire.PHASES)]
Count = Annotated[int, Field(ge=0)]


class RunSummary(TypedDict):
    """A run in a list. ``accumulators``: number of layers by accumulator dtype; ``sparkline``: float32 of log10;
    ``severity_at_end``: the worst severity that fired when the run ended; ``loss``: the metric ``loss`` without tags;
    ``host``: of the newest launch; ``unacked``: critical incidents without an acknowledgement, the worst first;
    ``threshold``: ``collapse_below`` of its newest launch, else that of the rules.
    """

    run: str
    state: RunState
    created: Moment
    host: str | None
    step: Step | None
    last_step_at: Moment | None
    last_seen: Moment
    loss: Series | None
    layers: Count
    firing: dict[str, int]
    below_threshold: Count
    worst: Severity | None
    worst_incident: WorstIncident | None
    unacked: list[int]
    accumulators: dict[str, int]
    open_incidents: list[int]
    headline: str
    severity_at_end: Severity | None
    note: str
    tags: list[str]
    archived: bool
    sparkline: Array
    threshold: EnterOnly


class RunList(TypedDict):
    """A page of runs; ``next`` is the ``after`` of the following page."""

    runs: list[RunSummary]
    next: str | None


class SessionShape(TypedDict):
    """One process of a launch."""

    session: str
    launch: str
    rank: Count
    world_size: Annotated[int, Field(ge=1)]
    first_step: Step | None
    last_step: Step | None
    step_source: Annotated[str, one_of("given", "framework", "optimizer", "relative")] | None
    state: RunState
    every: int | None
    phase: Phase | None
    agent_share: float | None
    dropped_steps: Count


class TrackerRunShape(TypedDict):
    """A run of another tracker that was active beside a launch.

    Without a page its ``url`` is null, and ``store`` is what keeps it. A client sent the address: check its scheme.
    """

    tracker: Annotated[str, one_of(*wire.TRACKERS)]
    id: str
    name: str
    url: str | None
    store: str | None


class EnvironmentShape(TypedDict):
    """The program of a launch and its surroundings; null and empty where unknown. ``command`` has no secrets."""

    command: str
    git_commit: str | None
    git_dirty: bool | None
    host: str
    gpus: list[str]
    versions: dict[str, str]
    job: dict[str, str]
    trackers: list[TrackerRunShape]


class SettingShape(TypedDict):
    """A value of some parameter groups from ``step`` on (no groups: of all gradients together).

    Another value was seen last at ``checked``, null for the first value.
    """

    step: Step
    checked: Step | None
    groups: list[int]
    name: str
    value: bool | float | str


class LaunchShape(TypedDict):
    """A start of the job."""

    launch: str
    started: Moment
    environment: EnvironmentShape | None
    settings: list[SettingShape]


class Gap(TypedDict):
    """Missing steps, both ends included."""

    session: str
    from_step: Step
    to_step: Step
    reason: Annotated[str, one_of("dropped", "missing", "late")]


class FactShape(TypedDict):
    """A finding of the agent without a measurement; ``layers`` is empty if it is about the run."""

    code: str
    text: str
    layers: list[str]


class RunShape(RunSummary):
    """A run without its measurements. ``aliases``: former names that still lead to it."""

    aliases: list[str]
    revision: Count
    framework: str | None
    rules_version: int | None
    launches: list[LaunchShape]
    sessions: list[SessionShape]
    gaps: list[Gap]
    facts: list[FactShape]
    metrics: list[Series]


class AccumulatorShape(TypedDict):
    """The dtype of an accumulator: as configured, of the tensor, and as its values show."""

    declared: str | None
    stored: str | None
    effective: str | None


class LayerShape(TypedDict):
    """A layer, its last values (null: never measured), and its state in each rule."""

    layer: Count
    name: str
    block: str
    shape: list[int]
    param_dtype: str
    accumulator: AccumulatorShape
    micro_steps: int | None
    step: Step | None
    state: LayerState | None
    absmax: float | None
    norm: float | None
    zero_fraction: float | None
    nonfinite: float | None
    update_ratio: float | None
    accumulation_error: float | None
    norm_ratio: float | None
    frozen_fraction: float | None
    rules: dict[str, RuleState]
    below_threshold: bool
    baseline: float | None


class LayerTable(TypedDict):
    """The layers of a run in model order."""

    revision: Count
    layers: list[LayerShape]


class Envelope(TypedDict):
    """Per bucket: float32 minimum, mean and maximum; int32 numbers of samples and of non-finite samples."""

    min: Array
    mean: Array
    max: Array
    count: Array
    nonfinite: Array


class LayerSeries(Envelope):
    """The envelope of one layer."""

    layer: Count
    name: str


class StatEnvelope(Envelope):
    """The envelope of one stat of a layer."""

    stat: Annotated[str, one_of(*wire.STATS)]
    phases: list[Phase]


class MetricSeries(Envelope):
    """The envelope of one metric."""

    name: str
    tags: dict[str, str]


class BucketSpan(TypedDict):
    """Buckets of one width from a step on, as far as the next span, and the interval of their samples."""

    step: Step
    bucket_steps: Annotated[int, Field(ge=1)]
    every: Annotated[int, Field(ge=1)]


class Buckets(TypedDict):
    """Steps in buckets: the first step of each, and its time in unix seconds (NaN: no samples).

    ``bucket_steps`` is the width of the narrowest ones; without ``spans`` all have it.
    """

    run: str
    revision: Count
    bucket_steps: Annotated[int, Field(ge=1)]
    spans: list[BucketSpan]
    steps: Array
    times: Array


class Thresholds(TypedDict):
    """The absmax below which a layer is low, and above which it has recovered."""

    enter: float
    exit: float


class EnterOnly(TypedDict):
    """The absmax below which a layer is low."""

    enter: float


class StatSeries(Buckets):
    """One stat of some layers."""

    stat: Annotated[str, one_of(*wire.STATS)]
    phases: list[Phase]
    series: list[LayerSeries]
    threshold: Thresholds
    marks: list[IncidentMark]


class LayerStats(Buckets):
    """The stats of one layer that have a value in some step of the run; absmax always."""

    layer: Count
    name: str
    series: list[StatEnvelope]
    threshold: Thresholds
    marks: list[IncidentMark]


class HeatmapRow(TypedDict):
    """The layers of a row, and their common name."""

    layers: list[int]
    name: str
    block: str


class HeatmapShape(Buckets):
    """int16 ``cells`` [row, bucket]: 1000 log10 x; -32768 no data, -32767 exactly zero, -32766 no gradient, -32765 not
    trainable, 32767 not finite.
    """

    stat: Annotated[str, one_of(*wire.STATS)]
    value: Annotated[str, one_of("min", "mean", "max")]
    phases: list[Phase]
    rows: list[HeatmapRow]
    cells: Array
    threshold: EnterOnly
    gaps: list[Gap]
    marks: list[IncidentMark]


class MetricsShape(Buckets):
    """Metrics, by name and tags."""

    metrics: list[MetricSeries]
