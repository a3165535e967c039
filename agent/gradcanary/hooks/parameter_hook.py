"""Hooks on parameters that survive ``torch.utils.swap_tensors`` and leave no trace.

After a swap, as in some calls of ``model.to()``, the parameter keeps the dict of its hooks. Torch no longer calls them,
nor any hook that is added to that dict later. A dict that only the agent needed must not stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

POST_ACCUMULATE, PRE_ACCUMULATE = "_post_accumulate_grad_hooks", "_backward_hooks"
"""The attributes for hooks after a gradient is accumulated, and before."""

_ours: set[int] = set()
"""The keys of all hooks of the agent: torch gives each hook of a process another one."""


class ParameterHook:
    """A hook on a parameter; ``reference`` returns the parameter while it lives."""

    def __init__(
        self, reference: Callable[[], nn.Parameter | None], parameter: Tensor, kind: str, call: Callable[[Tensor], None]
    ) -> None:
        self._reference, self._kind = reference, kind
        self._is_alone = self._made_dict = _has_no_other(getattr(parameter, kind))
        is_after = kind == POST_ACCUMULATE
        register: Any = parameter.register_post_accumulate_grad_hook if is_after else parameter.register_hook
        self._handle, self._call = register(call), call
        _ours.add(self._handle.id)
        self._tensor = parameter._cdata  # noqa: SLF001 -- the only sign of a swap

    def reattach(self) -> bool:
        """Register the hook again after a swap, and return True if there was one.

        A dict with hooks of others stays dropped, and this hook with it: without the agent torch would not call them
        either. It calls hooks that were added after the swap, as it would without the agent.
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
        """Replace the function by an empty one, which takes half the time. The order of hooks stays."""
        self.replace(_nothing)

    def enable(self) -> None:
        """Call the function again."""
        self.replace(self._call)

    def is_registered_on(self, parameter: Tensor) -> bool:
        """Return True if the hook is registered on this tensor."""
        return self._handle.id in (getattr(parameter, self._kind, None) or ())

    def remove(self) -> None:
        """Remove the hook, and the dict that it made if it is empty."""
        self._handle.remove()
        _ours.discard(self._handle.id)
        parameter = self._reference()
        if self._made_dict and parameter is not None and getattr(parameter, self._kind) == {}:
            setattr(parameter, self._kind, None)

    def replace(self, call: Callable[[Tensor], None]) -> None:
        """Replace the function."""
        hooks = self._handle.hooks_dict_ref()
        if hooks is not None and self._handle.id in hooks:
            hooks[self._handle.id] = call


def _nothing(_parameter: Tensor) -> None:
    """Return None, as torch demands of such a hook."""


def _has_no_other(hooks: dict[int, Any] | None) -> bool:
    """Return True if only the agent has hooks there: no dict, or one with our hooks and no empty one of others."""
    return hooks is None or (bool(hooks) and hooks.keys() <= _ours)
