"""One parameter whose gradients are summed in float32, as :mod:`gradcanary.sums` does it, and who is one.

Nothing of the tensor is held, not even a weak reference: ``torch.utils.swap_tensors`` would refuse it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from gradcanary.attached import AFTER, Hook
from gradcanary.references import Held, Reference
from gradcanary.statistics import LOW_PRECISION

_open: dict[int, Summed] = {}
"""By id of the parameter: what is in here is asked whether it is still the same one."""

_changes = 0


class Summed:
    """Called, it returns the parameter, None once its optimizer does not hold it any more."""

    def __init__(self, parameter: nn.Parameter, held: Held | None) -> None:
        self._reference: Callable[[], nn.Parameter | None] = Reference(parameter, held, None)
        self._id, self._dtype = id(parameter), parameter.dtype
        self._allowed: torch.dtype | None = parameter.grad_dtype
        self._hook: Hook | None = None

    def __call__(self) -> nn.Parameter | None:
        return self._reference()

    def begin(self, call: Callable[[Tensor], None]) -> None:
        """Let its gradient have any dtype, and have ``call`` called with each that was added up."""
        global _changes
        _open[self._id] = self
        _changes += 1
        self.renew(call)

    def renew(self, call: Callable[[Tensor], None]) -> None:
        """Hook it as soon as it is trainable, torch takes no hook on one that is frozen; and again after a swap."""
        parameter = self._reference()
        if parameter is None:
            return
        if self._hook is None and parameter.requires_grad:
            parameter.grad_dtype = None  # any
            self._hook = Hook(self, parameter, AFTER, call)
        elif self._hook is None or self._hook.renew():
            parameter.grad_dtype = None

    def end(self) -> None:
        """Take the hook off, and leave the gradient in the dtype that it may have without us."""
        global _changes
        parameter = self._reference()
        if _open.get(self._id) is self:
            del _open[self._id]
            _changes += 1
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if parameter is not None:
            is_other = self._allowed is self._dtype is not parameter.dtype  # None of what is allowed is any
            allowed = parameter.dtype if is_other else self._allowed
            narrow(parameter, allowed or parameter.dtype)
            parameter.grad_dtype = allowed

    def is_lost(self) -> bool:
        """Say whether there is a hook, and nobody who leads to its parameter."""
        return self._hook is not None and self._reference() is None

    def find(self, tensors: Iterable[Tensor]) -> None:
        """Look for it among tensors, until its end."""
        for tensor in tensors:
            if id(tensor) == self._id and self._hook is not None and self._hook.is_on(tensor):
                self._reference = partial(_same, tensor)


def _same(tensor: Any) -> Any:  # noqa: ANN401 -- an optimizer takes any leaf for a parameter
    return tensor


def is_summed(parameter: Tensor) -> bool:
    """Say whether the gradients of a parameter are summed in float32 by us."""
    found = _open.get(id(parameter))
    return found is not None and found() is parameter


def changes() -> int:
    """Return a number that is another one after each change of what :func:`is_summed` says."""
    return _changes


def widen(parameter: nn.Parameter) -> None:
    """Make its gradient float32; one that is part of a graph stays as it is."""
    gradient = parameter.grad
    if gradient is not None and gradient.dtype in LOW_PRECISION and not gradient.requires_grad:
        gradient.data = gradient.data.float()


def narrow(parameter: nn.Parameter, dtype: torch.dtype) -> None:
    """Round its gradient; one after the other, so that not all are there twice."""
    gradient = parameter.grad
    if gradient is None or gradient.dtype is not torch.float32 or dtype not in LOW_PRECISION or gradient.requires_grad:
        return
    # A sparse sum has an addend per use of a row until then.
    total = gradient.data.coalesce() if gradient.layout is torch.sparse_coo else gradient.data
    rounded = total.to(dtype)
    if dtype is torch.float16 and gradient.layout is torch.strided:
        # The GradScaler has looked for infinities in the sum; what float16 cannot hold must not be a new one.
        largest = torch.finfo(dtype).max
        rounded = torch.where(total.isfinite(), rounded.clamp(-largest, largest), rounded)
    gradient.data = rounded
