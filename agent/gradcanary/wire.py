"""The messages between agent and collector: frozen dataclasses, JSON with base64 little-endian columns.

Standard library only, no torch: the agent sends these from the training container, the collector validates the same
classes strictly (unknown keys, wrong types, NaN literals are refused). Requests forbid unknown keys; replies ignore
them, so that an old agent understands a new collector.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

PROTOCOL = 1
"""Raised by any change of a request but ``Hello.EXTRAS``; a collector that does not know it answers 426."""

STATS = (
    "absmax",
    "norm",
    "zero_fraction",
    "nonfinite",
    "update_ratio",
    "weight_norm",
    "accumulation_error",
    "norm_ratio",
    "frozen_fraction",
)
PHASES = ("micro", "accumulated", "reduced", "post_clip")
STATES = ("measured", "no_gradient", "zero", "nonfinite", "not_trainable", "partial")
"""The index of a state is its value in the state plane of a batch."""

FROZEN_PARAMETERS = "frozen_parameters"
"""Code of the fact that says how many parameters are frozen."""

NEVER_CLEARED = "never_cleared"
"""Code of the fact that no part of the loop clears some gradients."""

FLOAT16_GRADIENTS = "fp16_gradients"
"""Code of the fact that gradients in float32 tensors are computed in float16."""

FLOAT16_LIMIT = "fp16_limit"
"""Code of the fact that most elements of gradients are among the smallest numbers of float16."""

FLOAT16_WITHOUT_SCALER = "fp16_without_scaler"
"""Code of the fact that no GradScaler scales the loss of gradients in float16."""

UNDONE_UPDATES = "undone_updates"
"""Code of the fact that weights have their old values again when a later step begins."""

OWN_LOSS = "own_loss"
"""Code of the fact that lists the parameters of which no loss is on record: another optimizer's, with backward passes
of their own."""

REPLACED_FACTS = frozenset({FROZEN_PARAMETERS, NEVER_CLEARED, FLOAT16_GRADIENTS, FLOAT16_LIMIT, FLOAT16_WITHOUT_SCALER})
"""Codes of facts of which a session has one at most: a newer one replaces it."""

LAUNCH_FACTS = REPLACED_FACTS - {FROZEN_PARAMETERS} | {UNDONE_UPDATES, OWN_LOSS}
"""Codes of facts about one launch: the next one may have another loop, or another precision."""

FROZEN_STEPS = 50
"""Steps from one comparison of low-precision weights to the next; more where samples lie further apart."""

MAX_NAME = 500
"""Characters in a layer name."""

TRACKERS = ("wandb", "mlflow")
"""Other trackers whose runs a session may name."""

MAX_TRACKER_URL = 500
"""Characters in the address of such a run."""


MAX_METRIC_OBSERVATIONS = 100
"""Values in a row of which a bound of a metric may ask for."""


class Request:
    """The strictness that the collector applies to a message, read by pydantic; the agent does not need it."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = {"strict": True, "extra": "forbid", "allow_inf_nan": False}


@dataclass(frozen=True)
class Layer(Request):
    """One named parameter tensor; ``name`` is unique in its set, without control characters."""

    name: str
    shape: tuple[int, ...]
    local_numel: int
    param_dtype: str
    group: int | None
    module_class: str | None


@dataclass(frozen=True)
class LayerSet(Request):
    """The layers of all optimizers of a session, in model order; ``id`` is :func:`layer_set_id` of them."""

    id: str
    layers: tuple[Layer, ...]


@dataclass(frozen=True)
class Fact(Request):
    """A static finding about the run; ``layers`` are names, none means the whole run."""

    code: str
    text: str
    layers: tuple[str, ...]


@dataclass(frozen=True)
class TrackerRun(Request):
    """A run of another tracker that was active while a session sampled; ``tracker`` is one of TRACKERS.

    ``url`` is its page, without secrets. ``store`` is what keeps a run without a page: the folder of a W&B run that is
    offline, MLflow's tracking URI.
    """

    tracker: str
    id: str
    name: str
    url: str | None
    store: str | None


@dataclass(frozen=True)
class Environment(Request):
    """The program of a launch and its surroundings; None and empty where unknown. ``command`` has no secrets.

    ``versions`` and ``job`` are pairs of name and value; those of ``job`` are environment variables of a scheduler.
    """

    command: str
    git_commit: str | None
    git_dirty: bool | None
    host: str
    gpus: tuple[str, ...]
    versions: tuple[tuple[str, str], ...]
    job: tuple[tuple[str, str], ...]
    trackers: tuple[TrackerRun, ...] = ()


@dataclass(frozen=True)
class Setting(Request):
    """A value of some parameter groups, numbered as ``lr0``, ``lr1``; no groups: of all gradients together.

    ``step`` is the first one at which it was seen, ``checked`` the last one at which another value was; None for the
    first value.
    """

    step: int
    checked: int | None
    groups: tuple[int, ...]
    name: str
    value: bool | float | str


@dataclass(frozen=True)
class MetricBound(Request):
    """Bounds of a metric that is logged, for each of its series by itself; at least one is given.

    ``falls_by`` and ``rises_by`` are shares of the level of a series. ``observations`` and ``severity`` (warning or
    critical) are None for the collector's default.
    """

    name: str
    below: float | None = None
    above: float | None = None
    falls_by: float | None = None
    rises_by: float | None = None
    observations: int | None = None
    severity: str | None = None


@dataclass(frozen=True)
class Hello(Request):
    """The first message of a session; a repeat may add layer sets, facts and settings, and fill fields that were None.

    ``started`` is the session's start in unix seconds by the agent's clock; launches are sorted by it. The fields of
    ``EXTRAS`` are left out for a collector that refuses them.
    """

    EXTRAS: ClassVar[tuple[str, ...]] = ("environment", "settings", "metrics", "collapse_below")

    protocol: int
    launch: str
    rank: int
    world_size: int
    sharded: bool | None
    first_step: int | None
    step_source: str | None
    late: bool
    agent: str
    python: str
    torch: str
    framework: str | None
    optimizer: str | None
    interval_s: float
    absmax_below: float | None
    norm_below: float | None
    layer_sets: tuple[LayerSet, ...]
    facts: tuple[Fact, ...]
    started: float | None = None
    environment: Environment | None = None
    settings: tuple[Setting, ...] = ()
    metrics: tuple[MetricBound, ...] = ()
    collapse_below: float | None = None


@dataclass(frozen=True)
class Accumulator(Request):
    """A change record: these layers (indices into the layer set) sum into these dtypes until the next record."""

    layers: tuple[int, ...]
    declared: str | None
    stored: str | None
    effective: str | None


@dataclass(frozen=True)
class Block(Request):
    """One stat at some of the batch's steps for some layers.

    ``values`` is a float32 column [step][layer], NaN only where the state plane has the reason; ``layers`` are indices
    into the layer set, None means all of them; ``phase`` is None for stats of weights.
    """

    stat: str
    phase: str | None
    steps: tuple[int, ...]
    layers: tuple[int, ...] | None
    values: str


@dataclass(frozen=True)
class Metric(Request):
    """A sparse series: ``values`` is a float64 column [step]; NaN and infinities are values here."""

    name: str
    tags: tuple[tuple[str, str], ...]
    steps: tuple[int, ...]
    values: str


@dataclass(frozen=True)
class Batch(Request):
    """Some steps of a session.

    ``times`` is a float64 column [step] of unix seconds by the agent's clock, for display only; ``micro_steps``,
    ``skipped`` (0 no, 1 by a GradScaler, 2 by the loop) and ``clipped`` hold one value per step; ``state`` is a uint8
    column [step][layer] of indices into STATES; ``dropped_steps`` counts the dropped steps of the session so far.
    """

    layer_set: str
    every: int
    steps: tuple[int, ...]
    times: str
    micro_steps: tuple[int, ...]
    skipped: tuple[int, ...]
    clipped: tuple[int, ...]
    state: str
    blocks: tuple[Block, ...]
    accumulators: tuple[Accumulator, ...]
    metrics: tuple[Metric, ...]
    dropped_steps: int


@dataclass(frozen=True)
class Heartbeat(Request):
    """A sign of life between batches. No batch will follow for ``step`` and the steps before it."""

    step: int | None
    spooled_bytes: int
    dropped_steps: int
    agent_share: float


@dataclass(frozen=True)
class Crash(Request):
    """The exception that ended a training.

    ``frames`` are "file:line in function", the innermost first, user code before the library's. ``memory`` is what ran
    out: cpu, cuda, hip, xpu, mps; None for any other exception. ``peak_bytes`` is the peak of that memory.
    """

    type: str
    message: str
    frames: tuple[str, ...]
    memory: str | None = None
    peak_bytes: int | None = None


@dataclass(frozen=True)
class End(Request):
    """The end of a session; ``state`` is finished, crashed, or detached from a training that goes on."""

    state: str
    last_step: int | None
    error: str | None
    crash: Crash | None = None


@dataclass(frozen=True)
class Brief:
    """An open incident, as the collector reports it to the agent.

    ``silenced`` is True if silences cover all its firing members, or the worst of them. ``reopened`` counts how often
    it was over and came back. ``do_first`` is one line, empty if ten newer or worse ones are open. ``muted`` is True if
    its rule sends no messages. An older collector sends none of the last five.
    """

    id: int
    rule: str
    severity: str
    state: str
    opened_step: int
    layers: int
    summary: str
    url: str
    acknowledged: bool = False
    silenced: bool = False
    reopened: int = 0
    do_first: str = ""
    muted: bool = False

    @property
    def is_handled(self) -> bool:
        """True after an acknowledgement, and during a silence."""
        return self.acknowledged or self.silenced


@dataclass(frozen=True)
class Limits:
    """Limits of one request: bytes of a body, points (steps x layers x stats), layers of a set."""

    max_body: int
    max_points: int
    max_layers: int


@dataclass(frozen=True)
class Reply:
    """The answer to every accepted request; ``status`` is stored, duplicate or ok.

    ``spacing_s`` is the least number of seconds between two batches of a session: a busy collector requests fewer and
    larger ones. ``has_other_layers`` is True for a rank that sends samples, because no other rank has its layers.
    """

    status: str
    next_seq: int
    limits: Limits
    incidents: tuple[Brief, ...]
    spacing_s: float = 0.0
    has_other_layers: bool = False


def dump(message: object) -> bytes:
    """Return a message as compact JSON; raises ValueError on a NaN or infinity outside a column."""
    return json.dumps(message, default=vars, allow_nan=False, separators=(",", ":")).encode()


def dump_end(end: End) -> bytes:
    """Return an end as JSON, without the key of a crash that it does not have: an older collector refuses the key."""
    return dump({key: value for key, value in vars(end).items() if key != "crash" or value is not None})


def without_crash(ending: bytes) -> bytes:
    """Return the JSON of an end for a collector that does not know crashes."""
    return dump({key: value for key, value in json.loads(ending).items() if key != "crash"})


def without_extras(hello: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a hello without those that an older collector refuses."""
    return {field: value for field, value in hello.items() if field not in Hello.EXTRAS}


def load_reply(raw: bytes) -> Reply:
    """Return the reply in a body; raises ValueError on anything else."""
    try:
        return _reply(json.loads(raw))
    except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError) as error:
        raise ValueError(f"This is no reply of a collector ({type(error).__name__}: {error}).") from error


def _reply(body: Mapping[str, Any]) -> Reply:
    return Reply(
        status=str(body["status"]),
        next_seq=int(body["next_seq"]),
        limits=Limits(**{key: int(body["limits"][key]) for key in ("max_body", "max_points", "max_layers")}),
        incidents=tuple(map(_brief, body["incidents"])),
        spacing_s=float(body.get("spacing_s", 0.0)),
        has_other_layers=bool(body.get("has_other_layers", False)),
    )


def _brief(body: Mapping[str, Any]) -> Brief:
    numbers = {key: int(body[key]) for key in ("id", "opened_step", "layers")}
    texts = {key: str(body[key]) for key in ("rule", "severity", "state", "summary", "url")}
    newer = {"acknowledged": bool, "silenced": bool, "reopened": int, "do_first": str, "muted": bool}
    known = {key: kind(body[key]) for key, kind in newer.items() if key in body}
    return Brief(**numbers, **texts, **known)  # type: ignore[arg-type]  # each key is of its kind


def layer_set_id(layers: Iterable[Layer]) -> str:
    """Return the first 16 hex digits of the sha256 of the layers' canonical JSON (sorted keys, ASCII, no spaces)."""
    canonical = json.dumps(tuple(layers), default=vars, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:16]


def column(typecode: str, values: Iterable[float]) -> str:
    """Return numbers as a base64 little-endian column; typecodes of :mod:`array`: f float32, d float64, B uint8."""
    packed = array(typecode, values)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed).decode("ascii")


def uncolumn(typecode: str, text: str) -> array[Any]:
    """Return the numbers of a column; raises ValueError on text that is not base64 or not a whole number of items."""
    packed = array(typecode)
    packed.frombytes(base64.b64decode(text, validate=True))
    if sys.byteorder == "big":
        packed.byteswap()
    return packed
