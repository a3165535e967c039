"""The demo's training is what it says, seen without gradcanary; and a restart in its middle says nothing twice."""

import os
import re
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from detection.truth import collapsed, read_gradients
from gradcanary.demo import training
from gradcanary.demo.processes import new_secret
from gradcanary.demo.story import Receiver
from gradcanary.demo.verdict import COLLAPSED, FAULT_STEP, MAX_STEPS_TO_DETECT, TRUE_STEP
from support import warm
from support.collectors import Collector

STEPS = 320


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_the_fault_is_real_without_the_agent() -> None:
    names, absmax, loss = read_gradients(STEPS, training.Fault())
    fell = collapsed(absmax)
    assert {names[layer] for layer in fell} == COLLAPSED
    assert all(FAULT_STEP < step <= FAULT_STEP + 20 for step in fell.values())
    # Another build of torch rounds otherwise, and may cross the threshold a step or two earlier or later.
    assert abs(min(fell.values()) - TRUE_STEP) <= 2
    healthy = [layer for layer in range(len(names)) if layer not in fell]
    assert (absmax[60:, healthy] > 1e-3).all()
    assert (absmax[-100:, list(fell)] < 1e-5).all()
    _, _, first_loss = read_gradients(1)
    assert loss < 0.7 * first_loss


def test_healthy_twin_of_the_demo_without_the_agent() -> None:
    _, absmax, _ = read_gradients(STEPS)
    assert collapsed(absmax) == {}
    assert (absmax[60:] > 1e-3).all()


def test_nothing_in_the_training_touches_a_gradient_or_the_agent_but_watch() -> None:
    source = Path(training.__file__).read_text()
    assert set(re.findall(r"gradcanary\.(\w+)\(", source)) == {"watch"}
    assert not re.search(r"\.grad\b|register_\w*hook", source)


def test_a_collector_that_restarts_in_the_middle_tells_it_once(tmp_path: Path, collector_factory) -> None:
    secret = new_secret()
    with closing(Receiver(secret, lambda _message: None)) as receiver:
        collector = collector_factory("--webhook", receiver.url, env={"GRADCANARY_WEBHOOK_SECRET": secret})
        words = ["-m", "gradcanary.demo.training", "--run", "faulty", "--fault", "--steps", "600"]
        faulty = warm.Process(warm.TRAINING, words, {**os.environ, "GRADCANARY_URL": collector.url})
        with faulty.stdout:
            for after_step in (100, 240, 300):
                wait_for_step(collector, after_step)
                collector.stop()
                collector.start()
            assert faulty.wait(300) == 0
        wait_for(lambda: receiver.messages, 30)
        time.sleep(2)
        assert [message.content["type"] for message in receiver.messages] == ["gradient.collapse.opened"]
        told = receiver.messages[0].data
        assert {layer["name"] for layer in told["worst"]} == COLLAPSED
        assert (
            f"Weight decay of parameter group 1 rose from 0 to 100,000 at step {FAULT_STEP}: with the learning rate "
            "5e-6 each step multiplies its weights by 1 - 5e-6 * 100,000 = 0.5." in told["likely_cause"]
        )
        assert collector.get("/api/v1/runs/faulty").json()["step"] == 599
        incidents = collector.get("/api/v1/incidents", run="faulty").json()["incidents"]
        assert [each["rule"] for each in incidents if each["severity"] != "information"] == ["collapse"]
        assert 0 <= incidents[0]["opened_step"] - TRUE_STEP <= MAX_STEPS_TO_DETECT


def wait_for_step(collector: Collector, step: int) -> None:
    def reached() -> bool:
        answer = collector.get("/api/v1/runs/faulty")
        return answer.status_code == 200 and (answer.json()["step"] or 0) >= step

    wait_for(reached, 60)


def wait_for(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)
