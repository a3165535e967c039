"""Records of closed windows, and the bounded queue from the training thread to the sender.

A record holds tensors and plain numbers; no value is read yet. The queue has no lock, and no thread waits for it.
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
"""The CUDA peak is read in each 16th sample: torch's allocator locks and makes a hundred entries, and a peak rises
slowly."""

MEMORY_UNIT = 1 if sys.platform == "darwin" else 1024
"""The unit of ``ru_maxrss``, in bytes."""


@dataclass(slots=True)
class LoggedMetric:
    """A number of the script, for the step of the window or for a given ``step``."""

    name: str
    tags: tuple[tuple[str, str], ...]
    step: int | None
    value: float | Tensor


@dataclass(slots=True)
class StepRecord:
    """One closed window of the main optimizer.

    ``samples`` begin with those of the main optimizer. An unsampled step has none, and 0 ``micro_steps``.
    ``sends_only_nonfinite`` is True if another process sends the same gradients.
    """

    layers: Layers
    step: int
    time: float
    parts: list[Part]
    agent_share: float
    every: int
    micro_steps: int = 0
    skipped: int = NOT_SKIPPED
    samples: list[Sample] = field(default_factory=list)
    step_time_s: float | None = None
    peak_memory_bytes: int | None = None
    logged: list[LoggedMetric] = field(default_factory=list)
    sends_only_nonfinite: bool = False

    def values(self) -> Iterator[Part | LoggedMetric]:
        """Yield everything with a value, on whatever device."""
        return chain(self.parts, self.logged, *(sample.parts for sample in self.samples))


class RecordQueue(Generic[Item]):
    """One thread puts, another takes. A full queue drops new items and counts them."""

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
        """The number of items that were dropped."""
        return self._lost + self._lost_unread

    def drop(self, count: int = 1) -> None:
        """Count items that were never put; call it in the thread that puts."""
        self._lost += count

    def put(self, item: Item) -> bool:
        """Store an item; return False if the queue was full."""
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
        """Count all items as dropped, and return their number; they live until :meth:`free_discarded`.

        Call it in the thread that takes; the other one may put items meanwhile.
        """
        count = 0
        while (item := self.take()) is not None:
            self._discarded.append(item)
            count += 1
        self._lost_unread += count
        return count

    def free_discarded(self) -> None:
        """Free the discarded items; call it in the thread that puts, because freeing a tensor is work of torch."""
        self._discarded.clear()


def capacity_for(layers: int) -> int:
    """Return the capacity in steps, from 8 to 4096: a sample takes 16 bytes per layer."""
    return max(8, min(4096, CAPACITY_BYTES // (16 * max(layers, 1))))


def peak_bytes(devices: Collection[torch.device], number: int) -> int | None:
    """Return the peak memory of the devices that hold the gradients, None if it is unknown.

    CUDA: the peak of torch's allocator on the fullest device, in each 16th sample, by its ``number`` from 1 on.
    CPU: the largest resident set of the process.
    """
    kinds = {device.type for device in devices}
    if kinds == {"cpu"} and resource is not None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MEMORY_UNIT
    if "cuda" not in kinds or number % MEMORY_EACH != 1:
        return None
    try:
        return max(_allocated(device) for device in devices if device.type == "cuda")
    except (RuntimeError, LookupError):  # another allocator than torch's, without statistics
        return None


def _allocated(device: torch.device) -> int:
    # max_memory_allocated() makes a flat copy of all statistics first.
    return int(torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"])
