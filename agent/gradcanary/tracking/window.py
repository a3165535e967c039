"""One optimizer's window: its passes, its step and its values; and the gradient that shows if a loop cleared them."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from torch.multiprocessing.reductions import StorageWeakRef

from gradcanary.model.distributed import is_dtensor
from gradcanary.stats.sampler import LocalNonfinite
from gradcanary.stats.samples import Kind, Part, Sample, parts_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

UNCHANGED, MODIFIED, REPLACED = range(3)


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


class GradientIdentity:
    """The identity of one gradient: it shows if the loop has cleared or changed all gradients, and reads none.

    A ``.grad`` that was set to None has other memory next time. Each write in place raises its version by one. The
    memory is held by a weak reference to its storage: one to the tensor would make ``torch.utils.swap_tensors`` fail.
    """

    def __init__(self) -> None:
        self.layer: int | None = None
        self._address = 0
        self._memory: StorageWeakRef | None = None
        self._version = 0
        self._was_view = False

    def mark(self, layer: int, gradient: Tensor | None) -> None:
        """Remember the present gradient of a layer."""
        self.layer = layer
        storage = None if gradient is None else _storage_of(gradient)
        address = _address(gradient, storage)
        if storage is None:
            self._memory = None
        elif self._memory is None or address != self._address:
            # While a weak reference exists, no other storage gets its address.
            self._memory = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # untyped in torch
        self._address = address
        self._version = 0 if gradient is None else gradient._version  # noqa: SLF001 -- documented only by its name
        self._was_view = gradient is not None and gradient._is_view()  # noqa: SLF001 -- likewise

    def change(self, gradient: Tensor | None, writes: int = 0, *, is_reduced_later: bool = False) -> int:
        """Return UNCHANGED, MODIFIED or REPLACED; ``writes`` are expected ones.

        A shard that ``is_reduced_later`` than its hook is called has no gradient after a pass without a reduction.
        """
        if gradient is None:
            return UNCHANGED if is_reduced_later and not self._address else REPLACED
        expected = self._version + writes
        storage = _storage_of(gradient)
        # A gradient without a storage may have the address of a former one, but not its version.
        is_other = storage is None and gradient._version < expected  # noqa: SLF001 -- as above
        if is_other or _address(gradient, storage) != self._address:
            return UNCHANGED if self._continues_sum(gradient) else REPLACED
        if is_dtensor(gradient) or gradient._is_view():  # noqa: SLF001 -- views of a bucket share one version; what FSDP2 writes to changes none
            return UNCHANGED
        return UNCHANGED if gradient._version == expected else MODIFIED  # noqa: SLF001 -- as above

    def _continues_sum(self, gradient: Tensor) -> bool:
        """Return True if a new tensor holds the sum of the marked one and more.

        With create_graph=True each accumulation makes a new tensor. A data-parallel wrapper moves its views to other
        buckets once it knows the order of the gradients; a gradient that torch makes after a clear is not a view.
        """
        return gradient.grad_fn is not None or (self._was_view and gradient._is_view())  # noqa: SLF001 -- as above


def _storage_of(gradient: Tensor) -> torch.UntypedStorage | None:
    """Return the storage of the local elements; None for a sparse gradient, whose elements move at each sum."""
    held: Tensor = getattr(gradient, "_local_tensor", gradient)
    try:
        return held.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


def _address(gradient: Tensor | None, storage: torch.UntypedStorage | None) -> int:
    address: int = 0 if gradient is None else (gradient if storage is None else storage)._cdata  # noqa: SLF001 -- as StorageWeakRef has it
    return address
