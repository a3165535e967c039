"""``fp32_accumulators()`` beside a watch, and beside what else a script does."""

import copy
import io
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import gradcanary
from support.agent.exact_sums import (
    accumulate,
    adamw,
    assert_nothing_is_left,
    assert_same,
    micro_gradients,
    parameters,
    states_of,
    step_by_truth,
    summed_in,
    truth,
)
from support.agent.fixtures import complaints
from support.agent.recorded import Recorded, recording

BF16, FP32 = torch.bfloat16, torch.float32
K = 24


@pytest.fixture(autouse=True)
def silent(capsys: pytest.CaptureFixture[str]) -> Iterator[None]:
    """What goes wrong inside is told on stderr, and only there."""
    yield
    assert complaints(capsys.readouterr().err) == ""


# -- beside a watch ----------------------------------------------------------------------------------------------------


@pytest.fixture
def collector() -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded


@pytest.mark.loop(
    "bfloat16 weights with `fp32_accumulators`",
    late="short last windows",
    caveat="the stored dtype is float32, and values are those of the sum before it is rounded for the step",
)
@pytest.mark.parametrize("is_watched_first", [True, False])
def test_a_watch_sees_the_float32_sum(collector: Recorded, is_watched_first: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(BF16)
    given = list(model.parameters())
    optimizer = torch.optim.AdamW(given, lr=0.05, eps=1e-4)
    watches = [lambda: gradcanary.watch(model, optimizer, url=collector.url, run="helped")]
    opened = [
        each() for each in [*watches, lambda: gradcanary.fp32_accumulators(optimizer)][:: 1 if is_watched_first else -1]
    ]
    absmax, norm, total = [], [], []
    for step in range(4):
        micro = micro_gradients(given, 64 if step != 2 else 3, step)
        accumulate(given, micro)
        sums = dict(zip((name for name, _ in model.named_parameters()), truth(micro), strict=True))
        absmax.append({name: float(each.abs().max()) for name, each in sums.items()})
        norm.append({name: float(each.norm()) for name, each in sums.items()})
        total.append(float(torch.nn.utils.clip_grad_norm_(given, 1.0)))
        optimizer.step()
        optimizer.zero_grad(set_to_none=step % 2 == 0)
    for each in reversed(opened):
        each.close()
    assert collector.stored() == dict.fromkeys(collector.names, "float32")
    assert {layer["param_dtype"] for layer in collector.layers} == {"bfloat16"}
    assert collector.per_step("micro_steps") == [64, 64, 3, 64]
    assert collector.phase_of("absmax") == {0: "accumulated", 1: "accumulated", 2: "post_clip", 3: "accumulated"}
    for step in (0, 1, 3):
        assert collector.stat("absmax")[step] == pytest.approx(absmax[step], rel=1e-7, abs=0)
        assert collector.stat("norm")[step] == pytest.approx(norm[step], rel=1e-6, abs=0)
        assert collector.metric("total_norm")[step] == pytest.approx(total[step], rel=1e-6)
        assert collector.metric("clip_factor")[step] == pytest.approx(1 / total[step], rel=1e-4)
    clipped = {name: value / total[2] for name, value in absmax[2].items()}
    assert collector.stat("absmax")[2] == pytest.approx(clipped, rel=1e-5, abs=0)


def test_a_watch_tells_float32_in_effect_and_no_loss(collector: Recorded) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 16)).to(BF16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        gradcanary.watch(model, optimizer, url=collector.url, run="helped"),
        gradcanary.fp32_accumulators(optimizer),
    ):
        for _ in range(8):
            for _ in range(K):
                model(torch.randn(8, 16, dtype=BF16)).float().square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    told = {
        (record["declared"], record["stored"], record["effective"])
        for batch in collector.batches
        for record in batch["accumulators"]
        if record["effective"] is not None
    }
    assert told == {("float32", "float32", "float32")}
    assert collector.stat("accumulation_error") == {}, "that is measured of low-precision sums only"


# -- beside what a script does -----------------------------------------------------------------------------------------


def test_a_resumed_training_goes_on_as_if_it_had_not_stopped() -> None:
    given, others = parameters(), parameters()
    optimizer, other = adamw(given), adamw(others)
    gradcanary.fp32_accumulators(optimizer)
    saved = io.BytesIO()
    for step in range(4):
        if step == 2:
            torch.save({"given": given, "optimizer": optimizer.state_dict()}, saved)
            saved.seek(0)
            stored = torch.load(saved, weights_only=False)
            given = stored["given"]
            optimizer = adamw(given)
            optimizer.load_state_dict(stored["optimizer"])
            gradcanary.fp32_accumulators(optimizer)
        micro = micro_gradients(given, K, step)
        accumulate(given, micro)
        optimizer.step()
        optimizer.zero_grad()
        step_by_truth(other, others, truth(micro))
    assert_same(given, others)
    assert_same(states_of(optimizer), states_of(other))


def test_a_state_that_is_loaded_in_place_keeps_it() -> None:
    given, others = parameters(), parameters()
    optimizer, other = adamw(given), adamw(others)
    with gradcanary.fp32_accumulators(optimizer):
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        micro = micro_gradients(given, K, 0)
        accumulate(given, micro)
        optimizer.step()
    step_by_truth(other, others, truth(micro))
    assert_same(given, others)


def test_unfrozen_parameters_are_summed_from_their_second_window() -> None:
    given, others = parameters(), parameters()
    optimizer, other = torch.optim.SGD(given, lr=1.0), torch.optim.SGD(others, lr=1.0)
    given[1].requires_grad_(requires_grad=False)
    with gradcanary.fp32_accumulators(optimizer):
        for step in range(4):
            micro = micro_gradients(given, 1 if step == 2 else K, step)
            if step == 2:
                given[1].requires_grad_(requires_grad=True)
            accumulate(given, micro)
            sums = truth(micro)
            for each, total in zip(others, sums, strict=True):
                each.grad = total.to(BF16)
            if step < 2:
                others[1].grad = None
            for stepping in (optimizer, other):
                stepping.step()
                stepping.zero_grad()
    assert_same(given, others)
    assert_nothing_is_left(given, optimizer)


def test_an_optimizer_inside_backward_steps_as_before() -> None:
    given, others = parameters(), parameters()
    helped = []
    for parameter in given + others:
        own = torch.optim.SGD([parameter], lr=0.5)
        if any(parameter is each for each in given):
            helped.append(gradcanary.fp32_accumulators(own))

        def stepped(_: torch.Tensor, own: torch.optim.Optimizer = own) -> None:
            own.step()
            own.zero_grad()

        parameter.register_post_accumulate_grad_hook(stepped)
    micro = micro_gradients(given, 4, 0)
    accumulate(given, micro)
    accumulate(others, micro)
    assert_same(given, others)
    for each in helped:
        each.close()  # a parameter whose hook holds its optimizer is never collected


def test_sparse_gradients_add_up_in_float32_too() -> None:
    torch.manual_seed(0)
    table = nn.Embedding(8, 4, sparse=True, dtype=BF16)
    optimizer = torch.optim.SGD(table.parameters(), lr=1.0)
    before = table.weight.detach().clone()
    with gradcanary.fp32_accumulators(optimizer):
        for _ in range(1000):
            table(torch.tensor([1, 2, 1])).sum().backward()
        assert table.weight.grad.dtype is FP32
        optimizer.step()
    assert table.weight.grad.dtype is BF16
    assert table.weight.grad.to_dense()[:, 0].tolist() == [0, 2000, 1000, 0, 0, 0, 0, 0]
    assert torch.equal(before[3:], table.weight.detach()[3:])


def test_a_compiled_model_is_summed_in_float32() -> None:
    model = nn.Linear(8, 4, dtype=BF16)
    net = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    with gradcanary.fp32_accumulators(optimizer):
        for rows in (4, 4, 6, 6):  # compiled again, while there are float32 gradients
            net(torch.ones(rows, 8, dtype=BF16)).sum().backward()
        assert summed_in(list(model.parameters())) == [FP32, FP32]
        assert model.bias.grad.tolist() == [20.0] * 4
        optimizer.step()
    torch._dynamo.reset()
