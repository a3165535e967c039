"""Models as they are trained on GPUs: of many bfloat16 tensors, of a very large one, under DDP and under FSDP2."""

import gc
import math
from collections.abc import Iterator
from typing import ClassVar

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.profiler import ProfilerActivity, profile

from support.agent.gpu_steps import DEVICE, Accumulated, Plain, norms_of, waits, watching
from support.agent.recorded import Recorded
from support.agent.scripted import until

STEPS = 12
FLOAT32 = 1e-5
TENSORS = 400
LARGE = 2**25
"""Elements: 134 MB in float32."""

LARGEST = ((1.0, 2**24), (math.nan, 2**24 + 2**23), (1e-20, 2**25 + 2**23))
"""Factors of the loss, and the bytes that the agent may take for a moment: by the numbers of a usual step, by counting
what is not finite in parts of 2**22 elements, by summing such parts in float64. A byte an element would be 2**25."""

FLOAT32_EXACT_INT = ("zero_fraction", "nonfinite")


# -- many tensors ------------------------------------------------------------------------------------------------------


class Many(Plain):
    """As an adapter of a large model: small bfloat16 tensors, two a layer."""

    dtype = torch.bfloat16

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = [nn.Linear(64, 64) for _ in range(TENSORS // 2)]
        self.model = nn.Sequential(*(Residual(each) for each in layers)).to(DEVICE, self.dtype)
        self.optimizer = self.optimizer_of(list(self.model.parameters()))


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = x + 0.1 * self.inner(x)
        return total


def test_numbers_of_many_bfloat16_tensors_are_those_of_float64(collector: Recorded) -> None:
    trained, read = Many(), []
    with watching(trained, collector, is_watched=True) as watch:
        for _ in range(STEPS):
            trained.accumulate()
            read.append(norms_of(trained.model))
            trained.finish()
    assert watch is not None
    assert watch._session.guard.caught == watch._session._queue.dropped == 0
    assert {len(norms) for norms in read} == {TENSORS}
    assert collector.stat("norm") == {step: pytest.approx(norms, rel=FLOAT32) for step, norms in enumerate(read)}


def launches(collector: Recorded, *, is_watched: bool) -> int:
    """Return how many kernels a usual step launches, none on a CPU."""
    trained = Many()
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if DEVICE.type == "cuda" else [])]
    with watching(trained, collector, is_watched=is_watched):
        for _ in range(5):
            trained.accumulate()
            trained.finish()
        # acc_events: without it torch 2.11 warns that a next cycle would forget these events.
        with profile(activities=activities, acc_events=True) as profiled:
            trained.accumulate()
            trained.finish()
    return sum(each.count for each in profiled.key_averages() if "LaunchKernel" in each.key)


def test_a_sample_launches_fewer_kernels_than_there_are_tensors(
    collector: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Deterministic torch fills each new tensor, with a kernel of its own: no other training does.
    monkeypatch.setattr("torch.utils.deterministic.fill_uninitialized_memory", False)
    bare, watched = launches(collector, is_watched=False), launches(collector, is_watched=True)
    assert (bare > TENSORS) == (DEVICE.type == "cuda"), "the profiler sees launches"
    assert watched - bare < TENSORS


# -- a very large tensor -----------------------------------------------------------------------------------------------


class Large(Plain):
    """One weight that a copy of would be seen in the peak of memory, beside which all else is small."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(64, LARGE // 64, bias=False), nn.Linear(LARGE // 64, 1, bias=False))
        self.model = self.model.to(DEVICE)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-9)  # a usual rate makes it diverge

    def loss(self) -> Tensor:
        x = torch.randn(1, 64, device=DEVICE, generator=self.generator)
        loss: Tensor = self.model(x).square().mean()
        return loss


def peak(collector: Recorded, scale: float, *, is_watched: bool) -> int:
    """Return the peak of memory of five steps. Before the fourth one the sender has asked for counts."""
    gc.collect()
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()
    trained = Large()
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with watching(trained, collector, is_watched=is_watched) as watch:
        for step in range(5):
            if is_watched and step == 3:
                until(lambda: 1 in collector.steps())
            (trained.loss() * scale).backward()
            trained.finish()
    if watch is not None:
        assert watch._session.guard.caught == 0
    return torch.cuda.max_memory_allocated() if DEVICE.type == "cuda" else 0


@pytest.mark.parametrize(("scale", "most"), LARGEST)
def test_the_peak_of_a_very_large_tensor_grows_by_a_part_of_it(collector: Recorded, scale: float, most: int) -> None:
    bare, watched = peak(collector, scale, is_watched=False), peak(collector, scale, is_watched=True)
    assert watched - bare < most
    assert collector.steps() == [*range(5)]
    norm = collector.stat("norm")[4].get("0.weight", 0.0)
    counted = {
        kind: {step: each.get("0.weight") for step, each in collector.stat(kind).items()} for kind in FLOAT32_EXACT_INT
    }
    assert counted["zero_fraction"][0] == 0.0 or math.isnan(scale)
    if math.isnan(scale):
        assert counted["nonfinite"][4] == LARGE
    elif scale < 1.0:
        assert 0.0 < norm < 1e-12
        assert counted["zero_fraction"][4] == 0.0


# -- wrappers ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def process_group() -> Iterator[None]:
    """A group of this process alone."""
    backend = "nccl" if DEVICE.type == "cuda" else "gloo"
    distributed.init_process_group(backend, store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


class DataParallel(Accumulated):
    waits_itself = True

    def __init__(self) -> None:
        super().__init__()
        self.wrapped = nn.parallel.DistributedDataParallel(self.model)

    def loss(self) -> Tensor:
        x = torch.randn(16, 64, device=DEVICE, dtype=self.dtype, generator=self.generator)
        loss: Tensor = self.wrapped(x).float().square().mean()
        return loss


class Sharded(Accumulated):
    """FSDP2, which reduces in each micro-step."""

    waits_itself = True
    is_offloaded: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        mesh = init_device_mesh(DEVICE.type, (1,))
        policy = {"offload_policy": CPUOffloadPolicy(pin_memory=DEVICE.type == "cuda")} if self.is_offloaded else {}
        for part in (self.model[0], self.model[2], self.model):
            fully_shard(part, mesh=mesh, **policy)
        self.optimizer = self.optimizer_of(list(self.model.parameters()))


class Offloaded(Sharded):
    is_offloaded = True


class OffloadedAlone(Offloaded):
    """A gradient that is not added to another one is copied while the pass goes on."""

    micro_steps = 1


WRAPPED: tuple[type[Plain], ...] = (DataParallel, Sharded, Offloaded, OffloadedAlone)


def local_norms_of(model: nn.Module) -> dict[str, float]:
    gradients = {name: each.grad for name, each in model.named_parameters()}
    local = {name: getattr(each, "_local_tensor", each) for name, each in gradients.items()}
    return {name: float(each.double().norm()) for name, each in local.items() if each is not None}


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("kind", WRAPPED)
def test_no_wrapped_step_waits_more_often_because_it_is_watched(collector: Recorded, kind: type[Plain]) -> None:
    """Torch itself waits here and there; a copy of an offloaded gradient that waits would come on top."""
    watched = waits(kind, collector, STEPS, "warn", is_watched=True)
    assert watched == waits(kind, collector, STEPS, "warn", is_watched=False)


@pytest.mark.usefixtures("process_group")
@pytest.mark.parametrize("kind", WRAPPED)
def test_numbers_of_wrapped_models_are_those_of_float64(collector: Recorded, kind: type[Plain]) -> None:
    def run(*, is_watched: bool) -> tuple[list[Tensor], list[dict[str, float]]]:
        trained, read = kind(), []
        with watching(trained, collector, is_watched=is_watched) as watch:
            for _ in range(STEPS):
                trained.accumulate()
                read.append(local_norms_of(trained.model))
                trained.finish()
        if watch is not None:
            assert watch._session.guard.caught == watch._session._queue.dropped == 0
        parameters = [each.detach() for each in trained.model.parameters()]
        return [getattr(each, "_local_tensor", each).clone() for each in parameters], read

    weights, read = run(is_watched=True)
    bare, same = run(is_watched=False)
    assert read == same
    assert all(map(torch.equal, weights, bare))
    assert collector.stat("norm") == {step: pytest.approx(norms, rel=FLOAT32) for step, norms in enumerate(read)}
    assert collector.phases("norm") == {"accumulated"}
    assert set(collector.per_step("micro_steps")) == {kind.micro_steps}


@pytest.mark.usefixtures("process_group")
def test_no_hook_is_on_an_offloaded_shard(collector: Recorded) -> None:
    """torch copies the gradient of one that has a hook while the pass waits."""
    trained = Offloaded()
    with watching(trained, collector, is_watched=True):
        for _ in range(3):
            trained.accumulate()
            assert not any(getattr(each, "_post_accumulate_grad_hooks", None) for each in trained.model.parameters())
            trained.finish()
    assert len(collector.steps()) == 3
