"""Hugging Face's training loops, the real ones, on tiny models: the Trainer, Accelerate, PEFT, diffusers."""

import itertools
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import gradcanary
from gradcanary.api import open_watches
from support.agent.documented import DOCS, example
from support.agent.fixtures import complaints
from support.agent.micro_gradients import (
    COUNTS,
    CUT_SHORT,
    EXACT,
    K,
    MicroGradients,
    assert_clipped_windows,
    assert_handed,
    assert_sent,
    clip_factors,
    imported,
    left_behind,
    one_thread,
    sums_of,
)
from support.agent.recorded import Recorded, recording
from support.agent.scripted import Says, collector_that, reply, until
from support.collectors import Collector

pytestmark = pytest.mark.usefixtures(one_thread.__name__)


@pytest.fixture(scope="module")
def loops() -> ModuleType:
    return imported("support.agent.huggingface_loops")


@pytest.fixture
def collector(capsys: pytest.CaptureFixture[str]) -> Iterator[Recorded]:
    with recording() as recorded:
        yield recorded
    assert "gradcanary" not in complaints(capsys.readouterr().err)


@pytest.mark.loop(
    "Hugging Face Trainer",
    late="short last windows, and the first one where `watch()` was given nothing",
    caveat="by `watch()` before `train()`, by `gradcanary.transformers.GradientCallback()` and by `gradcanary run`. "
    "Loss, lr and total norm are those that it logs. The step is its own, counted from 0 (step 222 is its "
    "`global_step` 223), also after `resume_from_checkpoint`; a `watch()` after `TrainingArguments(run_name=)` takes "
    "that name, under `gradcanary run` not: that names the run for all ranks before one begins, by its `--run NAME`",
)
@pytest.mark.parametrize("given", ["nothing", "model", "callback", "launcher"])
def test_the_trainer(collector: Recorded, loops: ModuleType, tmp_path: Path, given: str) -> None:
    trained = loops.train(given, collector, loops.llama(), tmp_path)
    assert trained.left == loops.train("nobody", collector, loops.llama(), tmp_path).left
    late = CUT_SHORT | ({0} if given in ("nothing", "launcher") else set())
    assert_clipped_windows(collector, trained.micro, COUNTS, loops.MAX_NORM, late=late)
    told = dict(enumerate(trained.history))
    assert collector.metric("loss") == pytest.approx({step: said["loss"] for step, said in told.items()}, rel=EXACT)
    assert collector.metric("lr0") == {step: said["learning_rate"] for step, said in told.items()}
    for step, total in collector.metric("total_norm").items():
        assert total == pytest.approx(told[step]["grad_norm"], rel=EXACT)
    hello = collector.hellos[-1]
    assert (hello["framework"], hello["first_step"], hello["step_source"]) == ("transformers", 0, "framework")
    assert hello["optimizer"] == "AdamW"


@pytest.mark.loop("Hugging Face Trainer")
def test_a_trainer_that_resumes(collector: Recorded, loops: ModuleType, tmp_path: Path) -> None:
    """SGD counts no steps; the Trainer does, and knows what its run is called."""
    settings = {"optim": "sgd", "save_strategy": "steps", "save_steps": 3}
    whole = loops.train("nobody", collector, loops.llama(), tmp_path, **settings)
    model = loops.llama()
    micro, trainer = MicroGradients(model), loops.trainer_of(model, tmp_path, run_name="tuned again", **settings)
    with gradcanary.watch(url=collector.url) as watched:
        trained = loops.trained_by(trainer, micro, resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert watched.run == "tuned-again"
    assert trained.left == whole.left
    windows = micro.windows(COUNTS[3:])
    factors = dict(enumerate(clip_factors(windows, loops.MAX_NORM), 3))
    assert_sent(collector, windows, first=3, factors={step: factors[step] for step in (3, 5)})
    assert collector.per_step("micro_steps") == COUNTS[3:]
    hello = collector.hellos[-1]
    assert (hello["first_step"], hello["step_source"], hello["optimizer"]) == (3, "framework", "SGD")


@pytest.mark.loop(
    "PEFT: LoRA",
    late="as of the loop around it",
    names="model's: `base_model.model.….q_proj.lora_A.default.weight`",
    caveat="adapters only; each lora_A is exactly `zero` in the first step",
)
def test_lora_of_peft(collector: Recorded, loops: ModuleType, tmp_path: Path) -> None:
    settings = {"max_grad_norm": 0.08, "learning_rate": 1e-2}
    trained = loops.train("nothing", collector, loops.llama_with_lora(), tmp_path, **settings)
    assert trained.left == loops.train("nobody", collector, loops.llama_with_lora(), tmp_path, **settings).left
    assert_clipped_windows(collector, trained.micro, COUNTS, 0.08, late=CUT_SHORT | {0})
    assert len(collector.names) == 8
    assert collector.names[0] == "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default.weight"
    states = collector.states()
    assert states[0] == {name: "zero" if "lora_A" in name else "measured" for name in collector.names}
    assert {state for step in range(1, 6) for state in states[step].values()} == {"measured"}
    hello = collector.hellos[-1]
    assert (hello["framework"], hello["step_source"]) == ("peft", "framework")


@pytest.mark.loop(
    "Accelerate: `accumulate`, `clip_grad_norm_`",
    late="short last windows, and the first one where `watch()` was given nothing",
    caveat="before or after `prepare()`. It divides the loss by K also in a short window, so gradients and loss are "
    "smaller there. It counts no steps: the optimizer's state does, else they are `relative`",
)
@pytest.mark.parametrize(
    ("given", "kind"), [("nothing", "AdamW"), ("before", "AdamW"), ("prepared", "AdamW"), ("before", "Overwriting")]
)
def test_accelerate(collector: Recorded, loops: ModuleType, given: str, kind: str) -> None:
    words = {"kind": loops.Overwriting} if kind == "Overwriting" else {}
    trained = loops.accelerate(given, collector, loops.net(), 0.53, **words)
    assert trained.left == loops.accelerate("nobody", collector, loops.net(), 0.53, **words).left
    late = CUT_SHORT | ({0} if given == "nothing" else set())
    assert_clipped_windows(collector, trained.micro, COUNTS, 0.53, late=late)
    assert collector.metric("loss") == pytest.approx(sums_of(trained.losses, COUNTS, K), rel=EXACT)
    assert collector.metric("lr0") == pytest.approx({step: 1e-2 * 0.5**step for step in range(6)})
    hello, source = collector.hellos[-1], "relative" if kind == "Overwriting" else "optimizer"
    assert (hello["framework"], hello["first_step"], hello["step_source"]) == ("accelerate", 0, source)
    assert hello["optimizer"] == kind


@pytest.mark.loop(
    'Accelerate: `mixed_precision="fp16"`',
    late="short last windows, and the first one where `watch()` was given nothing",
    caveat="values and loss are unscaled, overflows are skipped. Verified with a GradScaler of the CPU put in by "
    "the test: there Accelerate itself trains in float32, and Lightning in bfloat16",
)
@pytest.mark.parametrize(("given", "exponent"), [("before", 20), ("prepared", 18), ("nothing", 18)])
def test_accelerate_with_float16(collector: Recorded, loops: ModuleType, given: str, exponent: int) -> None:
    """Some steps overflow, also the last one. Scalers of earlier trainings live on in the same process."""
    trained, bare = (
        loops.accelerate(each, collector, loops.net(), 0.53, scaler=loops.scaler(exponent))
        for each in ("nobody", given)
    )
    assert trained.left == bare.left
    windows, scales = trained.micro.windows(COUNTS), [trained.scales[first] for first in (0, 4, 8, 10, 14, 18)]
    finite = [all(bool(each.isfinite().all()) for each in window.values()) for window in windows]
    assert set(finite) == {True, False}
    assert collector.steps() == list(range(6))
    assert collector.per_step("micro_steps") == COUNTS
    assert collector.per_step("skipped") == [int(not each) for each in finite]
    late = CUT_SHORT | ({0} if given == "nothing" else set())
    for step, (window, scale) in enumerate(zip(windows, scales, strict=True)):
        norms = {name: float(each.norm()) / scale for name, each in window.items()}
        if finite[step] and step not in late:
            assert collector.stat("norm")[step] == pytest.approx(norms, rel=EXACT), step
        found = set(collector.states()[step].values())
        assert found == {"measured"} if finite[step] else found & {"nonfinite", "partial"}
        assert ("partial" in found) == (not finite[step] and step in late), "there was no step to read it in"
    assert collector.metric("scaler_scale") == dict(enumerate(scales))
    assert collector.metric("loss") == pytest.approx(sums_of(trained.losses, COUNTS, K), rel=EXACT)


@pytest.mark.loop(
    "diffusers: LoRA on a UNet",
    late="as of the loop around it",
    names="model's: `down_blocks.0.….to_q.lora_A.default.weight`",
    caveat="with gradient checkpointing, by Accelerate",
)
def test_lora_of_a_unet_of_diffusers(collector: Recorded, loops: ModuleType) -> None:
    trained = loops.accelerate("before", collector, loops.unet_with_lora(), 0.066)
    assert trained.left == loops.accelerate("nobody", collector, loops.unet_with_lora(), 0.066).left
    assert_clipped_windows(collector, trained.micro, COUNTS, 0.066, late=CUT_SHORT)
    assert collector.metric("loss") == pytest.approx(sums_of(trained.losses, COUNTS, K), rel=EXACT)
    assert all(name.endswith((".lora_A.default.weight", ".lora_B.default.weight")) for name in collector.names)
    assert collector.names[0] == "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora_A.default.weight"
    assert collector.hellos[-1]["framework"] == "diffusers"


def test_float32_accumulators_in_accelerate(loops: ModuleType) -> None:
    assert_handed(*loops.accelerate_in_bfloat16(), COUNTS[:3])


def test_float32_accumulators_in_the_trainer(loops: ModuleType, tmp_path: Path) -> None:
    model = loops.llama().to(torch.bfloat16)
    micro, callback = MicroGradients(model), loops.Fp32Accumulators()
    trainer = loops.trainer_of(model, tmp_path, max_grad_norm=1e9, weight_decay=0.0)
    trainer.add_callback(callback)
    trainer.train()
    order = [id(each) for group in trainer.optimizer.param_groups for each in group["params"]]
    names = sorted(micro.names, key=lambda name: order.index(id(model.get_parameter(name))))
    assert names
    assert_handed([[step[names.index(name)] for name in micro.names] for step in callback.handed], micro, COUNTS)


@pytest.fixture
def process_group() -> Iterator[None]:
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_ddp_reduction_dtype_of_accelerate_is_declared(collector: Recorded) -> None:
    """Its own code puts the hook there; with several processes ``prepare()`` calls it."""
    from accelerate.utils import DDPCommunicationHookType, DistributedDataParallelKwargs

    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    DistributedDataParallelKwargs(comm_hook=DDPCommunicationHookType.FP16).register_comm_hook(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, optimizer, url=collector.url, run="hooked"):
        for _ in range(2):
            model(torch.randn(2, 8)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert {each[:2] for each in collector.accumulators().values()} == {("float16", "float32")}


def test_float32_masters_come_back_from_checkpoints_bit_for_bit(loops: ModuleType, tmp_path: Path) -> None:
    trained, states = loops.trained_with_masters(tmp_path / "trained")
    resumed, again = loops.trained_with_masters(tmp_path / "resumed", tmp_path / "trained" / "checkpoint-2")
    assert "fp32_master" in states & again
    assert all(map(torch.equal, trained, resumed))
    trained = loops.accelerate_with_masters(tmp_path / "saved", is_resumed=False)
    assert all(map(torch.equal, trained, loops.accelerate_with_masters(tmp_path / "saved", is_resumed=True)))


CRITICAL = {
    "id": 7,
    "rule": "collapse",
    "severity": "critical",
    "state": "open",
    "opened_step": 2,
    "layers": 2,
    "summary": "2 of 9 parameters fell.",
    "url": "http://x/7",
    "do_first": "Lower the weight decay.",
}
WORDS = "collapse (critical, #7): 2 of 9 parameters fell. Do first: Lower the weight decay. http://x/7"


@pytest.mark.parametrize(
    "settings",
    [
        {"bf16": True},
        {"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "save_steps": 2},
        {"gradient_accumulation_steps": 1, "max_steps": 4, "include_num_input_tokens_seen": "all"},
    ],
    ids=["bf16", "evaluations", "tokens"],
)
def test_the_callback_changes_nothing_of_a_trainer(
    collector: Recorded, loops: ModuleType, tmp_path: Path, settings: dict[str, object]
) -> None:
    """Also where ``train()`` is called twice, the second time from a checkpoint."""

    checkpoint = str(tmp_path / "checkpoint-2") if "save_steps" in settings else None

    def trained(*callbacks: object) -> list[object]:
        model = loops.llama_with_lora()
        trainer = loops.trainer_of(model, tmp_path, callbacks=callbacks, **settings)
        left: list[object] = []
        for resumed in (None, checkpoint):
            trainer.train(resume_from_checkpoint=resumed)
            left += [left_behind(model, trainer.optimizer.optimizer), loops.entries(trainer)]
        return left

    watched = loops.GradientCallback(url=collector.url, run="twice")
    assert trained(watched) == trained()
    assert [end["state"] for end in collector.ends] == ["finished"] * 2
    assert collector.hellos[-1]["first_step"] == (0 if checkpoint is None else 2)
    assert watched.watch._session.guard.caught == 0


def test_the_documented_callback(
    collector: Recorded, loops: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADCANARY_URL", collector.url)
    bare = loops.trainer_of(loops.llama(), tmp_path)
    names = {"Trainer": loops.Trainer, "model": bare.model, "args": bare.args, "data": bare.train_dataset}
    exec(example("In Hugging Face's Trainer"), names)
    assert names["trainer"].state.global_step == len(COUNTS)
    assert collector.runs == {"sdxl-0412"}
    assert collector.steps() == list(range(len(COUNTS)))


def test_the_verdict_is_in_the_log(
    loops: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing before the collector answers, then numbers; words where something changed; reporters get the numbers."""
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.02)
    monkeypatch.setattr("gradcanary.export.sender.INTERVAL_S", 0.02)
    incidents: list[dict[str, object]] = [{**CRITICAL, "id": 3, "severity": "information"}]
    with collector_that(lambda _: Says(body=reply(tuple(incidents)))) as scripted:
        callback, reporter = loops.GradientCallback(url=scripted.url, run="told"), loops.Reporter()

        def change(*now: dict[str, object]) -> Callable[[], None]:
            def wait() -> None:
                incidents[:] = now
                until(lambda: [each.id for each in callback.watch.incidents] == [each["id"] for each in now])

            return wait

        waits = {1: lambda: until(lambda: callback.watch.incidents), 2: change(CRITICAL), 4: change()}
        callbacks = [loops.Waiting(waits), reporter, callback]
        trainer = loops.trainer_of(loops.llama(), tmp_path, callbacks=callbacks)
        trainer.train()
    history = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [(entry.get("gradcanary/open_incidents"), entry.get("gradcanary/worst")) for entry in history] == [
        (0, 0),
        (1, 2),
        (1, 2),
        (0, 0),
        (0, 0),
        (0, 0),
    ]
    over = "collapse (#7) is over. http://x/7"
    assert [entry.get("gradcanary/verdict") for entry in history] == [None, WORDS, None, over, None, None]
    assert [logs["gradcanary/worst"] for logs in reporter.logs if "loss" in logs] == [0, 2, 2, 0, 0, 0]
    assert not any("gradcanary/verdict" in logs for logs in reporter.logs)
    assert not any("gradcanary/worst" in logs for logs in reporter.logs if "loss" not in logs)
    assert complaints(capsys.readouterr().err) == f"gradcanary: {WORDS}\ngradcanary: {over}\n"


def test_the_log_says_nothing_while_the_collector_is_down(
    loops: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    callback = loops.GradientCallback(url="http://127.0.0.1:9", run="alone", stop_on="warning")
    trainer = loops.trainer_of(loops.llama(), tmp_path, callbacks=[callback])
    trainer.train()
    assert trainer.state.global_step == len(COUNTS)
    assert not any(key.startswith("gradcanary/") for entry in trainer.state.log_history for key in entry)
    assert (callback.watch.should_stop, callback.watch.stop_reason) == (False, None)


def test_a_critical_incident_stops_the_trainer_and_a_resumed_one_goes_on(
    module_collector: Collector,
    loops: ModuleType,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A threshold that all layers are under: it stays so after the resume, and the same incident comes back."""
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.02)
    monkeypatch.setattr("gradcanary.export.sender.QUIET_S", 0.02)

    def trainer_with(callback: object, **settings: object) -> object:
        saving = {"save_strategy": "steps", "save_steps": 10**6, "logging_steps": 1, "max_steps": 10**5}
        settings = {**saving, "gradient_accumulation_steps": 1, "per_device_train_batch_size": 1, **settings}
        return loops.trainer_of(loops.llama(), tmp_path, callbacks=[callback], **settings)

    def callback_with(**settings: object) -> object:
        return loops.GradientCallback(
            url=module_collector.url, run="stops", absmax_below=1e6, stop_on="critical", **settings
        )

    alerted: list[int] = []
    callback = callback_with(on_alert=lambda _: alerted.append(trainer.state.global_step))
    trainer = trainer_with(callback)
    trainer.train()
    stopped = trainer.state.global_step
    assert 0 < alerted[0] <= stopped <= alerted[0] + 3
    (incident,) = module_collector.get("/api/v1/incidents", run="stops").json()["incidents"]
    assert callback.watch.stop_reason.startswith(f"collapse (critical, #{incident['id']}): All 21 parameters")
    assert incident["explanation"]["do_first"] in callback.watch.stop_reason
    last = [entry for entry in trainer.state.log_history if "loss" in entry][-1]
    assert (last["step"], last["gradcanary/worst"]) == (stopped, 2)
    assert last["gradcanary/verdict"].endswith(f"stopped because of collapse (critical, #{incident['id']})")
    assert (tmp_path / f"checkpoint-{stopped}" / "trainer_state.json").exists()
    assert (incident["state"], incident["run_state"]) == ("ended", "finished")
    assert "stop_on: the training is to end after this step" in capsys.readouterr().err

    callback = callback_with()
    waiting = loops.Waiting({stopped + 40: lambda: until(lambda: callback.watch.incidents)})
    trainer = trainer_with(callback, max_steps=stopped + 60)
    trainer.add_callback(waiting)
    trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{stopped}"))
    assert trainer.state.global_step == stopped + 60
    worst = {entry["step"]: entry.get("gradcanary/worst") for entry in trainer.state.log_history if "loss" in entry}
    assert {worst[step] for step in range(stopped + 1, stopped + 20)} == {None}
    assert worst[stopped + 60] == 2
    assert [each.id for each in callback.watch._session.sender.open_at_end] == [incident["id"]]
    assert not callback.watch.should_stop


@pytest.mark.parametrize(("saving", "saved"), [("steps", True), ("epoch", True), ("no", False)])
def test_a_trainer_that_is_stopped_saves_as_it_is_set(
    loops: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saving: str, *, saved: bool
) -> None:
    """After the second of three steps of an epoch."""
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.02)
    monkeypatch.setattr("gradcanary.export.sender.QUIET_S", 0.02)
    monkeypatch.setattr("gradcanary.export.sender.INTERVAL_S", 0.02)
    incidents: list[dict[str, object]] = [{**CRITICAL, "id": 3, "severity": "information"}]
    with collector_that(lambda _: Says(body=reply(tuple(incidents)))) as scripted:
        callback = loops.GradientCallback(url=scripted.url, run="saves", stop_on="critical")

        def wait() -> None:
            until(lambda: callback.watch.incidents)
            incidents[:] = [CRITICAL]
            until(lambda: callback.watch.should_stop)

        settings = {"save_strategy": saving, "save_steps": 10**6, "callbacks": [loops.Waiting({1: wait}), callback]}
        trainer = loops.trainer_of(loops.llama(), tmp_path, **settings)
        trainer.train()
    assert trainer.state.global_step == 2
    assert (tmp_path / "checkpoint-2" / "trainer_state.json").exists() is saved


def test_the_callback_leaves_a_watch_of_the_script_open(collector: Recorded, loops: ModuleType, tmp_path: Path) -> None:
    """Of the model, or of all optimizers; ``stop_on`` of the callback holds for it."""
    for known in (True, False):
        model = loops.llama()
        with gradcanary.watch(*([model] if known else []), url=collector.url, run="script") as watch:
            callback = loops.GradientCallback(url=collector.url, stop_on="warning")
            loops.trainer_of(model, tmp_path, callbacks=[callback]).train()
            assert callback.watch is watch
            assert watch.stop_on == "warning"
            assert len(collector.ends) == (0 if known else 1)
    assert len(collector.ends) == 2


def test_an_error_in_the_callback_ends_no_training(
    loops: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    callback = loops.GradientCallback(url="http://127.0.0.1:9", run="faulty")
    monkeypatch.setattr(callback, "_note_changes", lambda: 1 / 0)
    trainer = loops.trainer_of(loops.llama(), tmp_path, callbacks=[callback])
    trainer.train()
    assert trainer.state.global_step == len(COUNTS)
    assert callback.watch._session.guard.caught == 2 * len(COUNTS)


@pytest.mark.parametrize(
    ("settings", "error"),
    [({"every": 7}, ValueError), ({"stop_on": "information"}, ValueError), ({"colour": "red"}, TypeError)],
)
def test_the_callback_refuses_wrong_settings_at_once(
    loops: ModuleType, settings: dict[str, object], error: type[Exception]
) -> None:
    with pytest.raises(error, match=next(iter(settings))):
        loops.GradientCallback(**settings)


def run_documented(page: str, loops: ModuleType, number: int = 0, change: tuple[str, str] = ("", "")) -> dict[str, Any]:
    """Run an example of a page as it stands, or with one change; return its names. It has watched when it ends."""
    text = example(page, number)
    assert change[0] in text
    loops.AcceleratorState._reset_state(reset_partial_state=True)
    names: dict[str, Any] = {}
    try:
        exec(text.replace(*change) if change[0] else text, names)
    finally:
        for each in open_watches():
            each.close()
    return names


@pytest.fixture
def documented(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> Recorded:
    monkeypatch.setenv("GRADCANARY_URL", collector.url)
    return collector


@pytest.mark.parametrize(
    ("change", "micro_steps"), [(("", ""), {4, 1}), (("with accelerator.accumulate(model)", "if True"), {1})]
)
def test_the_documented_accelerate(
    documented: Recorded, loops: ModuleType, change: tuple[str, str], micro_steps: set[int]
) -> None:
    """125 batches are 31 windows of four and one of one; without ``accumulate`` K is 1."""
    run_documented("In Accelerate", loops, change=change)
    assert documented.runs == {"accelerate"}
    assert set(documented.per_step("micro_steps")) == micro_steps
    assert len(documented.steps()) == (64 if 4 in micro_steps else 250)
    late = {step for step, phase in documented.phase_of("norm").items() if phase == "post_clip"}
    assert late == ({31, 63} if 4 in micro_steps else set())
    assert documented.metric("total_norm").keys() == set(documented.steps()) - late


def test_the_documented_stop_of_accelerate(loops: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.02)
    model, batches, loss_of = loops.net()
    loops.AcceleratorState._reset_state(reset_partial_state=True)
    accelerator = loops.Accelerator(cpu=True, gradient_accumulation_steps=K)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    names = {
        "gradcanary": gradcanary,
        "accelerator": accelerator,
        "model": model,
        "optimizer": optimizer,
        "loader": itertools.islice(itertools.cycle(batches), 100_000),
        "loss_of": lambda batch: loss_of(model, batch),
    }
    with collector_that(lambda told: Says(body=reply(() if told.kind == "hello" else (CRITICAL,)))) as scripted:
        monkeypatch.setenv("GRADCANARY_URL", scripted.url)
        exec(example("Stop a sick training"), names)
        names["watch"].close()
    assert names["number"] % 50 == 0
    assert "collapse" in names["watch"].stop_reason


LORA_A, MADE_EARLY = "base_model.model.0.lora_A.default.weight", "optimizer = torch.optim.AdamW(base.parameters())\n"


def test_the_documented_lora(documented: Recorded, loops: ModuleType) -> None:
    names = run_documented("LoRA by PEFT", loops)
    adapters = [name for name, each in names["model"].named_parameters() if each.requires_grad]
    assert documented.names == adapters
    assert LORA_A in adapters
    assert documented.states()[0][LORA_A] == "zero"
    assert documented.facts("not_optimized") == []


def test_the_documented_mistake_with_lora_is_found(documented: Recorded, loops: ModuleType) -> None:
    line = re.search(r"^optimizer = .*\n", example("LoRA by PEFT"), re.MULTILINE)[0]
    text = example("LoRA by PEFT").replace(line, "")
    made_early = text.replace("model = get_peft_model", MADE_EARLY + "model = get_peft_model")
    run_documented("LoRA by PEFT", loops, change=(example("LoRA by PEFT"), made_early))
    (fact,) = documented.facts("not_optimized")
    assert LORA_A in fact["layers"]


def test_the_documented_unet(documented: Recorded, loops: ModuleType) -> None:
    names = run_documented("LoRA on a UNet of diffusers", loops)
    adapters = [name for name, each in names["unet"].named_parameters() if each.requires_grad]
    assert documented.names == adapters
    told = (DOCS / "how-to" / "peft-diffusers.md").read_text("utf-8")
    assert {name for name in adapters if f"`{name}`" in told} == {
        "down_blocks.0.attentions.0.transformer_blocks.0.attn1.to_q.lora_A.default.weight"
    }
    assert documented.steps() == list(range(12))
