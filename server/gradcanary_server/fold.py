"""The rules as a fold over steps: state and samples in, state and changes out. Pure, no clock.

Any cutting of a stream gives the same state and the same changes, and so does a stream that comes twice: steps are
folded one by one, in their order; a step or loss that is not later than the last one folded is not folded; and of a
launch nothing is once one that began later was folded.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradcanary_server.fold_state import FoldState, Progress, Verdict
from gradcanary_server.moment import Moment, moments
from gradcanary_server.observations import Change, Launch, Samples
from gradcanary_server.rules import Rules
from gradcanary_server.walk import Loss, Walk

__all__ = ["FoldState", "Verdict", "fold"]


def fold(state: FoldState, launch: Launch, samples: Samples, rules: Rules) -> tuple[FoldState, tuple[Change, ...]]:
    """Return the state after these samples of a launch, and what began or ended in them, in the order of steps."""
    if state.progress.launch in launch.newer:
        return state, ()
    walk = Walk(state.copy(), launch, rules)
    found = [change for event in _events(samples, walk.state.progress) for change in walk.take(event)]
    return walk.state, (*walk.gone, *found)


def _events(samples: Samples, progress: Progress) -> Iterator[Moment | Loss]:
    """Return the steps and losses that are news, by step, a step's loss before the step.

    A loss that comes after its step was folded is too late: folded or not would depend on how the stream was cut.
    """
    folded = progress.last_step
    losses = _losses(samples, max(folded, progress.last_loss_step))
    loss = next(losses, None)
    for moment in moments(samples):
        if moment.step <= folded:
            continue
        while loss is not None and loss.step <= moment.step:
            yield loss
            loss = next(losses, None)
        yield moment
    if loss is not None:
        yield loss
        yield from losses


def _losses(samples: Samples, heard: int) -> Iterator[Loss]:
    skipped = dict(zip(samples.steps.tolist(), samples.skipped.tolist(), strict=True))
    order = np.argsort(samples.loss_steps, kind="stable")
    for step, value in zip(samples.loss_steps[order].tolist(), samples.loss[order].tolist(), strict=True):
        if step > heard:
            yield Loss(step, value, skipped.get(step, 0))
