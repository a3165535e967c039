"""The report of a short watched training: how it ran, what was measured, and a verdict for each check."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

Verdict = Literal["ok", "not ok", "not seen", "not judged"]
"""``not seen``: the training showed nothing of it, as a loss that nobody passes to ``backward()``.
``not judged``: it was seen, and the steps are too few to say more."""

Ending = Literal["stopped", "finished", "failed"]
"""``stopped`` after the steps that were asked for, ``finished`` by itself before, ``failed`` with another status."""


@dataclass(frozen=True)
class Check:
    """One line of the page: ``code`` names the check, ``text`` says what was found, ``do_first`` what to do."""

    code: str
    verdict: Verdict
    text: str
    do_first: str = ""


@dataclass(frozen=True)
class Report:
    """A training of some optimizer steps.

    Half of the step times lie in ``step_time_quartiles_s``. ``sums_lost`` is the largest accumulation_error, None if
    none was measured: nothing is summed in low precision, or the run is too short.

    ``step_time_s`` is the median without the first steps, ``agent_share`` gradcanary's part of the time,
    ``peak_memory_bytes`` the most that torch had allocated on a GPU, else the resident memory of the process. Each is
    None if it was not seen. ``losses``, ``absmax`` (the largest of all parameters) and ``zeros`` (the mean share of
    exact zeros of the parameters whose zeros were counted in that step) are pairs of step and value.
    ``first_nonfinite_step`` is the first step with a gradient that was not finite, ``first_incident_step`` the first
    at which a rule fired with a severity of warning or above. A negative ``exit_status`` is a signal.
    """

    run: str
    command: tuple[str, ...]
    asked_steps: int
    steps: int
    ending: Ending
    exit_status: int
    output_tail: tuple[str, ...] = ()
    checks: tuple[Check, ...] = ()
    losses: tuple[tuple[int, float], ...] = ()
    absmax: tuple[tuple[int, float], ...] = ()
    zeros: tuple[tuple[int, float], ...] = ()
    step_time_s: float | None = None
    step_time_quartiles_s: tuple[float, float] | None = None
    agent_share: float | None = None
    peak_memory_bytes: float | None = None
    first_nonfinite_step: int | None = None
    first_incident_step: int | None = None
    sums_lost: float | None = None

    @property
    def is_healthy(self) -> bool:
        """True if no check is ``not ok``."""
        return all(check.verdict != "not ok" for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON's types; a number that is not finite is None, as in the API."""
        return {"is_healthy": self.is_healthy, **_plain(asdict(self))}


def _plain(value: Any) -> Any:  # noqa: ANN401 -- of any field
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
