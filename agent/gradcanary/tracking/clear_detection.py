"""How a loop clears its gradients: the identity of one of them shows it, without a read."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from torch.multiprocessing.reductions import StorageWeakRef

from gradcanary.model.distributed import is_dtensor
from gradcanary.stats.sampler import Sampler

if TYPE_CHECKING:
    import torch
    from torch import Tensor

UNCHANGED, MODIFIED, REPLACED = range(3)


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
        buckets once it knows the order of the gradients. After a clear, torch makes a tensor that is not a view.
        """
        return gradient.grad_fn is not None or (self._was_view and gradient._is_view())  # noqa: SLF001 -- as above


class ClearDetector(GradientIdentity):
    """The identity of one layer's gradient after a pass or a step of an optimizer; layers go by position.

    ``first`` is the layer that the last pass began with. ``clears_in_place`` is True if the loop writes zeros, False if
    it sets ``.grad`` to None. It is None until a window follows a step.
    """

    def __init__(self, sampler: Sampler) -> None:
        super().__init__()
        self.first = 0
        self.clears_in_place: bool | None = None
        self.unsharded: Collection[int] = ()
        self._sampler = sampler

    def change_since_mark(self, accumulated: int | None) -> int:
        """Return the change of the marked gradient; this pass has written to the layer ``accumulated``."""
        layer, sampler = self.layer, self._sampler
        if layer is None:
            return REPLACED
        if sampler.parameter(layer) is None:
            return UNCHANGED  # the parameter is gone, or no optimizer holds it for now
        is_reduced_later = sampler.layers[layer] in self.unsharded
        return self.change(sampler.gradient(layer), int(accumulated == layer), is_reduced_later=is_reduced_later)

    def mark_after_pass(self) -> None:
        """Mark a gradient of the pass that has ended.

        The first layer of the pass replaces a layer that took no part in it, such as the head of another task.
        """
        if self.layer is not None:
            gradient = self._sampler.gradient(self.layer)
            if gradient is None and (other := self._sampler.gradient(self.first)) is not None:
                self.layer, gradient = self.first, other
            self.mark(self.layer, gradient)

    def mark_after_step(self) -> bool:
        """Mark the gradient after a step, and return True; False before the first pass."""
        if self.layer is None:
            return False
        self.mark(self.layer, self._sampler.gradient(self.layer))
        return True

    def are_gone(self) -> bool:
        """Return True if the marked gradient does not exist, nor that of the last pass's first layer."""
        gradient = self._sampler.gradient
        return self.layer is not None and gradient(self.layer) is None and gradient(self.first) is None


def _storage_of(gradient: Tensor) -> torch.UntypedStorage | None:
    """Return the storage of the local elements; None for a sparse gradient, whose elements move at each sum."""
    held: Tensor = getattr(gradient, "_local_tensor", gradient)
    try:
        return held.untyped_storage()
    except (RuntimeError, NotImplementedError):  # a sparse gradient
        return None


def _address(gradient: Tensor | None, storage: torch.UntypedStorage | None) -> int:
    address: int = 0 if gradient is None else (gradient if storage is None else storage)._cdata  # noqa: SLF001 -- as StorageWeakRef has it
    return address
