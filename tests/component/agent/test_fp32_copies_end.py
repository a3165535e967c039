"""``fp32_masters()`` over checkpoints and on the bad days: what it refuses, how it ends, and that nothing is left."""

import copy
import gc
import io
import pickle
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import distributed, nn

import gradcanary
from gradcanary import fp32_copies
from support.agent.exact_sums import accumulate, adamw, assert_same, micro_gradients, parameters, states_of

BF16, FP32 = torch.bfloat16, torch.float32

KINDS = {
    "AdamW": lambda given: torch.optim.AdamW(given, lr=1e-5),
    "AdamW, fused": lambda given: torch.optim.AdamW(given, lr=1e-5, fused=True),
    "SGD": lambda given: torch.optim.SGD(given, lr=1e-4),
    "NAdam": lambda given: torch.optim.NAdam(given, lr=1e-5),
    "Adafactor": lambda given: torch.optim.Adafactor(given, lr=1e-4),
}


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4)).to(BF16)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    given = list(model.parameters())
    for step in steps:
        accumulate(given, micro_gradients(given, 1, step))
        optimizer.step()
        optimizer.zero_grad()


def saved(**parts: Any) -> dict[str, Any]:
    """Return what a process finds that starts again."""
    file = io.BytesIO()
    torch.save({name: each.state_dict() for name, each in parts.items()}, file)
    file.seek(0)
    found: dict[str, Any] = torch.load(file, weights_only=True)
    return found


def assert_nothing_is_left(optimizer: torch.optim.Optimizer) -> None:
    hooks = {name: each for name, each in vars(optimizer).items() if name.endswith("_hooks")}
    assert hooks
    assert not any(hooks.values())
    assert "step" not in vars(optimizer)
    held = [each for group in optimizer.param_groups for each in group["params"]]
    assert optimizer.state.keys() <= set(held)
    assert not hasattr(torch.autograd.backward, "__wrapped__")


# -- checkpoints -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model_first", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resumed_training_goes_on_bit_for_bit(kind: str, *, model_first: bool, capsys: Any) -> None:
    model = net()
    optimizer = KINDS[kind](model.parameters())
    gradcanary.fp32_masters(optimizer)
    train(model, optimizer, range(20))
    checkpoint = saved(model=model, optimizer=optimizer)
    train(model, optimizer, range(20, 40))

    twin = net(seed=1)
    other = KINDS[kind](twin.parameters())
    gradcanary.fp32_masters(other)
    for name in ("model", "optimizer") if model_first else ("optimizer", "model"):
        {"model": twin, "optimizer": other}[name].load_state_dict(checkpoint[name])
    train(twin, other, range(20, 40))
    assert_same(list(twin.parameters()), list(model.parameters()))
    assert_same(states_of(other), states_of(optimizer))
    assert capsys.readouterr().err == ""


def test_going_back_to_a_checkpoint_in_the_same_process() -> None:
    model = net()
    optimizer = adamw(list(model.parameters()))
    gradcanary.fp32_masters(optimizer)
    train(model, optimizer, range(5))
    checkpoint = saved(model=model, optimizer=optimizer)
    train(model, optimizer, range(5, 9))
    first = [each.detach().clone() for each in model.parameters()]
    optimizer.load_state_dict(checkpoint["optimizer"])
    model.load_state_dict(checkpoint["model"])
    train(model, optimizer, range(5, 9))
    assert_same(list(model.parameters()), first)


def test_a_checkpoint_of_before_the_first_step_is_a_plain_one() -> None:
    model = net()
    optimizer = adamw(list(model.parameters()))
    gradcanary.fp32_masters(optimizer)
    assert optimizer.state_dict()["state"] == {}
    model.load_state_dict(net(seed=1).state_dict())
    assert optimizer.state_dict()["state"] == {}
    adamw(list(net().parameters())).load_state_dict(optimizer.state_dict())


def test_a_checkpoint_without_copies_loads_and_says_so_once(capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    optimizer = adamw(list(model.parameters()))
    train(model, optimizer, range(5))
    checkpoint = saved(model=model, optimizer=optimizer)
    twin = net()
    other = adamw(list(twin.parameters()))
    gradcanary.fp32_masters(other)
    train(twin, other, range(3))
    for _ in range(2):
        twin.load_state_dict(checkpoint["model"])
        other.load_state_dict(checkpoint["optimizer"])
    assert capsys.readouterr().err.count("has no float32 copies, so they begin at the weights") == 1
    assert {each.dtype for each in states_of(other)} == {FP32}
    wide = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    wide.load_state_dict(model.state_dict())
    stock = adamw(list(wide.parameters()))
    stock.load_state_dict(copy.deepcopy(checkpoint["optimizer"]))  # torch shares the tensors of ``step``
    for step in range(3):
        for each, true in zip(wide.parameters(), micro_gradients(list(model.parameters()), 1, step)[0], strict=True):
            each.grad = true.float()
        stock.step()
    train(twin, other, range(3))
    assert_same(list(twin.parameters()), [each.detach().to(BF16) for each in wide.parameters()])


def test_a_checkpoint_with_copies_loads_without_them() -> None:
    """As a training without them goes on: from the rounded weights and states."""
    model = net()
    optimizer = adamw(list(model.parameters()))
    gradcanary.fp32_masters(optimizer)
    train(model, optimizer, range(5))
    checkpoint = saved(model=model, optimizer=optimizer)
    twin = net()
    other = adamw(list(twin.parameters()))
    twin.load_state_dict(checkpoint["model"])
    other.load_state_dict(checkpoint["optimizer"])
    train(twin, other, range(5, 8))
    assert {each.dtype for each in twin.parameters()} == {BF16}


def test_a_state_that_was_loaded_before_the_call_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    model = net()
    optimizer = adamw(list(model.parameters()))
    gradcanary.fp32_masters(optimizer)
    train(model, optimizer, range(5))
    checkpoint = saved(optimizer=optimizer)
    other = adamw(list(model.parameters()))
    other.load_state_dict(checkpoint["optimizer"])
    with gradcanary.fp32_masters(other):
        assert capsys.readouterr().err.count("Call fp32_masters() first, and load_state_dict() after it") == 1
        train(model, other, range(3))
    assert all("fp32_master" not in each for each in other.state.values())


def test_the_number_of_steps_is_loaded_as_torch_does() -> None:
    """On CUDA torch moves it to the parameters' device for fused kernels, and leaves it on the CPU for others."""
    model = net()
    optimizer = KINDS["AdamW, fused"](model.parameters())
    gradcanary.fp32_masters(optimizer)
    train(model, optimizer, range(3))
    checkpoint = optimizer.state_dict()
    for state in checkpoint["state"].values():
        state["step"] = state["step"].double()
    optimizer.load_state_dict(checkpoint)
    assert {each["step"].dtype for each in optimizer.state.values()} == {FP32}
    train(model, optimizer, range(3, 5))


def test_a_checkpoint_that_torch_refuses_changes_nothing() -> None:
    model, twin = net(), net()
    optimizer, other = adamw(list(model.parameters())), adamw(list(twin.parameters()))
    gradcanary.fp32_masters(optimizer)
    gradcanary.fp32_masters(other)
    train(model, optimizer, range(3))
    train(twin, other, range(3))
    with pytest.raises(ValueError, match="parameter group"):
        optimizer.load_state_dict(adamw(parameters()).state_dict())
    train(model, optimizer, range(3, 6))
    train(twin, other, range(3, 6))
    assert_same(list(model.parameters()), list(twin.parameters()))


# -- a step that raises ------------------------------------------------------------------------------------------------


class StopsOnce(torch.optim.Optimizer):
    """Somebody stops a cell of a notebook within the step. Not a class of torch's, whose own step has hooks, too."""

    stops = True

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            for each in group["params"]:
                self.state[each]["sum"] = self.state[each].get("sum", torch.zeros_like(each)) + each.grad
                each.add_(each.grad, alpha=-group["lr"])
        if self.stops:
            self.stops = False
            raise KeyboardInterrupt


@pytest.mark.parametrize("clears", ["optimizer", "model", "optimizer, in place", "model, in place", "nothing"])
def test_after_a_step_that_raised_the_model_is_as_ever_and_the_training_goes_on(clears: str) -> None:
    model, twin = net(), net()
    given, others = list(model.parameters()), [nn.Parameter(each.detach().float()) for each in twin.parameters()]
    optimizer, other = StopsOnce(given, lr=1e-3), torch.optim.SGD(others, lr=1e-3)
    with gradcanary.fp32_masters(optimizer):
        with pytest.raises(KeyboardInterrupt):
            train(model, optimizer, range(1))
        assert {each.dtype for each in model.state_dict().values()} == {BF16}
        model(torch.ones(2, 8, dtype=BF16))
        owner = optimizer if "optimizer" in clears else model
        if clears != "nothing":
            owner.zero_grad(set_to_none="in place" not in clears)
        accumulate(given, micro_gradients(given, 1, 1))
        optimizer.step()
        assert [each for group in optimizer.param_groups for each in group["params"]] == given
    for seeds in ([0], [1] if clears != "nothing" else [0, 1]):
        for each, *gradients in zip(others, *[micro_gradients(given, 1, seed)[0] for seed in seeds], strict=True):
            each.grad = sum(gradients).float()
        other.step()
    assert_same(given, [each.detach().to(BF16) for each in others])
    assert_nothing_is_left(optimizer)


def test_a_gradient_cleared_after_a_step_that_raised_is_not_stepped() -> None:
    """Also where the next step comes without a backward pass between."""
    model = net()
    optimizer = StopsOnce(model.parameters(), lr=1e-3)
    with gradcanary.fp32_masters(optimizer):
        with pytest.raises(KeyboardInterrupt):
            train(model, optimizer, range(1))
        optimizer.zero_grad(set_to_none=False)
        optimizer.state_dict()
        before = [each.detach().clone() for each in model.parameters()]
        optimizer.step()
        assert_same(list(model.parameters()), before)


def test_a_checkpoint_after_a_step_that_raised_is_whole() -> None:
    model = net()
    optimizer = StopsOnce(model.parameters(), lr=1e-3)
    gradcanary.fp32_masters(optimizer)
    with pytest.raises(KeyboardInterrupt):
        train(model, optimizer, range(1))
    states = optimizer.state_dict()["state"]
    assert [sorted(each) for each in states.values()] == [["fp32_master", "sum"]] * 4


def test_an_optimizer_that_is_thrown_away_after_it_raised_leaves_nothing() -> None:
    model = net()
    optimizer = StopsOnce(model.parameters(), lr=1e-3)
    gradcanary.fp32_masters(optimizer)
    with pytest.raises(KeyboardInterrupt):
        train(model, optimizer, range(1))
    ends = [weakref.ref(optimizer), weakref.ref(model[0].weight)]
    del model, optimizer
    gc.collect()
    torch.ones(1, requires_grad=True).sum().backward()
    gc.collect()
    assert [each() for each in ends] == [None, None]
    assert not hasattr(torch.autograd.backward, "__wrapped__")


def test_a_closure_that_raises_passes() -> None:
    model = net()
    optimizer = adamw(list(model.parameters()))
    with gradcanary.fp32_masters(optimizer):
        train(model, optimizer, range(2))
        with pytest.raises(ZeroDivisionError):
            optimizer.step(lambda: 1 / 0)
        train(model, optimizer, range(2, 3))
    assert_nothing_is_left(optimizer)


class Elsewhere(torch.optim.SGD):
    """Steps by an optimizer of its own, as ZeroRedundancyOptimizer does."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, lr=1.0)
        self.inner = torch.optim.SGD(self.param_groups[0]["params"], lr=1.0)

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)


def test_an_optimizer_that_steps_others_than_its_groups_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    model, twin = net(), net()
    optimizer = Elsewhere(list(model.parameters()))
    gradcanary.fp32_masters(optimizer)
    hooks = hook_on(optimizer)
    train(model, optimizer, range(3))
    train(twin, Elsewhere(list(twin.parameters())), range(3))
    assert_same(list(model.parameters()), list(twin.parameters()))
    for each in hooks:
        each.remove()
    assert_nothing_is_left(optimizer)
    assert capsys.readouterr().err.count("wrote to the parameters themselves, not to those in its groups") == 1


# -- how it ends -------------------------------------------------------------------------------------------------------


def test_close_leaves_rounded_weights_and_states_as_without_it() -> None:
    model = net()
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-5)
    helper = gradcanary.fp32_masters(optimizer)
    train(model, optimizer, range(5))
    before = [each.detach().clone() for each in model.parameters()]
    helper.close()
    helper.close()
    assert_same(list(model.parameters()), before)
    for each in optimizer.state.values():
        assert {key: value.dtype for key, value in each.items()} == {
            "step": FP32,
            "mu_product": FP32,
            "exp_avg": BF16,
            "exp_avg_sq": BF16,
        }
    assert "fp32_master" not in optimizer.state_dict()["state"][0]
    train(model, optimizer, range(5, 8))
    assert_nothing_is_left(optimizer)


def test_an_exception_in_the_loop_passes() -> None:
    optimizer = adamw(parameters())
    with pytest.raises(ValueError, match="the loop's"), gradcanary.fp32_masters(optimizer):
        raise ValueError("the loop's")
    assert_nothing_is_left(optimizer)


def test_nothing_keeps_the_optimizer_its_parameters_or_the_copies_alive() -> None:
    model = net()
    optimizer = adamw(list(model.parameters()))
    helper = gradcanary.fp32_masters(optimizer)
    train(model, optimizer, range(2))
    ends = [weakref.ref(optimizer), weakref.ref(model[0].weight), *map(weakref.ref, helper._masters.values())]
    del model, optimizer
    gc.collect()
    assert [each() for each in ends] == [None] * len(ends)
    helper.close()


def test_copies_of_model_and_optimizer_are_plain() -> None:
    """A copied optimizer keeps float32 states, which new copies of the weights take over."""
    model = net()
    optimizer = adamw(list(model.parameters()))
    helper = gradcanary.fp32_masters(optimizer)
    train(model, optimizer, range(3))
    for twin, stepping, ended in (
        copy.deepcopy((model, optimizer, helper)),
        pickle.loads(pickle.dumps((model, optimizer, helper))),
    ):
        ended.close()
        assert_nothing_is_left(stepping)
        assert_same(list(twin.parameters()), list(model.parameters()))
        with gradcanary.fp32_masters(stepping):
            train(twin, stepping, range(3, 5))
        train(twin, stepping, range(5, 6))


def hook_on(optimizer: torch.optim.Optimizer) -> list[Any]:
    """Return handles of hooks of the script, after which torch looks for further ones."""
    return [optimizer.register_step_pre_hook(nothing), optimizer.register_step_post_hook(nothing)]


def nothing(*_: object) -> None:
    return None


@pytest.mark.parametrize("summed", ["before", "after", "no"])
@pytest.mark.parametrize("failing", ["_following", "_move_state"])
def test_a_fault_of_its_own_ends_it_and_the_training_goes_on(
    failing: str, summed: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = net()
    optimizer = adamw(list(model.parameters()))
    handles = [gradcanary.fp32_accumulators(optimizer)] if summed == "before" else []
    gradcanary.fp32_masters(optimizer)
    handles += [gradcanary.fp32_accumulators(optimizer)] if summed == "after" else []
    hooks = hook_on(optimizer)
    train(model, optimizer, range(2))
    before = [each.detach().clone() for each in model.parameters()]

    def fail(*_: object) -> None:
        raise ZeroDivisionError("our own fault")

    with monkeypatch.context() as broken:
        broken.setattr(fp32_copies, failing, fail)
        accumulate(list(model.parameters()), micro_gradients(before, 1, 2))
        optimizer.step()
    said = capsys.readouterr().err
    assert said.count("fp32_masters() ends: its own code failed. The weights are what the last step left") == 1
    train(model, optimizer, range(3, 5))
    assert {each.dtype for each in model.parameters()} == {BF16}
    for each in hooks:
        each.remove()
    for each in handles:
        each.close()
    assert_nothing_is_left(optimizer)


@pytest.mark.parametrize("is_first", [True, False])
def test_a_hook_after_the_step_sees_and_writes_the_stepped_weights(*, is_first: bool) -> None:
    model, seen = net(), []
    optimizer = adamw(list(model.parameters()))
    masters = None if is_first else gradcanary.fp32_masters(optimizer)

    def clamp(*_: object) -> None:
        with torch.no_grad():
            seen.append([each.detach().clone() for each in model.parameters()])
            model[0].weight.clamp_(-0.01, 0.01)

    optimizer.register_step_post_hook(clamp)
    masters = masters or gradcanary.fp32_masters(optimizer)
    for step in range(3):
        train(model, optimizer, range(step, step + 1))
        assert_same([each.detach() for each in model.parameters()][1:], seen[-1][1:])
        assert model[0].weight.abs().max() <= 0.01
    masters.close()
    assert optimizer.state[model[0].weight]["step"] == 3


def test_a_model_that_is_converted_meanwhile_goes_on() -> None:
    model = net()
    optimizer = adamw(list(model.parameters()))
    with gradcanary.fp32_masters(optimizer):
        for dtype in (BF16, torch.float16, FP32, BF16):
            model.to(dtype)
            train(model, optimizer, range(2))
    train(model, optimizer, range(1))
    assert_nothing_is_left(optimizer)


# -- what is refused ---------------------------------------------------------------------------------------------------


def test_names_choose_among_the_parameters() -> None:
    model = nn.ModuleDict({"base": nn.Linear(8, 8), "lora_A": nn.Linear(8, 2)}).to(BF16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    start = {name: each.detach().clone() for name, each in model.named_parameters()}
    with gradcanary.fp32_masters(optimizer, "lora"):
        train(model, optimizer, range(1))
        found = optimizer.state_dict()["state"]
        assert sorted(found) == [2, 3]
        assert_same([found[2]["fp32_master"].to(BF16)], [model["lora_A"].weight])
    assert any(not torch.equal(each, start[name]) for name, each in model.named_parameters())


@pytest.mark.parametrize(
    ("dtype", "params", "kind", "said"),
    [
        (FP32, None, ValueError, r"fp32_masters\(optimizer\): it holds float32, and neither bfloat16 nor float16"),
        (BF16, "q_proj", ValueError, r"fp32_masters\(params='q_proj'\) matches no parameter; there are, for example, "),
        (BF16, "(", ValueError, r"fp32_masters\(params='\('\): it must be a regular expression"),
        (BF16, "", ValueError, r"fp32_masters\(params=''\)"),
        (BF16, 3, TypeError, r"fp32_masters\(params=\) is a int: it must be None or a text"),
    ],
)
def test_wrong_arguments_say_what_is_wrong(dtype: torch.dtype, params: Any, kind: type[Exception], said: str) -> None:
    optimizer = adamw(list(net().to(dtype).parameters()))
    with pytest.raises(kind, match=said):
        gradcanary.fp32_masters(optimizer, params)
    assert_nothing_is_left(optimizer)


def test_no_optimizer_a_differentiable_one_and_a_second_call_are_refused() -> None:
    given = parameters()
    with pytest.raises(TypeError, match=r"fp32_masters\(list\): it takes a torch.optim.Optimizer"):
        gradcanary.fp32_masters(given)
    with pytest.raises(ValueError, match="a differentiable optimizer has to step the parameters themselves"):
        gradcanary.fp32_masters(torch.optim.SGD(given, lr=0.1, differentiable=True))
    optimizer = adamw(given)
    with gradcanary.fp32_masters(optimizer), pytest.raises(ValueError, match=r"copies already; close\(\) that one"):
        gradcanary.fp32_masters(optimizer)
    gradcanary.fp32_masters(optimizer).close()


@pytest.fixture
def process_group() -> Iterator[None]:
    distributed.init_process_group(
        "gloo", store=distributed.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=30)
    )
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_sharded_models_are_refused() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = net()
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(ValueError, match=r"belong to a DTensor, .* float32 .* MixedPrecisionPolicy\(param_dtype"):
        gradcanary.fp32_masters(adamw(list(model.parameters())))
