"""``fp32_accumulators()`` on the bad days: what it refuses, how it ends, and that nothing of it is left."""

import copy
import gc
import io
import pickle
from collections.abc import Iterator
from datetime import timedelta

import pytest
import torch
from torch import distributed, nn

import gradcanary
from gradcanary import fp32_sums
from support.agent.exact_sums import (
    accumulate,
    adamw,
    assert_nothing_is_left,
    assert_same,
    loss_of,
    micro_gradients,
    parameters,
    step_by_truth,
    summed_in,
    truth,
)

BF16, FP32 = torch.bfloat16, torch.float32
K = 24


def lora(dtype: torch.dtype = BF16) -> nn.Module:
    """A model as PEFT makes it, so far as its names go."""
    torch.manual_seed(0)
    block = nn.ModuleDict({"base": nn.Linear(8, 8), "lora_A": nn.Linear(8, 2), "lora_B": nn.Linear(2, 8)})
    return nn.ModuleDict({"first": block, "last": copy.deepcopy(block)}).to(dtype)


# -- how it ends -------------------------------------------------------------------------------------------------------


def test_close_within_a_window_leaves_the_sum_rounded() -> None:
    given = parameters()
    optimizer = adamw(given)
    helper = gradcanary.fp32_accumulators(optimizer)
    micro = micro_gradients(given, K, 0)
    accumulate(given, micro)
    helper.close()
    assert_same([each.grad for each in given], [each.to(BF16) for each in truth(micro)])
    assert_nothing_is_left(given, optimizer)
    helper.close()
    before = [each.grad.clone() for each in given]
    accumulate(given, micro[:1])
    assert_same([each.grad for each in given], [a + b for a, b in zip(before, micro[0], strict=True)])
    optimizer.step()


def test_float32_sums_may_begin_within_a_window_and_again() -> None:
    given, others = parameters(), parameters()
    optimizer, other = adamw(given), adamw(others)
    micro = micro_gradients(given, K, 0)
    accumulate(given, micro[:2])
    with gradcanary.fp32_accumulators(optimizer):
        accumulate(given, micro[2:])
        assert_same([each.grad.double() for each in given], truth(micro))
        optimizer.step()
        optimizer.zero_grad()
    with gradcanary.fp32_accumulators(optimizer):
        accumulate(given, micro)
        optimizer.step()
    for _ in range(2):
        step_by_truth(other, others, truth(micro))
    assert_same(given, others)
    assert_nothing_is_left(given, optimizer)


def test_an_exception_in_the_loop_passes() -> None:
    given = parameters()
    optimizer = adamw(given)
    with pytest.raises(ValueError, match="shorter than"), gradcanary.fp32_accumulators(optimizer):
        accumulate(given, [*micro_gradients(given, 3, 0), []])
    assert summed_in(given) == [BF16] * len(given)
    assert_nothing_is_left(given, optimizer)


@pytest.mark.parametrize("clears", [None, False, True])
def test_after_a_step_that_raised_the_next_window_is_right(*, clears: bool | None) -> None:
    """Without a clear the same gradients are stepped with again."""
    given, others = parameters(), parameters()
    optimizer, other = adamw(given), adamw(others)
    first, second = micro_gradients(given, K, 0), micro_gradients(given, K, 1)
    with gradcanary.fp32_accumulators(optimizer):
        accumulate(given, first)
        lr, optimizer.param_groups[0]["lr"] = optimizer.param_groups[0]["lr"], None
        with pytest.raises(TypeError):
            optimizer.step()
        optimizer.param_groups[0]["lr"] = lr
        for state in optimizer.state.values():
            state.clear()
        if clears is not None:
            optimizer.zero_grad(set_to_none=clears)
            accumulate(given, second)
        optimizer.step()
    step_by_truth(other, others, truth(first if clears is None else second))
    assert_same(given, others)


def test_the_end_of_its_optimizer_does_no_work_where_the_collector_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """That may be any thread, within a backward pass or while a CUDA graph is recorded."""
    given, searched = parameters(), []
    optimizer = adamw(given)
    gradcanary.fp32_accumulators(optimizer)
    accumulate(given, micro_gradients(given, 2, 0))
    living = fp32_sums.live_objects
    monkeypatch.setattr(fp32_sums, "live_objects", lambda kind: (searched.append(kind), living(kind))[1])
    del optimizer
    gc.collect()
    assert searched == []
    assert summed_in(given) == [FP32] * len(given)
    accumulate(given, micro_gradients(given, 1, 0))
    assert searched
    assert summed_in(given) == [BF16] * len(given)
    assert_nothing_is_left(given, adamw(given))


def test_float32_sums_end_with_their_optimizer() -> None:
    given = parameters()
    optimizer = adamw(given)
    gradcanary.fp32_accumulators(optimizer)
    accumulate(given, micro_gradients(given, 2, 0))
    assert summed_in(given) == [FP32] * len(given)
    del optimizer
    gc.collect()
    successor = adamw(given)
    helper = gradcanary.fp32_accumulators(successor)
    helper.close()
    assert_nothing_is_left(given, successor)
    helper = gradcanary.fp32_accumulators(successor)
    successor.step()
    del given, successor
    gc.collect()
    assert helper._parameters() == []
    helper.close()


@pytest.mark.parametrize("moment", ["between windows", "twice", "after it was closed"])
def test_a_model_whose_tensors_are_swapped(moment: str) -> None:
    """As ``model.to()`` does where torch is asked to: it refuses tensors that have weak references."""
    torch.__future__.set_swap_module_params_on_conversion(value=True)
    try:
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)).to(BF16)
        given = list(model.parameters())
        optimizer = adamw(given)
        helper = gradcanary.fp32_accumulators(optimizer)
        accumulate(given, micro_gradients(given, 2, 0))
        optimizer.step()
        optimizer.zero_grad()
        model.to(torch.float16)
        if moment == "twice":
            model.to(BF16)
        if moment == "after it was closed":
            helper.close()
        low = BF16 if moment == "twice" else torch.float16
        micro = micro_gradients(given, 3, 1)
        accumulate(given, micro)
        assert summed_in(given) == [low if moment == "after it was closed" else FP32] * len(given)
        if moment != "after it was closed":
            assert_same([each.grad for each in given], [each.float() for each in truth(micro)])
            helper.close()
        assert_nothing_is_left(given, optimizer)
        optimizer.zero_grad()
        model.to(FP32)
        assert_nothing_is_left(given, optimizer)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(value=False)


def test_copies_are_plain() -> None:
    """deepcopy, pickle and torch.save of model, optimizer and the handle, in the middle of a window."""
    model = lora()
    given = list(model.parameters())
    optimizer, plain = adamw(given), adamw(given)
    helper = gradcanary.fp32_accumulators(optimizer)
    accumulate(given, micro_gradients(given, 2, 0))
    assert optimizer.state_dict() == plain.state_dict()
    saved = io.BytesIO()
    torch.save((model, optimizer, helper), saved)
    saved.seek(0)
    held = (model, optimizer, helper)
    for twin, stepping, ended in (
        copy.deepcopy(held),
        pickle.loads(pickle.dumps(held)),
        torch.load(saved, weights_only=False),
    ):
        ended.close()
        copies = list(twin.parameters())
        accumulate(copies, micro_gradients(copies, 2, 0))
        assert_nothing_is_left(copies, stepping)
        stepping.step()
    assert summed_in(given) == [FP32] * len(given)
    helper.close()


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_names_choose_among_the_parameters() -> None:
    model = lora()
    given = dict(model.named_parameters())
    optimizer = adamw(model.parameters())
    for params, chosen in (
        ("lora", {name for name in given if "lora_" in name}),
        (r"^last\..*bias$", {name for name in given if name.startswith("last") and name.endswith("bias")}),
        (None, set(given)),
    ):
        with gradcanary.fp32_accumulators(optimizer, params):
            assert {name for name, each in given.items() if each._post_accumulate_grad_hooks} == chosen
            accumulate(list(given.values()), micro_gradients(list(given.values()), 2, 0))
            assert {name for name, each in given.items() if each.grad.dtype is FP32} == chosen
            optimizer.step()
            optimizer.zero_grad()
    assert_nothing_is_left(list(given.values()), optimizer)


@pytest.mark.parametrize(
    ("dtype", "params", "kind", "said"),
    [
        (FP32, None, ValueError, "it holds float32, and neither bfloat16 nor float16"),
        (FP32, "lora", ValueError, "it holds float32, and neither bfloat16 nor float16"),
        (
            BF16,
            "q_proj",
            ValueError,
            r"matches no parameter; there are, for example, first\.base\.weight, first\.base\.bias",
        ),
        (BF16, "(", ValueError, r"params='\('\): it must be a regular expression"),
        (BF16, "", ValueError, "params=''"),
        (BF16, 3, TypeError, "is a int: it must be None or a text"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(dtype: torch.dtype, params: str, kind: type[Exception], said: str) -> None:
    model = lora(dtype)
    optimizer = adamw(model.parameters())
    with pytest.raises(kind, match=said):
        gradcanary.fp32_accumulators(optimizer, params)
    assert_nothing_is_left(list(model.parameters()), optimizer)


def test_no_optimizer_no_layer_of_low_precision_and_a_second_one_are_refused() -> None:
    model = lora()
    with pytest.raises(TypeError, match=r"fp32_accumulators\(ModuleDict\): it takes a torch.optim.Optimizer"):
        gradcanary.fp32_accumulators(model)
    model["last"].float()
    optimizer = adamw(model.parameters())
    with pytest.raises(
        ValueError, match=r"matches 6 parameters, none of them bfloat16 or float16; .* first\.base\.weight"
    ):
        gradcanary.fp32_accumulators(optimizer, "last")
    with gradcanary.fp32_accumulators(optimizer, "lora"):
        with pytest.raises(ValueError, match=r"in float32 already; close\(\) that one first"):
            gradcanary.fp32_accumulators(optimizer)
        gradcanary.fp32_accumulators(optimizer, "base").close()


def test_a_torch_that_knows_no_other_dtype_for_gradients_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fp32_sums, "HAS_GRAD_DTYPE", False)
    with pytest.raises(ValueError, match=r"needs torch 2\.10 or newer, this is 2\..* train under torch\.autocast"):
        gradcanary.fp32_accumulators(adamw(parameters()))


@pytest.fixture
def process_group() -> Iterator[None]:
    distributed.init_process_group(
        "gloo", store=distributed.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=30)
    )
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_data_parallel_models_are_refused_or_left_to_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    """torch's reducer raises in the backward pass on gradients of another dtype than its buckets."""
    model = nn.Linear(8, 4, dtype=BF16)
    optimizer = adamw(model.parameters())
    gradcanary.fp32_accumulators(optimizer)
    wrapped = nn.parallel.DistributedDataParallel(model)
    for _ in range(3):
        wrapped(torch.ones(2, 8, dtype=BF16)).sum().backward()
    assert_nothing_is_left(list(model.parameters()), optimizer)
    said = capsys.readouterr().err
    assert "fp32_accumulators() ends: its parameters are in a DistributedDataParallel now; it takes" in said
    with pytest.raises(ValueError, match=r"belong to a DistributedDataParallel; .* under torch.autocast"):
        gradcanary.fp32_accumulators(optimizer)
    optimizer.step()


@pytest.mark.usefixtures("process_group")
def test_sharded_models_are_refused() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = nn.Linear(8, 4, dtype=BF16)
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(ValueError, match=r"belong to a DTensor; .* MixedPrecisionPolicy\(param_dtype"):
        gradcanary.fp32_accumulators(adamw(model.parameters()))


def test_parameters_without_float32_sums_are_reported_once(capsys: pytest.CaptureFixture[str]) -> None:
    given = parameters()
    optimizer = adamw(given)
    with gradcanary.fp32_accumulators(optimizer):
        for _ in range(2):
            gradients = torch.autograd.grad(loss_of(given, given), given)
            assert [each.dtype for each in gradients] == [BF16] * len(given)
            for each, gradient in zip(given, gradients, strict=True):
                each.grad = gradient
            optimizer.step()
    assert capsys.readouterr().err.count("sees no gradient being summed") == 1
