"""The count of steps, and what to measure next: trackers and layer hooks read it, and write nothing to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcanary.stats.samples import SampleRequest

if TYPE_CHECKING:
    from gradcanary.tracking.overhead import Meter


class StepClock:
    """Holds where the training is. One object for all optimizers: there is no way from it to any of them."""

    __slots__ = (
        "_meter",
        "first_step",
        "has_backward_end",
        "has_layers",
        "is_joining",
        "is_paused",
        "request",
        "samples",
        "saw_backward_end",
        "step",
        "steps_taken",
    )

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self.step = 0  # the main optimizer's present window is recorded under it
        self.first_step: int | None = None  # None until a window has begun
        self.steps_taken = 0  # those of all optimizers
        self.samples = 0
        self.request = SampleRequest()  # the sender replaces it
        self.is_paused = False
        self.is_joining = False  # True in the first window of a watch that came late
        self.has_layers = False
        self.has_backward_end = False  # False without the engine's callbacks: each hook looks for the end itself
        self.saw_backward_end = False

    @property
    def interval(self) -> int:
        """The steps from one sample to the next."""
        return self._meter.every

    def is_sampled(self, step: int) -> bool:
        """Return True if a window that is recorded under a step is measured."""
        return step % self._meter.every == 0 and self.has_layers
