"""Which layers a launch has: who comes, who goes, and what is remembered of them. Pure."""

from __future__ import annotations

import numpy as np

from gradcanary_server import changes
from gradcanary_server.fold_state import FoldState, Progress
from gradcanary_server.layer_rules import LayerRules
from gradcanary_server.observations import Change, Launch

UNKNOWN_SHAPE = 0
"""The checksum of the shape of a layer that never came."""


def call(state: FoldState, launch: Launch, view: LayerRules) -> tuple[Change, ...]:
    """Make the state one of this launch and its layers; return what resolved because layers are gone.

    1. A layer that a new launch does not have leaves its incidents; its baseline waits, should it come back.
    2. A layer in another shape is another layer: it leaves, and everything of it is forgotten.
    3. Of the others, baselines and what fires go on over a new launch, because missing data never resolves; counts
       that did not fire, grace, open blocks, losses, learning rates, and how often a layer had a gradient, begin anew.
    """
    columns = view.columns
    if _is_known(state, launch, view):
        return ()
    state.make_room(int(columns.max(initial=-1)) + 1, int(view.observations.max(initial=0)))
    is_new = launch.number != state.progress.launch
    reshaped = (state.shapes[columns] != UNKNOWN_SHAPE) & (state.shapes[columns] != view.shapes)
    leaves = state.present.copy() if is_new else np.zeros_like(state.present)
    leaves[columns] = reshaped
    gone = changes.leaving(state, leaves, launch.first_step)
    state.scores.forget(leaves)
    state.low[leaves] = False
    state.baselines.forget(columns[reshaped])
    state.duty.forget(columns[reshaped])
    state.precision.forget(columns[reshaped])
    state.began.forget(columns[reshaped])
    state.alive[columns[reshaped]] = False
    state.accepted[columns[reshaped]] = False
    if is_new:
        _begin(state, launch)
    state.present[columns] = True
    state.shapes[columns] = view.shapes
    _refill(state, view)
    return gone


def _is_known(state: FoldState, launch: Launch, view: LayerRules) -> bool:
    """Tell whether this launch came with these very layers and rules before."""
    columns = view.columns
    return bool(
        launch.number == state.progress.launch
        and int(columns.max(initial=-1)) < len(state.present)
        and int(view.observations.max(initial=0)) <= len(state.baselines.block)
        and state.present[columns].all()
        and (state.shapes[columns] == view.shapes).all()
        and (state.resolve_after[columns] == view.resolve_after).all()
    )


def _refill(state: FoldState, view: LayerRules) -> None:
    """Let what fires and shows no sign of recovery have the score that rules give it which are others now."""
    columns, score = view.columns, state.scores.score[:, view.columns]
    is_full = state.scores.firing[:, columns] & (score == state.resolve_after[columns])
    state.scores.score[:, columns] = np.where(is_full, view.resolve_after, score)
    state.resolve_after[columns] = view.resolve_after


def _begin(state: FoldState, launch: Launch) -> None:
    state.present[:] = False
    state.baselines.drop_blocks()
    state.duty.forget(slice(None))
    state.precision.forget(slice(None))
    state.scores.calm()
    state.of_run.calm()
    state.losses = np.zeros(0)
    known = state.progress
    state.progress = Progress(
        launch.number,
        loss_level=known.loss_level,
        loss_first=known.loss_first,
        reach=known.reach,
        calm_step=min(known.calm_step, launch.first_step),
        scale_severity=known.scale_severity,
        explosion_severity=known.explosion_severity,
    )
