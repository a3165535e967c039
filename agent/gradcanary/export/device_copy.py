"""Copies the values of a record from GPUs to the host. Neither the training nor the sender waits for them.

1. When a record is submitted, its tensors on a device are packed into one, which is copied to pinned memory. That is
   done on a stream of the agent, which first waits for the streams that produced them. No stream of the training waits.
2. An event marks the arrival of the copy. Hooks query it, in the training's thread: a query from another thread would
   break a CUDA graph that is being recorded (torch's own watchdog of NCCL did, pytorch#104487). For the same reason the
   sender gets tensors of the host only, and nothing is done while a graph is recorded.
3. Until then the record holds the tensors: their memory is not used again while it is read. If the watch ends before,
   ``record_stream`` keeps the memory.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from gradcanary.guard import Failed
from gradcanary.hooks import graphs
from gradcanary.hooks.graphs import is_capturing, is_slow
from gradcanary.model.parameters import is_lazy
from gradcanary.stats.samples import Kind, Part
from gradcanary.tracking.records import LoggedMetric, RecordQueue, StepRecord

STEPS_AHEAD = 64
"""Records on their way for which there is memory: more than the host is ahead of a GPU."""

BYTES_PER_STEP, BYTES_PER_LAYER, MOST_BYTES = 2**14, 64, 2**27

DRAIN_S = 1.0
_POLL_S = 0.001


class Arrival(Protocol):
    """An event after a copy, as ``torch.cuda.Event``."""

    def query(self) -> bool:
        """Return True if it has happened, without waiting."""


class CopyStream:
    """A stream of the agent on a device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]  # untyped in torch
        self._producers: set[torch.cuda.Stream] = set()

    def add_producer_stream(self) -> None:
        """Note the present stream: it may produce tensors of the next record."""
        self._producers.add(torch.cuda.current_stream(self._device))

    def may_wait_on(self) -> bool:
        """Return True if no CUDA graph is recorded on a stream that the copy has to wait for."""
        return not any(map(_is_recorded, list(self._producers)))  # log() adds to them from other threads

    def send(self, tensors: Sequence[Tensor], into: Tensor) -> Arrival:
        """Copy the bytes of tensors of the device, one after the other."""
        producers, self._producers = self._producers, set()
        for stream in producers:
            self._stream.wait_stream(stream)
        with torch.cuda.stream(self._stream):
            into.copy_(torch.cat([*map(_bytes, tensors)]), non_blocking=True)
            arrival: Arrival = self._stream.record_event()
        return arrival

    def record_streams(self, tensors: Iterable[Tensor]) -> None:
        """Keep the memory of tensors that are freed now until this stream has read it."""
        for tensor in tensors:
            tensor.record_stream(self._stream)


class Pinned:
    """Memory of the host that is taken and given back in order."""

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory
        self._taken = self._end = 0

    def __len__(self) -> int:
        return len(self._memory)

    def take(self, size: int) -> tuple[Tensor, int] | None:
        """Return ``size`` contiguous bytes, and the number to give back for them; None if there is no room."""
        skipped = 0 if self._end + size <= len(self) else len(self) - self._end
        if self._taken + skipped + size > len(self):
            return None
        start = (self._end + skipped) % len(self)
        self._end = start + size
        self._taken += skipped + size
        return self._memory[start : start + size], skipped + size

    def give(self, taken: int) -> None:
        """Give back the bytes that were taken first."""
        self._taken -= taken


@dataclass
class _DeviceCopy:
    """The tensors of a record on one device, by falling element size, so that each is aligned for its dtype."""

    tensors: list[Tensor]
    holders: list[Part | LoggedMetric]
    packed: Tensor
    arrival: Arrival

    def unpack(self) -> None:
        """Replace the tensors of the device by their copies."""
        pieces = torch.split(self.packed.clone(), [tensor.nbytes for tensor in self.tensors])
        for holder, tensor, piece in zip(self.holders, self.tensors, pieces, strict=True):
            holder.value = piece.view(tensor.dtype).view(tensor.shape)


@dataclass
class _PendingCopy:
    """A record on its way, and the pinned memory that it has taken."""

    record: StepRecord
    copies: dict[torch.device, _DeviceCopy] = field(default_factory=dict)
    taken: list[tuple[Pinned, int]] = field(default_factory=list)
    is_whole: bool = False

    def has_arrived(self) -> bool:
        return all(copy.arrival.query() for copy in self.copies.values())


class Transfers:
    """Takes records in the training's thread and puts them into the queue, in their order, once the host has their
    values. What there is no room for is dropped there, and counted."""

    def __init__(self, queue: RecordQueue[StepRecord], failed: Failed) -> None:
        self._queue, self._failed = queue, failed
        self.streams: dict[torch.device, CopyStream] = {}
        self._pinned: Pinned | None = None
        self._layers = 0
        self._has_slow = False
        self._waiting: deque[StepRecord] = deque()
        self._pending: deque[_PendingCopy] = deque()
        # Several devices have several threads in a backward pass.
        self._lock = threading.Lock()

    def prepare(self, devices: Collection[torch.device], layers: int) -> None:
        """Make streams and pinned memory, which takes time, before the first record."""
        self._layers = max(self._layers, layers)
        self._has_slow = any(map(is_slow, devices))
        gpus = [device for device in devices if device.type == graphs.GPU]
        if gpus and not is_capturing():
            for device in gpus:
                self._stream_of(device)
            self._pinned_memory()

    def poll(self) -> None:
        """Note the present streams and take in arrived copies; in the training's thread, around the agent's work."""
        if self.streams and not is_capturing():
            for stream in list(self.streams.values()):
                stream.add_producer_stream()
            self._advance()

    def add_producer_stream(self, tensor: Tensor) -> None:
        """Note the stream on which a tensor was just made: it may be one that no hook runs on."""
        if tensor.device.type == graphs.GPU and not is_capturing():
            self._stream_of(tensor.device).add_producer_stream()

    def submit(self, record: StepRecord) -> None:
        """Take a record; in the queue it holds no tensor of a device."""
        if "torch_xla" in sys.modules:
            _drop_lazy(record)
        if self._has_slow:
            _fetch(record)
        elif not (self.streams or torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]  # untyped in torch
            self._queue.put(record)  # no GPU, and so nothing on one
            return
        if not (self._waiting or self._pending or any(_by_device(record))):
            self._queue.put(record)
            return
        if len(self._waiting) >= STEPS_AHEAD:  # a graph is recorded without an end
            self._queue.drop()
            return
        self._waiting.append(record)
        if not is_capturing():
            self._advance()

    def drain(self, timeout_s: float) -> None:
        """Wait at most ``timeout_s`` for all copies; the rest is dropped and counted."""
        deadline = time.monotonic() + timeout_s
        while self._waiting or self._pending:
            if is_capturing() or time.monotonic() > deadline:
                break
            self._advance()
            time.sleep(_POLL_S if self._pending else 0)
        self._queue.drop(len(self._waiting) + len(self._pending))
        for pending in self._pending:
            for device, copy in pending.copies.items():
                self._stream_of(device).record_streams(copy.tensors)
        self._waiting.clear()
        self._pending.clear()

    def _advance(self) -> None:
        if not self._lock.acquire(blocking=False):
            return
        try:
            while self._waiting and self._start(self._waiting[0]):
                self._waiting.popleft()
            while self._pending and self._pending[0].has_arrived():
                self._complete(self._pending.popleft())
        finally:
            self._lock.release()

    def _start(self, record: StepRecord) -> bool:
        """Start the copies of a record, or drop it if there is no room; return False if it must be tried again."""
        by_device = _by_device(record)
        for device in by_device:
            self._stream_of(device).add_producer_stream()
        if not all(self._stream_of(device).may_wait_on() for device in by_device):
            return False
        pending = _PendingCopy(record)
        self._pending.append(pending)
        try:
            pending.is_whole = all(self._start_on(pending, *each) for each in by_device.items())
        except Exception as error:  # noqa: BLE001 -- a record that cannot be copied must not hold up the others
            self._failed("copying from a GPU", error)
        self._queue.drop(not pending.is_whole)
        return True

    def _start_on(
        self, pending: _PendingCopy, device: torch.device, held: list[tuple[Tensor, Part | LoggedMetric]]
    ) -> bool:
        held.sort(key=lambda each: each[0].element_size(), reverse=True)
        tensors = [tensor for tensor, _ in held]
        needed = sum(tensor.nbytes for tensor in tensors)
        pinned = self._pinned_memory()
        room = pinned.take(-(-needed // 16) * 16)
        if room is None:
            return False
        packed, taken = room[0][:needed], room[1]
        pending.taken.append((pinned, taken))
        with torch.no_grad():
            arrival = self._stream_of(device).send(tensors, packed)
        pending.copies[device] = _DeviceCopy(tensors, [holder for _, holder in held], packed, arrival)
        return True

    def _complete(self, pending: _PendingCopy) -> None:
        if pending.is_whole:
            for copy in pending.copies.values():
                copy.unpack()
            self._queue.put(pending.record)
        for pinned, taken in pending.taken:
            pinned.give(taken)

    def _stream_of(self, device: torch.device) -> CopyStream:
        stream = self.streams.get(device)
        if stream is None:
            stream = self.streams[device] = CopyStream(device)
        return stream

    def _pinned_memory(self) -> Pinned:
        """Return the pinned memory, a larger one if there are more layers than before. Copies on their way still
        arrive in the smaller one."""
        needed = min(STEPS_AHEAD * (BYTES_PER_STEP + BYTES_PER_LAYER * self._layers), MOST_BYTES)
        if self._pinned is None or len(self._pinned) < needed:
            self._pinned = Pinned(torch.empty(needed, dtype=torch.uint8, device="cpu", pin_memory=graphs.GPU == "cuda"))
        return self._pinned


def _fetch(record: StepRecord) -> None:
    """Copy the values of slow devices, and wait: in the training's thread, as not every such device allows another."""
    for holder in record.values():
        if isinstance(holder.value, Tensor) and is_slow(holder.value.device):
            holder.value = _fetched(holder.value)


def _fetched(tensor: Tensor) -> Tensor:
    return tensor.to("cpu")


def _drop_lazy(record: StepRecord) -> None:
    """Remove values of lazy devices, whose reading would cut the training's graph."""
    if any(part.kind is Kind.LEARNING_RATE and _is_lazy_tensor(part.value) for part in record.parts):
        record.parts = [
            part for part in record.parts if part.kind is not Kind.LEARNING_RATE
        ]  # each is named by its position
    record.parts = [part for part in record.parts if not _is_lazy_tensor(part.value)]
    record.logged = [each for each in record.logged if not _is_lazy_tensor(each.value)]
    for sample in record.samples:
        sample.parts = [part for part in sample.parts if not _is_lazy_tensor(part.value)]


def _is_lazy_tensor(value: object) -> bool:
    return isinstance(value, Tensor) and is_lazy(value.device)


def _by_device(record: StepRecord) -> dict[torch.device, list[tuple[Tensor, Part | LoggedMetric]]]:
    """Return the tensors of a record on GPUs, with the objects that hold them."""
    found: dict[torch.device, list[tuple[Tensor, Part | LoggedMetric]]] = {}
    for holder in record.values():
        if isinstance(value := holder.value, Tensor) and value.device.type == graphs.GPU:
            found.setdefault(value.device, []).append((value, holder))
    return found


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _is_recorded(stream: torch.cuda.Stream) -> bool:
    with torch.cuda.stream(stream):
        return torch.cuda.is_current_stream_capturing()
