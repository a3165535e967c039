"""The rules, in the order in which they are listed. A new one is a function, a ``Rule`` and a line here."""

from __future__ import annotations

from gradcanary.check.findings import Rule
from gradcanary.check.rules.accumulation import LOSS_NOT_DIVIDED, NEVER_CLEARED, SCHEDULER_PER_MICRO_STEP
from gradcanary.check.rules.autocast import BACKWARD_IN_AUTOCAST
from gradcanary.check.rules.bfloat16 import BF16_NOT_ASKED
from gradcanary.check.rules.changed_models import OPTIMIZER_TOO_EARLY
from gradcanary.check.rules.checkpointing import CHECKPOINT_WITHOUT_RNG
from gradcanary.check.rules.dead_keys import DEAD_KEY
from gradcanary.check.rules.left_out import NOT_OPTIMIZED
from gradcanary.check.rules.loss_scaling import CLIP_BEFORE_UNSCALE, FP16_WITHOUT_SCALER
from gradcanary.check.rules.no_sync import NO_SYNC_MISSING
from gradcanary.check.rules.sums import LOW_PRECISION_SUM

RULES: tuple[Rule, ...] = (
    FP16_WITHOUT_SCALER,
    CLIP_BEFORE_UNSCALE,
    LOSS_NOT_DIVIDED,
    BACKWARD_IN_AUTOCAST,
    SCHEDULER_PER_MICRO_STEP,
    NEVER_CLEARED,
    CHECKPOINT_WITHOUT_RNG,
    BF16_NOT_ASKED,
    DEAD_KEY,
    LOW_PRECISION_SUM,
    NO_SYNC_MISSING,
    OPTIMIZER_TOO_EARLY,
    NOT_OPTIMIZED,
)
