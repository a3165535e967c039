"""The arrays of the API, and the tables of ``samples`` and ``points``, which are streams of them. Needs no network."""

from __future__ import annotations

import base64
import json
import math
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradcanary.export.collector import CollectorError

CODES = {"float64": "d", "float32": "f", "int64": "q", "int32": "i", "int16": "h", "uint8": "B"}
"""The type codes of ``array`` for the dtypes of the API."""

OWN_COLUMNS = ("step", "time", "launch")


def decode(column: Mapping[str, Any]) -> array[Any]:
    """Return the flat array of one of the API, rows first; raises ValueError if it does not have its shape."""
    values = array(CODES[column["dtype"]], base64.b64decode(column["data"]))
    if len(values) != math.prod(column["shape"]):
        raise ValueError(f"an array of shape {column['shape']} has {len(values)} values")
    if sys.byteorder == "big":
        values.byteswap()
    return values


@dataclass(frozen=True)
class Table:
    """Some rows: their steps, times in microseconds since 1970 (None = unknown), and the launches of samples.

    ``values`` holds one column after the other, ``is_valid`` the bits of each in ``stride`` bytes, the lowest bit of a
    byte first.
    """

    steps: array[int]
    times: list[int | None]
    launches: array[int] | None
    values: array[float]
    is_valid: bytes
    stride: int

    @classmethod
    def decode(cls, line: Mapping[str, Any]) -> Table:
        """Return the table of a line of the API."""
        return cls(
            steps=decode(line["steps"]),
            times=[None if math.isnan(at) else round(at * 1e6) for at in decode(line["times"])],
            launches=decode(line["launches"]) if "launches" in line else None,
            values=decode(line["values"]),
            is_valid=decode(line["is_valid"]).tobytes(),
            stride=line["is_valid"]["shape"][1],
        )

    def __len__(self) -> int:
        return len(self.steps)

    @property
    def own(self) -> list[Sequence[int | None]]:
        """The columns before those of the values."""
        return [self.steps, self.times, *([] if self.launches is None else [self.launches])]

    def has_value(self, column: int, row: int) -> bool:
        """Return True if there is a value, which may be NaN."""
        return bool(self.is_valid[column * self.stride + row // 8] >> row % 8 & 1)


class Stream:
    """The answer of ``samples`` or ``points``: its columns, their titles, each of them once, and its tables.

    ``own`` are the columns before those; samples before step ``raw_start`` were deleted, None = none were.
    ``rows`` have come so far.
    """

    def __init__(self, blocks: Iterable[bytes]) -> None:
        """Read the first line; raises CollectorError."""
        self._lines = _split_lines(blocks)
        self.rows = 0
        head = self._next()
        self.columns: list[dict[str, Any]] = head["columns"]
        self.titles = unique_titles([column["title"] for column in self.columns])
        self.dtype: str = head["dtype"]
        self.own = OWN_COLUMNS if head["launches"] else OWN_COLUMNS[:2]
        self.raw_start: int | None = head.get("raw_start_step")

    def __iter__(self) -> Iterator[Table]:
        """Yield the tables; raises CollectorError unless all of them came."""
        while "rows" not in (line := self._next()):
            table = Table.decode(line)
            self.rows += len(table)
            yield table
        if line["rows"] != self.rows:
            raise CollectorError(f"{self.rows:,} rows of {line['rows']:,} came")

    def _next(self) -> dict[str, Any]:
        line = next(self._lines, None)
        if line is None:
            raise CollectorError("the answer of the collector was cut off")
        found: dict[str, Any] = json.loads(line)
        if "error" in found:
            raise CollectorError(found["error"]["message"])
        return found


def unique_titles(titles: Sequence[str]) -> list[str]:
    """Return the titles, of which none is another one or a column of every file: ``step`` becomes ``step (2)``."""
    found = dict.fromkeys(OWN_COLUMNS)
    for title in titles:
        number, unique = 2, title
        while unique in found:
            number, unique = number + 1, f"{title} ({number})"
        found[unique] = None
    return list(found)[len(OWN_COLUMNS) :]


def _split_lines(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the lines that ended."""
    begun: list[bytes] = []
    for block in blocks:
        *lines, rest = block.split(b"\n")
        for line in lines:
            yield b"".join([*begun, line])
            begun.clear()
        begun.append(rest)
