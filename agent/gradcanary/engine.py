"""The end of a backward pass: a callback of torch's autograd engine, private, and so tried before it is trusted."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.autograd import Variable


def has_callbacks() -> bool:
    """Try the private calls on a backward pass of one element; False sends sampling into the step hook."""
    called: list[int] = []

    def queue(_parameter: torch.Tensor) -> None:
        called.append(current_pass())
        at_end(lambda: called.append(current_pass()))

    try:
        with torch.inference_mode(False), torch.enable_grad():
            tried = torch.zeros((), device="cpu", requires_grad=True)
            tried.register_post_accumulate_grad_hook(queue)  # type: ignore[no-untyped-call]  # untyped in torch
            tried.backward()  # type: ignore[no-untyped-call]  # untyped in torch
        return len(called) == 2 and called[0] >= 0
    except Exception:  # noqa: BLE001 -- whatever a version of torch does here, the answer is no
        return False


def current_pass() -> int:
    """Return a number that no other backward pass has, -1 outside of one."""
    number: int = torch._C._current_graph_task_id()  # noqa: SLF001 -- tried by has_callbacks
    return number


def passes() -> Callable[[], int]:
    """Return :func:`current_pass` for those who ask once per layer: torch's own, without a call around it."""
    number: Callable[[], int] = torch._C._current_graph_task_id  # noqa: SLF001 -- tried by has_callbacks
    return number


def at_end(callback: Callable[[], None]) -> None:
    """Call the callback when the present backward pass has ended, after callbacks that were queued before."""
    Variable._execution_engine.queue_callback(callback)  # noqa: SLF001 -- tried by has_callbacks
