"""Series and metrics: results in buckets of steps, each with minimum, mean, maximum and count."""

from __future__ import annotations

import json
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from gradcanary.client import frames
from gradcanary.client.buckets import PLANES, Buckets, Envelope, cut
from gradcanary.wording import count

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd
    import polars as pl

    from gradcanary.export.tables import Stream

Plane = Literal["min", "mean", "max", "count", "nonfinite"]


@dataclass(frozen=True, repr=False)
class Line:
    """The values of one parameter or metric: ``values`` has the bucket ``buckets.steps[i]`` at place i.

    ``layer`` is the number of a parameter, None of a metric; ``tags`` are those of a metric.
    """

    name: str
    layer: int | None
    tags: Mapping[str, str]
    buckets: Buckets
    values: Envelope

    def __repr__(self) -> str:
        return f"Line({self.title}, {self.buckets.span})"

    @property
    def title(self) -> str:
        """The name, with the tags: ``clip_score{category=bottles}``."""
        pairs = ", ".join(f"{tag}={value}" for tag, value in sorted(self.tags.items()))
        return f"{self.name}{{{pairs}}}" if pairs else self.name

    @property
    def is_sampled(self) -> bool:
        """True if no bucket holds more than one sample: minimum, mean and maximum are that sample."""
        return max(self.values.samples(), default=0) <= 1

    def plane(self, value: Plane | None) -> array[Any]:
        """Return the minimum, mean, ... of each bucket; None: the samples. Raises ValueError if they were merged."""
        if value is None and not self.is_sampled:
            raise ValueError(
                f"{self.title} has buckets of several samples: give value='min', 'mean' or 'max', or leave out points="
            )
        chosen: array[Any] = getattr(self.values, value or "min")
        return chosen

    def to_numpy(self, value: Plane | None = None) -> npt.NDArray[Any]:
        """Return the values of :meth:`plane` [bucket]; NaN: no finite value."""
        numpy = frames.require("numpy")
        found: npt.NDArray[Any] = numpy.array(self.plane(value))
        return found

    @classmethod
    def concat(cls, parts: Sequence[Line]) -> Line:
        """Return parts of one line, in the order of steps, as one."""
        buckets = Buckets.concat([part.buckets for part in parts])
        values = Envelope.concat([part.values for part in parts])
        return cls(parts[0].name, parts[0].layer, parts[0].tags, buckets, values)

    def without_empty(self) -> Line:
        """Return the line without buckets in which it has no sample."""
        kept = [samples > 0 for samples in self.values.samples()]
        if all(kept):
            return self
        return Line(self.name, self.layer, self.tags, self.buckets.cut(kept), self.values.cut(kept))


class Lines:
    """What series and metrics share: they hold lines, and become frames with a row for each bucket of each line in
    which it has a sample.
    """

    lines: tuple[Line, ...]

    def __len__(self) -> int:
        return len(self.lines)

    def __iter__(self) -> Iterator[Line]:
        return iter(self.lines)

    def __getitem__(self, key: int | str) -> Line:
        """Return a line by its place, its name with tags (``title``), or its name; raises KeyError or IndexError."""
        if not isinstance(key, str):
            return self.lines[key]
        named = [line for line in self.lines if line.name == key]
        found = [line for line in self.lines if line.title == key] or named
        if not found or any((line.name, line.tags) != (found[0].name, found[0].tags) for line in found):
            known = ", ".join(line.title for line in found or self.lines)
            raise KeyError(f"{key!r} is {'none' if not found else 'several'} of these: {known}")
        return found[0]

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each bucket of each line: step, bucket_steps, time, name, min, mean, max, count, nonfinite.

        ``count`` finite samples are in the bucket, and ``nonfinite`` others. If it is 1, the three values are that
        sample. A bucket in which the line has no sample has no row.
        """
        return frames.to_pandas(self._columns())

    def to_polars(self) -> pl.DataFrame:
        """Return the same rows as :meth:`to_pandas`."""
        return frames.to_polars(self._columns())

    def _labels(self, lines: Sequence[Line], codes: npt.NDArray[np.intp]) -> dict[str, frames.Labels]:
        raise NotImplementedError

    def _columns(self) -> dict[str, Any]:
        numpy = frames.require("numpy")
        lines = [line.without_empty() for line in self.lines]

        def column(parts: Sequence[array[Any]]) -> Any:  # noqa: ANN401 -- an array
            return numpy.concatenate([numpy.array(part) for part in parts or [array("d")]])

        codes = numpy.repeat(numpy.arange(len(lines)), [len(line.buckets.steps) for line in lines])
        return {
            "step": column([line.buckets.steps for line in lines]),
            "bucket_steps": column([line.buckets.widths for line in lines]),
            "time": frames.to_times(column([line.buckets.times for line in lines])),
            **self._labels(lines, codes),
            **{plane: column([getattr(line.values, plane) for line in lines]) for plane in PLANES},
        }


@dataclass(frozen=True, repr=False)
class Series(Lines):
    """A stat of some parameters of a run: a line for each, all with the same ``buckets``.

    ``phases`` are the moments at which it was measured; ``enter`` is the absmax below which a parameter is low.
    """

    run: str
    stat: str
    phases: tuple[str, ...]
    enter: float
    buckets: Buckets
    lines: tuple[Line, ...]

    def __repr__(self) -> str:
        return f"Series({self.stat} of {self.run}, {count(len(self), 'parameter')}, {self.buckets.span})"

    @classmethod
    def concat(cls, parts: Sequence[Series]) -> Series:
        """Return parts of one series, in the order of steps, as one."""
        first = parts[0]
        if len(parts) == 1:
            return first
        buckets = Buckets.concat([part.buckets for part in parts])
        lines = tuple(
            Line(
                line.name, line.layer, line.tags, buckets, Envelope.concat([part.lines[place].values for part in parts])
            )
            for place, line in enumerate(first.lines)
        )
        phases = tuple(dict.fromkeys(phase for part in parts for phase in part.phases))
        return cls(first.run, first.stat, phases, first.enter, buckets, lines)

    def to_numpy(self, value: Plane | None = None) -> npt.NDArray[Any]:
        """Return the values [bucket, parameter] at ``buckets.steps``; NaN: no finite value.

        Without ``value`` these are the samples; raises ValueError if some were merged: then choose min, mean or max.
        """
        numpy = frames.require("numpy")
        planes = [line.to_numpy(value) for line in self.lines]
        found: npt.NDArray[Any] = numpy.stack(planes, axis=1) if planes else numpy.empty((len(self.buckets.steps), 0))
        return found

    def _labels(self, lines: Sequence[Line], codes: npt.NDArray[np.intp]) -> dict[str, frames.Labels]:
        return {"layer": frames.Labels(codes, [line.name for line in lines])}


@dataclass(frozen=True, repr=False)
class Metrics(Lines):
    """Logged metrics of a run, such as loss and learning rates: a line for each name and tags, with its own buckets."""

    run: str
    lines: tuple[Line, ...]

    def __repr__(self) -> str:
        return f"Metrics({self.run}: {', '.join(line.title for line in self.lines) or 'none'})"

    @classmethod
    def decode(cls, run: str, stream: Stream) -> Metrics:
        """Return the metrics of an answer of ``points`` that have some, each point in a bucket of its own."""
        parts: list[list[Line]] = [[] for _ in stream.columns]
        for table in stream:
            rows = range(len(table))
            times = array("d", (math.nan if at is None else at / 1e6 for at in table.times))
            for place, column in enumerate(stream.columns):
                kept = [table.has_value(place, row) for row in rows]
                steps = cut(table.steps, kept)
                buckets = Buckets(steps, array("q", [1]) * len(steps), cut(times, kept))
                values = cut(table.values[place * len(rows) : (place + 1) * len(rows)], kept)
                values = array("d", (value if math.isfinite(value) else math.nan for value in values))
                finite = array("i", map(math.isfinite, values))
                envelope = Envelope(values, values, values, finite, array("i", (1 - each for each in finite)))
                parts[place].append(Line(column["name"], None, column["tags"], buckets, envelope))
        lines = [Line.concat(of_metric) for of_metric in parts if of_metric]
        return cls(run, tuple(line for line in lines if line.buckets.steps))

    @property
    def steps(self) -> array[int]:
        """The first steps of all buckets, in rising order."""
        return array("q", sorted({step for line in self.lines for step in line.buckets.steps}))

    def to_numpy(self, value: Plane | None = None) -> npt.NDArray[Any]:
        """Return the values, float64 [step, metric] at :attr:`steps`; NaN: no point there, or no finite value.

        ``value`` is that of :meth:`Series.to_numpy`.
        """
        numpy = frames.require("numpy")
        steps = numpy.array(self.steps)
        found: npt.NDArray[Any] = numpy.full((len(steps), len(self.lines)), numpy.nan)
        for place, line in enumerate(self.lines):
            found[numpy.searchsorted(steps, numpy.array(line.buckets.steps)), place] = line.to_numpy(value)
        return found

    def _labels(self, lines: Sequence[Line], codes: npt.NDArray[np.intp]) -> dict[str, frames.Labels]:
        names = list(dict.fromkeys(line.name for line in lines))
        tags = list(dict.fromkeys(json.dumps(dict(line.tags), sort_keys=True) for line in lines))
        numpy = frames.require("numpy")
        name_of = numpy.array([names.index(line.name) for line in lines], numpy.intp)
        tags_of = numpy.array([tags.index(json.dumps(dict(line.tags), sort_keys=True)) for line in lines], numpy.intp)
        return {"metric": frames.Labels(name_of[codes], names), "tags": frames.Labels(tags_of[codes], tags)}
