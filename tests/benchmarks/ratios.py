"""Medians with their range, targets, and packages that a comparison needs. Imported, not run."""

import statistics
from collections.abc import Sequence
from importlib.util import find_spec

ROUNDS = 7
"""Fewer tell little: what else the machine does moves a single one by ten per cent."""


def need(*packages: str) -> None:
    """End the process with what to install unless all packages are there."""
    missing = [each for each in packages if find_spec(each) is None]
    if missing:
        raise SystemExit(f"missing: {', '.join(missing)}. Install them: pip install --group benchmarks")


def told(numbers: Sequence[float], form: str = ".3f") -> str:
    """Return the median and the range: ``1.004 (1.001 to 1.010)``."""
    low, middle, high = (format(each, form) for each in (min(numbers), statistics.median(numbers), max(numbers)))
    return f"{middle} ({low} to {high})"


def judged(what: str, found: float, target: float, *, at_least: bool = False) -> bool:
    """Print a target and whether it was met; return whether it was."""
    is_met = found >= target if at_least else found <= target
    relation = "at least" if at_least else "at most"
    print(f"- {what}: {found:.4g}, target {relation} {target:g}: {'met' if is_met else 'MISSED'}")
    return is_met
