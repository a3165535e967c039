"""The change of many layers from a few elements: which are measured when, what is exact, and what is undone."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import gradcanary
from gradcanary import wire
from gradcanary.export.reader import CERTAIN_UNDONE, DecodedSamples, UndoneUpdates
from gradcanary.stats.samples import Kind
from gradcanary.stats.weight_rows import ELEMENTS, SPAN, WeightRows, changes_of, layers_of_step
from support.agent.recorded import Recorded
from support.agent.torch_loops import mlp


@given(
    layers=st.integers(1, 6000), interval=st.sampled_from([1, 10, 100]), start=st.integers(0, 10**7), part=st.booleans()
)
def test_every_layer_has_its_turn_in_200_steps(layers: int, interval: int, start: int, part: bool) -> None:
    first = -(-start // interval) * interval
    turns = [layers_of_step(step, layers) for step in range(first, first + SPAN, interval)]
    assert {layer for turn in turns for layer in turn} == set(range(layers))
    assert set(layers_of_step(1000 * start, layers)) == set(range(layers))


def test_none_are_measured_in_most_steps() -> None:
    sizes = [len(layers_of_step(step, 400)) for step in range(1000)]
    assert sum(size == 0 for size in sizes) == 900
    assert sum(sizes) / len(sizes) < 5


def rows_of(*weights: torch.Tensor, gradient: float = 1.0) -> tuple[list[nn.Parameter], list]:
    parameters = [nn.Parameter(weight) for weight in weights]
    for each in parameters:
        each.grad = torch.full_like(each, gradient)
    return parameters, [lambda each=each: each for each in parameters]


def measured(rows: WeightRows, references: list) -> dict[int, tuple[float, float]]:
    parts = [part for part in rows.compare(references) if part.kind is Kind.UPDATE_ROWS]
    return {at: change for part in parts for at, change in changes_of(part, part.value.tolist()).items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(7,), (16, 16), (300, 41), (41, 300, 3)])
def test_norms_are_those_of_all_elements(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    parameters, references = rows_of(*(torch.randn(shape, dtype=dtype) for _ in range(3)))
    rows = WeightRows()
    rows.copy(17, range(3), references, lambda at: parameters[at].grad)
    before = [each.detach().clone() for each in parameters]
    with torch.no_grad():
        for each in parameters:
            each.add_(torch.randn_like(each) * 0.1)
    found = measured(rows, references)
    tolerance = 1e-6 if parameters[0].numel() <= ELEMENTS else 0.2
    for at, each in enumerate(parameters):
        change = (each.detach().to(torch.float64) - before[at].to(torch.float64)).abs().norm()
        assert found[at][0] == pytest.approx(float(change), rel=tolerance)
        assert found[at][1] == pytest.approx(float(each.detach().to(torch.float64).abs().norm()), rel=tolerance)


def test_a_transposed_layer_is_compared_with_its_own_elements() -> None:
    parameters, references = rows_of(torch.randn(300, 41).t())
    rows = WeightRows()
    rows.copy(3, [0], references, lambda at: parameters[at].grad)
    assert measured(rows, references)[0][0] == 0.0


def test_without_a_change_and_without_a_gradient_there_is_no_number() -> None:
    parameters, references = rows_of(torch.randn(300, 41), torch.randn(300, 41))
    parameters[1].grad.zero_()
    rows = WeightRows()
    rows.copy(3, range(2), references, lambda at: parameters[at].grad)
    found = measured(rows, references)
    assert found.keys() == {0}
    assert found[0][0] == 0.0


def undone(collector: Recorded, model: nn.Module, after_step: Callable[[], object]) -> list:
    """Train with this after each step, and return the facts about undone updates."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with gradcanary.watch(model, optimizer, url=collector.url, run="undone", every=1):
        for _ in range(80):
            model(torch.randn(8, 16)).square().mean().backward()
            optimizer.step()
            after_step()
            optimizer.zero_grad()
    return collector.facts("undone_updates")


def test_updates_that_are_undone_are_a_fact(collector: Recorded) -> None:
    model = mlp()
    kept = {name: each.clone() for name, each in model.state_dict().items()}
    facts = undone(collector, model, lambda: model.load_state_dict(kept))
    assert sorted(name for fact in facts for name in fact["layers"]) == sorted(collector.names)


def test_updates_that_stay_or_go_on_are_not_undone(collector: Recorded) -> None:
    """One layer is set back in each step, as a mask does it; the others move."""
    model = mlp()
    kept = model[0].weight.detach().clone()

    def masked() -> None:
        with torch.no_grad():
            model[0].weight.copy_(kept)

    assert undone(collector, model, masked) == []


def test_layers_that_are_set_back_are_named_without_the_others(collector: Recorded) -> None:
    model = mlp()
    kept = {name: each.clone() for name, each in model[0].state_dict().items()}
    facts = undone(collector, model, lambda: model[0].load_state_dict(kept))
    assert {name for fact in facts for name in fact["layers"]} == {"0.weight", "0.bias"}


def test_a_half_step_that_is_taken_back_for_the_real_one_is_not_undone(collector: Recorded) -> None:
    """An extragradient method: a gradient at the point that the first step leads to moves the old weights."""
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with gradcanary.watch(model, optimizer, url=collector.url, run="halves", every=1):
        for _ in range(80):
            kept = {name: each.clone() for name, each in model.state_dict().items()}
            for half in range(2):
                optimizer.zero_grad()
                model(torch.randn(8, 16)).square().mean().backward()
                if half:
                    model.load_state_dict(kept)
                optimizer.step()
    assert collector.facts("undone_updates") == []


class Gains(nn.Module):
    """A network beside two parameters of one element each."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.zeros(())), nn.Parameter(torch.zeros(()))
        self.network = mlp()


def test_single_elements_that_go_back_and_forth_are_not_undone(collector: Recorded) -> None:
    """Steps of one size around an optimum: after an even number of them each is where it was."""
    model = Gains()
    optimizer = torch.optim.Adam(model.parameters(), lr=2**-7, betas=(0.0, 0.0))
    with gradcanary.watch(model, optimizer, url=collector.url, run="signs", every=10):
        for _ in range(400):
            optimizer.zero_grad()
            distance = (model.gain - 0.3).square() + (model.shift - 0.2).square()
            (distance + model.network(torch.randn(8, 16)).square().mean()).backward()
            optimizer.step()
    assert collector.facts("undone_updates") == []


def layers_of(*names: str) -> list[wire.Layer]:
    return [wire.Layer(name, (4, 4), 16, "float32", 0, "Linear") for name in names]


def test_undone_layers_are_followed_by_name_as_other_layers_go_and_come() -> None:
    found, undone_updates = DecodedSamples(3), UndoneUpdates()
    found.had_moved = found.undone = {1, 2}
    for step in range(CERTAIN_UNDONE - 1):
        assert undone_updates.read(layers_of("frozen soon", "a", "b"), step, found) == ()
    found.had_moved = found.undone = {0, 1}
    (fact,) = undone_updates.read(layers_of("a", "b"), CERTAIN_UNDONE, found)
    assert fact.layers == ("a", "b")
