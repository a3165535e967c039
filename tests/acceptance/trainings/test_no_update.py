"""Weights that do not move, from a real training to the cause and its words; and small updates that are meant."""

import copy
import itertools
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import gradcanary
from support.collectors import Collector

STEPS = 330
Optimizer = torch.optim.Optimizer


class Job:
    """A small regression: eight linear layers, of which the last two are the second parameter group."""

    def __init__(self, kind: type[Optimizer] = torch.optim.AdamW, first: Any = None, second: Any = None) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            *(layer for _ in range(7) for layer in (nn.Linear(16, 16), nn.Tanh())), nn.Linear(16, 4)
        )
        self.target = nn.Linear(16, 4)
        last = [*self.model[12].parameters(), *self.model[14].parameters()]
        others = [each for each in self.model.parameters() if not any(each is one for one in last)]
        self.optimizer = kind([{"params": others, **(first or {})}, {"params": last, **(second or {})}], lr=1e-3)
        self.before_step: Callable[[], object] = lambda: None
        self.after_step: Callable[[], object] = lambda: None
        self.schedule: torch.optim.lr_scheduler.LRScheduler | None = None

    def train(self) -> None:
        for _ in range(STEPS):
            inputs = torch.randn(8, 16)
            nn.functional.mse_loss(self.model(inputs), self.target(inputs).detach()).backward()
            self.before_step()
            self.optimizer.step()
            self.after_step()
            self.optimizer.zero_grad()
            if self.schedule is not None:
                self.schedule.step()


def watched(collector: Collector, name: str, job: Job) -> list[dict[str, Any]]:
    """Train a job under watch, and return its incidents of the rule, in full."""
    with gradcanary.watch(job.model, job.optimizer, url=collector.url, run=name, every=1):
        job.train()
    listed = collector.get("/api/v1/incidents", run=name).json()["incidents"]
    found = [each for each in listed if each["rule"] == "no_update"]
    return [collector.get(f"/api/v1/incidents/{each['id']}").json() for each in found]


def clip(job: Job, norm: float) -> None:
    job.before_step = lambda: nn.utils.clip_grad_norm_(job.model.parameters(), norm)


def rate_at_zero() -> Job:
    return Job(second={"lr": 0.0})


def eps_too_large() -> Job:
    return Job(first={"eps": 10.0}, second={"eps": 10.0})


def clip_too_low() -> Job:
    job = Job(torch.optim.SGD)
    clip(job, 1e-8)
    return job


def lost_in_a_copy() -> Job:
    """The loop steps, and then loads the weights that it kept at the start."""
    job = Job()
    kept = copy.deepcopy(job.model.state_dict())
    job.after_step = lambda: job.model.load_state_dict(kept)
    return job


def weights_that_cannot_move() -> Job:
    return Job(first={"lr": 1e-12, "weight_decay": 0.0}, second={"lr": 1e-12, "weight_decay": 0.0})


FAULTS = {
    rate_at_zero: ("rate_zero", "the learning rate of parameter group 1 has been 0"),
    eps_too_large: ("epsilon", "eps of all groups is 10"),
    clip_too_low: ("clip_limit", "clipped to a norm of 1e-8"),
    lost_in_a_copy: ("lost_update", "they were back at their values of before"),
    weights_that_cannot_move: ("cannot_move", "the learning rate of all groups was 1e-12"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_cause_of_weights_that_do_not_move(module_collector: Collector, fault: Callable[[], Job]) -> None:
    (incident,) = watched(module_collector, fault.__name__, fault())
    code, words = FAULTS[fault]
    cause = incident["likely_cause"]
    assert cause["code"] == code
    assert any(words in line for line in cause["evidence"]), cause
    assert incident["opened_step"] <= 300


def test_smaller_updates_after_an_explosion_name_it(
    module_collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five gradients of two layers are a million times too large; AdamW moves these weights hardly for long after."""
    monkeypatch.setattr(sys.modules[__name__], "STEPS", 620)
    job = Job()
    for parameter in [*job.model.parameters()][4:8]:
        factors = (1e6 if 120 <= step < 125 else 1.0 for step in itertools.count())
        parameter.register_hook(lambda gradient, factors=factors: gradient * next(factors))
    (incident,) = watched(module_collector, "exploded", job)
    (explosion,) = [
        each["id"]
        for each in module_collector.get("/api/v1/incidents", run="exploded").json()["incidents"]
        if each["rule"] == "explosion"
    ]
    assert incident["caused_by"] == explosion
    assert incident["likely_cause"]["code"] == "moves_less"
    assert incident["likely_cause"]["evidence"][0].endswith(" steps before, in all of these parameters")


def warm_up() -> Job:
    job = Job()
    job.schedule = torch.optim.lr_scheduler.LambdaLR(job.optimizer, lambda step: step / 300)
    return job


def schedule_to_zero() -> Job:
    job = Job()
    job.schedule = torch.optim.lr_scheduler.LambdaLR(job.optimizer, lambda step: max(0.0, 1 - step / 150))
    return job


def a_group_far_slower() -> Job:
    return Job(second={"lr": 1e-5})


def clipped_hard_under_adam() -> Job:
    job = Job()
    clip(job, 1e-3)
    return job


def lora_partner_at_zero() -> Job:
    job = Job()
    nn.init.zeros_(job.model[14].weight)
    return job


def plain_sgd() -> Job:
    return Job(torch.optim.SGD)


HEALTHY = (warm_up, schedule_to_zero, a_group_far_slower, clipped_hard_under_adam, lora_partner_at_zero, plain_sgd)


@pytest.mark.parametrize("job", HEALTHY)
def test_small_updates_that_are_meant(module_collector: Collector, job: Callable[[], Job]) -> None:
    assert watched(module_collector, job.__name__, job()) == []
