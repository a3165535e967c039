"""Hooks on parameters: put on again where torch has dropped them, and taken off without a trace.

``torch.utils.swap_tensors``, as in ``model.to()`` where that is asked for, leaves a parameter the dict of its hooks and
calls none of them any more, nor any that is added to that dict later. A dict that only we needed must not stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

POST_ACCUMULATE, PRE_ACCUMULATE = "_post_accumulate_grad_hooks", "_backward_hooks"
"""Where a parameter keeps the hooks that are called after its gradient was added up, and before."""

_ours: set[int] = set()
"""The keys of all hooks of ours: torch gives each hook of a process another one."""


class ParameterHook:
    """A function that is called with each gradient of a parameter; ``reference`` leads to that, as long as it lives."""

    def __init__(
        self, reference: Callable[[], nn.Parameter | None], parameter: Tensor, kind: str, call: Callable[[Tensor], None]
    ) -> None:
        self._reference, self._kind = reference, kind
        self._is_alone = _has_no_other(getattr(parameter, kind))
        self._is_first = self._is_alone
        is_after = kind == POST_ACCUMULATE
        register: Any = parameter.register_post_accumulate_grad_hook if is_after else parameter.register_hook
        self._handle, self._call = register(call), call
        _ours.add(self._handle.id)
        self._tensor = parameter._cdata  # noqa: SLF001 -- what is swapped, and all that tells it

    def reattach(self) -> bool:
        """Register it again where torch has dropped it, and return True if so.

        A dict that also holds hooks of others stays dropped, and this hook with it: without the agent they would not be
        called either. Hooks that were added since then are called, as they would be without the agent.
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

    def disable(self) -> None:
        """Call a function that does nothing instead, in half the time.

        The place among other hooks stays: later hooks are called later, and find that this is one of the agent.
        """
        self.replace(_nothing)

    def enable(self) -> None:
        """Call it again."""
        self.replace(self._call)

    def is_registered_on(self, parameter: Tensor) -> bool:
        """Return True if it is registered on this tensor."""
        return self._handle.id in (getattr(parameter, self._kind, None) or ())

    def remove(self) -> None:
        """Take it off, and its dict where nobody else has come to need that."""
        self._handle.remove()
        _ours.discard(self._handle.id)
        parameter = self._reference()
        if self._is_first and parameter is not None and getattr(parameter, self._kind) == {}:
            setattr(parameter, self._kind, None)

    def replace(self, call: Callable[[Tensor], None]) -> None:
        """Have another function called in its place."""
        hooks = self._handle.hooks_dict_ref()
        if hooks is not None and self._handle.id in hooks:
            hooks[self._handle.id] = call


def _nothing(_parameter: Tensor) -> None:
    """Return None, as torch demands it of such a hook."""


def _has_no_other(hooks: dict[int, Any] | None) -> bool:
    """Say whether nobody else has a hook there, or has had one: then there is no dict that is not ours."""
    return hooks is None or (bool(hooks) and hooks.keys() <= _ours)
