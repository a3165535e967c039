"""Records of closed windows, and the bounded queue in which the training thread leaves them for the sender.

A record holds tensors and plain numbers; nothing of it is read yet. The queue has no lock and is never waited for.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Generic, TypeVar

import torch

from gradcanary.stats.samples import Part, Sample

if TYPE_CHECKING:
    from torch import Tensor

    from gradcanary.model.layers import Layers


NOT_SKIPPED, SKIPPED_BY_SCALER, SKIPPED_BY_LOOP = range(3)

Item = TypeVar("Item")

CAPACITY_BYTES = 64 * 2**20

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]  # asked for by its absence

MEMORY_EACH = 16
"""Samples: to ask torch's CUDA allocator takes its lock and makes a hundred entries, and a peak only rises."""

MEMORY_UNIT = 1 if sys.platform == "darwin" else 1024
"""Of ``ru_maxrss``, in bytes."""


@dataclass(slots=True)
class LoggedMetric:
    """A number for a step that is not of the windows' own step where ``step`` is given."""

    name: str
    tags: tuple[tuple[str, str], ...]
    step: int | None
    value: float | Tensor


@dataclass(slots=True)
class StepRecord:
    """One closed window of the main optimizer; ``samples``, its own first, are none at steps that are not sampled, and
    ``micro_steps`` 0.

    ``sends_only_nonfinite`` tells that another process has the same gradients and sends them.
    """

    layers: Layers
    step: int
    time: float
    micro_steps: int
    skipped: int
    samples: list[Sample]
    parts: list[Part]
    step_time_s: float | None
    agent_share: float
    every: int
    peak_memory_bytes: int | None = None
    logged: list[LoggedMetric] = field(default_factory=list)
    sends_only_nonfinite: bool = False

    def values(self) -> Iterator[Part | LoggedMetric]:
        """Yield all that holds a value: each may be on a device."""
        return chain(self.parts, self.logged, *(sample.parts for sample in self.samples))


class RecordQueue(Generic[Item]):
    """One thread puts, another takes. A full ring drops what is put and counts it."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        # Each thread counts for itself: += of two on one number loses some.
        self._lost = self._lost_unread = 0
        self._items: deque[Item] = deque()
        self._discarded: deque[Item] = deque()

    def __len__(self) -> int:
        return len(self._items)

    @property
    def dropped(self) -> int:
        """How many items nobody takes."""
        return self._lost + self._lost_unread

    def drop(self, count: int = 1) -> None:
        """Count items that were never put; in the thread that puts."""
        self._lost += count

    def put(self, item: Item) -> bool:
        """Store an item and return whether there was room."""
        if len(self._items) >= self.capacity:
            self.drop()
            return False
        self._items.append(item)
        return True

    def take(self) -> Item | None:
        """Return the oldest item, None when there is none."""
        try:
            return self._items.popleft()
        except IndexError:
            return None

    def discard_all(self) -> int:
        """Count all items as dropped, and return their number; they are held until :meth:`free_discarded`.

        In the thread that takes: meanwhile the other one puts the next items.
        """
        count = 0
        while (item := self.take()) is not None:
            self._discarded.append(item)
            count += 1
        self._lost_unread += count
        return count

    def free_discarded(self) -> None:
        """Let go of what was given up. In the thread that puts: to free a tensor is work of torch, too."""
        self._discarded.clear()


def capacity_for(layers: int) -> int:
    """Return how many steps of so many layers fit: 8 to 4096; 16 bytes per layer and step is what a sample takes."""
    return max(8, min(4096, CAPACITY_BYTES // (16 * max(layers, 1))))


def peak_bytes(devices: Collection[torch.device], number: int) -> int | None:
    """Return the peak so far where the gradients are; of CUDA devices that of the fullest one.

    On CUDA what torch has allocated since the process began or the script reset the peak, on a CPU the largest resident
    set of the process. None on other devices, and where nobody counts; on CUDA also but in each 16th sample, by its
    ``number`` from 1 on.
    """
    kinds = {device.type for device in devices}
    if kinds == {"cpu"} and resource is not None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MEMORY_UNIT
    if "cuda" not in kinds or number % MEMORY_EACH != 1:
        return None
    try:
        return max(_allocated(device) for device in devices if device.type == "cuda")
    except (RuntimeError, LookupError):  # an allocator of somebody else's, which keeps no statistics
        return None


def _allocated(device: torch.device) -> int:
    # max_memory_allocated() makes a flat copy of all statistics first.
    return int(torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"])
