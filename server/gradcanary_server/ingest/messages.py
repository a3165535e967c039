"""Hello, heartbeat and end of a session, parsed and checked: names, sizes, ids. Pure.

Batches are in :mod:`gradcanary_server.tsdb.batch`.
"""

import contextlib
import re
from dataclasses import replace
from itertools import chain

from pydantic import ValidationError
from pydantic_core import from_json

from gradcanary import __version__, wire
from gradcanary_server.errors import RequestError, invalid
from gradcanary_server.rules.config import MetricRule
from gradcanary_server.validation import (
    LIMITS,
    MAX_DTYPE,
    MAX_STEP,
    MAX_TEXT,
    Reader,
    check_int,
    check_member,
    check_run_name,
    check_text,
)

MAX_SHORT_TEXT = 100
MAX_CLASS = 200
MAX_FACTS = 1_000
MAX_CRASH_MESSAGE = 300
MAX_FRAMES = 10
MAX_FRAME = 300
MAX_LISTED = 64
MAX_METRIC_BOUNDS = 100

STEP_SOURCES = ("given", "framework", "optimizer", "relative")
END_STATES = ("finished", "crashed", "detached")
"""Ends after which a session sends nothing more; a silent one may come back."""

MEMORIES = ("cpu", "cuda", "hip", "xpu", "mps")

ID = r"^(?!\.)[A-Za-z0-9._-]{1,64}$"
"""As in JSON Schema, where ``$`` is the end; in Python it also matches before a last line feed."""
_ID = re.compile(ID.replace("$", r"\Z"))

_HELLO = Reader(wire.Hello)
_HEARTBEAT = Reader(wire.Heartbeat)
_END = Reader(wire.End)


def check_names(run: str, session: str) -> None:
    """Raise RequestError 422 unless both are valid names in a path."""
    check_run_name(run, "run")
    _check_id(session, "session")


def parse_seq(text: str) -> int:
    """Return the number of a batch in a path; raises RequestError 422."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_STEP)) else -1
    if not 0 <= number <= MAX_STEP:
        raise invalid(f"The number of a batch is 0 to {MAX_STEP}.", "seq")
    return number


def read_hello(raw: bytes) -> wire.Hello:
    """Return a valid hello; raises RequestError 426 before any other one."""
    try:
        message = _HELLO.read(raw)
    except RequestError:
        with contextlib.suppress(ValueError):  # not JSON
            body = from_json(raw)
            _check_protocol(body.get("protocol") if isinstance(body, dict) else None)
        raise
    _check_protocol(message.protocol)
    _check_session_facts(message)
    for number, layer_set in enumerate(message.layer_sets):
        _check_layer_set(layer_set, f"layer_sets.{number}")
    _check_facts(message.facts)
    if message.environment is not None:
        _check_environment(message.environment)
    _check_settings(message.settings)
    _check_metrics(message.metrics)
    return message


def _check_id(text: str, field: str) -> None:
    if not _ID.match(text):
        raise invalid(f"A {field} id has 1 to 64 of A-Z a-z 0-9 . _ - and does not start with a dot.", field)


def _check_protocol(protocol: object) -> None:
    if isinstance(protocol, int) and protocol != wire.PROTOCOL:
        side = "where the collector runs" if protocol > wire.PROTOCOL else "where the training runs"
        here = f"The collector (gradcanary {__version__}) has protocol {wire.PROTOCOL}, the agent {protocol}"
        raise RequestError(426, "unknown_protocol", f"{here}: upgrade gradcanary {side}.", "protocol")


def _check_session_facts(message: wire.Hello) -> None:
    _check_id(message.launch, "launch")
    for field in ("agent", "python", "torch", "framework", "optimizer"):
        check_text(getattr(message, field), field, MAX_SHORT_TEXT)
    check_int(message.world_size, "world_size", 1, 2**20)
    check_int(message.rank, "rank", 0, message.world_size - 1)
    check_int(message.first_step, "first_step", 0, MAX_STEP)
    check_member(message.step_source, "step_source", STEP_SOURCES)
    if not 0 < message.interval_s <= 3600:
        raise invalid("The heartbeat interval is above 0 and at most 3600 seconds.", "interval_s")
    if message.started is not None and message.started < 0:
        raise invalid("A session begins at 0 or later, in unix seconds.", "started")
    for field in ("absmax_below", "norm_below", "collapse_below"):
        threshold = getattr(message, field)
        if threshold is not None and threshold <= 0:
            raise invalid("A threshold is above 0.", field)


def _check_layer_set(layer_set: wire.LayerSet, field: str) -> None:
    layers = layer_set.layers
    if not 1 <= len(layers) <= LIMITS.max_layers:
        raise invalid(f"A layer set holds 1 to {LIMITS.max_layers} layers, not {len(layers)}.", field)
    for number, layer in enumerate(layers):
        _check_layer(layer, f"{field}.layers.{number}")
    if len({layer.name for layer in layers}) < len(layers):
        raise invalid("Layer names are unique in a set.", f"{field}.layers")
    if layer_set.id != wire.layer_set_id(layers):
        raise invalid("The id is not the hash of the layers.", f"{field}.id")


def _check_layer(layer: wire.Layer, field: str) -> None:
    check_text(layer.name, f"{field}.name", wire.MAX_NAME, shortest=1)
    check_text(layer.param_dtype, f"{field}.param_dtype", MAX_DTYPE)
    check_text(layer.module_class, f"{field}.module_class", MAX_CLASS)
    check_int(layer.group, f"{field}.group", 0, LIMITS.max_layers)
    check_int(layer.local_numel, f"{field}.local_numel", 0, 2**63 - 1)
    if len(layer.shape) > 16 or any(not 0 <= size < 2**63 for size in layer.shape):
        raise invalid("A shape has at most 16 sizes, none negative.", f"{field}.shape")


def _check_facts(facts: tuple[wire.Fact, ...]) -> None:
    if len(facts) > MAX_FACTS:
        raise invalid(f"A hello carries at most {MAX_FACTS} facts.", "facts")
    for number, fact in enumerate(facts):
        check_text(fact.code, f"facts.{number}.code", MAX_SHORT_TEXT, shortest=1)
        check_text(fact.text, f"facts.{number}.text", MAX_TEXT, lines=True)
        for name in fact.layers:
            check_text(name, f"facts.{number}.layers", wire.MAX_NAME)


def _check_environment(environment: wire.Environment) -> None:
    check_text(environment.command, "environment.command", MAX_TEXT)
    check_text(environment.git_commit, "environment.git_commit", MAX_SHORT_TEXT)
    check_text(environment.host, "environment.host", MAX_CLASS)
    for field in ("gpus", "versions", "job"):
        values = getattr(environment, field)
        if len(values) > MAX_LISTED:
            raise invalid(f"A list of the environment has at most {MAX_LISTED} entries.", f"environment.{field}")
        for text in values if field == "gpus" else chain.from_iterable(values):
            check_text(text, f"environment.{field}", MAX_CLASS)
    _check_trackers(environment.trackers)


def _check_trackers(runs: tuple[wire.TrackerRun, ...]) -> None:
    """An address is any text here: pages make a link of one of http or https only."""
    if len(runs) > MAX_LISTED:
        raise invalid(f"A session names at most {MAX_LISTED} runs of other trackers.", "environment.trackers")
    for number, run in enumerate(runs):
        field = f"environment.trackers.{number}"
        check_member(run.tracker, f"{field}.tracker", wire.TRACKERS)
        check_text(run.url, f"{field}.url", wire.MAX_TRACKER_URL)
        for name in ("id", "name", "store"):
            check_text(getattr(run, name), f"{field}.{name}", MAX_CLASS)


def _check_settings(settings: tuple[wire.Setting, ...]) -> None:
    if len(settings) > MAX_FACTS:
        raise invalid(f"A hello carries at most {MAX_FACTS} settings.", "settings")
    for number, setting in enumerate(settings):
        check_text(setting.name, f"settings.{number}.name", MAX_SHORT_TEXT, shortest=1)
        check_int(setting.step, f"settings.{number}.step", 0, MAX_STEP)
        check_int(setting.checked, f"settings.{number}.checked", 0, MAX_STEP)
        for group in setting.groups:
            check_int(group, f"settings.{number}.groups", 0, LIMITS.max_layers)
        if isinstance(setting.value, str):
            check_text(setting.value, f"settings.{number}.value", MAX_SHORT_TEXT)


def _check_metrics(metrics: tuple[wire.MetricBound, ...]) -> None:
    if len(metrics) > MAX_METRIC_BOUNDS:
        raise invalid(f"A hello carries at most {MAX_METRIC_BOUNDS} metrics.", "metrics")
    for number, bound in enumerate(metrics):
        check_text(bound.name, f"metrics.{number}.name", MAX_CLASS, shortest=1)
        try:
            MetricRule.of_bound(bound)
        except ValidationError as error:
            first = error.errors()[0]
            field = first.get("ctx", {}).get("key") or first["loc"][0]
            raise invalid(f"A bound of a metric is not valid: {first['msg']}.", f"metrics.{number}.{field}") from error


def read_heartbeat(raw: bytes) -> wire.Heartbeat:
    """Return a valid heartbeat; raises RequestError."""
    message = _HEARTBEAT.read(raw)
    check_int(message.step, "step", 0, MAX_STEP)
    check_int(message.spooled_bytes, "spooled_bytes", 0, 2**63 - 1)
    check_int(message.dropped_steps, "dropped_steps", 0, MAX_STEP)
    return message


def read_end(raw: bytes) -> wire.End:
    """Return a valid end, with the tail of its error; raises RequestError."""
    message = _END.read(raw)
    check_member(message.state, "state", END_STATES)
    check_int(message.last_step, "last_step", 0, MAX_STEP)
    check_text(message.error, "error", LIMITS.max_body, lines=True)
    # The agent does not know this limit, so a long stack trace is no reason to refuse the end.
    _check_crash(message.crash)
    return replace(message, error=message.error and message.error[-MAX_TEXT:])


def _check_crash(crash: wire.Crash | None) -> None:
    if crash is None:
        return
    check_text(crash.type, "crash.type", MAX_SHORT_TEXT, shortest=1)
    check_text(crash.message, "crash.message", MAX_CRASH_MESSAGE)
    check_member(crash.memory, "crash.memory", MEMORIES)
    check_int(crash.peak_bytes, "crash.peak_bytes", 0, 2**63 - 1)
    if len(crash.frames) > MAX_FRAMES:
        raise invalid(f"A crash has at most {MAX_FRAMES} frames.", "crash.frames")
    for number, frame in enumerate(crash.frames):
        check_text(frame, f"crash.frames.{number}", MAX_FRAME)
