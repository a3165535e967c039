"""Lightning's training loop, the real one, on a tiny module: it runs backward inside the optimizer's step."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import gradcanary
from support.agent.fixtures import complaints
from support.agent.micro_gradients import (
    BATCHES,
    COUNTS,
    CUT_SHORT,
    EPOCHS,
    EXACT,
    K,
    assert_clipped_windows,
    assert_handed,
    assert_sent,
    handed_to,
    imported,
    launched,
    left_behind,
    one_thread,
    sums_of,
)
from support.agent.recorded import Recorded, recording
from support.collectors import Collector

pytestmark = pytest.mark.usefixtures(one_thread.__name__)


@pytest.fixture(scope="module")
def loops() -> ModuleType:
    return imported("support.agent.lightning_loops")


@pytest.fixture
def collector(capsys: pytest.CaptureFixture[str]) -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded
    assert "gradcanary" not in complaints(capsys.readouterr().err)


def fit(
    loops: ModuleType, module: Any, folder: Path, given: str, collector: Recorded, **settings: Any
) -> tuple[str, Any]:
    """Train a module as somebody would who has the callback, the module, or nothing to give; nobody watches nothing."""
    callbacks, watch = [], contextlib.nullcontext()
    if given == "callback":
        callbacks = [loops.GradientMonitor(url=collector.url, run="fit")]
    elif given == "launcher":
        watch = launched(collector.url)
    elif given != "nobody":
        watch = gradcanary.watch(*([module] if given == "module" else []), url=collector.url, run="fit")
    trainer = loops.trainer_of(folder, *callbacks, **settings)
    with watch:
        trainer.fit(module)
    return left_behind(module, trainer.optimizers[0]), module


@pytest.mark.loop(
    "Lightning, automatic optimization",
    caveat="all windows, also the first and short ones, by `gradcanary.lightning.GradientMonitor()`, by `watch()` "
    "before `fit()` and by `gradcanary run` alike. The step is Lightning's where there is one optimizer, also "
    "after `ckpt_path`. As of closures, an optimizer that overwrites `.grad` looks like a clip",
)
@pytest.mark.parametrize("given", ["callback", "module", "nothing", "launcher"])
@pytest.mark.parametrize("k", [K, 1])
def test_fit(collector: Recorded, loops: ModuleType, tmp_path: Path, given: str, k: int) -> None:
    settings = {"accumulate_grad_batches": k, "gradient_clip_val": loops.MAX_NORM}
    left, module = fit(loops, loops.Module(), tmp_path, given, collector, **settings)
    assert left == fit(loops, loops.Module(), tmp_path, "nobody", collector, **settings)[0]
    counts = COUNTS if k == K else [1] * BATCHES * EPOCHS
    assert_clipped_windows(collector, module.micro, counts, loops.MAX_NORM, late=())
    assert collector.metric("loss") == pytest.approx(sums_of(module.losses, counts, k), rel=EXACT)
    assert collector.metric("lr0") == pytest.approx({step: 1e-2 * 0.5**step for step in range(len(counts))})
    hello = collector.hellos[-1]
    assert (hello["framework"], hello["first_step"], hello["step_source"]) == ("lightning", 0, "framework")
    assert [end["state"] for end in collector.ends] == ["finished"]


@pytest.mark.loop(
    "Lightning, manual optimization",
    late="short last windows, and the first one where `watch()` was given nothing",
    caveat="K is what the module makes it",
)
@pytest.mark.parametrize("given", ["callback", "nothing"])
def test_manual_optimization(collector: Recorded, loops: ModuleType, tmp_path: Path, given: str) -> None:
    left, module = fit(loops, loops.Manual(), tmp_path, given, collector, accumulate_grad_batches=1)
    assert left == fit(loops, loops.Manual(), tmp_path, "nobody", collector, accumulate_grad_batches=1)[0]
    late = CUT_SHORT | ({0} if given == "nothing" else set())
    assert_clipped_windows(collector, module.micro, COUNTS, loops.MAX_NORM, late=late)
    assert collector.metric("loss") == pytest.approx(sums_of(module.losses, COUNTS, K), rel=EXACT)


@pytest.mark.loop("Lightning, manual optimization")
@pytest.mark.parametrize("given", ["callback", "nothing"])
def test_two_optimizers(collector: Recorded, loops: ModuleType, tmp_path: Path, given: str) -> None:
    left, module = fit(loops, loops.Pair(), tmp_path, given, collector, accumulate_grad_batches=1)
    assert left == fit(loops, loops.Pair(), tmp_path, "nobody", collector, accumulate_grad_batches=1)[0]
    counts = [1] * BATCHES * EPOCHS
    assert collector.per_step("micro_steps") == counts
    windows = module.micro.windows(counts)
    for step in range(0 if given == "callback" else 1, len(counts)):  # of the first, nobody knew both optimizers
        norms = {name: float(each.norm()) for name, each in windows[step].items()}
        assert collector.stat("norm")[step] == pytest.approx(norms, rel=EXACT)
        assert set(collector.states()[step].values()) == {"measured"}
    hello = collector.hellos[-1]
    assert (hello["framework"], hello["first_step"], hello["step_source"]) == ("lightning", 0, "optimizer")


@pytest.mark.loop("Lightning, automatic optimization")
def test_a_layer_that_only_early_micro_steps_of_the_first_window_use(
    collector: Recorded, loops: ModuleType, tmp_path: Path
) -> None:
    """Their passes come before the layers are known."""
    norms = loops.Norms()
    with gradcanary.watch(url=collector.url, run="routed"):
        loops.trainer_of(tmp_path, norms, max_epochs=1).fit(loops.Routed())
    assert [each["other.weight"] is None for each in norms.read] == [False, False, True]
    states = collector.states()
    for step, each in enumerate(norms.read):
        assert states[step] == {name: "no_gradient" if norm is None else "measured" for name, norm in each.items()}
        sent = {name: value for name, value in collector.stat("norm")[step].items() if each[name] is not None}
        assert sent == pytest.approx({name: each[name] for name in sent}, rel=EXACT)


@pytest.mark.loop("Lightning, automatic optimization")
def test_a_fit_that_resumes(collector: Recorded, loops: ModuleType, tmp_path: Path) -> None:
    """SGD counts no steps, Lightning does; the callback begins once the checkpoint is loaded."""
    trainer = loops.trainer_of(tmp_path, max_epochs=1)
    trainer.fit(loops.Module(torch.optim.SGD))
    trainer.save_checkpoint(tmp_path / "saved.ckpt")
    whole, module = loops.Module(torch.optim.SGD), loops.Module(torch.optim.SGD)
    loops.trainer_of(tmp_path).fit(whole)
    trainer = loops.trainer_of(tmp_path, loops.GradientMonitor(url=collector.url, run="resumed"))
    trainer.fit(module, ckpt_path=tmp_path / "saved.ckpt")
    assert all(map(torch.equal, module.state_dict().values(), whole.state_dict().values()))
    assert_sent(collector, module.micro.windows(COUNTS[3:]), first=3)
    assert collector.per_step("micro_steps") == COUNTS[3:]
    hello = collector.hellos[-1]
    assert (hello["first_step"], hello["step_source"], hello["optimizer"]) == (3, "framework", "SGD")


@pytest.mark.loop("Lightning, automatic optimization")
def test_a_fit_that_fails(collector: Recorded, loops: ModuleType, tmp_path: Path) -> None:
    monitor = loops.GradientMonitor(url=collector.url, run="failing")
    with pytest.raises(RuntimeError, match="no more data"):
        loops.trainer_of(tmp_path, monitor).fit(loops.Failing())
    [end] = collector.ends
    assert end.pop("crash")["type"] == "RuntimeError"
    assert end == {"state": "crashed", "last_step": 0, "error": "RuntimeError: no more data"}
    assert monitor.watch.run == "failing"


def test_the_callback_leaves_a_watch_of_the_script_open(collector: Recorded, loops: ModuleType, tmp_path: Path) -> None:
    """With the same settings it is the same watch: whoever opened it ends it."""
    module = loops.Module()
    with gradcanary.watch(module, url=collector.url, run="fit") as watch:
        monitor = loops.GradientMonitor(url=collector.url, run="fit")
        loops.trainer_of(tmp_path, monitor).fit(module)
        assert monitor.watch is watch
        assert not collector.ends
        watch.log(afterwards=1.0)
    assert len(collector.ends) == 1
    assert len(collector.metric("afterwards")) == 1


def test_a_critical_incident_stops_a_fit_between_two_windows(
    module_collector: Collector,
    loops: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.02)
    alerted: list[int] = []
    monitor = loops.GradientMonitor(
        url=module_collector.url,
        run="stops",
        absmax_below=1e6,
        stop_on="critical",
        on_alert=lambda _: alerted.append(trainer.global_step),
    )
    module, trainer = loops.Module(), loops.trainer_of(tmp_path, monitor, max_epochs=10_000)
    trainer.fit(module)
    assert 0 < alerted[0] <= trainer.global_step <= alerted[0] + 3
    epochs, windows = divmod(trainer.global_step, 3)
    assert len(module.losses) == epochs * BATCHES + sum(COUNTS[:windows]), "not within a window"
    said = capsys.readouterr().err
    assert monitor.watch.stop_reason in said
    assert "stop_on: the training is to end after this step, because of collapse (critical, #1)" in said


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"every": 7}, ValueError),
        ({"stop_on": "information"}, ValueError),
        ({"budget": 2}, ValueError),
        ({"colour": "red"}, TypeError),
        ({"model": 1}, TypeError),
    ],
)
def test_the_callback_refuses_wrong_settings_at_once(
    loops: ModuleType, settings: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        loops.GradientMonitor(**settings)


def test_an_error_in_the_callback_ends_no_fit(
    loops: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A setting that became wrong after the callback was made."""
    monitor = loops.GradientMonitor(url="http://127.0.0.1:9", run="faulty")
    monkeypatch.setenv("GRADCANARY_EVERY", "7")
    module, trainer = loops.Module(), loops.trainer_of(tmp_path, monitor)
    trainer.fit(module)
    assert len(module.losses) == EPOCHS * BATCHES
    assert monitor.watch is None
    assert "GradientMonitor.on_train_start failed" in caplog.text


def test_float32_accumulators(loops: ModuleType, tmp_path: Path) -> None:
    """Of a window all passes but the last come in closures of no step, the last one in that of the step."""
    module, handed = loops.Module(), []

    class Accumulators(loops.pl.Callback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.open = gradcanary.fp32_accumulators(trainer.optimizers[0])
            handed.append(handed_to(trainer.optimizers[0]))

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            self.open.close()

    trainer = loops.trainer_of(tmp_path, Accumulators(), precision="bf16-true", gradient_clip_val=1e9)
    trainer.fit(module)
    assert_handed(handed[0], module.micro, COUNTS)


def test_float32_masters_come_back_from_a_checkpoint_bit_for_bit(loops: ModuleType, tmp_path: Path) -> None:
    def trained(epochs: int, checkpoint: Path | None = None) -> tuple[Any, list[torch.Tensor]]:
        class Masters(loops.Module):
            def configure_optimizers(self) -> Any:
                optimizer = torch.optim.AdamW(self.parameters(), lr=1e-5)
                gradcanary.fp32_masters(optimizer)
                return optimizer

            def loss_of(self, batch: torch.Tensor) -> torch.Tensor:
                return super().loss_of(batch.to(torch.bfloat16))

        module, trainer = Masters().to(torch.bfloat16), loops.trainer_of(tmp_path, max_epochs=epochs)
        trainer.fit(module, ckpt_path=checkpoint, weights_only=False)
        return trainer, [each.detach() for each in module.parameters()]

    half, _ = trained(1)
    half.save_checkpoint(tmp_path / "half.ckpt")
    assert all(map(torch.equal, trained(2)[1], trained(2, tmp_path / "half.ckpt")[1]))
