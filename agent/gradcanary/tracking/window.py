"""The micro-steps of one optimizer step, counted, and whether gradients were cleared since the last one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.multiprocessing.reductions import StorageWeakRef

from gradcanary.model.distributed import is_dtensor
from gradcanary.stats.sampler import LocalNonfinite
from gradcanary.stats.samples import Kind, Part, Sample, parts_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor

UNCHANGED, MODIFIED, REPLACED = range(3)


class Window:
    """What is known of one optimizer's present window; its layers go by position."""

    __slots__ = (
        "begun",
        "calls",
        "copies",
        "counts",
        "found_inf",
        "has_closure",
        "is_marked",
        "is_seen",
        "local",
        "loss_scale",
        "losses",
        "lr",
        "passes",
        "probe",
        "sample",
        "scaler_token",
        "seen_in",
        "step_time_s",
        "stepped",
        "stepped_in",
        "stepping",
        "steps_before",
        "summed",
        "unseen",
        "unsynced",
    )

    def __init__(self, layers: int) -> None:
        # Passes.
        self.counts = [0] * layers  # how often each layer accumulated
        self.passes = 0  # its backward passes that have ended
        self.seen_in: set[int] = set()  # the numbers of its backward passes
        self.unsynced = 0  # passes that reduced no shard, so that no hook of a layer was called
        self.calls = 0  # calls of backward() since the last step: all that is known where no layer has a hook
        self.unseen = 0  # those of them before the layers had hooks
        self.is_seen = True  # False after a pause: how much there was is not known
        # Its step.
        self.begun = False
        self.stepping = False
        self.has_closure = False
        self.stepped = False
        self.stepped_in = -1  # the number of the backward pass that the step came in, if it did
        self.steps_before = 0  # the steps of all optimizers until the window began
        self.step_time_s: float | None = None
        self.lr: tuple[float | Tensor, ...] = ()
        self.is_marked = False  # True if its gradients are remembered as the step left them
        # The loss scale.
        self.loss_scale: Tensor | None = None
        self.scaler_token: object = None
        self.found_inf: Tensor | None = None
        # What was measured.
        self.losses: list[Tensor] = []
        self.sample: Sample | None = None
        self.probe: list[Part] = []
        self.local: LocalNonfinite | None = None  # of gradients before a reduction, None where nothing asks for it
        self.copies: dict[int, Tensor] | None = None  # weights before the step, None until they are copied
        self.summed: set[int] = set()  # layers whose sum the script has given as complete

    @property
    def micro_steps(self) -> int:
        """Return K: passes through the layer that had most (a checkpointed block may take several engine passes)."""
        return max(self.counts, default=0) + (self.unsynced if any(self.counts) else 0)

    def restart(self) -> None:
        """Forget the passes so far: their gradients were cleared, and led to no step."""
        self.counts[:] = [0] * len(self.counts)
        self.unsynced = 0
        self.passes = 0
        self.local = None if self.local is None else LocalNonfinite()
        self.losses = []
        self.sample = None
        self.summed = set()

    @property
    def is_plain(self) -> bool:
        """Whether all of it was seen, and its step came after its passes, by itself."""
        return self.is_seen and not (self.unseen or self.has_closure) and self.stepped_in < 0

    def begin_again(self) -> None:
        """Become the next window, of which no more is asked than of the last one."""
        self.begun = self.stepped = False
        self.passes = 0
        self.losses, self.lr = [], ()

    def was_paused(self) -> None:
        """Forget what was seen: it is not all there was, and how much there was is not known."""
        self.is_seen = False
        self.local = None
        self.losses = []
        self.sample = None

    def parts(self) -> list[Part]:
        """Return the window's own values: losses, learning rates, loss scale and probe."""
        parts = parts_of(self.losses if self.is_seen else [], self.lr)
        if self.loss_scale is not None:
            parts.append(Part(Kind.LOSS_SCALE, self.loss_scale))
        if self.found_inf is not None:
            parts.append(Part(Kind.FOUND_INF, self.found_inf))
        return parts + self.probe


class GradientIdentity:
    """One gradient that tells what happened to all of them between two backward passes, without reading it.

    ``.grad`` has other memory once it was set to None; its version rises by one with each write in place. What is
    remembered is a weak reference to its storage: one to the tensor would make ``torch.utils.swap_tensors`` refuse it.
    """

    def __init__(self) -> None:
        self.layer: int | None = None
        self._address = 0
        self._memory: StorageWeakRef | None = None
        self._version = 0
        self._was_view = False

    def mark(self, layer: int, gradient: Tensor | None) -> None:
        """Remember the gradient as it is now."""
        self.layer = layer
        storage = None if gradient is None else _storage_of(gradient)
        address = _address(gradient, storage)
        if storage is None:
            self._memory = None
        elif self._memory is None or address != self._address:
            # While there is a weak reference, no other storage comes to lie at its address.
            self._memory = StorageWeakRef(storage)  # type: ignore[no-untyped-call]  # untyped in torch
        self._address = address
        self._version = 0 if gradient is None else gradient._version  # noqa: SLF001 -- documented only by its name
        self._was_view = gradient is not None and gradient._is_view()  # noqa: SLF001 -- likewise

    def change(self, gradient: Tensor | None, writes: int = 0, *, is_reduced_later: bool = False) -> int:
        """Return UNCHANGED, MODIFIED or REPLACED; ``writes`` are those that are accounted for.

        Of a shard that ``is_reduced_later`` than its hook is called, a pass without a reduction leaves no gradient.
        """
        if gradient is None:
            return UNCHANGED if is_reduced_later and not self._address else REPLACED
        expected = self._version + writes
        storage = _storage_of(gradient)
        # The address of one without a storage may be another one's by now: that one's version begins anew.
        is_other = storage is None and gradient._version < expected  # noqa: SLF001 -- as above
        if is_other or _address(gradient, storage) != self._address:
            return UNCHANGED if self._is_replaced(gradient) else REPLACED
        if is_dtensor(gradient) or gradient._is_view():  # noqa: SLF001 -- views of a bucket share one version; what FSDP2 writes to changes none
            return UNCHANGED
        return UNCHANGED if gradient._version == expected else MODIFIED  # noqa: SLF001 -- as above

    def _is_replaced(self, gradient: Tensor) -> bool:
        """Say whether a new tensor goes on with the sum of the one that was marked.

        With create_graph=True each accumulation makes one. A data-parallel wrapper moves its views to other buckets
        once it knows in which order gradients come; what torch makes of a gradient that was cleared is no view.
        """
        return gradient.grad_fn is not None or (self._was_view and gradient._is_view())  # noqa: SLF001 -- as above


def _storage_of(gradient: Tensor) -> torch.UntypedStorage | None:
    """Return where its elements lie, of a sharded one those of this process; None of a sparse one: a sum moves them."""
    held: Tensor = getattr(gradient, "_local_tensor", gradient)
    try:
        return held.untyped_storage()
    except (RuntimeError, NotImplementedError):
        return None


def _address(gradient: Tensor | None, storage: torch.UntypedStorage | None) -> int:
    address: int = 0 if gradient is None else (gradient if storage is None else storage)._cdata  # noqa: SLF001 -- as StorageWeakRef has it
    return address
