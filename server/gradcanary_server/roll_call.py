"""Which ranks of a sharded launch are waited for, and how far; pure.

Times are those of the database's clock, in seconds.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gradcanary_server.leaps import is_ahead

LAG_S = 60.0
"""Without a word of a rank, while something waits for it, after which it is left out."""

BACKOFF_S = 60.0
"""The longest that an agent waits before it tries again: nobody is missed earlier after our own start."""

STALL_S = 600.0
"""In which nothing could be put together, after which a rank that is heard of is left out: till then it may replay."""

ENDED = ("finished", "crashed")
"""Of a rank that said so nothing more comes; one that is silent may speak again."""


class Rank(Protocol):
    """A session of a sharded launch."""

    session: str
    last_step: int | None
    last_seen: float
    ended: str | None
    gaps: str
    is_sharded: bool


@dataclass(frozen=True)
class Moment:
    """When it is asked: ``began`` is since when this collector listens.

    ``oldest`` is when the first batch came that waits, ``moved`` when something was put together last.
    """

    now: float
    began: float
    oldest: float
    moved: float

    def is_over(self, patience_s: float, *since: float) -> bool:
        """Tell whether that much time went by since the last of these, and since everybody could have tried again.

        What lies ahead was before the clock was set back, and so before we listened anew.
        """
        before = [moment for moment in since if not is_ahead(moment, self.now)]
        return self.now - max([self.began + BACKOFF_S, *before]) >= patience_s


def until(
    ranks: Mapping[int, Rank], expected: Sequence[int], settled: int, moment: Moment, ending: str | None
) -> float:
    """Return the step that each rank which is waited for has passed, infinity where none is; -1 where one sent nothing.

    1. One that ended, or ends now (``ending``), is not waited for, nor one that was left out and has not moved since.
    2. One that is not heard of for LAG_S is left out, if something waited for that long.
    3. Where nothing was put together for STALL_S, those that are furthest behind are left out.
    """
    passed = {rank: _passed(ranks.get(rank), settled, moment, ending) for rank in expected}
    least = min(passed.values(), default=np.inf)
    if least < np.inf and moment.is_over(STALL_S, moment.oldest, moment.moved):
        return min((step for step in passed.values() if step > least), default=np.inf)
    return least


def is_heard(rank: Rank, now: float) -> bool:
    """Tell whether a rank said something lately; what lies ahead it said before the clock was set back."""
    return rank.last_seen > now - LAG_S and not is_ahead(rank.last_seen, now)


def is_out(rank: Rank, settled: int) -> bool:
    """Tell whether a rank was left out of the last steps that were put together, and has sent nothing since."""
    if not rank.is_sharded:
        return settled >= 0
    last = [None, *json.loads(rank.gaps)][-1]
    return last is not None and last[1:] == [settled, "late"] and (rank.last_step is None or rank.last_step < last[0])


def _passed(rank: Rank | None, settled: int, moment: Moment, ending: str | None) -> float:
    if rank is None:
        return np.inf if settled >= 0 or moment.is_over(LAG_S, moment.oldest) else -1
    if rank.ended in ENDED or rank.session == ending or is_out(rank, settled):
        return np.inf
    if moment.is_over(LAG_S, rank.last_seen, moment.oldest):
        return np.inf
    return -1 if rank.last_step is None else rank.last_step
