"""What a script does with a model that is watched: copies, pickles, forks, other programs, thousands of steps."""

import copy
import gc
import io
import os
import pickle
import threading
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

import gradcanary
from gradcanary.stats import accumulation
from support import warm
from support.agent.recorded import Recorded
from support.agent.scripted import until
from support.agent.torch_loops import Loop


def plain(model: nn.Module) -> list[bytes]:
    return [each.detach().float().numpy().tobytes() for each in model.parameters()]


def hooks(model: nn.Module) -> int:
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    return sum(len(getattr(each, kind) or ()) for each in model.parameters() for kind in kinds)


def by_torch(thing: object) -> object:
    kept = io.BytesIO()
    torch.save(thing, kept)
    kept.seek(0)
    return torch.load(kept, weights_only=False)


@pytest.mark.parametrize("keep", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing)), by_torch])
@pytest.mark.parametrize("where", ["between", "inside"])
def test_copies_are_whole_and_nobody_follows_them(collector: Recorded, keep: object, where: str) -> None:
    """Of model, optimizer and scheduler, between two windows and inside one with hooks of its own."""
    loop = Loop()
    with gradcanary.watch(loop.model, loop.optimizer, url=collector.url, run="copies"):
        loop.steps(accumulation.FIRST)
        if where == "inside":
            loop.pass_()
            assert hooks(loop.model) == 3 * len(list(loop.model.parameters()))
        model, optimizer, scheduler = keep((loop.model, loop.optimizer, loop.scheduler))
        assert plain(model) == plain(loop.model)
        assert hooks(model) == 0
        assert optimizer.state_dict().keys() == loop.optimizer.state_dict().keys()
        loop.pass_(model)
        optimizer.step()
        scheduler.step()
        if where == "inside":
            loop.pass_()
            loop.optimizer.step()
            loop.optimizer.zero_grad()
        loop.steps(2)
    assert set(collector.per_step("micro_steps")) == {2}
    assert len(collector.stat("norm")[accumulation.FIRST]) == len(collector.names) == 4


class Rows(torch.utils.data.Dataset[float]):
    """Holds the model, as datasets of reinforcement learning do; its workers run it."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop

    def __len__(self) -> int:
        return 4

    def __getitem__(self, row: int) -> float:
        self.loop.steps(1)
        return float(hooks(self.loop.model))


def test_workers_that_are_forked_have_no_hooks_and_count_nothing(collector: Recorded) -> None:
    loop = Loop()
    with gradcanary.watch(loop.model, loop.optimizer, url=collector.url, run="workers"):
        loop.steps(2)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forking with threads: that is what is tested
            found = [float(each) for each in DataLoader(Rows(loop), num_workers=2, multiprocessing_context="fork")]
        loop.steps(2)
    assert found == [0.0] * 4
    assert collector.steps() == [0, 1, 2, 3]


EXEC = """
import os, sys
import torch
import gradcanary

weight = torch.nn.Parameter(torch.ones(3))
optimizer = torch.optim.SGD([weight], lr=0.1)
gradcanary.watch(None, optimizer, run="exec")
for _ in range(3):
    weight.square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
os.execv(sys.executable, [sys.executable, "-c", "print('another program')"])
"""


def test_a_process_that_becomes_another_program_does_so_at_once(collector: Recorded, tmp_path: Path) -> None:
    script = tmp_path / "exec.py"
    script.write_text(EXEC)
    ended = warm.run(warm.TRAINING, [str(script)], {**os.environ, "GRADCANARY_URL": collector.url})
    assert (ended.returncode, ended.stdout) == (0, "another program\n")


def test_nothing_grows_with_the_steps(collector: Recorded) -> None:
    """Memory over 100,000 steps is what ``tests/benchmarks/endurance.py`` is for."""
    loop, steps = Loop(), 400
    counts = []
    with gradcanary.watch(loop.model, loop.optimizer, url=collector.url, run="long", every=1):
        for _ in range(3):
            loop.steps(steps)
            until(lambda: len(collector.steps()) >= steps - 1)  # the last one is still open
            collector.batches.clear()
            gc.collect()
            counts.append((len(gc.get_objects()), threading.active_count(), hooks(loop.model)))
    (_, before, now) = counts
    assert now[1:] == before[1:]
    assert now[0] - before[0] < steps, "not one object per step"
