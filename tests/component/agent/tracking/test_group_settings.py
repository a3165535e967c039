"""Settings of the optimizers reach the collector: at the start and at each change, without a read of a tensor."""

import gzip
import json
import os
from typing import Any

import pytest
import torch
from torch import nn

import gradcanary
from gradcanary.export import spool, sync
from gradcanary.tracking.group_settings import GroupSettings
from support.agent.scripted import Says, Scripted, Told, Training, collector_that, refusal, reply


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("gradcanary.export.sender.FLUSH_S", 0.02)


def settings_of(collector: Scripted) -> list[tuple[Any, ...]]:
    last = collector.of("hello", accepted=True)[-1].body
    return [(each["step"], each["checked"], each["groups"], each["name"], each["value"]) for each in last["settings"]]


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 4)).square().mean().backward()
    optimizer.step()


def test_first_values_and_changes_arrive_with_their_steps():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2))
    groups = [{"params": model[0].parameters()}, {"params": model[1].parameters(), "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)
    with collector_that() as collector, gradcanary.watch(url=collector.url, run="settings") as watch:
        for number in range(30):
            if number == 20:
                optimizer.param_groups[1].update(weight_decay=1e5, betas=(0.5, 0.999))
            step(model, optimizer)
        watch.close()
        found = settings_of(collector)
    assert (0, None, [0, 1], "optimizer", "AdamW") in found
    assert (0, None, [0], "weight_decay", 0.1) in found
    assert (0, None, [1], "weight_decay", 0.0) in found
    assert (0, None, [0, 1], "beta1", 0.9) in found
    assert (0, None, [0, 1], "eps", 1e-8) in found
    assert found[-2:] == [(20, 19, [1], "weight_decay", 1e5), (20, 19, [1], "beta1", 0.5)]


def test_clip_of_the_norm_is_found_from_what_it_leaves():
    training = Training()
    with collector_that() as collector:
        with gradcanary.watch(training.model, training.optimizer, url=collector.url, run="settings"):
            for number in range(30):
                training.optimizer.zero_grad()
                training.model(torch.randn(16, 4)).square().mean().backward()
                nn.utils.clip_grad_norm_(training.model.parameters(), 1e-3 if number < 15 else 1e-9)
                training.optimizer.step()
        found = [each for each in settings_of(collector) if each[3] == "max_norm"]
    assert [each[4] for each in found] == [1e-3, 1e-9]
    assert found[1][0] >= 19
    assert found[1][1] == 14


def test_scaled_gradients_are_not_called_clipped():
    training = Training()
    with collector_that() as collector:
        with gradcanary.watch(training.model, training.optimizer, url=collector.url, run="settings"):
            for number in range(30):
                training.optimizer.zero_grad()
                training.model(torch.randn(16, 4)).square().mean().backward()
                for parameter in training.model.parameters():
                    parameter.grad *= 0.5 + 0.01 * (number % 2)
                training.optimizer.step()
        assert not [each for each in settings_of(collector) if each[3] == "max_norm"]


class Guarded(torch.Tensor):
    """A setting whose value must not be looked at: on a GPU that would wait."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError(f"{func} reads it")


def test_tensor_among_the_settings_is_left_alone():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(2))], lr=0.1, momentum=0.9)
    seen = GroupSettings()
    for number, value in enumerate([0.1, torch.zeros(()).as_subclass(Guarded), torch.ones(()).as_subclass(Guarded)]):
        optimizer.param_groups[0]["weight_decay"] = value
        seen.note(number, [optimizer])
    assert [(each.step, each.groups[0].get("weight_decay")) for each in seen.changes] == [(0, 0.1), (1, None)]


def test_equal_values_in_new_objects_are_no_change():
    optimizer = torch.optim.Adam([nn.Parameter(torch.zeros(2))])
    seen = GroupSettings()
    for number in range(3):
        optimizer.param_groups[0].update(betas=(float("0.9"), float("0.999")), weight_decay=float("0.1"))
        seen.note(number, [optimizer])
    optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]})
    seen.note(3, [optimizer])
    assert [(each.step, each.checked, len(each.groups)) for each in seen.changes] == [(0, None, 1), (3, 2, 2)]


def test_environment_arrives_once_and_can_be_switched_off(monkeypatch):
    for is_on in (True, False):
        monkeypatch.setenv("GRADCANARY_ENVIRONMENT", "1" if is_on else "0")
        training = Training()
        with collector_that() as collector:
            with gradcanary.watch(training.model, training.optimizer, url=collector.url, run="settings"):
                training.steps(10)
            last = collector.of("hello", accepted=True)[-1].body
        assert (last["environment"] is not None) is is_on
        assert last["settings"]
        if is_on:
            assert dict(last["environment"]["versions"])["torch"] == torch.__version__


def older(told: Told) -> Says:
    """Answer as a collector that does not know the fields."""
    if told.kind == "hello" and {"environment", "settings"} & told.body.keys():
        return Says(422, refusal("invalid", "Unexpected keyword argument"))
    return Says(body=reply())


def test_older_collector_gets_everything_else():
    training = Training()
    with collector_that(older) as collector:
        with gradcanary.watch(training.model, training.optimizer, url=collector.url, run="settings"):
            training.steps(40)
        assert collector.steps() == list(range(40))
        has_settings = ["settings" in told.body for told in collector.of("hello")]
    assert has_settings
    assert has_settings == [True, False] * (len(has_settings) // 2), "each hello is sent once more, without them"


def test_sync_sends_the_settings_and_leaves_them_out_for_an_older_collector(tmp_path, monkeypatch):
    monkeypatch.setenv("GRADCANARY_SPOOL", str(tmp_path))
    for script in (older, lambda _: Says()):
        training = Training()
        with gradcanary.watch(training.model, training.optimizer, url="http://127.0.0.1:9", run="settings") as watch:
            training.steps(10)
            watch.close(timeout_s=2.0)
        with collector_that(script) as collector:
            assert sync.sync_spools(sync.find_spools([spool.default_folder(os.environ)]), collector.url, None, print)
            assert collector.steps() == list(range(10))
            assert ("settings" in collector.of("hello", accepted=True)[-1].body) is (script is not older)


def test_hello_is_small():
    """All settings are sent with each hello."""
    training = Training()
    with collector_that() as collector:
        with gradcanary.watch(training.model, training.optimizer, url=collector.url, run="settings"):
            training.steps(10)
        body = collector.of("hello", accepted=True)[-1].body
    assert len(gzip.compress(json.dumps([body["settings"], body["environment"]]).encode())) < 2_000
