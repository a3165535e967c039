"""The buckets of an answer: their steps, and how far apart the samples in them are. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gradcanary_dashboard.analysis.arrays import Floats, decode
from gradcanary_dashboard.text import numbers


@dataclass(frozen=True)
class Buckets:
    """Per bucket its first step, its number of steps, and the interval of the samples in it."""

    first: Floats
    width: Floats
    every: Floats

    @classmethod
    def of(cls, answer: Mapping[str, Any], every: int = 1) -> Buckets:
        """Return the buckets of an answer; ``every`` is the interval where all buckets have one width."""
        first = decode(answer["steps"]).astype(np.float64)
        width, intervals = np.full(len(first), max(1.0, answer["bucket_steps"])), np.full(len(first), float(every))
        spans = answer.get("spans")
        if not spans:
            return cls(first, width, intervals)
        of_span = np.searchsorted([span["step"] for span in spans], first, side="right") - 1
        width, intervals = (
            np.array([span[key] for span in spans], np.float64)[of_span] for key in ("bucket_steps", "every")
        )
        return cls(first, np.minimum(width, np.append(np.diff(first), np.inf)), intervals)

    def __getitem__(self, chosen: slice | npt.NDArray[np.bool_]) -> Buckets:
        return Buckets(self.first[chosen], self.width[chosen], self.every[chosen])

    @property
    def middle(self) -> Floats:
        """The middle step of each bucket."""
        return self.first + (self.width - 1) / 2

    @property
    def end(self) -> float:
        """The last step of the last bucket."""
        return float(self.first[-1] + self.width[-1] - 1)

    @property
    def are_single(self) -> npt.NDArray[np.bool_]:
        """True for each bucket that has room for one sample, by its interval."""
        return self.width <= self.every

    @property
    def lasts(self) -> Floats:
        """The last step of each bucket; of one sample, which is at its first step, that one."""
        return np.where(self.are_single, self.first, self.first + self.width - 1)

    def shifted(self, by: float) -> Buckets:
        """Return the buckets so many steps later."""
        return Buckets(self.first + by, self.width, self.every)

    def words(self, *, are_single: bool = True) -> list[str]:
        """Return ``12,340`` or, for a bucket of several samples, ``12,320 to 12,351``.

        Unless ``are_single``, also a bucket with room for one sample may have several: the interval changed in it.
        """
        lasts = self.lasts if are_single else self.first + self.width - 1
        pairs = zip(self.first.tolist(), lasts.tolist(), strict=True)
        return [
            numbers.integer(first) if first == last else f"{numbers.integer(first)} to {numbers.integer(last)}"
            for first, last in pairs
        ]


def widths(answer: Mapping[str, Any]) -> list[int]:
    """Return the widths of the buckets of an answer, one for each of its spans."""
    return [int(span["bucket_steps"]) for span in answer.get("spans") or [answer]]
