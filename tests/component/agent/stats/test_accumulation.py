"""What a sum of low precision lost, against float64 sums of the very same micro-gradients."""

from functools import partial

import pytest
import torch
from torch import nn

import gradcanary
from gradcanary.stats import accumulation
from support.agent.recorded import Recorded, recording

NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")


def mlp(dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 24)).to(dtype)


class Reference:
    """Sums of what comes in, in float64, by hooks of the test's own."""

    def __init__(self, model: nn.Module) -> None:
        self._sums = {name: torch.zeros_like(each, dtype=torch.float64) for name, each in model.named_parameters()}
        self._model = model
        for name, parameter in model.named_parameters():
            parameter.register_hook(partial(self._add, name))

    def _add(self, name: str, gradient: torch.Tensor) -> None:
        self._sums[name] += gradient

    def take(self) -> dict[str, tuple[float, float]]:
        """Return error and norm ratio of each layer, and begin anew."""
        found = {}
        for name, parameter in self._model.named_parameters():
            exact, stored = self._sums[name], parameter.grad.double()
            found[name] = (float((stored - exact).norm() / exact.norm()), float(stored.norm() / exact.norm()))
            self._sums[name] = torch.zeros_like(exact)
        return found


def trained(
    collector: Recorded, model: nn.Module, micro_steps: int, *, steps: int = 4, coherent: bool = False
) -> list[dict[str, tuple[float, float]]]:
    """Train, and return what float64 has of each step."""
    dtype, reference, found = next(model.parameters()).dtype, Reference(model), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with gradcanary.watch(model, optimizer, url=collector.url, run="shadows"):
        for _ in range(steps):
            for _ in range(micro_steps):
                out = model(torch.rand(4, 16, dtype=dtype) if coherent else torch.randn(4, 16, dtype=dtype))
                (out.float().sum() if coherent else out.float().square().mean()).backward()
            found.append(reference.take())
            optimizer.step()
            optimizer.zero_grad()
    return found


@pytest.mark.parametrize(
    ("dtype", "micro_steps", "coherent", "least", "most"),
    [
        (torch.bfloat16, 8, False, 1e-3, 1e-2),
        (torch.bfloat16, 64, False, 3e-3, 3e-2),
        (torch.bfloat16, 512, True, 0.05, 0.35),
        (torch.bfloat16, 2048, True, 0.6, 0.9),
        (torch.float16, 8, False, 1e-4, 1e-3),
    ],
)
def test_losses_are_those_of_float64(
    collector: Recorded, dtype: torch.dtype, micro_steps: int, *, coherent: bool, least: float, most: float
) -> None:
    """Addends of one sign swamp: where the sum is 512 times as large, nothing is added to it any more."""
    steps = accumulation.FIRST + 2
    exact = trained(collector, mlp(dtype), micro_steps, steps=steps, coherent=coherent)
    errors, ratios = collector.stat("accumulation_error"), collector.stat("norm_ratio")
    assert list(errors) == list(ratios) == [accumulation.FIRST]
    for name in NAMES:
        error, ratio = exact[accumulation.FIRST][name]
        assert errors[accumulation.FIRST][name] == pytest.approx(error, rel=1e-3, abs=1e-7)
        assert ratios[accumulation.FIRST][name] == pytest.approx(ratio, rel=1e-6)
    assert least < exact[accumulation.FIRST]["0.weight"][0] < most
    assert collector.phases("accumulation_error") == {"accumulated"}


def test_references_rotate_over_all_layers(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulation, "PER_WINDOW", 2)
    monkeypatch.setattr(accumulation, "EACH", 5)
    trained(collector, mlp(torch.bfloat16), 2, steps=18)
    found = {step: tuple(values) for step, values in collector.stat("accumulation_error").items()}
    assert found == {2: NAMES[:2], 5: NAMES[2:], 10: NAMES[:2], 15: NAMES[2:]}


def test_references_over_the_memory_limit_are_left_out(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accumulation, "MAX_BYTES", 4 * (32 + 24))
    trained(collector, mlp(torch.bfloat16), 2)
    assert tuple(collector.stat("accumulation_error")[accumulation.FIRST]) == ("0.bias", "2.bias")


def test_sums_in_float32_are_not_looked_at(collector: Recorded) -> None:
    model = mlp(torch.float32)
    trained(collector, model, 4)
    assert not collector.stat("accumulation_error")


def test_a_single_micro_step_has_no_accumulation_error(collector: Recorded) -> None:
    trained(collector, mlp(torch.bfloat16), 1)
    assert not collector.stat("accumulation_error")


@pytest.mark.parametrize("what", ["skipped", "short", "cleared", "clipped", "rounded"])
def test_a_window_in_which_something_else_happened_is_not_told(collector: Recorded, what: str) -> None:
    """What a loop does to a sum between its micro-steps is no loss of precision, and a skipped one was of no use."""
    model = mlp(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with gradcanary.watch(model, optimizer, url=collector.url, run="shadows"):
        for window in range(6):
            is_it = window == accumulation.FIRST
            for micro_step in range(1 if is_it and what == "short" else 3):
                model(torch.randn(4, 16, dtype=torch.bfloat16)).float().square().mean().backward()
                if is_it and micro_step == 0 and what == "cleared":
                    for parameter in model.parameters():
                        parameter.grad.zero_()
                if is_it and micro_step < 2 and what == "clipped":
                    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
                if is_it and micro_step < 2 and what == "rounded":
                    for parameter in model.parameters():
                        parameter.grad.copy_(parameter.grad.half())
            if not (is_it and what == "skipped"):
                optimizer.step()
            optimizer.zero_grad()
    assert accumulation.FIRST in collector.steps()
    assert collector.per_step("skipped")[accumulation.FIRST] == (2 if what == "skipped" else 0)
    assert not collector.stat("accumulation_error")


def test_gradients_that_nobody_cleared_are_part_of_the_sum(collector: Recorded) -> None:
    model = mlp(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with gradcanary.watch(model, optimizer, url=collector.url, run="shadows"):
        for _ in range(accumulation.FIRST + 2):
            for _ in range(3):
                model(torch.randn(4, 16, dtype=torch.bfloat16)).float().square().mean().backward()
            optimizer.step()
    told = collector.stat("accumulation_error").get(accumulation.FIRST, {})
    assert all(error < 0.02 for error in told.values()), told


def test_a_sparse_gradient_costs_the_others_nothing(collector: Recorded) -> None:
    torch.manual_seed(0)
    table = nn.Embedding(20, 16, sparse=True).bfloat16()
    model = mlp(torch.bfloat16)
    optimizer = torch.optim.SGD([*table.parameters(), *model.parameters()], lr=1e-4)
    with gradcanary.watch(nn.ModuleList([table, model]), optimizer, url=collector.url, run="shadows"):
        for _ in range(accumulation.FIRST + 2):
            for _ in range(3):
                model(table(torch.randint(20, (4,)))).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert set(collector.stat("accumulation_error")[accumulation.FIRST]) == {f"1.{name}" for name in NAMES}


def test_nothing_is_added_while_a_cuda_graph_is_recorded(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for a capture, which takes a GPU: there our kernels would be replayed with the training's."""
    monkeypatch.setattr(accumulation, "is_capturing", lambda: True)
    trained(collector, mlp(torch.bfloat16), 2)
    assert len(collector.stat("absmax")) == 4
    assert not collector.stat("accumulation_error")


def test_hooks_are_left_neither_after_the_window_nor_after_the_watch() -> None:
    model = mlp(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    hooks: list[int] = []
    with recording() as collector, gradcanary.watch(model, optimizer, url=collector.url, run="shadows") as watched:
        for _ in range(accumulation.FIRST + 2):
            for _ in range(2):
                model(torch.randn(4, 16, dtype=torch.bfloat16)).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            hooks.append(sum(len(each._backward_hooks or ()) for each in model.parameters()))
        assert hooks == [0, 4, 0, 0], "beside the counters, which stay"
        watched.close()
    assert not any(each._backward_hooks for each in model.parameters())


def test_a_watch_that_ends_inside_such_a_window_leaves_no_hook() -> None:
    model = mlp(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    with recording() as collector, gradcanary.watch(model, optimizer, url=collector.url, run="shadows"):
        for _ in range(accumulation.FIRST):
            for _ in range(2):
                model(torch.randn(4, 16, dtype=torch.bfloat16)).float().square().mean().backward()
            optimizer.step()
        assert any(each._backward_hooks for each in model.parameters())
    assert not any(each._backward_hooks for each in model.parameters())


@pytest.mark.parametrize(
    "where",
    [
        "stats.accumulation.Fp32Reference.before_accumulate",
        "stats.accumulation.Fp32Reference.after_accumulate",
        "stats.accumulation.Fp32Reference.errors",
        "stats.accumulation.norm_factors",
        "stats.accumulation._count_some",
    ],
)
def test_a_fault_of_ours_costs_its_own_numbers_only(
    where: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def boom(*_: object, **__: object) -> None:
        raise ZeroDivisionError("our own fault")

    expected = digest(None, autocast="counts" in where)
    monkeypatch.setattr(f"gradcanary.{where}", boom)
    with recording() as collector:
        assert digest(collector.url, autocast="counts" in where) == expected
    assert len(collector.stat("absmax")) == 6
    assert not collector.stat("accumulation_error")
    assert len(caplog.records) == 1


def digest(url: str | None, *, autocast: bool = False) -> list[bytes]:
    """Train with sums in bfloat16, or in float32 of what autocast makes of it."""
    dtype = torch.float32 if autocast else torch.bfloat16
    model = mlp(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    watched = None if url is None else gradcanary.watch(model, optimizer, url=url, run="shadows")
    torch.manual_seed(1)
    for _ in range(6):
        for _ in range(4):
            with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                loss = model(torch.randn(4, 16, dtype=dtype)).float().square().mean()
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if watched is not None:
        watched.close()
    return [each.detach().view(torch.uint8).numpy().tobytes() for each in model.parameters()]


def test_the_training_stays_the_same_bit_for_bit(collector: Recorded) -> None:
    assert digest(collector.url) == digest(None)
    assert collector.stat("accumulation_error")
