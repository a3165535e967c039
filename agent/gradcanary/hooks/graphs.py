"""What keeps the agent out of ``torch.compile`` and CUDA graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

import torch

from gradcanary.model.parameters import is_lazy

Hook = Callable[[Any, Any, Any], None]

GPU = "cuda"
"""The kind of device with asynchronous copies to the host: NVIDIA's and AMD's."""

HOST_DEVICES = ("cpu", "meta")
"""On further devices, as MPS or XPU, no event shows that a copy has arrived."""


class Graphs:
    """``stepped`` is True after an optimizer has stepped inside a compiled graph, where no hook runs."""

    def __init__(self) -> None:
        self.stepped = False

    def outside(self, hook: Hook) -> Hook:
        """Return a step hook whose only part in a compiled graph is to set ``stepped``: a read would add a guard."""

        def called(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ANN401 -- as torch calls it
            if torch.compiler.is_compiling():
                self.stepped = True
            else:
                hook(optimizer, args, kwargs)

        return called


def keep_out() -> None:
    """Keep torch.compile from compiling the agent's functions beside compiled code."""
    skip = _skip()
    package = __name__.partition(".")[0]
    for module in [each for name, each in sys.modules.items() if name.partition(".")[0] == package]:
        for code in _codes_of(module):
            skip(code)


is_backward_traced = torch.compiler.is_compiling
"""Returns True while compiled autograd traces a gradient hook. Torch's own function: it runs once per layer."""


def _skip() -> Callable[[CodeType], object]:
    """Return the function inside ``torch.compiler.disable``, whose import of the compiler takes seconds."""
    native: Any = torch._C._dynamo.eval_frame  # noqa: SLF001 -- as the docstring says
    if hasattr(native, "skip_code"):
        skip: Callable[[CodeType], object] = native.skip_code  # until torch 2.6 or so
        return skip
    action = native._FrameAction  # noqa: SLF001 -- likewise
    strategy = native._FrameExecStrategy(action.SKIP, action.DEFAULT)  # noqa: SLF001 -- likewise
    return lambda code: native.set_code_exec_strategy(code, strategy)


def _codes_of(module: ModuleType) -> Iterator[CodeType]:
    owners = [module, *(each for each in vars(module).values() if isinstance(each, type))]
    for value in (value for owner in owners for value in vars(owner).values()):
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        while isinstance(function, FunctionType) and function.__module__ == module.__name__:
            yield from _nested(function.__code__)
            function = getattr(function, "__wrapped__", None)  # the function inside of a decorator


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def is_capturing() -> bool:
    """Return True while a CUDA graph is recorded: kernels of the agent must not become part of it."""
    is_used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # untyped in torch
    return is_used and torch.cuda.is_current_stream_capturing()


def is_slow(device: torch.device) -> bool:
    """Return True if a value on a device can only be read by waiting for it."""
    return device.type != GPU and device.type not in HOST_DEVICES and not is_lazy(device)
