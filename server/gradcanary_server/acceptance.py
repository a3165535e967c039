"""What somebody says shall be so: the layers of an incident begin a new baseline. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gradcanary_server.fold_state import FoldState
from gradcanary_server.scores import NEVER
from gradcanary_server.tracks import FALL, LATE, NOTHING, SCALE_DROP, SCALE_WORSE, SIBLINGS, THRESHOLD

RULES = ("collapse", "scale_drop")
"""Those that hold gradients against what they were."""


def accept(state: FoldState, rule: str) -> tuple[FoldState, tuple[int | None, ...]]:
    """Return a state in which what fires for a rule does not, and learns a new baseline; and what that is, by number.

    Layers that a threshold speaks of stay as they are: it was given, not learnt. None is the whole run. A layer that
    was accepted is not held against its siblings any more, or it would fire again at once.
    """
    moved = state.copy()
    if rule == "scale_drop":
        return moved, _accept_run(moved)
    firing = state.scores.firing
    evidence = [FALL, SIBLINGS, LATE]
    layers = np.flatnonzero(firing[evidence].any(axis=0) & ~firing[THRESHOLD])
    for track in evidence:
        moved.scores.score[track, layers], moved.scores.since[track, layers] = 0, NEVER
        moved.scores.firing[track, layers] = False
    moved.baselines.forget(layers)
    moved.accepted[layers] = True
    return moved, tuple(layers.tolist())


def _accept_run(state: FoldState) -> tuple[int | None, ...]:
    if not state.of_run.firing[SCALE_DROP, 0]:
        return ()
    state.of_run.drop(SCALE_DROP)
    state.of_run.drop(SCALE_WORSE)
    state.baselines.forget(np.arange(len(state.present)))
    state.progress = replace(state.progress, scale_severity=NOTHING, loss_level=None, reach=0.0)
    return (None,)
