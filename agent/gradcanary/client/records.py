"""What the collector knows of layers, incidents and silences, as records; a list of records becomes a frame."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

from gradcanary import terminal
from gradcanary.client import frames
from gradcanary.wording import number

if TYPE_CHECKING:
    import numpy.typing as npt
    import pandas as pd
    import polars as pl

SHOWN_RECORDS = 20
"""Lines of a list in a notebook."""

T = TypeVar("T")

Json = Mapping[str, Any]


def moment(text: str) -> datetime:
    """Return a time of the API, RFC 3339 in UTC."""
    return datetime.fromisoformat(text.replace("Z", "+00:00"))  # Python 3.10 does not read the Z


def fill(kind: type[T], answer: Json, **others: Any) -> T:  # noqa: ANN401 -- as the fields
    """Return a record with the values of the API's keys that are named as its fields, and others."""
    names = [each.name for each in fields(kind) if each.name not in others]  # type: ignore[arg-type]
    same = {name: tuple(answer[name]) if isinstance(answer[name], list) else answer[name] for name in names}
    return kind(**same, **others)


@dataclass(frozen=True, repr=False)
class Records(Sequence[T], Generic[T]):
    """A complete list of records of one ``kind``; its repr is a table of the fields that are ``shown`` of this kind."""

    kind: type[T]
    items: tuple[T, ...]

    @overload
    def __getitem__(self, key: int) -> T: ...
    @overload
    def __getitem__(self, key: slice) -> Records[T]: ...
    def __getitem__(self, key: int | slice) -> T | Records[T]:
        return Records(self.kind, self.items[key]) if isinstance(key, slice) else self.items[key]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[T]:
        return iter(self.items)

    def __repr__(self) -> str:
        shown: Sequence[str] = getattr(self.kind, "shown", ()) or list(self._columns())
        rows = [[_text(getattr(item, name)) for name in shown] for item in self.items[:SHOWN_RECORDS]]
        more = len(self) - len(rows)
        table = terminal.table(shown, rows) if rows else f"no {self.kind.__name__}"
        return f"{table}\nand {more:,} more" if more else table

    def to_numpy(self) -> npt.NDArray[Any]:
        """Return a structured array [record] with the columns of :meth:`to_pandas`, such as ``["name"]``.

        Columns of numbers or flags have their dtype, with NaN for a missing float; all others hold objects.
        """
        numpy = frames.require("numpy")
        columns = self._columns()
        kinds = [(name, _dtype(column)) for name, column in columns.items()]
        rows: npt.NDArray[Any] = numpy.array(list(zip(*columns.values(), strict=True)), kinds)
        return rows

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each record; a value that has parts is a dict or a list."""
        return frames.to_pandas(self._columns())

    def to_polars(self) -> pl.DataFrame:
        """Return the same rows as :meth:`to_pandas`."""
        return frames.to_polars(self._columns())

    def _columns(self) -> dict[str, list[object]]:
        names = [each.name for each in fields(self.kind) if each.repr]  # type: ignore[arg-type]
        return {name: [_plain(getattr(item, name)) for item in self.items] for name in names}


def _text(value: object) -> str:
    """Return a value for a table."""
    if isinstance(value, float):
        return number(value)
    return "-" if value is None else f"{value:%Y-%m-%d %H:%M}" if isinstance(value, datetime) else str(value)


def _dtype(column: Sequence[object]) -> type:
    """Return the type of a column in a structured array."""
    kinds = set(map(type, column))
    if kinds in ({float}, {float, type(None)}):
        return float
    return kinds.pop() if kinds in ({int}, {bool}) else object


def _plain(value: object) -> object:
    """Return a value without dataclasses and tuples."""
    if is_dataclass(value):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value) if each.repr}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value


@dataclass(frozen=True)
class Layer:
    """A parameter with its last values (None: never measured) and its state by rule; ``json`` has all of the API."""

    shown: ClassVar = ("number", "name", "shape", "step", "state", "absmax", "norm")

    number: int
    name: str
    block: str
    shape: tuple[int, ...]
    dtype: str
    step: int | None
    state: str | None
    absmax: float | None
    norm: float | None
    zero_fraction: float | None
    nonfinite: float | None
    update_ratio: float | None
    rules: Mapping[str, str]
    below_threshold: bool
    baseline: float | None
    json: Json = field(repr=False, compare=False)

    @classmethod
    def decode(cls, answer: Json) -> Layer:
        """Return the layer of an answer of the API."""
        return fill(cls, answer, number=answer["layer"], dtype=answer["param_dtype"], json=answer)


@dataclass(frozen=True)
class Ack:
    """An acknowledgement: when, by whom, and why."""

    at: datetime
    by: str
    note: str


@dataclass(frozen=True)
class Explanation:
    """What happened, since when, what to do first, why, the evidence for it, and more."""

    what: str
    since: str
    do_first: str
    why: str
    evidence: tuple[str, ...]
    more: str


@dataclass(frozen=True)
class Member:
    """A parameter of an incident (``layer`` is None for the whole run, and for a metric); ``until_step`` is None while
    it fires.
    """

    name: str
    layer: int | None
    severity: str
    since_step: int
    until_step: int | None
    value: float | None
    baseline: float | None
    json: Json = field(repr=False, compare=False)


@dataclass(frozen=True)
class Incident:
    """An incident; ``state`` is open, resolved (it recovered) or ended (its run ended first).

    ``firing`` of ``parameters`` fire now, ``ever_fired`` did; all three are 0 for an incident of the whole run.
    ``members`` is None in a list: ``Client.incident(id)`` has them. ``json`` has all of the API.
    """

    shown: ClassVar = ("id", "severity", "state", "run", "rule", "opened", "summary")

    id: int
    run: str
    rule: str
    severity: str
    state: str
    summary: str
    opened: datetime
    opened_step: int
    since_step: int
    resolved: datetime | None
    resolved_step: int | None
    resolution: str | None
    acked: Ack | None
    silenced_until: datetime | None
    firing: int
    ever_fired: int
    parameters: int
    caused_by: int | None
    explanation: Explanation
    url: str
    members: tuple[Member, ...] | None
    json: Json = field(repr=False, compare=False)

    @classmethod
    def decode(cls, answer: Json) -> Incident:
        """Return the incident of an answer of the API."""
        ack, silenced, counts = answer["acked"], answer["silenced"], answer["counts"]
        return fill(
            cls,
            answer,
            opened=moment(answer["opened"]),
            resolved=answer["resolved"] and moment(answer["resolved"]),
            acked=ack and fill(Ack, ack, at=moment(ack["at"])),
            silenced_until=silenced and moment(silenced["until"]),
            firing=counts["firing"],
            ever_fired=counts["ever"],
            parameters=counts["layers"],
            explanation=fill(Explanation, answer["explanation"]),
            members=tuple(fill(Member, each, json=each) for each in answer["layers"]) if "layers" in answer else None,
            json=answer,
        )


@dataclass(frozen=True)
class Silence:
    """A silence: no notifications about these runs, this rule (None: each) and these parameters (None: all) ``until``
    then; ``incidents`` are the open ones that it hides now.
    """

    id: int
    run: str
    rule: str | None
    match: str | None
    until: datetime
    by: str
    note: str
    incidents: tuple[int, ...]

    @classmethod
    def decode(cls, answer: Json) -> Silence:
        """Return the silence of an answer of the API."""
        return fill(cls, answer, until=moment(answer["until"]))
