"""The public door: arguments, environment, log(), pause(), close(), forks, and a wall that holds."""

import inspect
import io
import json
import os
import sys
import threading
import types
import warnings

import pytest
import torch
from torch import nn

import gradcanary
from gradcanary import wire
from gradcanary.hooks import backward
from gradcanary.settings import Settings
from gradcanary.tracking.records import LoggedMetric
from support.agent.scripted import Scripted, Training, collector_that


@pytest.fixture
def collector(monkeypatch):
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.02)
    with collector_that() as scripted:
        monkeypatch.setenv("GRADCANARY_URL", scripted.url)
        yield scripted
        for watch in tuple(gradcanary.api._open):
            watch.close()


@pytest.fixture
def training() -> Training:
    return Training()


def metrics(collector: Scripted, name: str) -> dict[tuple[int, tuple[tuple[str, str], ...]], float]:
    """Return the points of a series by step and tags."""
    return {
        (step, tuple(map(tuple, metric["tags"]))): value
        for told in collector.of("batches", accepted=True)
        for metric in told.body["metrics"]
        if metric["name"] == name
        for step, value in zip(metric["steps"], wire.uncolumn("d", metric["values"]), strict=True)
    }


def hooks_left() -> int:
    """Return what a watch may have left in torch."""
    from torch.optim import optimizer

    return (
        len(optimizer._global_optimizer_pre_hooks)
        + len(optimizer._global_optimizer_post_hooks)
        + len(backward._listeners)
        + hasattr(torch.autograd.backward, "__wrapped__")
    )


def test_the_public_names():
    assert gradcanary.__all__ == [
        "Alert",
        "Client",
        "TrainingConfig",
        "Watch",
        "__version__",
        "create_stable_optimizer",
        "fp32_accumulators",
        "fp32_masters",
        "integrations",
        "setup_training",
        "step",
        "watch",
    ]
    assert [name for name in vars(gradcanary.Watch) if not name.startswith("_")] == [
        "incidents",
        "should_stop",
        "stop_on",
        "stop_reason",
        "log",
        "observe_accumulator",
        "step",
        "pause",
        "show",
        "close",
        "matches",
        "close_for_next",
    ]
    assert list(inspect.signature(gradcanary.watch).parameters) == [
        "model", "optimizer", "run", "url", "token", "every", "budget", "include", "exclude", "absmax_below",
        "norm_below", "collapse_below", "step", "crash_message", "environment", "metrics", "stop_on", "on_alert",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"model": "net"}, TypeError, r"watch\(model=\) is a str"),
        ({"optimizer": nn.Linear(1, 1)}, TypeError, r"watch\(optimizer=\) is a Linear"),
        ({"every": 7}, ValueError, r"watch\(every=\) is 7: it must be .* 1, 10, 100, 1000"),
        ({"every": True}, ValueError, r"watch\(every=\) is True"),
        ({"every": 1.0}, ValueError, r"watch\(every=\) is 1.0"),
        ({"budget": 0}, ValueError, r"watch\(budget=\) is 0: it must be a share"),
        ({"budget": "1%"}, ValueError, r"watch\(budget=\) is '1%'"),
        ({"include": "("}, ValueError, r"watch\(include=\) is '\(': it must be a regular expression"),
        ({"exclude": 3}, ValueError, r"watch\(exclude=\) is 3"),
        ({"absmax_below": 0}, ValueError, r"watch\(absmax_below=\) is 0: it must be a number above 0"),
        ({"collapse_below": -1e-4}, ValueError, r"watch\(collapse_below=\) is -0.0001: it must be a number above 0"),
        ({"norm_below": float("nan")}, ValueError, r"watch\(norm_below=\) is nan"),
        ({"environment": "maybe"}, ValueError, r"watch\(environment=\) is 'maybe': it must be True or False"),
        ({"metrics": 0.25}, ValueError, r"watch\(metrics=\) is 0.25: it must name metrics with one of below, above"),
        ({"metrics": {"fid": {}}}, ValueError, r"watch\(metrics=\) is .*: it must name metrics with one of below"),
        (
            {"metrics": {"fid": {"over": 3}}},
            ValueError,
            r"fid has an unknown key 'over'; known are below, above, falls",
        ),
        ({"metrics": {"fid": {"above": float("nan")}}}, ValueError, r"above of fid is nan; it must be a finite number"),
        ({"metrics": {"fid": {"above": 10**400}}}, ValueError, r"above of fid is 1000.*; it must be a finite number"),
        ({"metrics": {"clip": {"falls_by": 20}}}, ValueError, r"falls_by of clip is 20; it must be a share .* at most"),
        ({"metrics": {"clip": {"below": 1, "severity": "bad"}}}, ValueError, r"it must be 'warning' or 'critical'"),
        ({"metrics": {"": {"below": 1}}}, ValueError, r"a name has 1 to 200 printable characters"),
        ({"step": -1}, ValueError, r"watch\(step=\) is -1"),
        ({"step": 1.5}, ValueError, r"watch\(step=\) is 1.5"),
        ({"step": "soon"}, ValueError, r"watch\(step=\) is 'soon'"),
        ({"stop_on": "information"}, ValueError, r"watch\(stop_on=\) is 'information': it must be 'warning' or 'crit"),
        ({"stop_on": True}, ValueError, r"watch\(stop_on=\) is True: it must be 'warning' or 'critical'"),
        ({"on_alert": "mail"}, TypeError, r"watch\(on_alert=\) is a str"),
        ({"run": ""}, ValueError, r"watch\(run=\) is ''"),
        ({"run": 5}, ValueError, r"watch\(run=\) is 5"),
        ({"token": "ключ"}, ValueError, r"watch\(token=\)"),
        ({"url": 5}, ValueError, r"watch\(url=\) is 5"),
        ({"url": "localhost:8787"}, ValueError, r"watch\(url=\) is 'localhost:8787': it must be the address"),
        ({"url": "http://h:99999"}, ValueError, r"watch\(url=\)"),
        ({"url": "http://u@h"}, ValueError, r"scheme, host, port and path only"),
        ({"url": "http://h/ a"}, ValueError, r"without spaces"),
    ],
)
def test_a_wrong_argument_names_itself_and_touches_nothing(arguments, error, said):
    with pytest.raises(error, match=said):
        gradcanary.watch(**arguments)
    assert hooks_left() == 0
    assert gradcanary.api._open == []


def test_arguments_come_before_the_environment_and_that_before_defaults():
    environ = {"GRADCANARY_URL": "https://c.example/base/", "GRADCANARY_EVERY": "10", "GRADCANARY_STEP": "7"}
    settings = Settings.resolve(environ, every=100, url=None)
    assert (settings.url, settings.every, settings.step) == ("https://c.example/base", 100, 7)
    of_watch = Settings.resolve({**environ, "GRADCANARY_BUDGET": "0.05"}, every="auto", budget=0.01)
    assert (of_watch.every, of_watch.budget) == (10, 0.05)
    assert Settings.resolve({"GRADCANARY_BUDGET": "0.05"}, budget=0.02).budget == 0.02
    assert Settings.resolve({}).url == "http://127.0.0.1:8787"
    assert (Settings.resolve({}).every, Settings.resolve({}).budget) == ("auto", 0.01)
    with pytest.raises(ValueError, match="GRADCANARY_EVERY is '7'"):
        Settings.resolve({"GRADCANARY_EVERY": "7"})


def test_bounds_of_metrics_come_from_an_argument_or_as_json():
    bounds = {"clip_score": {"below": 0.25, "falls_by": 0.2, "observations": 4, "severity": "critical"}}
    parsed = (wire.MetricBound("clip_score", 0.25, None, 0.2, None, 4, "critical"),)
    assert Settings.resolve({}, metrics=bounds).metrics == parsed
    assert Settings.resolve({"GRADCANARY_METRICS": json.dumps(bounds)}).metrics == parsed
    assert Settings.resolve({}, metrics={}).metrics == Settings.resolve({}).metrics == ()


def test_a_run_name_is_made_fit_for_a_path_and_that_is_said(collector, training, capsys):
    watch = gradcanary.watch(training.model, training.optimizer, run="läuft/heute")
    assert watch.run == "l-uft-heute"
    assert watch.url == f"{collector.url}/runs/l-uft-heute"
    assert capsys.readouterr().err.count("the run is called 'l-uft-heute'") == 1


def test_the_page_of_the_run_is_printed_once_and_a_closed_stderr_is_no_fault(collector, training, capsys, monkeypatch):
    with gradcanary.watch(training.model, training.optimizer, run="named") as watch:
        training.steps(3)
    assert capsys.readouterr().err == (
        "gradcanary: watching SGD, 4 parameters (4 float32), K = 1 micro-step per step, summed in 4 float32: "
        f"{watch.url}\n"
    )
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        with gradcanary.watch(training.model, training.optimizer, run="mute") as watch:
            training.steps(1)
        assert watch._session.guard.caught == 0


def test_a_second_watch_is_the_first(collector, training):
    watch = gradcanary.watch()
    training.steps(2)
    assert gradcanary.watch() is watch
    assert gradcanary.watch(optimizer=training.optimizer) is watch


def test_a_model_and_an_optimizer_that_do_not_belong_are_told(collector, training, capsys):
    gradcanary.watch(Training().model, training.optimizer)
    assert "two that do not belong" in capsys.readouterr().err


def test_a_second_watch_under_another_name_is_another_run(collector, training):
    first = gradcanary.watch(run="sweep-a")
    training.steps(3)
    second = gradcanary.watch(run="sweep-b")
    assert (first.run, second.run) == ("sweep-a", "sweep-b")
    assert collector.of("end")[0].body["state"] == "finished"
    assert gradcanary.watch(run="sweep-b") is second


def test_a_watch_of_another_model_ends_the_earlier_one(collector, training, capsys):
    first = gradcanary.watch(training.model, training.optimizer, run="two")
    training.steps(2)
    other = Training()
    second = gradcanary.watch(other.model, other.optimizer, run="two")
    assert second is not first
    assert "ends the earlier one" in capsys.readouterr().err
    assert collector.of("end")[0].body["state"] == "finished"


def test_a_cell_run_again_is_the_next_launch_of_the_same_run(collector, training, monkeypatch):
    monkeypatch.setattr("gradcanary.identity._default_run", None)
    monkeypatch.setattr(sys.modules["__main__"], "get_ipython", lambda: None, raising=False)
    first = gradcanary.watch()
    assert gradcanary.watch() is first, "nothing has stepped yet"
    training.steps(2)
    second = gradcanary.watch()
    training.steps(2)
    second.close()
    launches = [told.body["launch"] for told in collector.of("hello")]
    assert second.run == first.run
    assert launches[-1].startswith(launches[0])
    assert launches[-1] != launches[0]
    assert len(collector.of("end")) == 2


def test_a_launch_id_that_ends_in_a_number_does_not_become_the_next_jobs(collector, training, monkeypatch):
    monkeypatch.setenv("GRADCANARY_LAUNCH", "job.5")
    for _ in range(2):
        with gradcanary.watch(training.model, training.optimizer, run="numbered"):
            training.steps(1)
    assert list(dict.fromkeys(told.body["launch"] for told in collector.of("hello"))) == ["job.5", "job.5.2"]


def test_logged_numbers_arrive_with_their_step_and_tags(collector, training):
    with gradcanary.watch(training.model, training.optimizer, run="logs") as watch:
        training.steps(1)
        watch.log(loss=1.5, reward=torch.tensor([2.0], requires_grad=True), tags={"set": "train", "a": "b"})
        watch.log(loss=9.0)
        training.steps(1)
        watch.log(acc=float("nan"), lr=0.25, step=40)
    pair = (("a", "b"), ("set", "train"))
    assert metrics(collector, "reward") == {(0, pair): 2.0}
    losses = metrics(collector, "loss")
    assert losses[0, pair] == 1.5
    assert losses[0, ()] == 9.0, "what is logged replaces what was captured"
    assert 0 < losses[1, ()] < 9
    assert list(metrics(collector, "acc")) == [(40, ())]
    assert metrics(collector, "lr0") == {(0, ()): 0.05, (1, ()): 0.05, (40, ()): 0.25}


class Odd:
    def __float__(self) -> float:
        raise TypeError("no number today")


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"total_norm": 1}, ValueError, "taken"),
        ({"lr1": 1}, ValueError, "taken"),
        ({"agent_share": 1}, ValueError, "taken"),
        ({"acc": "0.5"}, TypeError, "is a str"),
        ({"acc": [1]}, TypeError, "is a list"),
        ({"acc": torch.zeros(2)}, ValueError, r"shape \(2,\)"),
        ({"acc": torch.zeros(1, device="meta")}, ValueError, "meta"),
        ({"acc": 10**400}, ValueError, "too large"),
        ({"acc": Odd()}, TypeError, "no number"),
        ({"": 1}, ValueError, "1 to 200"),
        ({"a\n": 1}, ValueError, "printable"),
        ({"acc": 1, "step": -1}, ValueError, "step"),
        ({"acc": 1, "step": True}, ValueError, "step"),
        ({"acc": 1, "tags": "abc"}, TypeError, "mapping"),
        ({"acc": 1, "tags": {1: "a", "b": "c"}}, TypeError, "texts"),
        ({"acc": 1, "tags": {"a": "b" * 201}}, ValueError, "200"),
        ({"acc": 1, "tags": {str(i): "x" * 150 for i in range(20)}}, ValueError, "2000"),
    ],
)
def test_a_wrong_log_raises(collector, training, arguments, error, said):
    watch = gradcanary.watch(training.model, training.optimizer)
    with pytest.raises(error, match=said):
        watch.log(**arguments)


def test_a_wrong_log_after_a_right_one_ends_no_training(collector, training, capsys):
    with gradcanary.watch(training.model, training.optimizer, run="logs") as watch:
        training.steps(1)
        watch.log(acc=0.5)
        watch.log(other=1, acc=[0.5])
        watch.log(acc=torch.zeros(2), step=-1)
        watch.log(late=1)
        training.steps(1)
    assert capsys.readouterr().err.count("gradcanary: a call of log() is not stored (log(acc=) is a list") == 1
    stored = {name for name in ("acc", "other", "late") if metrics(collector, name)}
    assert stored == {"acc", "late"}


def test_pause_looks_away_until_the_next_step(collector, training):
    with gradcanary.watch(training.model, training.optimizer, run="pause") as watch:
        training.steps(2)
        watch.pause()
        training.model(torch.randn(4, 4)).square().mean().backward()
        training.optimizer.zero_grad()
        assert watch._session.recorder.clock.is_paused
        training.steps(2)
        assert not watch._session.recorder.clock.is_paused
    assert collector.steps() == [0, 1, 2, 3]


def test_a_step_by_hand_begins_no_session_that_waits(collector, training):
    """As in a script of ``gradcanary run``, which has no model."""
    gradcanary.api.watch_when_training()
    (watch,) = gradcanary.api.open_watches()
    with watch:
        training.model(torch.randn(4, 4)).sum().backward()
        gradcanary.step()
        assert watch._session.sender is None
        training.steps(2)
        gradcanary.step()
    assert collector.steps() == [0, 1]


def test_close_leaves_nothing_and_may_be_called_again(collector, training):
    before = torch.autograd.backward
    watch = gradcanary.watch(training.model, training.optimizer)
    training.steps(2)
    assert hooks_left() > 0
    watch.close()
    watch.close()
    assert hooks_left() == 0
    assert torch.autograd.backward is before
    assert not any(each._post_accumulate_grad_hooks for each in training.model.parameters())
    assert not [thread for thread in threading.enumerate() if thread.name == "gradcanary-sender"]
    assert len(collector.of("end")) == 1
    training.steps(1)
    watch.log(acc=1)
    watch.pause()


@pytest.mark.parametrize("arguments", [{"state": "done"}, {"timeout_s": -1}, {"timeout_s": "5"}, {"timeout_s": True}])
def test_a_wrong_close_raises_and_closes_nothing(collector, training, arguments):
    watch = gradcanary.watch(training.model, training.optimizer)
    with pytest.raises(ValueError, match=r"close\("):
        watch.close(**arguments)
    assert hooks_left() > 0


@pytest.mark.parametrize("where", ["backward", "step"])
def test_close_inside_a_hook_of_the_training(collector, training, where):
    watch = gradcanary.watch(training.model, training.optimizer)
    training.steps(2)
    if where == "backward":
        training.model[0].weight.register_hook(lambda _: watch.close())
    else:
        training.optimizer.register_step_post_hook(lambda *_: watch.close())
    training.steps(2)
    assert hooks_left() == 0
    assert watch._session.guard.caught == 0


def test_a_forked_child_trains_without_hooks_and_says_nothing(collector, training):
    watch = gradcanary.watch(training.model, training.optimizer, run="fork")
    training.steps(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: that is what is tested
        child = os.fork()
    if child == 0:
        training.steps(50)
        watch.log(acc=1)
        watch.close()
        os._exit(17 if hooks_left() or gradcanary.api._open else 0)
    assert os.waitpid(child, 0)[1] == 0
    training.steps(2)
    watch.close()
    assert collector.steps() == [0, 1, 2, 3]
    assert len(collector.of("end")) == 1


def test_a_fork_inside_a_window_with_hooks_of_its_own_leaves_the_child_none(collector):
    """In the third window gradients of low precision are also summed up in float32."""
    layer = nn.Linear(8, 4).bfloat16()
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    with gradcanary.watch(layer, optimizer, run="fork"):
        for _ in range(2):
            for _ in range(2):
                layer(torch.ones(2, 8, dtype=torch.bfloat16)).sum().backward()
            optimizer.step()
        assert layer.weight._backward_hooks
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # as above
            child = os.fork()
        if child == 0:
            os._exit(bool(layer.weight._backward_hooks))
        assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("how", ["closed", "replaced", "forked"])
def test_a_watch_that_has_ended_keeps_nothing_that_is_logged(collector, training, how):
    watch = gradcanary.watch(training.model, training.optimizer, run="ended")
    training.steps(1)
    if how == "closed":
        watch.close()
    elif how == "replaced":
        gradcanary.watch(training.model, training.optimizer, run="another")
    else:
        watch._pid = 0  # what a forked child sees: its own id is another one
    kept = len(watch._session.recorder.logged)
    for _ in range(3):
        watch.log(acc=torch.zeros(1))
    assert len(watch._session.recorder.logged) == kept
    watch._pid = os.getpid()


def test_latest_numbers_logged_without_a_step_are_kept(collector, training, monkeypatch, capsys):
    monkeypatch.setattr("gradcanary.session.MAX_LOGGED", 5)
    with gradcanary.watch(training.model, training.optimizer, run="many") as watch:
        for number in range(20):
            watch.log(acc=number, step=number)
        training.steps(2)
    assert sorted(metrics(collector, "acc")) == [(step, ()) for step in range(15, 20)]
    assert capsys.readouterr().err.count("the oldest are lost") == 1


def boom(*_: object, **__: object) -> None:
    raise ZeroDivisionError("our own fault")


class Locked(nn.Module):
    """A module of somebody else that cannot be looked into."""

    def named_parameters(self, *_: object, **__: object) -> object:
        raise RuntimeError("not yet")


class Proxy(torch.optim.Optimizer):
    def __init__(self) -> None:
        """Prepare nothing."""

    @property
    def optimizer(self) -> object:
        raise RuntimeError("not yet")


@pytest.mark.parametrize("is_given", [True, False])
def test_objects_of_others_that_cannot_be_asked_are_left_alone(collector, training, is_given):
    others = [Locked(), nn.Linear.__new__(nn.Linear), Proxy(), torch.optim.SGD.__new__(torch.optim.SGD)]
    with gradcanary.watch(*([training.model] if is_given else []), run="others") as watch:
        training.steps(3)
    assert others
    assert collector.steps() == [0, 1, 2]
    assert watch._session.guard.caught == 0
    (layer_set,) = collector.of("hello")[-1].body["layer_sets"]
    assert [layer["name"] for layer in layer_set["layers"]] == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize("is_given", [True, False])
def test_layers_that_cannot_be_found_are_looked_for_once(collector, training, monkeypatch, is_given):
    monkeypatch.setattr("gradcanary.tracking.optimizers.discover", boom)
    with gradcanary.watch(*([training.model] if is_given else []), run="lost") as watch:
        training.steps(5)
    assert watch._session.guard.caught == 1


def test_a_name_that_cannot_be_asked_for_is_none(collector, training, monkeypatch):
    class TrainingArguments:
        run_name = property(boom)

    told = TrainingArguments()
    module = types.SimpleNamespace(TrainingArguments=TrainingArguments)
    monkeypatch.setitem(sys.modules, "transformers.training_args", module)
    with gradcanary.watch(training.model):
        training.steps(1)
    assert told
    assert collector.steps() == [0]


def test_a_hosts_logging_that_raises_does_not_reach_the_training(collector, training, monkeypatch):
    monkeypatch.setattr("gradcanary.tracking.recorder.Recorder.step_begins", boom)
    monkeypatch.setattr("gradcanary.guard.log", types.SimpleNamespace(error=boom))
    watch = gradcanary.watch(training.model, training.optimizer)
    training.steps(3)
    assert watch._session.guard.caught == 3


def test_unreadable_step_is_counted_and_the_others_arrive(collector, training):
    with gradcanary.watch(training.model, training.optimizer, run="odd") as watch:
        training.steps(3)
        watch._session.recorder.logged.append(LoggedMetric("acc", (), None, torch.zeros(2)))
        training.steps(3)
    assert collector.steps() == [0, 1, 3, 4, 5]
    assert watch._session.guard.caught == 1
