"""What is known of a layer without counting: how its gradients are summed, and what its agent said of it. Pure.

It holds from the step at which it became known, until something else is known. Nothing votes about it.
"""

from __future__ import annotations

from collections.abc import Iterable
from zlib import crc32

import numpy as np

from gradcanary.wire import Fact
from gradcanary_server.layer_rules import LayerRules
from gradcanary_server.moment import Mask
from gradcanary_server.observations import Launch
from gradcanary_server.precision import FULL, Precision, predicted_loss
from gradcanary_server.rules import Rules
from gradcanary_server.scores import Scores
from gradcanary_server.tracks import CLIPPED_SCALED, DECLARED, FORECAST, NO_SCALER, SUM_COARSE, SUM_FINE

_FORECASTS = ("bf16_weights_lr", "fp16_weights_lr", "bf16_moments", "fp16_moments")


def digest(facts: Iterable[Fact]) -> int:
    """Return a number that changes with what an agent said, 0 of nothing."""
    said = [(fact.code, fact.layers) for fact in facts]
    return crc32(repr(said).encode()) if said else 0


def settle(
    scores: Scores, known: Precision, launch: Launch, view: LayerRules, micro_steps: int, rules: Rules, step: int
) -> bool:
    """Let fire what is given, and resolve what is not any more; tell whether anything changed.

    ``micro_steps`` is the most that a window of the launch had: a sum of one gradient loses nothing.
    """
    columns, full = view.columns, view.resolve_after
    rule = view.accumulator
    low = (known.sums[columns] != FULL) & (micro_steps > 1) & rule.enabled
    is_coarse = predicted_loss(micro_steps) >= rule.warn_above
    declared = (known.differs[columns] | _said_of(launch, ("dead_config_key",))) & rule.enabled
    found = {
        SUM_FINE: low & ~is_coarse,
        SUM_COARSE: low & is_coarse,
        DECLARED: declared,
        FORECAST: _said_of(launch, _FORECASTS) & view.frozen.enabled,
        NO_SCALER: _said_of(launch, ("fp16_without_scaler",)) & view.fp16_underflow.enabled,
        CLIPPED_SCALED: _said_of(launch, ("clip_before_unscale",)) & rules.clip_before_unscale.enabled,
    }
    changed = [scores.put(track, columns, fires, step, full) for track, fires in found.items()]
    return any(changed)


def _said_of(launch: Launch, codes: tuple[str, ...]) -> Mask:
    """Tell which layers a finding with one of these codes is about; one without layers is about all."""
    found = np.zeros(len(launch.layers), np.bool_)
    for fact in launch.facts:
        if fact.code in codes:
            names = set(fact.layers)
            found |= np.array([not names or layer.name in names for layer in launch.layers], np.bool_)
    return found
