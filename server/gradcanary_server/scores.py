"""The net count that decides: votes move a score, the score fires and resolves. Pure, vectorised over layers.

Not firing, a good observation counts half, so that more than a third of bad ones fires in the end: a flapping
collapse must not stay silent. A net count and not a streak: one lucky batch must not reset it. One observation
weighs the agent's declared ``every``, but never so much that fewer than five could decide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MAX_WEIGHT_IDLE = 4
MAX_WEIGHT_FIRING = 20
"""Five observations each way at the default counts of 20 and 100 steps."""

NEVER = -1
"""``since`` of a score that does not count."""

Mask = NDArray[np.bool_]


@dataclass
class Scores:
    """One score per track and layer: ``score`` float32[T, N], ``since`` int64[T, N], ``firing`` bool[T, N].

    ``since`` is the first bad observation of the present count.
    """

    score: NDArray[np.float32]
    since: NDArray[np.int64]
    firing: Mask

    @classmethod
    def zeros(cls, tracks: int, layers: int) -> Scores:
        """Return scores that never saw a vote."""
        shape = (tracks, layers)
        return cls(np.zeros(shape, np.float32), np.full(shape, NEVER, np.int64), np.zeros(shape, np.bool_))

    def copy(self) -> Scores:
        """Return scores that can be moved without moving these."""
        return Scores(self.score.copy(), self.since.copy(), self.firing.copy())

    def widen(self, layers: int) -> Scores:
        """Return these scores with room for more layers."""
        wider = Scores.zeros(len(self.score), layers)
        width = self.score.shape[1]
        wider.score[:, :width], wider.since[:, :width] = self.score, self.since
        wider.firing[:, :width] = self.firing
        return wider

    def put(self, track: int, columns: NDArray[np.int64], fires: Mask, step: int, full: NDArray[np.float32]) -> bool:
        """Let these layers fire from a step on or not, without a count; tell whether that changed anything.

        ``full`` float32[L] is the score of one that fires and shows no sign of recovery.
        """
        before = self.firing[track, columns]
        if (before == fires).all():
            return False
        since = np.where(before, self.since[track, columns], step)
        self.firing[track, columns], self.score[track, columns] = fires, np.where(fires, full, 0)
        self.since[track, columns] = np.where(fires, since, NEVER)
        return True

    def calm(self) -> None:
        """Take back every count that does not fire."""
        idle = ~self.firing
        self.score[idle], self.since[idle] = 0, NEVER

    def drop(self, track: int) -> None:
        """Take back every count of a track."""
        self.score[track], self.since[track], self.firing[track] = 0, NEVER, False

    def take_back(self, tracks: list[int], layers: Mask) -> None:
        """Take back every count of some tracks for these layers, bool[N]."""
        cells = np.ix_(np.array(tracks), np.flatnonzero(layers))
        self.score[cells], self.since[cells], self.firing[cells] = 0, NEVER, False

    def forget(self, layers: Mask) -> None:
        """Take every count of these layers back; ``layers`` is bool[N]."""
        self.score[:, layers], self.since[:, layers], self.firing[:, layers] = 0, NEVER, False


@dataclass(frozen=True)
class Cast:
    """The votes of one observation on one track, for the layers at ``columns`` (int[L]).

    ``votes`` int8[L] holds +1, 0 or -1; ``fire_after`` and ``resolve_after`` are float32[L], in steps, or [] where they
    are the same for all. A count begins at ``step``, which may be one for each layer, int64[L]. ``calm`` bool[L] tells
    where nothing bad was seen: that is no recovery, but until a layer fires it counts as -1.
    """

    step: int | NDArray[np.int64]
    every: int
    columns: NDArray[np.int64]
    votes: NDArray[np.int8]
    fire_after: NDArray[np.float32]
    resolve_after: NDArray[np.float32]
    calm: Mask | None = None


def count(scores: Scores, track: int, cast: Cast) -> bool:
    """Move the scores of a track by one observation; tell whether any began or ceased to fire.

    1. Not firing: clip(score + weight * vote, 0, fire_after); a -1 counts half, a weight is at most 4.
    2. At fire_after it fires and becomes resolve_after.
    3. Firing: clip(score + weight * vote, 0, resolve_after), a weight is at most 20; at 0 it resolves.
    """
    before = scores.score[track, cast.columns]
    if not before.any() and not (cast.votes > 0).any():
        return False
    firing, votes = scores.firing[track, cast.columns], cast.votes
    if cast.calm is not None:
        votes = np.where(cast.calm & ~firing & (votes == 0), -1, votes)
    idle = np.where(votes < 0, 0.5, 1.0) * min(cast.every, MAX_WEIGHT_IDLE)
    weights = np.where(firing, min(cast.every, MAX_WEIGHT_FIRING), idle)
    ceiling = np.where(firing, cast.resolve_after, cast.fire_after)
    after = np.clip(before + weights * votes, 0, ceiling).astype(np.float32)
    fires = ~firing & (after >= cast.fire_after)
    resolves = firing & (after == 0)
    began = (before == 0) & (after > 0)
    since = np.where(began, cast.step, scores.since[track, cast.columns])
    scores.since[track, cast.columns] = np.where(after > 0, since, NEVER)
    scores.score[track, cast.columns] = np.where(fires, cast.resolve_after, after)
    scores.firing[track, cast.columns] = (firing | fires) & ~resolves
    return bool((fires | resolves).any())
