"""One optimizer's window: its passes, its step and its values."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from gradcanary.stats.sampler import LocalNonfinite
from gradcanary.stats.samples import Kind, Part, Sample, parts_of

if TYPE_CHECKING:
    from torch import Tensor


class State(Enum):
    """The state of a window. ``STEPPED`` holds until the next window begins: the script may still log for this one."""

    NEW = "no pass yet"
    OPEN = "passes"
    STEPPING = "inside optimizer.step()"
    STEPPED = "stepped"


NEW, OPEN, STEPPING, STEPPED = State


class Window:
    """The passes, the step and the values of one optimizer's window; layers go by position."""

    __slots__ = (
        "calls",
        "complete_sums",
        "counts",
        "found_inf",
        "graph_tasks",
        "has_closure",
        "is_marked",
        "is_whole",
        "local",
        "loss_scale",
        "losses",
        "lr",
        "passes",
        "passes_before_hooks",
        "passes_without_sync",
        "probe",
        "sample",
        "scaler_token",
        "state",
        "step_graph_task",
        "step_time_s",
        "steps_before",
        "weights_before",
    )

    def __init__(self, layers: int) -> None:
        self.state = NEW
        # Passes.
        self.counts = [0] * layers  # accumulations of each layer
        self.passes = 0  # backward passes that have ended
        self.graph_tasks: set[int] = set()  # the numbers of the backward passes
        self.passes_without_sync = 0  # passes that reduced no shard: torch called no hook of a layer
        self.calls = 0  # calls of backward() since the last step: the only count where no layer has a hook
        self.passes_before_hooks = 0  # calls before the layers had hooks
        self.is_whole = True  # False if a pause hid a part of it
        # The step.
        self.has_closure = False
        self.step_graph_task = -1  # the number of the backward pass in which the optimizer stepped, -1 outside of one
        self.steps_before = 0  # steps of all optimizers until the window began
        self.step_time_s: float | None = None
        self.lr: tuple[float | Tensor, ...] = ()
        self.is_marked = False  # True if the identity of a gradient after the step is known
        # The loss scale.
        self.loss_scale: Tensor | None = None
        self.scaler_token: object = None
        self.found_inf: Tensor | None = None
        # Values.
        self.losses: list[Tensor] = []
        self.sample: Sample | None = None
        self.probe: list[Part] = []
        self.local: LocalNonfinite | None = None  # of gradients before a reduction; None if they are not measured
        self.weights_before: dict[int, Tensor] | None = None  # copies from before the step; None until they are made
        self.complete_sums: set[int] = set()  # layers whose sum the script has given

    @property
    def micro_steps(self) -> int:
        """Return K: the largest count of a layer. A checkpointed block may take several engine passes for one."""
        return max(self.counts, default=0) + (self.passes_without_sync if any(self.counts) else 0)

    def restart(self) -> None:
        """Forget the passes so far: their gradients were cleared without a step."""
        self.counts[:] = [0] * len(self.counts)
        self.passes_without_sync = 0
        self.passes = 0
        self.local = None if self.local is None else LocalNonfinite()
        self.losses = []
        self.sample = None
        self.complete_sums = set()

    @property
    def is_plain(self) -> bool:
        """True if no part is missing and the step came after the passes, without a closure."""
        return self.is_whole and not (self.passes_before_hooks or self.has_closure) and self.step_graph_task < 0

    def begin_again(self) -> None:
        """Become the next window of the fast path; the counts of layers stay."""
        self.state = NEW
        self.passes = 0
        self.losses, self.lr = [], ()

    def was_paused(self) -> None:
        """Forget the values: a part of the window is missing."""
        self.is_whole = False
        self.local = None
        self.losses = []
        self.sample = None

    def parts(self) -> list[Part]:
        """Return the losses, learning rates, loss scale and probe."""
        parts = parts_of(self.losses if self.is_whole else [], self.lr)
        if self.loss_scale is not None:
            parts.append(Part(Kind.LOSS_SCALE, self.loss_scale))
        if self.found_inf is not None:
            parts.append(Part(Kind.FOUND_INF, self.found_inf))
        return parts + self.probe
