"""What accumulators are declared to be, are, and show that they are: side by side, from real sums."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gradcanary
from gradcanary.export.reader import AGREEING, ENOUGH, EffectiveDtypes
from gradcanary.hooks import backward
from gradcanary.stats import accumulation
from support.agent.recorded import Recorded

NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")
Dtypes = tuple[str | None, str, str | None]


def mlp(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 24)).to(dtype)


def round_off_sums(model: nn.Module, dtype: torch.dtype) -> None:
    """After each addition round the sum, as a communication hook does that reduces in a lower precision."""

    def round_off(parameter: torch.Tensor) -> None:
        parameter.grad.copy_(parameter.grad.to(dtype))

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(round_off)


def trained(
    collector: Recorded,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    micro_steps: int = 4,
    steps: int = 4,
    autocast: torch.dtype | None = torch.bfloat16,
) -> dict[str, Dtypes]:
    """Train on random inputs and return what was told of each layer's accumulator."""
    dtype = next(model.parameters()).dtype
    with gradcanary.watch(model, optimizer, url=collector.url, run="accumulators"):
        for _ in range(steps):
            for _ in range(micro_steps):
                with torch.autocast("cpu", autocast, enabled=autocast is not None):
                    loss = model(torch.randn(8, 16, dtype=dtype)).float().square().mean()
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return collector.accumulators()


@pytest.mark.parametrize("micro_steps", [2, 4])
def test_a_float32_sum_of_bfloat16_gradients_is_float32_in_effect(collector: Recorded, micro_steps: int) -> None:
    model = mlp()
    told = trained(collector, model, torch.optim.SGD(model.parameters(), lr=0.1), micro_steps=micro_steps)
    assert told == dict.fromkeys(NAMES, (None, "float32", "float32"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_float32_in_name_only_is_told_by_its_low_bits(collector: Recorded, dtype: torch.dtype) -> None:
    model = mlp()
    round_off_sums(model, dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    told = trained(collector, model, optimizer, steps=AGREEING, autocast=None)
    assert told == dict.fromkeys(NAMES, (None, "float32", str(dtype).removeprefix("torch.")))


def test_rows_of_an_embedding_that_were_met_once_are_no_sums(collector: Recorded) -> None:
    torch.manual_seed(0)
    model = nn.Embedding(64, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, optimizer, url=collector.url, run="accumulators"):
        for _ in range(AGREEING + 1):
            for rows in torch.arange(64).split(32):
                (model(rows).bfloat16() * torch.randn(32, 8).bfloat16()).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert collector.accumulators() == {"weight": (None, "float32", None)}


def test_a_single_micro_step_shows_no_effective_dtype(collector: Recorded) -> None:
    """Under autocast its gradient is a number of bfloat16, and nothing was lost by that."""
    model = mlp()
    told = trained(collector, model, torch.optim.SGD(model.parameters(), lr=0.1), micro_steps=1)
    assert told == dict.fromkeys(NAMES, (None, "float32", None))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_tensor_of_low_precision_holds_no_more_than_that(collector: Recorded, dtype: torch.dtype) -> None:
    model = mlp(dtype)
    told = trained(collector, model, torch.optim.SGD(model.parameters(), lr=1e-3), micro_steps=1, autocast=None)
    name = str(dtype).removeprefix("torch.")
    assert told == dict.fromkeys(NAMES, (None, name, name))


def test_a_clip_is_not_taken_for_a_sum_in_float32(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read after the clip, numbers that had no low bits have those of its factor."""
    monkeypatch.setattr(backward, "has_callbacks", lambda: False)
    model = mlp()
    round_off_sums(model, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, optimizer, url=collector.url, run="accumulators"):
        for _ in range(3):
            for _ in range(2):
                model(torch.randn(8, 16)).square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
            optimizer.step()
            optimizer.zero_grad()
    assert collector.phases("norm") == {"post_clip"}
    assert collector.accumulators() == dict.fromkeys(NAMES, (None, "float32", None))


@pytest.mark.parametrize("shape", [(3000,), (64, 96), (4, 8, 16, 32)])
@pytest.mark.parametrize("layout", ["contiguous", "transposed", "channels_last"])
def test_elements_are_taken_from_all_over_a_tensor(shape: tuple[int, ...], layout: str) -> None:
    """Of a tensor with as many low bits as it has elements; half of it has them, half has not."""
    whole = torch.rand(shape) + 0.5
    whole.view(-1)[: whole.numel() // 2] = whole.view(-1)[: whole.numel() // 2].bfloat16().float()
    if layout == "transposed":
        whole = whole.transpose(0, -1)
    elif layout == "channels_last" and whole.dim() == 4:
        whole = whole.contiguous(memory_format=torch.channels_last)
    ((layers, counts),) = accumulation.low_bits({7: whole})
    telling, below_bfloat16, _ = (float(each[0]) for each in counts)
    assert layers == [7]
    assert accumulation.ELEMENTS / 2 <= telling <= accumulation.ELEMENTS
    assert 0.4 < below_bfloat16 / telling < 0.6


@pytest.mark.parametrize("size", [1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1.0])
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("is_float32", [True, False])
def test_small_sums_are_not_mistaken(low: torch.dtype, size: float, *, is_float32: bool) -> None:
    """Of eight addends as autocast makes them: numbers of low precision. Small ones of float16 are multiples of 2^-24,
    and so are their sums: they fit into float16, and would tell nothing even if float32 had summed them."""
    torch.manual_seed(0)
    addends = (torch.randn(8, 2000) * size).to(low)
    total = addends.float().sum(0)
    if not is_float32:
        for addend in addends.cumsum(0, dtype=torch.float32):
            total = addend.to(low).float()
    effective = EffectiveDtypes(None)
    for _ in range(AGREEING):
        ((_, counts),) = accumulation.low_bits({0: total})
        effective.learn({0: counts[:, 0].tolist()}, without=())
    found = effective.dtype_of(0, "float32")
    name = "float32" if is_float32 else str(low).removeprefix("torch.")
    if low is torch.float16 and size < 1e-4:
        assert found is None
    elif low is torch.float16 and size < 1e-3 and not is_float32:
        assert found in (None, name)
    else:
        assert found == name


@given(st.integers(1, 40), st.integers(0, 300))
def test_each_layer_has_its_turn(layers: int, start: int) -> None:
    turns = -(-layers // accumulation.PER_SAMPLE)
    often = [
        layer for number in range(turns) for layer in accumulation.layers_of_sample(start * turns + number, layers)
    ]
    assert set(often) == set(range(layers)) or start >= accumulation.OFTEN
    rarely = range(start, start + 2 * turns * accumulation.RARELY)
    assert {layer for number in rarely for layer in accumulation.layers_of_sample(number, layers)} == set(range(layers))


@given(st.lists(st.sampled_from(["float32", "float16", "bfloat16", "few"]), max_size=12))
def test_a_lower_precision_is_believed_after_three_looks_in_a_row(looks: list[str]) -> None:
    counts = {"float32": (64, 60, 50), "float16": (64, 9, 0), "bfloat16": (64, 0, 0), "few": (ENOUGH - 1, 0, 0)}
    effective, expected, before = EffectiveDtypes(None), None, []
    for look in looks:
        effective.learn({3: counts[look], 5: counts["bfloat16"]}, without=[5])
        if look != "few":
            before = [*before, look] if look in before[-1:] else [look]
        if before and (before[-1] == "float32" or len(before) >= AGREEING):
            expected = before[-1]
        assert effective.dtype_of(3, "float32") == expected
        assert effective.dtype_of(3, "bfloat16") == "bfloat16"
        assert effective.dtype_of(3, "float64") is effective.dtype_of(5, "float32") is None


def keyed(model: nn.Module) -> torch.optim.Optimizer:
    groups = [
        {"params": list(model[0].parameters())},
        {"params": list(model[2].parameters()), "grad_accumulator_dtype": torch.float32},
    ]
    return torch.optim.AdamW(groups, lr=1e-3)


def test_a_key_that_nothing_reads_is_declared_and_said_to_be_dead(collector: Recorded) -> None:
    model = mlp(torch.bfloat16)
    told = trained(collector, model, keyed(model), autocast=None)
    assert [told[name] for name in NAMES] == [
        *[(None, "bfloat16", "bfloat16")] * 2,
        *[("float32", "bfloat16", "bfloat16")] * 2,
    ]
    (fact,) = collector.facts("dead_config_key")
    assert fact["layers"] == ["2.weight", "2.bias"]
    assert "AdamW has no setting 'grad_accumulator_dtype'" in fact["text"]


def test_grad_dtype_of_a_parameter_is_declared(collector: Recorded) -> None:
    model = mlp(torch.bfloat16)
    model[0].weight.grad_dtype = torch.float32
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    told = trained(collector, model, optimizer, autocast=None)
    assert told["0.weight"] == ("float32", "float32", "float32")
    assert told["2.weight"] == (None, "bfloat16", "bfloat16")


class DistributedDataParallel(nn.Module):
    """Stands in for Megatron's, which needs GPUs: its name, its ``ddp_config``, and ``main_grad`` on each parameter.

    These are parts of one buffer. Hooks on the nodes that accumulate add each gradient to them and let go of it.
    """

    __module__ = "megatron.core.distributed.distributed_data_parallel"

    def __init__(self, module: nn.Module, *, grad_reduce_in_fp32: bool) -> None:
        super().__init__()
        self.module = module
        self.ddp_config = SimpleNamespace(grad_reduce_in_fp32=grad_reduce_in_fp32)
        self.nodes: list[torch.autograd.graph.Node] = []
        parameters = list(module.parameters())
        dtype = torch.float32 if grad_reduce_in_fp32 else parameters[0].dtype
        self.grad_data = torch.zeros(sum(each.numel() for each in parameters), dtype=dtype)
        parts = self.grad_data.split([each.numel() for each in parameters])
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.main_grad = part.view_as(parameter)
            node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
            node.register_hook(partial(self._add, parameter))
            self.nodes.append(node)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)

    @staticmethod
    def _add(parameter: torch.Tensor, *_gradients: object) -> None:
        parameter.main_grad.add_(parameter.grad)
        parameter.grad = None


@pytest.mark.loop(
    "gradients summed in `main_grad` (Megatron)",
    caveat="experimental: tested with a stand-in that has Megatron's attributes, as it does not run without GPUs",
)
@pytest.mark.parametrize("in_fp32", [True, False])
def test_gradients_of_megatron_are_those_in_main_grad(collector: Recorded, in_fp32: bool) -> None:
    inner = mlp(torch.bfloat16)
    model = DistributedDataParallel(inner, grad_reduce_in_fp32=in_fp32)
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)
    expected: list[dict[str, float]] = []
    with gradcanary.watch(model, optimizer, url=collector.url, run="megatron"):
        for _ in range(5):
            for _ in range(3):
                model(torch.randn(8, 16, dtype=torch.bfloat16)).float().square().mean().backward()
            sums = {name: parameter.main_grad for name, parameter in inner.named_parameters()}
            expected.append({name: float(each.double().abs().max()) for name, each in sums.items()})
            for parameter in inner.parameters():
                parameter.grad = parameter.main_grad.to(parameter.dtype)
            optimizer.step()
            optimizer.zero_grad()
            model.grad_data.zero_()
    assert [collector.stat("absmax")[step] for step in range(5)] == [pytest.approx(each) for each in expected]
    assert collector.per_step("micro_steps") == [3] * 5
    dtypes = ("float32", "float32", "float32") if in_fp32 else (None, "bfloat16", "bfloat16")
    assert set(collector.accumulators().values()) == {dtypes}


class DeepSpeedEngine(nn.Module):
    """Stands in for DeepSpeed's, which needs GPUs: its name, and the dtype that its optimizer was told to sum in.

    The sums themselves are in buffers of that optimizer; ``.grad`` is what it adds to them.
    """

    __module__ = "deepspeed.runtime.engine"

    def __init__(self, module: nn.Module, optimizer: object) -> None:
        super().__init__()
        self.module = module
        self.optimizer = optimizer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)


@pytest.mark.parametrize(
    ("has", "declared"),
    [
        ({"gradient_accumulation_dtype": torch.float32}, "float32"),  # DeepSpeedZeroOptimizer, of ZeRO-1 to 3
        ({"grad_acc_dtype": torch.float32}, "float32"),  # BF16_Optimizer
        ({"grad_acc_dtype": torch.bfloat16}, "bfloat16"),
        ({"grad_acc_dtype": None}, None),
        ({}, None),
    ],
)
def test_deepspeed_accumulation_dtype_is_declared(
    collector: Recorded, has: dict[str, torch.dtype | None], declared: str | None
) -> None:
    inner = mlp(torch.bfloat16)
    engine = DeepSpeedEngine(inner, SimpleNamespace(**has))
    told = trained(collector, engine, torch.optim.SGD(inner.parameters(), lr=0.1), steps=2, autocast=None)
    assert told == dict.fromkeys(NAMES, (declared, "bfloat16", "bfloat16"))
