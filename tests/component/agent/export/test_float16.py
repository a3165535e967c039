"""float16 shows in the values of float32 gradients, and its smallest number in those that it cuts off."""

from collections.abc import Iterable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import gradcanary
from gradcanary import wire
from gradcanary.export.float16 import ENOUGH, LOOKS, Float16Layers
from gradcanary.stats.accumulation import ELEMENTS, float16_counts
from support.agent.recorded import Recorded

NAMES = ("a", "b")


def layer_set(module_class: str = "Linear") -> wire.LayerSet:
    return wire.LayerSet("set", tuple(wire.Layer(name, (64, 64), 4096, "float32", 0, module_class) for name in NAMES))


def looked_at(gradients: Iterable[Tensor], dtype: str = "float32", module_class: str = "Linear") -> Float16Layers:
    """Return what three looks at the gradients show; both layers have the same."""
    layers = Float16Layers(layer_set(module_class))
    for gradient in gradients:
        ((_, counts),) = float16_counts({0: gradient})
        layers.learn(dict.fromkeys((0, 1), counts[:, 0].tolist()), [dtype] * 2, without=())
    return layers


def random(size: float, dtype: torch.dtype = torch.float32, micro_steps: int = 1) -> Iterable[Tensor]:
    torch.manual_seed(0)
    for _ in range(LOOKS):
        yield sum((torch.randn(ELEMENTS) * size).to(dtype).float() for _ in range(micro_steps))  # type: ignore[misc]


@pytest.mark.parametrize("size", [2.0**-power for power in range(4, 28, 2)])
@pytest.mark.parametrize("micro_steps", [1, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_float16_is_told_from_all_others_by_small_elements(dtype: torch.dtype, micro_steps: int, size: float) -> None:
    found = looked_at(random(size, dtype, micro_steps)).shown
    if dtype is not torch.float16:
        assert found == set()
    elif 2.0**-24 <= size * micro_steps**0.5 <= 2.0**-14:
        assert found == {0, 1}
    else:
        assert found in (set(), {0, 1})  # hardly an element is small, or hardly one is left


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    ("size", "is_cut_off"), [(2.0**-12, False), (2.0**-18, False), (2.0**-21, True), (2.0**-25, True)]
)
def test_what_the_smallest_number_cuts_off_has_few_bits(dtype: str, size: float, *, is_cut_off: bool) -> None:
    assert looked_at(random(size, torch.float16), dtype).at_limit == ({0, 1} if is_cut_off else set())


def test_zeros_of_sparse_gradients_are_not_cut_off() -> None:
    sparse = (each * (torch.arange(ELEMENTS) % 3 == 0) for each in random(2.0**-16, torch.float16))
    assert looked_at(sparse).at_limit == set()
    assert looked_at(random(2.0**-21, torch.float16), module_class="Embedding").at_limit == set()
    assert looked_at(random(2.0**-21)).at_limit == set()


@given(st.lists(st.tuples(*[st.integers(0, 12)] * 4), max_size=12), st.sampled_from(["float16", "float32", "bfloat16"]))
def test_the_last_three_looks_count(looks: list[tuple[int, int, int, int]], dtype: str) -> None:
    layers = Float16Layers(layer_set())
    for at, look in enumerate(looks):
        layers.learn({1: look}, ["float32", dtype], without=())
        if at + 1 < LOOKS:
            assert not layers.shown | layers.at_limit
            continue
        small, odd, nonzero, coarse = (sum(each) for each in zip(*looks[at + 1 - LOOKS : at + 1], strict=True))
        if odd:
            assert layers.shown == set()
        elif small >= ENOUGH:
            assert layers.shown == ({1} if dtype == "float32" else set())
        is_half = dtype == "float16" or bool(layers.shown)
        assert layers.at_limit == ({1} if is_half and nonzero >= ENOUGH and 2 * coarse >= nonzero else set())


def train(collector: Recorded, *, scales: bool, dtype: torch.dtype = torch.float16, factor: float = 1e-4) -> list[str]:
    """Train under autocast, and return the codes of the facts."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", enabled=scales)
    with gradcanary.watch(url=collector.url, run="autocast"):
        for _ in range(30):
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=dtype):
                loss = (model(torch.randn(16, 32)) - torch.randn(16, 8)).square().mean() * factor
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return sorted(fact["code"] for fact in collector.hellos[-1]["facts"])


def test_autocast_without_a_scaler_is_seen_where_gradients_are_small(collector: Recorded) -> None:
    assert train(collector, scales=False) == ["fp16_gradients", "fp16_limit", "fp16_without_scaler"]
    assert collector.facts("fp16_limit")[0]["layers"] == ["0.weight", "0.bias"]


@pytest.mark.parametrize(
    "words", [{"scales": True}, {"scales": False, "factor": 1.0}, {"scales": False, "dtype": torch.bfloat16}]
)
def test_nothing_is_said_of_a_scaled_loss_of_large_gradients_and_of_bfloat16(collector: Recorded, words: dict) -> None:
    assert train(collector, **words) == []
