"""All ranks stop after the same step, as rank 0 decides: one that stops alone leaves the others in a collective.

There is no collective here, so no wait for a GPU. Rank 0 writes its decision into the store of the process group, twice
a second at most, and acts on it one step later, where the other ranks read it. None of them can be past that step: to
get there, it has read the decision. So a rank that is ahead of rank 0 waits for it here, in the training's thread.
"""

from __future__ import annotations

import itertools
import time
from contextlib import suppress
from typing import Any

import torch

from gradcanary.guard import Guard

SPACING_S = 0.5
"""Between two decisions of rank 0: incidents come no sooner. To read one takes a request to the store."""

MAX_STEPS = 1_000
"""From one decision to the next: steps may become slower in between."""

WAIT_S = 600.0
"""For a decision of rank 0, as long as NCCL waits by default. Not shorter: a rank that gives up just as rank 0 decides
to stop would go on alone, so it gives up only where the training has ended anyway."""

LOOK_S = 0.001
"""Between two reads of the decision of a rank 0 that is behind."""

NEVER = 2**63
"""A step that does not come."""

STOP, OVER = -1, -2
"""In a decision, instead of the step of the next one: all stop after the next step; rank 0 has ended."""

LATE = "rank 0 wrote no decision for {seconds:.0f} s"
INCOMPLETE = (
    "stop_on: the training goes on for now, because {missing} of {world_size} ranks do not take part, and would wait "
    "for the others for ever: each rank needs the callback with stop_on"
)
NO_GROUP = "stop_on: no incident stops this training: its ranks have no process group of torch.distributed to agree by"

_numbers = itertools.count(1)
"""Of the trainings of this process, the same on all ranks: the decisions of an earlier one are still in the store."""


def agree(world_size: int, guard: Guard) -> Agreement | None:
    """Return the agreement of this process with the other ranks; None for a training of one process."""
    if world_size <= 1:
        return None
    group = torch.distributed
    try:
        store = group.distributed_c10d._get_default_store()  # noqa: SLF001 -- no public name; the folder for these
        return Agreement(store, group.get_rank(), group.get_world_size(), next(_numbers), guard)
    except Exception:  # noqa: BLE001 -- no group, no store, or a torch without groups
        guard.print_once(NO_GROUP)
        return Agreement(None, 0, world_size, 0, guard)


class Agreement:
    """The ranks of one training: each calls :meth:`poll` once at the end of each step. Nothing raises.

    A rank that takes no part, because it has no callback, or after an error, keeps all of them from stopping.
    """

    def __init__(self, store: Any, rank: int, world_size: int, number: int, guard: Guard) -> None:  # noqa: ANN401 -- a store of c10d
        self._store, self._is_first, self._world_size, self._guard = store, rank == 0, world_size, guard
        self._decision = f"gradcanary/stop/{number}/decision"
        self._participants = f"gradcanary/stop/{number}/participants"
        self._polls = 0
        self._next = NEVER if store is None else 1
        """The poll at which rank 0 writes its next decision, and another rank reads one, or looks for a first."""
        self._stop_at = NEVER
        self._is_participant = False
        self._steps, self._written = 1, time.monotonic()
        if self._is_first and store is not None:
            self._guarded(lambda: self._write(should_stop=False))

    def poll(self, *, wants: bool) -> bool:
        """Return True if all ranks stop after this step. Only what rank 0 ``wants`` counts."""
        self._polls += 1
        if self._polls >= self._next:
            self._guarded(lambda: self._write(should_stop=wants and self._is_complete()))
        return self._polls >= self._stop_at

    def close(self) -> None:
        """End it: no rank waits for a decision any more. One to stop stays, because a rank may not have read it."""
        if self._is_first and self._next != NEVER:
            self._guarded(lambda: self._store.set(self._decision, f"{NEVER} {OVER}"))
        self._next = NEVER

    def _guarded(self, act: Any) -> None:  # noqa: ANN401 -- of either kind of rank
        try:
            if self._is_first:
                act()
            elif self._is_participant:
                self._read(self._next - 1)
            else:
                self._join()
        except Exception as error:  # noqa: BLE001 -- of the store, which may be gone
            self._guard.catch("agreeing with other ranks to stop", error)
            self._next = NEVER
            self._leave()

    def _leave(self) -> None:
        """Take no part any more. Where the store is gone, rank 0 cannot write either."""
        if self._is_participant:
            self._is_participant = False
            with suppress(Exception):
                self._store.add(self._participants, -1)

    def _write(self, *, should_stop: bool) -> None:
        following = STOP if should_stop else self._polls + self._steps_to_next()
        self._store.set(self._decision, f"{self._polls} {following}")
        if should_stop:
            self._stop_at, self._next = self._polls + 1, NEVER
        else:
            self._next = following

    def _steps_to_next(self) -> int:
        """Return the steps until about ``SPACING_S`` have passed, at most twice as many as before."""
        now = time.monotonic()
        step_s = max((now - self._written) / self._steps, 1e-9)
        self._written = now
        self._steps = int(min(max(SPACING_S / step_s, 1), 2 * self._steps, MAX_STEPS))
        return self._steps

    def _is_complete(self) -> bool:
        missing = self._world_size - 1 - int(self._store.add(self._participants, 0))
        if missing:
            self._guard.print_once(INCOMPLETE, missing=missing, world_size=self._world_size)
        return not missing

    def _join(self) -> None:
        """Become a participant once rank 0 has written a decision; until then look again at step 2, 4, 8, ..."""
        self._next = 2 * self._polls
        if not self._store.check([self._decision]):
            return
        self._next = 1
        while self._next <= self._polls:  # rank 0 is behind
            self._read(self._next - 1)
        if self._next != NEVER:
            self._store.add(self._participants, 1)
            self._is_participant = True

    def _read(self, poll: int) -> None:
        """Read the decision that rank 0 wrote at this poll or later; wait for it if rank 0 is behind."""
        give_up_at = time.monotonic() + WAIT_S
        written = -1
        while written < poll:
            if written >= 0:
                time.sleep(LOOK_S)
            if time.monotonic() > give_up_at:
                raise TimeoutError(LATE.format(seconds=WAIT_S))
            written, following = map(int, self._store.get(self._decision).split())
        self._next = following + 1 if following >= 0 else NEVER
        if following == STOP and self._is_participant:
            self._stop_at = written + 1
