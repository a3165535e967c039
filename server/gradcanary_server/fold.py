"""The rules as a fold over steps: state and samples in, state and changes out. Pure, no clock.

Any cutting of a stream gives the same state and the same changes, and so does a stream that comes twice: steps are
folded in their order, one by one or, where nothing can begin or end, some at once; a step or loss that is not later
than the last one folded is not folded; and of a launch nothing is once one that began later was folded.
"""

from __future__ import annotations

import numpy as np

from gradcanary_server.fold_state import FoldState, Verdict
from gradcanary_server.losses import Losses
from gradcanary_server.moment import Moments
from gradcanary_server.observations import Change, Launch, Samples
from gradcanary_server.rules import Rules
from gradcanary_server.stretches import Stretches
from gradcanary_server.walk import Walk

__all__ = ["FoldState", "Verdict", "fold"]


def fold(state: FoldState, launch: Launch, samples: Samples, rules: Rules) -> tuple[FoldState, tuple[Change, ...]]:
    """Return the state after these samples of a launch, and what began or ended in them, in the order of steps.

    A step's loss comes before the step. One that comes after its step was folded is too late: folded or not would
    depend on how the stream was cut.
    """
    if state.progress.launch in launch.newer:
        return state, ()
    walk = Walk(state.copy(), launch, rules)
    folded = walk.state.progress.last_step
    losses = Losses.of(samples, max(folded, walk.state.progress.last_loss_step))
    moments = Moments.of(samples, len(launch.layers))
    found, row, heard = list(walk.gone), int(np.searchsorted(moments.steps, folded, side="right")), 0
    if row < len(moments.steps):
        walk.learn(samples.accumulators)
    stretches = Stretches(walk.state, launch, rules, moments, losses)
    while row < len(moments.steps):
        end = row if walk.has_news else stretches.end(row)
        until = losses.until(int(moments.steps[max(row, end - 1)]))
        if end > row:
            stretches.pass_over(row, end, losses.between(heard, until))
        else:
            found += _heard(walk, stretches, losses, row, (heard, until))
            found += walk.take(moments.at(row))
        row, heard = max(row + 1, end), until
    found += _heard(walk, stretches, losses, row, (heard, len(losses)))
    return walk.state, tuple(found)


def _heard(walk: Walk, stretches: Stretches, losses: Losses, row: int, span: tuple[int, int]) -> list[Change]:
    """Fold the losses of a span that come before a row: one after the other only where one could change something."""
    if stretches.hears(*span):
        stretches.pass_over(row, row, losses.between(*span))
        return []
    return [change for place in range(*span) for change in walk.take(losses.at(place))]
