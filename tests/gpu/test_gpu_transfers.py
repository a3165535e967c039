"""How values leave a GPU: pinned memory, events, streams, graphs, several devices; and what memory that takes."""

import gc
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor, nn

import gradcanary
from gradcanary.export import device_copy
from gradcanary.stats import weights
from support.agent.gpu_steps import DEVICE, Capturable, LowPrecision, Plain, norms_of, watching
from support.agent.recorded import Recorded
from support.agent.scripted import until

BUSY_CYCLES = 2_000_000_000
"""Of ``torch.cuda._sleep``: about a second, in which the host gets ahead: by a few steps, because it waits
itself where more than a thousand kernels wait for their turn."""


def steps(trained: Plain, count: int) -> None:
    for _ in range(count):
        trained.accumulate()
        trained.finish()


def test_values_wait_in_pinned_memory_and_the_training_does_not(collector: Recorded) -> None:
    """The device is still busy with the first step when the host has been told of the last one."""
    trained, bare, read = Plain(), Plain(), []
    for _ in range(7):
        bare.accumulate()
        read.append(norms_of(bare.model))
        bare.finish()
    with watching(trained, collector, is_watched=True) as watch:
        assert watch is not None
        steps(trained, 3)
        torch.cuda.synchronize()
        torch.cuda._sleep(BUSY_CYCLES)
        steps(trained, 4)
        is_ahead = not torch.cuda.current_stream().query()
        pinned = watch._session._transfers._pinned
        assert pinned is not None
        assert pinned._memory.is_pinned()
        assert is_ahead, "nothing waited"
        assert watch._session._transfers._pending
        # What the training frees now is used again while our copies are still to be made.
        torch.full((64, 1024, 1024), torch.nan, device=DEVICE)
        torch.cuda.synchronize()
    assert collector.stat("norm") == {step: pytest.approx(norms, rel=1e-5) for step, norms in enumerate(read)}
    assert watch._session._queue.dropped == 0


def test_copies_over_the_memory_limit_are_dropped_and_counted(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_copy, "BYTES_PER_STEP", 0)
    monkeypatch.setattr(device_copy, "BYTES_PER_LAYER", 1)
    trained = Plain()
    with watching(trained, collector, is_watched=True) as watch:
        assert watch is not None
        steps(trained, 3)
        torch.cuda._sleep(BUSY_CYCLES)
        steps(trained, 8)
        assert watch._session._queue.dropped > 0
        torch.cuda.synchronize()
    assert len(collector.steps()) == 11 - watch._session._queue.dropped
    assert watch._session.guard.caught == 0


def test_a_watch_that_ends_while_the_device_is_busy(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradcanary.session.DRAIN_S", 0.0)
    trained, bare = Plain(), Plain()
    with watching(trained, collector, is_watched=True) as watch:
        assert watch is not None
        steps(trained, 2)
        torch.cuda.synchronize()
        torch.cuda._sleep(BUSY_CYCLES)
        steps(trained, 8)
    assert watch._session._queue.dropped > 0
    steps(bare, 10)
    assert all(map(torch.equal, trained.model.parameters(), bare.model.parameters()))


# -- graphs ----------------------------------------------------------------------------------------------------------


def graphed(collector: Recorded, *, is_watched: bool) -> Capturable:
    """Record a whole step while earlier ones are on their way, replay it, and make some that are not recorded."""
    trained = Capturable()
    x = torch.randn(16, 64, device=DEVICE)

    def step() -> None:
        out: Tensor = trained.model(x)
        out.square().mean().backward()
        trained.optimizer.step()

    with watching(trained, collector, is_watched=is_watched) as watch:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                trained.optimizer.zero_grad()
                step()
            trained.optimizer.zero_grad()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            step()
            if watch is not None:
                watch.log(loss=x.mean())
        for _ in range(10):
            x.copy_(torch.randn(16, 64, device=DEVICE, generator=trained.generator))
            graph.replay()
        for _ in range(4):
            trained.optimizer.zero_grad(set_to_none=False)
            step()
    if watch is not None:
        assert watch._session.guard.caught == watch._session._queue.dropped == 0
    return trained


def test_a_graph_is_recorded_as_without_us(collector: Recorded) -> None:
    watched, bare = graphed(collector, is_watched=True), graphed(collector, is_watched=False)
    assert all(map(torch.equal, watched.model.parameters(), bare.model.parameters()))
    assert collector.steps() == list(range(9)), "those that were made, not those that were replayed"
    assert collector.facts("cuda_graph")


def closed_while_recorded(collector: Recorded, *, is_watched: bool) -> Capturable:
    """Record a step while another thread closes the watch, replay it, and make one that is not recorded."""
    trained = Capturable()
    x = torch.randn(16, 64, device=DEVICE, generator=trained.generator)

    def step() -> None:
        out: Tensor = trained.model(x)
        out.square().mean().backward()
        trained.optimizer.step()

    with watching(trained, collector, is_watched=is_watched) as watch:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(5):
                trained.optimizer.zero_grad()
                step()
            trained.optimizer.zero_grad()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            if watch is not None:
                closing = threading.Thread(target=watch.close)
                closing.start()
                closing.join()
            step()
        for _ in range(3):
            graph.replay()
        trained.optimizer.zero_grad(set_to_none=False)
        step()
    if watch is not None:
        assert watch._session.guard.caught == 0
    return trained


def test_a_close_in_another_thread_while_a_graph_is_recorded(collector: Recorded) -> None:
    watched, bare = (closed_while_recorded(collector, is_watched=each) for each in (True, False))
    assert all(map(torch.equal, watched.model.parameters(), bare.model.parameters()))
    assert len(collector.ends) == 1
    assert not any(each._post_accumulate_grad_hooks for each in watched.model.parameters())


@pytest.fixture
def nodes_of_another_stream() -> Iterator[None]:
    """``make_graphed_callables`` keeps its outputs, and with them the nodes that accumulate on the stream where it
    recorded; torch warns of each, watched or not."""
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    yield
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(True)


@pytest.mark.usefixtures("nodes_of_another_stream")
def test_parts_of_a_model_in_graphs_of_their_own(collector: Recorded) -> None:
    """``make_graphed_callables``: the gradients are added up outside of the graphs, where hooks are called."""
    read = []
    trained = Plain()
    x = torch.randn(16, 64, device=DEVICE)
    with watching(trained, collector, is_watched=True):
        called: Callable[..., Tensor] = torch.cuda.make_graphed_callables(trained.model, (x.clone(),))
        for _ in range(6):
            nn.functional.mse_loss(called(x), torch.zeros(16, 8, device=DEVICE)).backward()
            read.append(norms_of(trained.model))
            trained.finish()
    assert collector.stat("norm") == {step: pytest.approx(norms, rel=1e-5) for step, norms in enumerate(read)}


# -- streams and devices ---------------------------------------------------------------------------------------------


class TwoStreams(nn.Module):
    """Two branches on streams of their own: their gradients are made there, too."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = (nn.Sequential(nn.Linear(64, 512), nn.Linear(512, 8)) for _ in range(2))
        self.streams = [torch.cuda.Stream(), torch.cuda.Stream()]

    def forward(self, x: Tensor) -> Tensor:
        made, here = [], torch.cuda.current_stream()
        for branch, stream in zip((self.left, self.right), self.streams, strict=True):
            stream.wait_stream(here)
            with torch.cuda.stream(stream):
                torch.cuda._sleep(1_000_000)
                made.append(branch(x))
            here.wait_stream(stream)
        total: Tensor = made[0] + made[1]
        return total


@pytest.mark.parametrize("is_beside", [False, True], ids=["the default stream", "a stream beside it"])
def test_backward_on_several_streams(collector: Recorded, is_beside: bool) -> None:
    def run(*, is_watched: bool) -> tuple[nn.Module, list[dict[str, float]]]:
        trained, read = Plain(), []
        torch.manual_seed(0)
        trained.model = TwoStreams().to(DEVICE)
        trained.optimizer = trained.optimizer_of(list(trained.model.parameters()))
        with (
            watching(trained, collector, is_watched=is_watched),
            torch.cuda.stream(torch.cuda.Stream() if is_beside else torch.cuda.current_stream()),
        ):
            for _ in range(10):
                trained.accumulate()
                read.append(norms_of(trained.model))
                trained.finish()
        torch.cuda.synchronize()
        return trained.model, read

    model, read = run(is_watched=True)
    other, same = run(is_watched=False)
    assert read == same
    assert all(map(torch.equal, model.parameters(), other.parameters()))
    assert collector.stat("norm") == {step: pytest.approx(norms, rel=1e-5) for step, norms in enumerate(read)}


def test_a_number_that_is_logged_on_a_side_stream(collector: Recorded) -> None:
    """It is made there late, and no stream of the script waits for it."""
    trained, side = Plain(), torch.cuda.Stream()
    with watching(trained, collector, is_watched=True) as watch:
        assert watch is not None
        for step in range(6):
            steps(trained, 1)
            with torch.cuda.stream(side):
                torch.cuda._sleep(BUSY_CYCLES // 20)
                watch.log(late=torch.full((), float(step), device=DEVICE))
        torch.cuda.synchronize()
    assert collector.metric("late") == {step: float(step) for step in range(6)}


class Spread(nn.Module):
    """A table on the CPU before layers on the GPU, as where a model does not fit; on two GPUs where there are two."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 32)
        self.second = nn.Linear(32, 32, device=DEVICE)
        self.third = nn.Linear(32, 8, device=f"cuda:{torch.cuda.device_count() - 1}")

    def forward(self, x: Tensor) -> Tensor:
        inner = self.second(self.first(x.cpu()).to(DEVICE))
        out: Tensor = self.third(inner.to(self.third.weight.device))
        return out.to(DEVICE)


def test_layers_on_several_devices(collector: Recorded) -> None:
    trained, read = Plain(), []
    trained.model = nn.Sequential(Spread())
    trained.optimizer = trained.optimizer_of(list(trained.model.parameters()))
    with watching(trained, collector, is_watched=True) as watch:
        for _ in range(10):
            trained.accumulate()
            read.append(norms_of(trained.model))
            trained.finish()
    assert watch is not None
    assert watch._session.guard.caught == 0
    assert collector.stat("norm") == {step: pytest.approx(norms, rel=1e-5) for step, norms in enumerate(read)}


# -- memory ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [Plain, LowPrecision])
def test_peak_memory_grows_by_no_more_than_is_said(collector: Recorded, kind: type[Plain]) -> None:
    """Copies of two layers, as far as they are looked at, and at most 64 MiB of float32 sums."""

    def peak(*, is_watched: bool) -> int:
        gc.collect()
        torch.cuda.empty_cache()
        trained = kind()
        torch.cuda.reset_peak_memory_stats()
        with watching(trained, collector, is_watched=is_watched):
            steps(trained, 120)
        return torch.cuda.max_memory_allocated()

    bare, watched = peak(is_watched=False), peak(is_watched=True)
    largest = max(each.numel() for each in kind().model.parameters())
    assert watched - bare < 4 * largest * (weights.PER_STEP + 10) + 2**21
    told = collector.metric("peak_memory_bytes")
    assert bare <= max(told.values()) <= watched


def test_nothing_stays_on_the_device(collector: Recorded) -> None:
    trained = LowPrecision()
    watch = gradcanary.watch(trained.model, trained.optimizer, url=collector.url, run="long", every=1)
    held = []
    for _ in range(4):
        steps(trained, 100)
        torch.cuda.synchronize()
        until(lambda: len(collector.steps()) > 90)
        collector.batches.clear()
        gc.collect()
        held.append(torch.cuda.memory_allocated())
    watch.close()
    assert held[-1] - held[1] < 2**16
