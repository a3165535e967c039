"""What is answered of runs, as types: what ``GET /schemas`` publishes, and the OpenAPI document has.

Nothing is validated by them while the collector runs: the tests hold every answer to them.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from gradcanary import wire
from gradcanary_server.arrays import Array
from gradcanary_server.messages import Moment, Step


def one_of(*values: str) -> object:
    """Return what a text is annotated with that is one of these."""
    return Field(json_schema_extra={"enum": list(values)})


Severity = Annotated[str, one_of("information", "warning", "critical")]
RunState = Annotated[str, one_of("live", "stale", "silent", "finished", "crashed")]
LayerState = Annotated[str, one_of(*wire.STATES)]
RuleState = Annotated[str, one_of("suspect", "firing", "recovering", "noted")]
Phase = Annotated[str, one_of(*wire.PHASES)]
Count = Annotated[int, Field(ge=0)]


class RunInBrief(TypedDict):
    """A run in a few words. ``accumulators``: layers by the dtype that they sum into; ``spark``: float32 of log10;
    ``ended_on``: the worst severity of what fired when the run ended.
    """

    run: str
    state: RunState
    step: Step | None
    stepped: Moment | None
    last_seen: Moment
    layers: Count
    firing: dict[str, int]
    low: Count
    worst: Severity | None
    accumulators: dict[str, int]
    open_incidents: list[int]
    headline: str
    ended_on: Severity | None
    note: str
    tags: list[str]
    archived: bool
    spark: Array


class RunList(TypedDict):
    """A page of runs; ``next`` is the ``after`` of the following one."""

    runs: list[RunInBrief]
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


class Gap(TypedDict):
    """Steps that should have come and did not, both included."""

    session: str
    from_step: Step
    to_step: Step
    why: Annotated[str, one_of("dropped", "missing", "late")]


class FactShape(TypedDict):
    """What an agent found without measuring; of no layers where it is about the run."""

    code: str
    text: str
    layers: list[str]


class LastMetric(TypedDict):
    """A series that is logged, and its last value, null where that was not finite."""

    name: str
    tags: dict[str, str]
    last: float | None


class RunInFull(RunInBrief):
    """Everything about a run but its measurements. ``aliases``: names that it had, and that lead to it."""

    aliases: list[str]
    created: Moment
    revision: Count
    framework: str | None
    rules_version: int | None
    sessions: list[SessionShape]
    gaps: list[Gap]
    facts: list[FactShape]
    metrics: list[LastMetric]


class AccumulatorShape(TypedDict):
    """The dtype of an accumulator: what was asked for, that of the tensor, and the one that the values show."""

    declared: str | None
    stored: str | None
    effective: str | None


class LayerShape(TypedDict):
    """A layer, its last values (null where there is none), and what the rules say of it."""

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
    low: bool
    baseline: float | None


class LayerTable(TypedDict):
    """The layers of a run in model order."""

    revision: Count
    layers: list[LayerShape]


class MarkShape(TypedDict):
    """A step at which an incident began or ended."""

    step: Step
    incident: int
    kind: Annotated[str, one_of("fired", "resolved")]


class Envelope(TypedDict):
    """Per bucket: float32 least, mean and largest; int32 how many samples there are, and how many were not finite."""

    min: Array
    mean: Array
    max: Array
    count: Array
    nonfinite: Array


class LayerSeries(Envelope):
    """The envelope of one layer."""

    layer: Count
    name: str


class MetricSeries(Envelope):
    """The envelope of one metric."""

    name: str
    tags: dict[str, str]


class Buckets(TypedDict):
    """Steps in buckets: the first step of each, and its time in unix seconds (NaN where nothing is)."""

    run: str
    revision: Count
    bucket_steps: Annotated[int, Field(ge=1)]
    steps: Array
    times: Array


class Thresholds(TypedDict):
    """absmax under which a layer is low, and over which it has recovered."""

    enter: float
    exit: float


class EnterOnly(TypedDict):
    """absmax under which a layer is low."""

    enter: float


class StatSeries(Buckets):
    """A stat of some layers."""

    stat: Annotated[str, one_of(*wire.STATS)]
    phases: list[Phase]
    series: list[LayerSeries]
    threshold: Thresholds
    marks: list[MarkShape]


class HeatmapRow(TypedDict):
    """The layers of a row, and what they are called together."""

    layers: list[int]
    name: str
    block: str


class HeatmapShape(Buckets):
    """int16 ``cells`` [row, bucket]: 1000 log10 x; -32768 no data, -32767 exactly zero, 32767 not finite."""

    stat: Annotated[str, one_of(*wire.STATS)]
    value: Annotated[str, one_of("min", "mean", "max")]
    phases: list[Phase]
    rows: list[HeatmapRow]
    cells: Array
    threshold: EnterOnly
    gaps: list[Gap]
    marks: list[MarkShape]


class MetricsShape(Buckets):
    """Metrics, by name and tags."""

    metrics: list[MetricSeries]


class DemoShape(TypedDict):
    """Whether the demo can be started here, how it goes, the names of its two runs, and why it failed."""

    offered: bool
    state: Annotated[str, one_of("none", "starting", "running", "ended", "failed")]
    runs: list[str]
    why: str | None
