"""Peak memory as a series: what the system or torch's allocator has counted, at sampled steps."""

import resource

import pytest
import torch
from torch import nn

import gradcanary
from gradcanary.tracking.records import MEMORY_UNIT, peak_bytes
from support.agent.recorded import recording


def resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * MEMORY_UNIT


def test_peak_memory_on_a_cpu_is_the_largest_resident_set() -> None:
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before, after = [], []
    with recording() as collector:
        with gradcanary.watch(model, optimizer, url=collector.url, run="memory", every=10):
            for _ in range(21):
                before.append(resident())
                model(torch.randn(2, 4)).square().mean().backward()
                after.append(resident())  # the step before was recorded as this pass began
                optimizer.step()
                optimizer.zero_grad()
        after.append(resident())
    sent = collector.metric("peak_memory_bytes")
    assert sorted(sent) == collector.steps() == [0, 10, 20]
    for step, peak in sent.items():
        assert before[step] <= peak <= after[step + 1]


class Counts:
    """Stands in for torch's CUDA allocator, which is not here: its statistics, under the names that it uses."""

    def __init__(self, peaks: dict[int, int]) -> None:
        self.peaks = peaks

    def __call__(self, device: torch.device) -> dict[str, object]:
        return {"allocated_bytes": {"all": {"current": 1, "peak": self.peaks[device.index]}}} if self.peaks else {}


@pytest.mark.parametrize(("peaks", "told"), [({0: 7, 1: 9}, 9), ({}, None)])
def test_peak_memory_on_cuda_is_of_the_fullest_device(
    monkeypatch: pytest.MonkeyPatch, peaks: dict[int, int], told: int | None
) -> None:
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", Counts(peaks))
    devices = [torch.device("cuda", 0), torch.device("cuda", 1), torch.device("cpu")]
    assert [peak_bytes(devices, number) for number in (1, 17)] == [told] * 2
    assert {peak_bytes(devices, number) for number in range(2, 17)} == {None}


def test_elsewhere_nobody_knows() -> None:
    assert peak_bytes([torch.device("mps")], 1) is None
    assert peak_bytes([torch.device("cpu"), torch.device("mps")], 1) is None
    assert peak_bytes([], 1) is None
