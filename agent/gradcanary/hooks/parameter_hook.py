"""Hooks on parameters: put on again where torch has dropped them, and taken off without a trace.

``torch.utils.swap_tensors``, as in ``model.to()`` where that is asked for, leaves a parameter the dict of its hooks and
calls none of them any more, nor any that is added to that dict later. A dict that only we needed must not stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

AFTER, BEFORE = "_post_accumulate_grad_hooks", "_backward_hooks"
"""Where a parameter keeps the hooks that are called after its gradient was added up, and before."""

_ours: set[int] = set()
"""The keys of all hooks of ours: torch gives each hook of a process another one."""


class Hook:
    """A function that is called with each gradient of a parameter; ``reference`` leads to that, as long as it lives."""

    def __init__(
        self, reference: Callable[[], nn.Parameter | None], parameter: Tensor, kind: str, call: Callable[[Tensor], None]
    ) -> None:
        self._reference, self._kind = reference, kind
        self._is_alone = _has_no_other(getattr(parameter, kind))
        self._is_first = self._is_alone
        register: Any = parameter.register_post_accumulate_grad_hook if kind == AFTER else parameter.register_hook
        self._handle, self._call = register(call), call
        _ours.add(self._handle.id)
        self._tensor = parameter._cdata  # noqa: SLF001 -- what is swapped, and all that tells it

    def renew(self) -> bool:
        """Put it on again where torch has dropped it, and say so.

        What others had on the parameter stays dropped, and ours with it: without us theirs would not be called either.
        What they put on since then is called, as it would be without us.
        """
        parameter = self._reference()
        if parameter is None:
            return False
        hooks, tensor = getattr(parameter, self._kind), parameter._cdata  # noqa: SLF001 -- as above
        if tensor == self._tensor:
            self._is_alone = self._is_alone and _has_no_other(hooks)
            return False
        self._tensor = tensor
        if self._is_alone:
            setattr(parameter, self._kind, hooks)
        return True

    def rest(self) -> None:
        """Have something called in its place that does nothing, in half the time. Its place among others stays its own:
        whoever comes later is called later, and finds that this is a hook of ours."""
        self.call_instead(_nothing)

    def wake(self) -> None:
        """Have it called again."""
        self.call_instead(self._call)

    def is_on(self, parameter: Tensor) -> bool:
        """Say whether it is a hook of this tensor."""
        return self._handle.id in (getattr(parameter, self._kind, None) or ())

    def remove(self) -> None:
        """Take it off, and its dict where nobody else has come to need that."""
        self._handle.remove()
        _ours.discard(self._handle.id)
        parameter = self._reference()
        if self._is_first and parameter is not None and getattr(parameter, self._kind) == {}:
            setattr(parameter, self._kind, None)

    def call_instead(self, call: Callable[[Tensor], None]) -> None:
        """Have another function called in its place."""
        hooks = self._handle.hooks_dict_ref()
        if hooks is not None and self._handle.id in hooks:
            hooks[self._handle.id] = call


def _nothing(_parameter: Tensor) -> None:
    """Return None, as torch demands it of such a hook."""


def _has_no_other(hooks: dict[int, Any] | None) -> bool:
    """Say whether nobody else has a hook there, or has had one: then there is no dict that is not ours."""
    return hooks is None or (bool(hooks) and hooks.keys() <= _ours)
