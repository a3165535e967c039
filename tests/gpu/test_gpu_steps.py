"""Whole watched steps on a GPU: nobody waits, the numbers are those of float64, the weights the same to the bit."""

from collections.abc import Iterator
from functools import partial

import pytest
import torch

from support.agent.gpu_steps import (
    DEVICE,
    KINDS,
    LowPrecision,
    Plain,
    Scaled,
    Uncleared,
    debug,
    norms_of,
    waits,
    watching,
)
from support.agent.recorded import Recorded
from support.agent.scripted import until

STEPS = 12
FLOAT32 = 1e-5
LONG = 104
"""Two turns of the weights that stand still, and the time before something is foreseen, are fifty steps each; a search
for gradients that are never cleared takes 44."""


@pytest.fixture(autouse=True)
def no_debugging_is_left() -> Iterator[None]:
    yield
    debug("default")


@pytest.mark.parametrize("kind", KINDS)
def test_no_watched_step_waits_for_the_device(collector: Recorded, kind: type[Plain]) -> None:
    """Nor does the sender meanwhile: the mode is that of the whole process."""
    steps = LONG if kind in (LowPrecision, Uncleared) else STEPS
    if kind.waits_itself:
        assert waits(kind, collector, steps, "warn", is_watched=True) == waits(
            kind, collector, steps, "warn", is_watched=False
        )
    else:
        assert waits(kind, collector, steps, "error", is_watched=True) == 0
    measured = dict.fromkeys((name for name, _ in kind().model.named_parameters()), "measured")
    assert collector.states() == dict.fromkeys(range(steps), measured)
    assert collector.stat("update_ratio")
    if kind is Uncleared:
        assert collector.facts("never_cleared")
    if kind is LowPrecision:
        assert collector.stat("frozen_fraction")
        assert collector.stat("accumulation_error")
        assert collector.facts("bf16_weights_lr")


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_are_those_of_float64_and_weights_the_same(collector: Recorded, kind: type[Plain]) -> None:
    def run(*, is_watched: bool) -> tuple[list[bytes], list[dict[str, float]]]:
        trained, read = kind(), []
        with watching(trained, collector, is_watched=is_watched) as watch:
            for _ in range(STEPS):
                trained.accumulate()
                read.append(norms_of(trained.model, trained.scaler.get_scale() if isinstance(trained, Scaled) else 1.0))
                trained.finish()
        if watch is not None:
            assert watch._session.guard.caught == watch._session._queue.dropped == 0
        return [each.detach().cpu().view(torch.uint8).numpy().tobytes() for each in trained.model.parameters()], read

    weights, read = run(is_watched=True)
    assert run(is_watched=False) == (weights, read)
    sent = collector.stat("norm")
    assert sent == {step: pytest.approx(norms, rel=FLOAT32) for step, norms in enumerate(read)}
    assert collector.phases("norm") == {"accumulated"}
    assert set(collector.per_step("micro_steps")) == {kind.micro_steps}
    assert set(collector.metric("loss")) == set(range(STEPS))


def has_arrived(collector: Recorded, step: int) -> bool:
    return step in collector.steps()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_nonfinite_values_are_named_and_counted(collector: Recorded, bad: float) -> None:
    """Exactly, once the sender has seen the first and asked for it."""
    trained, counts = Plain(), dict[int, dict[str, float]]()
    with watching(trained, collector, is_watched=True):
        for step in range(9):
            (trained.loss() * (bad if step >= 4 else 1.0)).backward()
            if step < 4:
                trained.finish()
                continue
            gradients = {name: each.grad for name, each in trained.model.named_parameters()}
            counts[step] = {n: float((~g.isfinite()).sum()) for n, g in gradients.items() if g is not None}
            trained.optimizer.zero_grad()
            until(partial(has_arrived, collector, step - 2))
        trained.finish()
    sent = collector.stat("nonfinite")
    assert {step: set(states.values()) for step, states in collector.states().items() if step >= 4} == {
        step: {"nonfinite"} for step in counts
    }
    assert set(sent[4].values()) == {1.0}
    assert sent[8] == counts[8]


@pytest.mark.skipif(DEVICE.type != "cuda", reason="events of a stream")
def test_gpu_time_of_samples_counts_in_the_share(collector: Recorded) -> None:
    """Behind kernels of 50 ms: nothing is waited for, and what a sample took is known once it has completed."""
    trained = Plain()
    with watching(trained, collector, is_watched=True) as watch:
        trained.accumulate()
        trained.finish()
        torch.cuda.synchronize()
        clock = watch._session.recorder.meter.device_clock
        clock.take()
        debug("error")
        clock.time(lambda: torch.cuda._sleep(100_000_000))
        assert clock.take() == 0.0
        debug("default")
        torch.cuda.synchronize()
        assert 0.01 < clock.take() < 1.0
        trained.accumulate()
        trained.finish()
        assert clock._pending
    assert watch._session.guard.caught == 0, watch._session.guard.facts
