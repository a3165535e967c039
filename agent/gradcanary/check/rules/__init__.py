"""The rules, in the order in which they are listed. A new one is a function, a ``Rule`` and a line here."""

from __future__ import annotations

from gradcanary.check.findings import Rule
from gradcanary.check.rules.accumulation import LOSS_NOT_DIVIDED, NEVER_CLEARED, SCHEDULER_PER_MICRO_STEP
from gradcanary.check.rules.autocast import BACKWARD_IN_AUTOCAST
from gradcanary.check.rules.loss_scaling import CLIP_BEFORE_UNSCALE, FP16_WITHOUT_SCALER

RULES: tuple[Rule, ...] = (
    FP16_WITHOUT_SCALER,
    CLIP_BEFORE_UNSCALE,
    LOSS_NOT_DIVIDED,
    BACKWARD_IN_AUTOCAST,
    SCHEDULER_PER_MICRO_STEP,
    NEVER_CLEARED,
)
