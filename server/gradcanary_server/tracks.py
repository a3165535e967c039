"""The counts that the rules keep: which there are, whose evidence each is, and how bad that is. Pure."""

from __future__ import annotations

from typing import NamedTuple, get_args

from gradcanary_server.observations import Evidence, Severity

FALL, SIBLINGS, THRESHOLD, LATE, NONFINITE, EXPLOSION = range(6)
"""The tracks of a layer that any step may move. The first four are evidence of collapse, each with a count of its own,
so that what was seen for one kind of evidence says nothing about another."""
COLLAPSE = slice(FALL, LATE + 1)
MOVING = slice(FALL, EXPLOSION + 1)

STEADY, RARE, BY_SCRIPT, UNUSED = range(6, 10)
"""Of layers without a gradient: they fire at once, and nothing but a gradient moves them then. The first three are
evidence of vanished: one that nearly always had a gradient, one that seldom had, one that the script froze."""

LOST, FROZEN, STOPPED, UNDERFLOW, ALL_ZERO = range(10, 15)
"""Of what is measured of a few layers at a time; nothing else moves them."""
ZEROS = slice(UNDERFLOW, ALL_ZERO + 1)

SUM_FINE, SUM_COARSE, DECLARED, FORECAST, NO_SCALER, CLIPPED_SCALED = range(15, 21)
"""Of what is given: it fires without a count."""

NEVER = 21
"""Of layers without a gradient, and evidence of vanished, too: one that never had any, and no other layer did."""
IDLE = [STEADY, RARE, BY_SCRIPT, UNUSED, NEVER]

TRACKS = 22

SCALE_DROP, SCALE_WORSE, NONFINITE_LOSS = range(3)
"""The tracks of the whole run; SCALE_WORSE counts what speaks for a higher severity of an open scale_drop."""
RUN_TRACKS = 3

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""In rising order; the fold counts with their indices, and -1 is none."""

NOTHING = -1
INFORMATION, WARNING, CRITICAL = range(len(SEVERITIES))


class Meaning(NamedTuple):
    """What a track that fires says of a layer."""

    track: int
    evidence: Evidence | None
    severity: int


RULES: dict[str, tuple[Meaning, ...]] = {
    "collapse": (
        Meaning(LATE, "late", INFORMATION),
        Meaning(SIBLINGS, "siblings", WARNING),
        Meaning(THRESHOLD, "threshold", CRITICAL),
        Meaning(FALL, "fall", CRITICAL),
    ),
    "nonfinite": (Meaning(NONFINITE, None, CRITICAL),),
    "explosion": (Meaning(EXPLOSION, None, WARNING),),
    "vanished": (
        Meaning(BY_SCRIPT, "by_script", INFORMATION),
        Meaning(NEVER, "never", WARNING),
        Meaning(RARE, "rare", WARNING),
        Meaning(STEADY, "steady", CRITICAL),
    ),
    "unused": (Meaning(UNUSED, None, WARNING),),
    "accumulation_loss": (Meaning(LOST, None, CRITICAL),),
    "accumulator": (
        Meaning(DECLARED, "declared", INFORMATION),
        Meaning(SUM_FINE, "low_sum", INFORMATION),
        Meaning(SUM_COARSE, "low_sum", WARNING),
    ),
    "frozen": (
        Meaning(FORECAST, "forecast", WARNING),
        Meaning(FROZEN, "measured", WARNING),
        Meaning(STOPPED, "stopped", CRITICAL),
    ),
    "fp16_underflow": (
        Meaning(NO_SCALER, "no_scaler", WARNING),
        Meaning(UNDERFLOW, "zeros", WARNING),
        Meaning(ALL_ZERO, "all_zeros", CRITICAL),
    ),
    "clip_before_unscale": (Meaning(CLIPPED_SCALED, None, WARNING),),
}
"""The tracks of each rule in rising order of severity; of equals the last one speaks."""
