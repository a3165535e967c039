"""What watching adds to a step on the CPU, told to a fraction of a per cent: two equal trainings in one process, one of
them watched, a step of each in turns. Imported, not run.

A turn of some steps beside a turn of others differs by a sixth, as the machine does; two steps that follow each other
meet the same machine. Each is timed by the CPU clock of the training's thread, where all of its work is done while
torch has one thread; what all other threads of the process take meanwhile is counted wholly for the watched one. One
of two equal trainings may lie in better memory, so they change their parts each round.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch.optim import optimizer as optimizers
from trainings import Loop

from gradcanary.hooks import backward

Begin = Callable[[Loop], AbstractContextManager[object]]

WARM_UP = 5
"""Steps of each before any counts: by then the session has begun, and steps that are not sampled take the fast path."""


def paired(loops: tuple[Loop, Loop], begin: Begin, pairs: int) -> tuple[float, float]:
    """Return the seconds of CPU of a watched step, and their ratio to those of a bare one; ``begin`` watches the first
    of the two."""
    with begin(loops[0]):
        for _ in range(WARM_UP):
            _pair(loops, is_watched_first=True)
        others_s = _other_threads_s()
        found = [_pair(loops, is_watched_first=number % 2 == 0) for number in range(pairs)]
        others_s = _other_threads_s() - others_s
    watched_s, bare_s = map(sum, zip(*found, strict=True))
    return (watched_s + others_s) / pairs, (watched_s + others_s) / bare_s


def _pair(loops: tuple[Loop, Loop], *, is_watched_first: bool) -> tuple[float, float]:
    """Make a step of each, and return the seconds of the watched one and of the bare one."""
    watched, bare = loops
    if is_watched_first:
        watched_s = _step_s(watched)
    with _unseen():
        bare_s = _step_s(bare)
    return (watched_s if is_watched_first else _step_s(watched)), bare_s


def _step_s(loop: Loop) -> float:
    began = time.thread_time()
    loop.step()
    return time.thread_time() - began


def _other_threads_s() -> float:
    return time.process_time() - time.thread_time()


@contextmanager
def _unseen() -> Iterator[None]:
    """Hide a step from a watch: it hears of each optimizer in the process, and of each backward pass."""
    kept = backward._listeners, optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks
    backward._listeners, optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks = (), {}, {}
    yield
    backward._listeners, optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks = kept


def alone() -> None:
    """Have all of a step's work in the thread that makes it; what runs in others is then not the training's."""
    torch.set_num_threads(1)
