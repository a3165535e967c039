"""What is set up from a configuration: real optimizers, real sums, and the loop of the documentation."""

import io
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import gradcanary
from gradcanary import TrainingConfig, create_stable_optimizer, setup_training
from support.agent.documented import example
from support.agent.exact_sums import accumulate, assert_nothing_is_left, assert_same, micro_gradients, summed_in, truth
from support.agent.fixtures import complaints
from support.agent.recorded import Recorded, recording

BF16, FP16, FP32 = torch.bfloat16, torch.float16, torch.float32


@pytest.fixture(autouse=True)
def silent(capsys: pytest.CaptureFixture[str], spool_folder: Path) -> Iterator[None]:
    """What goes wrong inside is told on stderr, and only there; so is what other trainings left in the spool."""
    yield
    assert complaints(capsys.readouterr().err) == ""


@pytest.fixture
def collector() -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded


def model_of(dtype: torch.dtype = FP32) -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(dtype)


def parameters_of(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


# -- the optimizer -----------------------------------------------------------------------------------------------------


def test_it_is_adamw_over_what_is_trainable() -> None:
    model = model_of()
    model[0].requires_grad_(False)
    optimizer = create_stable_optimizer(model, TrainingConfig(learning_rate=0.02, weight_decay=0.3))
    (group,) = optimizer.param_groups
    stock = torch.optim.AdamW(model[2].parameters(), lr=0.02, weight_decay=0.3).param_groups[0]
    assert type(optimizer) is torch.optim.AdamW
    assert [id(each) for each in group["params"]] == [id(each) for each in model[2].parameters()]
    assert {**group, "params": None} == {**stock, "params": None}
    assert (optimizer.accumulators, optimizer.masters) == (None, None)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (model_of().requires_grad_(False), r"Sequential\): none of its 4 parameters is trainable"),
        (nn.ReLU(), r"ReLU\): it has no parameters"),
    ],
)  # fmt: skip
def test_a_model_without_trainable_parameters_is_refused_with_what_to_do(model: nn.Module, words: str) -> None:
    with pytest.raises(
        ValueError,
        match=r"create_stable_optimizer\("
        + words
        + r"\. Call requires_grad_\(True\) on those to train, or add adapters",
    ):
        create_stable_optimizer(model, TrainingConfig())


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(TypeError, match=r"create_stable_optimizer\(list\): it takes a torch.nn.Module"):
        create_stable_optimizer([], TrainingConfig())  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [BF16, FP16])
def test_sums_of_low_precision_are_float32_until_they_are_closed(dtype: torch.dtype) -> None:
    model = model_of(dtype)
    optimizer: Any = create_stable_optimizer(model, TrainingConfig(accumulation_steps=24))
    given = list(model.parameters())
    micro = micro_gradients(given, 24, 0)
    accumulate(given, micro)
    for parameter, true in zip(given, truth(micro), strict=True):
        assert parameter.grad is not None
        assert parameter.grad.dtype is FP32
        assert float((parameter.grad.double() - true).norm() / true.norm()) < 1e-6
    optimizer.zero_grad()
    optimizer.accumulators.close()
    accumulate(given, micro)
    assert {*summed_in(given)} == {dtype}


def moved_share(dtype: torch.dtype, *, has_masters: bool) -> float:
    """Return the share of the weights that 100 steps at a learning rate of 1e-5 change."""
    model = model_of(dtype)
    optimizer: Any = create_stable_optimizer(model, TrainingConfig(learning_rate=1e-5, master_weights=has_masters))
    assert (optimizer.masters is not None) == has_masters
    before = torch.cat([each.flatten() for each in parameters_of(model)])
    torch.manual_seed(1)
    for _ in range(100):
        loss_of(model, torch.randn(6, 16).to(dtype)).backward()
        optimizer.step()
        optimizer.zero_grad()
    after = torch.cat([each.flatten() for each in parameters_of(model)])
    assert bool(after.isfinite().all())
    return float((before != after).float().mean())


def test_low_precision_weights_move_at_a_small_learning_rate() -> None:
    assert moved_share(BF16, has_masters=True) > 0.5
    assert moved_share(BF16, has_masters=False) < 0.1
    assert moved_share(FP16, has_masters=True) > 0.9
    with pytest.raises(
        ValueError, match=r"master_weights is false, and the model has trainable parameters of torch\.float16"
    ):
        create_stable_optimizer(model_of(FP16), TrainingConfig(master_weights=False))


def test_closed_masters_leave_a_stock_optimizer() -> None:
    model = model_of(BF16)
    optimizer: Any = create_stable_optimizer(model, TrainingConfig())
    optimizer.masters.close()
    optimizer.accumulators.close()
    assert_nothing_is_left(list(model.parameters()), optimizer)


def test_the_sums_end_with_the_optimizer() -> None:
    model = model_of(BF16)
    optimizer = create_stable_optimizer(model, TrainingConfig())
    given = list(model.parameters())
    accumulate(given, micro_gradients(given, 2, 0))
    assert {*summed_in(given)} == {FP32}
    model.zero_grad()
    del optimizer
    accumulate(given, micro_gradients(given, 2, 0))
    assert {*summed_in(given)} == {BF16}


@pytest.mark.filterwarnings("ignore:TrainingConfig.accumulator_dtype='bfloat16'")
def test_sums_in_bfloat16_are_so_or_an_error() -> None:
    config = TrainingConfig(accumulator_dtype="bfloat16", accumulation_steps=8)
    model = model_of(BF16)
    optimizer = create_stable_optimizer(model, config)
    given = list(model.parameters())
    accumulate(given, micro_gradients(given, 8, 0))
    assert {*summed_in(given)} == {BF16}
    assert optimizer.accumulators is None  # type: ignore[attr-defined]
    for other in (FP32, FP16):
        words = rf"accumulator_dtype is bfloat16, and the model has trainable parameters of {other}: torch sums"
        with pytest.raises(ValueError, match=words):
            create_stable_optimizer(model_of(other), config)


# -- the training ------------------------------------------------------------------------------------------------------


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).float().square().mean()


def batches() -> list[torch.Tensor]:
    torch.manual_seed(5)
    return list(torch.randn(20, 6, 16))


def trained_by_hand(config: TrainingConfig, dtype: torch.dtype) -> list[torch.Tensor]:
    """Train as a stock loop does, with the two helps for parameters of low precision."""
    model = model_of(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay)
    half = {"fp16": FP16, "bf16": BF16}.get(config.mixed_precision)
    scaler = torch.amp.GradScaler("cpu") if half is FP16 else None
    data = batches()
    with ExitStack() as helps:
        for attach in [] if dtype is FP32 else [gradcanary.fp32_accumulators, gradcanary.fp32_masters]:
            helps.enter_context(attach(optimizer))
        for i, batch in enumerate(data):
            with torch.autocast("cpu", dtype=half) if half else nullcontext():
                loss = loss_of(model, batch.to(dtype))
            loss = loss / config.accumulation_steps
            (loss if scaler is None else scaler.scale(loss)).backward()
            if (i + 1) % config.accumulation_steps == 0 or i + 1 == len(data):
                if scaler is None:
                    optimizer.step()
                else:
                    scaler.step(optimizer)
                    scaler.update()
                optimizer.zero_grad()
    return parameters_of(model)


@pytest.mark.parametrize(
    ("mixed_precision", "dtype"),
    [("none", FP32), ("bf16", FP32), ("fp16", FP32), ("none", BF16), ("bf16", BF16), ("fp16", FP16)],
)
def test_the_loop_of_the_documentation_trains_as_one_by_hand(
    collector: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mixed_precision: Any, dtype: torch.dtype
) -> None:
    monkeypatch.chdir(tmp_path)
    config = TrainingConfig(
        learning_rate=0.02, weight_decay=0.1, accumulation_steps=3, mixed_precision=mixed_precision,
        threshold=1e-3, every=10, run="first", url=collector.url,
        metrics={"clip_score": {"below": 0.25, "falls_by": 0.1}},
    )  # fmt: skip
    config.to_yaml()
    model = model_of(dtype)
    computed = []
    model[0].register_forward_hook(lambda _module, _inputs, found: computed.append(found.dtype))
    given = {"model": model, "loader": [each.to(dtype) for each in batches()], "loss_of": loss_of, "device": "cpu"}
    loop = example("For people who begin")
    exec(loop, given)
    assert_same(parameters_of(model), trained_by_hand(config, dtype))
    assert not torch.equal(model[0].weight, model_of(dtype)[0].weight)
    assert {*computed} == {{"fp16": FP16, "bf16": BF16}.get(mixed_precision, dtype)}
    assert collector.runs == {"first"}
    assert (collector.hellos[0]["collapse_below"], collector.hellos[0]["absmax_below"]) == (1e-3, None)
    assert [(each["name"], each["below"], each["falls_by"]) for each in collector.hellos[0]["metrics"]] == [
        ("clip_score", 0.25, 0.1)
    ]
    assert {*collector.per_step("micro_steps")} == {3}
    assert {*collector.stored().values()} == {"float32"}
    assert len(collector.metric("scaler_scale")) == (mixed_precision == "fp16")


def test_a_training_is_resumed_bit_for_bit_and_its_steps_go_on(collector: Recorded) -> None:
    def trained(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        for batch in batches():
            loss_of(model, batch.to(BF16)).backward()
            optimizer.step()
            optimizer.zero_grad()

    config = TrainingConfig(url=collector.url, run="resumed")
    whole = model_of(BF16)
    stock = create_stable_optimizer(whole, config)
    trained(whole, stock)
    checkpoint = io.BytesIO()
    torch.save((whole.state_dict(), stock.state_dict()), checkpoint)
    trained(whole, stock)
    model = model_of(BF16)
    optimizer, watch = setup_training(model, config)
    weights, states = torch.load(io.BytesIO(checkpoint.getvalue()))
    model.load_state_dict(weights)
    optimizer.load_state_dict(states)
    with watch:
        trained(model, optimizer)
    assert_same(parameters_of(model), parameters_of(whole))
    assert collector.steps() == list(range(20, 40))


def test_an_interval_of_the_configuration_is_that_of_the_watch(collector: Recorded) -> None:
    model = model_of()
    optimizer, watch = setup_training(model, TrainingConfig(every=1, url=collector.url))
    with watch:
        for batch in batches():
            loss_of(model, batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    assert collector.steps() == list(range(20))
    assert (collector.hellos[0]["collapse_below"], collector.hellos[0]["absmax_below"]) == (1e-4, None)


def test_a_scaler_is_enabled_for_fp16_only() -> None:
    configs = [TrainingConfig(mixed_precision=each) for each in ("none", "bf16", "fp16")]
    assert [config.scaler("cpu").is_enabled() for config in configs] == [False, False, True]
    assert [config.autocast(torch.device("cpu", 0)).device for config in configs] == ["cpu"] * 3
