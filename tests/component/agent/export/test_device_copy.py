"""How values come from a device to the host, with a stand-in for a GPU: ``make test-gpu`` is where there is a real one.

The stand-in is the CPU, whose tensors are taken for those of another device; a copy arrives after it was asked for some
times, and what is read before that is rubbish.
"""

import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

import gradcanary
from gradcanary.export import device_copy
from gradcanary.hooks import graphs
from gradcanary.hooks.graphs import is_capturing
from gradcanary.model import parameters
from support.agent.recorded import Recorded, recording
from support.agent.torch_loops import assert_identical, assert_sent, loss_of, mlp, reading, watching

TRAINING = threading.get_ident()
"""The thread of tests and trainings."""


class Copy:
    """A copy on its way."""

    def __init__(self, packed: Tensor, into: Tensor) -> None:
        self._packed, self._into, self._at = packed, into, Far.asked + Far.takes
        into.fill_(0xAA)

    def query(self) -> bool:
        assert threading.get_ident() == TRAINING
        assert not is_capturing()
        Far.asked += 1
        if Far.asked >= self._at:
            self._into.copy_(self._packed)
        return Far.asked >= self._at


class Far:
    """The lane of the stand-in. The bytes are taken as they are when they are sent."""

    takes, asked = 3, 0
    sent: ClassVar[list[int]] = []
    lasting: ClassVar[list[Tensor]] = []

    def __init__(self, device: torch.device) -> None:
        assert device.type == "cpu"

    def add_producer_stream(self) -> None:
        pass

    def may_wait_on(self) -> bool:
        return True

    def send(self, tensors: Sequence[Tensor], into: Tensor) -> Copy:
        assert threading.get_ident() == TRAINING
        assert not is_capturing()
        Far.sent.append(len(into))
        return Copy(torch.cat([*map(device_copy._bytes, tensors)]), into)

    def record_streams(self, tensors: Iterable[Tensor]) -> None:
        Far.lasting += tensors


@pytest.fixture(autouse=True)
def far(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "GPU", "cpu")
    monkeypatch.setattr(device_copy, "CopyStream", Far)
    monkeypatch.setattr(Far, "takes", 3)
    monkeypatch.setattr(Far, "asked", 0)
    monkeypatch.setattr(Far, "sent", [])
    monkeypatch.setattr(Far, "lasting", [])


@pytest.fixture
def collector() -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded


class Capture:
    """What torch answers while a graph is recorded."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.is_on = False
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: self.is_on)


@pytest.fixture
def capture(monkeypatch: pytest.MonkeyPatch) -> Capture:
    return Capture(monkeypatch)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> list:
    read = []
    for _ in range(steps):
        for _ in range(2):
            loss_of(model, next(model.parameters()).dtype).backward()
        read.append(reading(model))
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
    return read


@pytest.mark.parametrize(
    ("dtype", "takes"), [(torch.bfloat16, 1), (torch.bfloat16, 40), (torch.float32, 3), (torch.float64, 3)]
)
def test_all_numbers_are_right_however_late_they_come(
    collector: Recorded, dtype: torch.dtype, takes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Far, "takes", takes)

    def run(*, is_watched: bool) -> tuple[nn.Module, list, gradcanary.Watch | None]:
        model = mlp().to(dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-6), foreach=False)
        with watching(collector, model, optimizer, is_watched=is_watched) as watch:
            return model, train(model, optimizer, 60 if dtype is torch.bfloat16 else 20), watch

    model, read, watch = run(is_watched=True)
    assert_identical(model, run(is_watched=False)[0])
    assert_sent(collector, read)
    assert watch._session.guard.caught == watch._session._queue.dropped == 0
    assert len(Far.sent) == len(read)
    assert collector.metric("loss").keys() == collector.metric("lr0").keys() == set(range(len(read)))
    assert list(collector.metric("lr0").values()) == pytest.approx([1e-6] * len(read))
    assert max(collector.metric("clip_factor").values()) <= 1
    for stat in ("update_ratio", "weight_norm"):
        assert collector.stat(stat)
    assert (
        bool(collector.stat("accumulation_error"))
        == bool(collector.stat("frozen_fraction"))
        == (dtype is torch.bfloat16)
    )
    assert not Far.lasting


def test_records_with_and_without_tensors_keep_their_order(collector: Recorded) -> None:
    """Of steps that are not sampled there may be nothing to bring; what there is may be of any size."""
    Far.takes = 12
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(collector, model, optimizer, is_watched=True, every=10) as watch:
        for step in range(31):
            for parameter in model.parameters():
                parameter.grad = torch.ones_like(parameter)
            optimizer.step()
            watch.log(acc=step if step % 3 else torch.tensor(step, dtype=torch.int16))
            watch.log(fine=float(step) if step % 3 else torch.tensor(step, dtype=torch.float64))
        assert watch._session.guard.caught == 0
    for name in ("acc", "fine"):
        assert list(collector.metric(name).items()) == [(step, float(step)) for step in range(31)]
    assert collector.steps() == [0, 10, 20, 30]


def test_a_copy_waits_for_the_stream_that_a_number_was_logged_on(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script has left it by the time that our hooks look; the first number comes before there is a step."""
    present, noted = ["main"], set()
    waited_for: list[set[str]] = []

    def send(lane: Far, tensors: Sequence[Tensor], into: Tensor) -> Copy:
        waited_for.append(set(noted))
        noted.clear()
        return Copy(torch.cat([*map(device_copy._bytes, tensors)]), into)

    monkeypatch.setattr(Far, "add_producer_stream", lambda _: noted.add(present[0]))
    monkeypatch.setattr(Far, "send", send)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(url=collector.url, run="streams") as watch:
        for step in range(3):
            present[0] = f"side {step}"
            watch.log(acc=torch.tensor(float(step)), step=step)
            present[0] = "main"
            train(model, optimizer, 1)
        assert watch._session.guard.caught == 0
    assert all(f"side {step}" in set().union(*waited_for[: step + 1]) for step in range(3))
    assert collector.metric("acc") == {step: float(step) for step in range(3)}


def test_copies_over_the_memory_limit_are_dropped_and_counted(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_copy, "BYTES_PER_STEP", 0)
    monkeypatch.setattr(device_copy, "BYTES_PER_LAYER", 4)
    monkeypatch.setattr(Far, "takes", 60)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(collector, model, optimizer, is_watched=True) as watch:
        read = train(model, optimizer, 60)
    steps = collector.steps()
    assert 2 < len(steps) < 60
    assert watch._session._queue.dropped == 60 - len(steps) == collector.dropped_steps
    sent = collector.stat("norm")
    assert {step: sent[step] for step in steps} == {step: pytest.approx(read[step][1]) for step in steps}


def test_pinned_memory_grows_with_the_layers_while_copies_are_on_their_way(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU that is behind always has some."""
    monkeypatch.setattr(device_copy, "BYTES_PER_STEP", 0)
    monkeypatch.setattr(device_copy, "BYTES_PER_LAYER", 40)
    model = mlp()
    optimizer = torch.optim.SGD(model[0].parameters(), lr=0.1)
    with watching(collector, optimizer=optimizer, is_watched=True) as watch:
        Far.takes = 20
        train(model, optimizer, 3)
        pinned = watch._session._transfers._pinned
        assert watch._session._transfers._pending
        optimizer.add_param_group({"params": [*model[2].parameters()]})
        train(model, optimizer, 20)
        assert len(watch._session._transfers._pinned) == 2 * len(pinned)
        Far.takes = 1
    assert pinned._taken == 0
    assert watch._session._queue.dropped == watch._session.guard.caught == 0
    assert collector.steps() == list(range(23))


def test_a_copy_that_never_arrives_does_not_hold_up_the_end(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Far, "takes", 10**9)
    monkeypatch.setattr(device_copy, "DRAIN_S", 0.01)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(collector, model, optimizer, is_watched=True) as watch:
        train(model, optimizer, 3)
    assert watch._session._queue.dropped == 3
    assert collector.steps() == []
    assert len({id(each) for each in Far.lasting}) == len(Far.lasting) > 3


def test_a_close_in_another_thread_leaves_copies_to_the_training(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question of that thread would break a graph that the training records meanwhile."""
    monkeypatch.setattr(Far, "takes", 10**6)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(collector, model, optimizer, is_watched=True) as watch:
        train(model, optimizer, 3)
        closing = threading.Thread(target=watch.close)
        closing.start()
        closing.join()
        assert not Far.lasting
        train(model, optimizer, 1)
        assert Far.lasting
    assert watch._session.guard.caught == 0


def test_a_graph_that_is_recorded_has_nothing_of_a_watch_that_another_thread_closed(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch, capture: Capture
) -> None:
    """Neither its passes nor a second close() remove anything: the pass after the recording does."""
    monkeypatch.setattr(Far, "takes", 10**6)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(collector, model, optimizer, is_watched=True) as watch:
        train(model, optimizer, 3)
        asked = Far.asked
        capture.is_on = True
        closing = threading.Thread(target=watch.close)
        closing.start()
        closing.join()
        train(model, optimizer, 2)
        watch.close()
        assert not Far.lasting
        capture.is_on = False
        assert Far.asked == asked
        train(model, optimizer, 1)
        assert Far.lasting
    assert watch._session.guard.caught == 0
    assert not any(each._post_accumulate_grad_hooks for each in model.parameters())


def test_a_copy_that_fails_costs_its_step(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(collector, model, optimizer, is_watched=True) as watch:
        train(model, optimizer, 3)
        with monkeypatch.context() as broken:
            broken.setattr(Far, "send", lambda *_: 1 / 0)
            train(model, optimizer, 1)  # as it begins the step before it is handed over
        train(model, optimizer, 3)
    assert collector.steps() == [0, 1, 3, 4, 5, 6]
    assert watch._session.guard.caught == 1


def test_nothing_is_done_while_a_graph_is_recorded(
    collector: Recorded, capture: Capture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Backward, step, log, buffers: no operation of torch more than without us, and no copy begun or asked for."""
    Far.takes = 20  # so that copies are on their way then
    model = mlp().bfloat16()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watching(collector, model, optimizer, is_watched=True) as watch:
        read = train(model, optimizer, 4)
        capture.is_on = True
        before = len(Far.sent)
        with Operations() as ours:
            recorded_step(model, optimizer, watch)
        assert len(Far.sent) == before
        capture.is_on, Far.takes = False, 1
        read += train(model, optimizer, 3)
        capture.is_on = True
        watch.close()
        capture.is_on = False
    with Operations() as theirs:
        recorded_step(model, optimizer, None)
    assert ours.found == theirs.found
    assert collector.steps() == list(range(6))
    sent = collector.stat("norm")
    assert {step: sent[step] for step in (0, 1, 2, 3, 5)} == {
        step: pytest.approx(read[step][1]) for step in (0, 1, 2, 3, 5)
    }
    assert collector.phase_of("norm")[4] == "post_clip", "as after a pause"
    assert watch._session._queue.dropped == 1, "the last one could not be brought here"
    assert watch._session.guard.caught == 0
    assert [fact["code"] for fact in collector.facts("cuda_graph")] == ["cuda_graph"]
    assert capsys.readouterr().err.count("CUDA graph") == 1


@pytest.mark.parametrize("every", ["auto", 10])
def test_blocking_device_is_sampled_rarely(
    collector: Recorded, every: str | int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on MPS; what is given is what is done."""
    monkeypatch.setattr(graphs, "GPU", "cuda")
    monkeypatch.setattr(graphs, "HOST_DEVICES", ("meta",))
    fetched = []
    monkeypatch.setattr(device_copy, "_fetched", lambda tensor: fetched.append(threading.get_ident()) or tensor)
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with watching(collector, model, optimizer, is_watched=True, every=every) as watch:
        train(model, optimizer, 201)
        assert watch._session.guard.caught == 0
    assert collector.steps() == list(range(0, 201, 100 if every == "auto" else every))
    assert set(fetched) == {TRAINING}
    assert [fact["code"] for fact in collector.facts("slow_device")] == ["slow_device"]
    assert capsys.readouterr().err.count("by waiting for it") == 1


def test_xla_tensors_are_not_measured(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on XLA: no operation of ours there but copies of the loss, nothing is read, and it says so."""
    monkeypatch.setattr(graphs, "GPU", "cuda")
    monkeypatch.setattr(parameters, "LAZY", ("cpu",))
    monkeypatch.setitem(sys.modules, "torch_xla", ModuleType("torch_xla"))
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.01), foreach=False)
    with watching(collector, model, optimizer, is_watched=True) as watch, monkeypatch.context() as unread:
        unread.setattr(Tensor, "tolist", lambda _: pytest.fail("read"))
        unread.setattr(Tensor, "__float__", lambda _: pytest.fail("read"))
        for step in range(3):
            loss_of(model).backward()
            watch.log(mine=torch.tensor(1.0), acc=float(step), step=step)
            optimizer.step()
            optimizer.zero_grad()
        watch.close()
        assert watch._session.guard.caught == 0
    assert collector.names == []
    assert collector.metric("loss") == collector.metric("mine") == collector.metric("lr0") == {}
    assert collector.metric("acc") == {step: float(step) for step in range(3)}
    assert len(collector.facts("lazy_device")) == 1
    assert capsys.readouterr().err.count("Parameters on an XLA device are not measured") == 1


class Operations(torch.utils._python_dispatch.TorchDispatchMode):
    """Counts all that torch does."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: object, _types: object, args: tuple[object, ...] = (), kwargs: object = None
    ) -> object:
        self.found.append(str(func))
        return func(*args, **(kwargs or {}))


BUFFER = torch.zeros(32, 16)


def recorded_step(model: nn.Module, optimizer: torch.optim.Optimizer, watch: gradcanary.Watch | None) -> None:
    for _ in range(2):
        loss = loss_of(model, torch.bfloat16)
        loss.backward()
    if watch is not None:
        watch.log(loss=loss)
        watch.observe_accumulator("0.weight", BUFFER)
    optimizer.step()
    optimizer.zero_grad()
