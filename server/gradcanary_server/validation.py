"""Strict JSON parsing with pydantic, checks of fields, and the limits of the wire. Pure."""

import re
from typing import Annotated, Any, Generic, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, SchemaValidator, from_json

from gradcanary import wire
from gradcanary_server.errors import RequestError, invalid

LIMITS = wire.Limits(max_body=4 * 2**20, max_points=1_000_000, max_layers=20_000)

MAX_OBJECTS = 60_000
"""JSON objects in a body: 4 MiB of ``{}`` would take the parser 5 s and a gigabyte."""

MAX_STEP = 2**31 - 1
"""The largest integer of the store's columns."""

MAX_TEXT = 4_000
MAX_DTYPE = 40

RUN = r"^(?!\.)[A-Za-z0-9._-]{1,100}$"

_RUN = re.compile(RUN.replace("$", r"\Z"))
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_CONTROL_BUT_LINES = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

_BRACE = ord("{")  # counted by numpy: bytes.count takes half the time of the parser

Message = TypeVar("Message")


class Body(BaseModel):
    """The base of request bodies that FastAPI parses, strictly."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False, frozen=True)


class Reader(Generic[Message]):
    """Parses one kind of message strictly, from bytes: a batch has no second form in memory."""

    def __init__(self, kind: type[Message]) -> None:
        self._validator = SchemaValidator(_fail_fast(TypeAdapter(kind).core_schema))

    def read(self, raw: bytes) -> Message:
        """Return the message in a body; raises RequestError 400 if it is not JSON, 422 if it is not such a message."""
        _check_objects(raw)
        try:
            message: Message = self._validator.validate_json(raw)
        except ValidationError as error:
            raise _misread(error.errors(include_url=False, include_context=False, include_input=False)[0]) from error
        return message


def parse(raw: bytes) -> object:
    """Return the value of a body; raises RequestError 400 if it is not JSON, 422 if it has too many objects."""
    _check_objects(raw)
    try:
        return from_json(raw)
    except ValueError as error:
        raise RequestError(400, "invalid_json", f"Invalid JSON: {error}") from error


def _check_objects(raw: bytes) -> None:
    if len(raw) > MAX_OBJECTS and np.count_nonzero(np.frombuffer(raw, np.uint8) == _BRACE) > MAX_OBJECTS:
        raise invalid(f"A body may hold at most {MAX_OBJECTS} objects.")


def _fail_fast(schema: Any) -> Any:  # noqa: ANN401 -- pydantic types its nested schemas no closer
    """Return the schema with tuples parsed up to the first error: a million errors would fill the memory."""
    if isinstance(schema, dict):
        changed = {key: _fail_fast(value) for key, value in schema.items()}
        return {**changed, "fail_fast": True} if schema.get("type") == "tuple" else changed
    if isinstance(schema, list):
        return [_fail_fast(item) for item in schema]
    return schema


def _misread(first: ErrorDetails) -> RequestError:
    if first["type"] == "json_invalid":
        return RequestError(400, "invalid_json", first["msg"])
    return invalid(first["msg"], ".".join(str(part) for part in first["loc"]) or None)


def check_run_name(name: str, field: str) -> None:
    """Raise RequestError 422 unless a run can have this name."""
    if not is_run_name(name):
        raise invalid("A run name has 1 to 100 of A-Z a-z 0-9 . _ - and does not start with a dot.", field)


def is_run_name(text: str) -> bool:
    return _RUN.match(text) is not None


def check_text(text: str | None, field: str, longest: int, *, shortest: int = 0, lines: bool = False) -> None:
    """Raise RequestError 422 for a wrong length or control characters; ``lines`` allows line ends and tabs."""
    if text is None:
        return
    if not shortest <= len(text) <= longest:
        raise invalid(f"This text has {shortest} to {longest} characters.", field)
    if (_CONTROL_BUT_LINES if lines else _CONTROL).search(text):
        raise invalid("This text holds a control character.", field)


def check_int(value: int | None, field: str, low: int, high: int) -> None:
    """Raise RequestError 422 unless the number is None or inside the bounds."""
    if value is not None and not low <= value <= high:
        raise invalid(f"This number is {low} to {high}.", field)


def check_member(value: str | None, field: str, allowed: tuple[str, ...]) -> None:
    """Raise RequestError 422 unless the word is None or allowed."""
    if value is not None and value not in allowed:
        raise invalid(f"This is one of {', '.join(allowed)}.", field)


Step = Annotated[int, Field(ge=0)]
