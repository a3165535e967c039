"""The score of one layer without numpy, from docs/explanation/how-rules-decide.md: what the fast one must equal."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass
class SlowScore:
    score: float = 0.0
    firing: bool = False

    def vote(self, vote: int, every: int, fire_after: float = 20, resolve_after: float = 100) -> None:
        """Not firing: clip(score + weight * vote, 0, 20), a -1 counts half, weight at most 4; at 20 it fires and
        becomes 100. Firing: clip(score + weight * vote, 0, 100), weight at most 20; at 0 it resolves.
        """
        if self.firing:
            self.score = min(max(self.score + min(every, 20) * vote, 0), resolve_after)
            self.firing = self.score > 0
            return
        step = vote if vote >= 0 else vote / 2
        self.score = min(max(self.score + min(every, 4) * step, 0), fire_after)
        if self.score >= fire_after:
            self.firing, self.score = True, resolve_after


def history(votes: Iterable[int], every: int) -> list[tuple[float, bool]]:
    slow, found = SlowScore(), []
    for vote in votes:
        slow.vote(vote, every)
        found.append((slow.score, slow.firing))
    return found
