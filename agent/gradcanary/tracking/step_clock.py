"""The count of steps and the next sample request; trackers and layer hooks read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gradcanary.stats.samples import SampleRequest

if TYPE_CHECKING:
    from gradcanary.tracking.overhead import Meter


class StepClock:
    """The position of the training, shared by all optimizers. It refers to none of them."""

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
        self.step = 0  # the step of the main optimizer's present window
        self.first_step: int | None = None  # None until a window has begun
        self.steps_taken = 0  # steps of all optimizers
        self.samples = 0
        self.request = SampleRequest()  # the sender replaces it
        self.is_paused = False
        self.is_joining = False  # True in the first window of a late watch
        self.has_layers = False
        self.has_backward_end = False  # False without the engine's callbacks
        self.saw_backward_end = False

    @property
    def interval(self) -> int:
        """The steps from one sample to the next."""
        return self._meter.every

    def is_sampled(self, step: int) -> bool:
        """Return True if windows of this step are measured."""
        return step % self._meter.every == 0 and self.has_layers
