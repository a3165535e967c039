"""From the bytes of a request to a message that keeps every promise of the wire; pure.

Two steps: the shape (pydantic on the dataclasses of gradcanary.wire, strict), then the meaning (names, sizes, ids).
What a batch holds in its columns is read by :mod:`gradcanary_server.batches`.
"""

import re
from typing import Any, Generic, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, SchemaValidator, from_json

from gradcanary import wire
from gradcanary_server.errors import RequestError, invalid

LIMITS = wire.Limits(max_body=4 * 2**20, max_points=1_000_000, max_layers=20_000)

MAX_OBJECTS = 60_000
"""JSON objects in a body: 4 MiB of ``{}`` would take the parser 5 s and a gigabyte."""

MAX_STEP = 2**31 - 1
"""What the columns of the store hold."""

MAX_TEXT = 4_000
MAX_SHORT_TEXT = 100
MAX_DTYPE = 40
MAX_CLASS = 200
MAX_FACTS = 1_000

SOURCES = ("given", "framework", "optimizer", "relative")
END_STATES = ("finished", "crashed")

RUN = r"^(?!\.)[A-Za-z0-9._-]{1,100}$"
ID = r"^(?!\.)[A-Za-z0-9._-]{1,64}$"
"""Expressions of names, as JSON Schema has them: its ``$`` is the end, Python's is before a last line feed, too."""

_RUN = re.compile(RUN.replace("$", r"\Z"))
_ID = re.compile(ID.replace("$", r"\Z"))
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_CONTROL_BUT_LINES = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

_BRACE = ord("{")  # counted by numpy: bytes.count looks at one after the other, for half as long as the parser takes

Message = TypeVar("Message")


class Reader(Generic[Message]):
    """Reads one kind of message strictly."""

    def __init__(self, kind: type[Message]) -> None:
        self._validator = SchemaValidator(_fail_fast(TypeAdapter(kind).core_schema))

    def read(self, raw: bytes) -> Message:
        """Return the message in a body; raises RequestError 400 when it is no JSON, 422 when it is another message."""
        if len(raw) > MAX_OBJECTS and np.count_nonzero(np.frombuffer(raw, np.uint8) == _BRACE) > MAX_OBJECTS:
            raise invalid(f"A body may hold at most {MAX_OBJECTS} objects.")
        try:
            message: Message = self._validator.validate_json(raw)
        except ValidationError as error:
            raise _misread(error.errors(include_url=False, include_context=False, include_input=False)[0]) from error
        return message


def _fail_fast(schema: Any) -> Any:  # noqa: ANN401 -- pydantic types its nested schemas no closer
    """Return the schema with each tuple read up to its first error: a million of them would fill the memory."""
    if isinstance(schema, dict):
        hastened = {key: _fail_fast(value) for key, value in schema.items()}
        return {**hastened, "fail_fast": True} if schema.get("type") == "tuple" else hastened
    if isinstance(schema, list):
        return [_fail_fast(item) for item in schema]
    return schema


def _misread(first: ErrorDetails) -> RequestError:
    if first["type"] == "json_invalid":
        return RequestError(400, "invalid_json", first["msg"])
    return invalid(first["msg"], ".".join(str(part) for part in first["loc"]) or None)


_HELLO = Reader(wire.Hello)
_BATCH = Reader(wire.Batch)
_HEARTBEAT = Reader(wire.Heartbeat)
_END = Reader(wire.End)


def check_names(run: str, session: str) -> None:
    """Raise 422 unless both can be names in a path."""
    check_run_name(run, "run")
    if not _ID.match(session):
        raise invalid("A session id has 1 to 64 of A-Z a-z 0-9 . _ - and does not start with a dot.", "session")


def check_run_name(name: str, field: str) -> None:
    """Raise 422 unless a run can have this name."""
    if not is_run_name(name):
        raise invalid("A run name has 1 to 100 of A-Z a-z 0-9 . _ - and does not start with a dot.", field)


def seq(text: str) -> int:
    """Return the number of a batch in a path; raises RequestError 422."""
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= len(str(MAX_STEP)) else -1
    if not 0 <= number <= MAX_STEP:
        raise invalid(f"The number of a batch is 0 to {MAX_STEP}.", "seq")
    return number


def is_run_name(text: str) -> bool:
    """Tell whether a run can have this name."""
    return _RUN.match(text) is not None


def hello(raw: bytes) -> wire.Hello:
    """Return a hello that keeps the rules of the wire; 426 comes before any other complaint about its keys."""
    try:
        message = _HELLO.read(raw)
    except RequestError:
        _check_protocol(_protocol_of(raw))
        raise
    _check_protocol(message.protocol)
    _check_session_facts(message)
    for number, layer_set in enumerate(message.layer_sets):
        _check_layer_set(layer_set, f"layer_sets.{number}")
    _check_facts(message.facts)
    return message


def _protocol_of(raw: bytes) -> object:
    try:
        body = from_json(raw)
    except ValueError:
        return wire.PROTOCOL
    return body.get("protocol", wire.PROTOCOL) if isinstance(body, dict) else wire.PROTOCOL


def _check_protocol(protocol: object) -> None:
    if isinstance(protocol, int) and protocol != wire.PROTOCOL:
        raise RequestError(
            426, "unknown_protocol", f"This collector speaks protocol {wire.PROTOCOL}, not {protocol}.", "protocol"
        )


def _check_session_facts(message: wire.Hello) -> None:
    if not _ID.match(message.launch):
        raise invalid("A launch id has 1 to 64 of A-Z a-z 0-9 . _ - and does not start with a dot.", "launch")
    for field in ("agent", "python", "torch", "framework", "optimizer"):
        check_text(getattr(message, field), field, MAX_SHORT_TEXT)
    check_int(message.world_size, "world_size", 1, 2**20)
    check_int(message.rank, "rank", 0, message.world_size - 1)
    check_int(message.first_step, "first_step", 0, MAX_STEP)
    check_member(message.step_source, "step_source", SOURCES)
    if not 0 < message.interval_s <= 3600:
        raise invalid("The heartbeat interval is above 0 and at most 3600 seconds.", "interval_s")
    if message.started is not None and message.started < 0:
        raise invalid("A session begins at 0 or later, in unix seconds.", "started")
    for field in ("absmax_below", "norm_below"):
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


def batch(raw: bytes) -> wire.Batch:
    """Return a batch in the right shape; :func:`gradcanary_server.batches.decode` reads its columns."""
    return _BATCH.read(raw)


def heartbeat(raw: bytes) -> wire.Heartbeat:
    """Return a heartbeat that keeps the rules of the wire."""
    message = _HEARTBEAT.read(raw)
    check_int(message.step, "step", 0, MAX_STEP)
    check_int(message.spooled_bytes, "spooled_bytes", 0, 2**63 - 1)
    check_int(message.dropped_steps, "dropped_steps", 0, MAX_STEP)
    return message


def end(raw: bytes) -> wire.End:
    """Return an end that keeps the rules of the wire, with its error cut to what the store keeps."""
    message = _END.read(raw)
    check_member(message.state, "state", END_STATES)
    check_int(message.last_step, "last_step", 0, MAX_STEP)
    check_text(message.error, "error", LIMITS.max_body, lines=True)
    # An agent cannot know how much of a stack trace is kept, so a long one is no reason to refuse the end.
    return wire.End(message.state, message.last_step, message.error and message.error[-MAX_TEXT:])


def check_text(text: str | None, field: str, longest: int, *, shortest: int = 0, lines: bool = False) -> None:
    """Raise 422 unless the text has the length and no control characters (with ``lines``: but line ends and tabs)."""
    if text is None:
        return
    if not shortest <= len(text) <= longest:
        raise invalid(f"This text has {shortest} to {longest} characters.", field)
    if (_CONTROL_BUT_LINES if lines else _CONTROL).search(text):
        raise invalid("This text holds a control character.", field)


def check_int(value: int | None, field: str, low: int, high: int) -> None:
    """Raise 422 unless the number is None or inside the bounds."""
    if value is not None and not low <= value <= high:
        raise invalid(f"This number is {low} to {high}.", field)


def check_member(value: str | None, field: str, allowed: tuple[str, ...]) -> None:
    """Raise 422 unless the word is None or allowed."""
    if value is not None and value not in allowed:
        raise invalid(f"This is one of {', '.join(allowed)}.", field)
