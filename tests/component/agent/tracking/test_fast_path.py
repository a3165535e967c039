"""Between samples the fast path is taken where windows are alike: nothing is missed, whatever comes in between."""

import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import pytest
import torch
from torch import nn

import gradcanary
from gradcanary.tracking.fast_path import FastPath
from gradcanary.tracking.overhead import IntervalPolicy, Measurement
from support.agent.fixtures import complaints
from support.agent.recorded import recording
from support.agent.torch_loops import assert_identical, watching

STEPS, EVERY = 400, 10
OURS = str(Path(gradcanary.__file__).parent)
NEVER = 10**9


@pytest.fixture(autouse=True)
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first step on each tenth is sampled, and the fast path is taken after a few windows."""
    monkeypatch.setattr("gradcanary.tracking.overhead.GRACE_STEPS", 0)
    monkeypatch.setattr("gradcanary.tracking.overhead.LOOK_STEPS", 1)
    monkeypatch.setattr(Measurement, "is_complete", lambda *_: True)
    monkeypatch.setattr("gradcanary.tracking.overhead.next_policy", lambda *_: IntervalPolicy(EVERY))
    monkeypatch.setattr("gradcanary.stats.weights.AFTER", 2)
    monkeypatch.setattr("gradcanary.tracking.hook_sampler.LEARNED_AFTER", 3)
    monkeypatch.setattr("gradcanary.tracking.fast_path.ALIKE", 2)


class Loop:
    """A training in which now and then something is out of the ordinary; the same for the same seed and K."""

    def __init__(self, seed: int, micro_steps: int) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(6)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.other, self.draws, self.micro_steps = nn.Linear(4, 4), random.Random(seed), micro_steps
        self.stranger = torch.optim.SGD(self.other.parameters(), lr=0.05)
        self.log: Callable[[float], None] = lambda _: None
        self.pause: Callable[[], None] = lambda: None

    def train(self) -> None:
        odd = [self.skip, self.longer, self.shorter, self.closure, self.foreign, self.foreign_step, self.evaluate]
        odd += [self.empty, self.interrupted, self.clear_in_place, self.rate, self.tell, self.part]
        for step in range(STEPS):
            if step > 30 and self.draws.random() < 0.1:
                self.draws.choice(odd)()
            self.window()

    def passes(self, count: int) -> None:
        for _ in range(count):
            self.model(torch.randn(8, 4)).square().mean().backward()

    def window(self, *, of: int | None = None) -> None:
        self.passes(self.micro_steps if of is None else of)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def skip(self) -> None:
        for _ in range(self.draws.choice([1, 1, 3])):
            self.passes(self.micro_steps)
            self.optimizer.zero_grad()

    def longer(self) -> None:
        self.window(of=self.micro_steps + 1)

    def shorter(self) -> None:
        self.window(of=max(self.micro_steps - 1, 1))

    def closure(self) -> None:
        def evaluate() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.model(torch.randn(8, 4)).square().mean()
            loss.backward()
            return loss

        self.optimizer.step(evaluate)
        self.optimizer.zero_grad()

    def foreign(self) -> None:
        self.other(torch.randn(8, 4)).square().mean().backward()

    def foreign_step(self) -> None:
        self.foreign()
        self.stranger.step()

    def evaluate(self) -> None:
        self.pause()
        self.passes(2)
        self.optimizer.zero_grad()

    def empty(self) -> None:
        self.window(of=0)

    def interrupted(self) -> None:
        def refuse(_: torch.Tensor) -> None:
            raise KeyboardInterrupt

        handle = self.model[2].weight.register_hook(refuse)
        with pytest.raises(KeyboardInterrupt):
            self.passes(1)
        handle.remove()
        self.optimizer.zero_grad()

    def clear_in_place(self) -> None:
        self.passes(self.micro_steps)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=False)

    def rate(self) -> None:
        self.optimizer.param_groups[0]["lr"] *= 0.99

    def tell(self) -> None:
        self.log(self.draws.random())

    def part(self) -> None:
        """Train other layers than those that a pass begins with."""
        for _ in range(self.micro_steps):
            self.model[:3](torch.randn(8, 4)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Sent(NamedTuple):
    """What was told of a training, but for the states of layers."""

    sampled: list[tuple[int, int, int]]
    metrics: list[dict[int, float]]


def sent_of(seed: int, micro_steps: int) -> tuple[Sent, dict[tuple[int, str], float], Loop]:
    """Return what was told of a training, and its absmax by step and layer."""
    loop = Loop(seed, micro_steps)
    with recording() as collector:
        with watching(collector, loop.model, loop.optimizer, is_watched=True) as watch:
            loop.log, loop.pause = lambda value: watch.log(told=value), watch.pause
            loop.train()
        told = [*zip(collector.steps(), *map(collector.per_step, ("micro_steps", "skipped")), strict=True)]
        absmax = {(step, n): v for step, of in collector.stat("absmax").items() for n, v in of.items() if v == v}
        return Sent(told, [collector.metric(name) for name in ("loss", "lr0", "told")]), absmax, loop


@pytest.mark.parametrize(("seed", "micro_steps"), [(1, 1), (2, 1), (3, 2), (4, 3)])
def test_all_that_is_sent_is_as_without_the_fast_path(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], seed: int, micro_steps: int
) -> None:
    taken: list[bool] = []
    step_ended = FastPath.step_ended
    monkeypatch.setattr(FastPath, "step_ended", lambda self, each: taken.append(step_ended(self, each)) or taken[-1])
    bare = Loop(seed, micro_steps)
    bare.train()
    sent, absmax, watched = sent_of(seed, micro_steps)
    assert taken.count(True) > STEPS / 4
    taken.clear()
    monkeypatch.setattr("gradcanary.tracking.fast_path.ALIKE", NEVER)
    expected, known, observed = sent_of(seed, micro_steps)
    assert complaints(capsys.readouterr().err) == ""
    assert True not in taken
    assert sent == expected
    both = absmax.keys() & known.keys()  # a layer whose hook was at rest as its sample began is in one of them only
    assert {key: absmax[key] for key in both} == {key: known[key] for key in both}
    assert len(both) > 0.9 * max(len(absmax), len(known))
    assert_identical(watched.model, bare.model)
    assert_identical(observed.model, bare.model)


def test_a_step_goes_through_few_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    """That is what it costs where caches are cold, and no clock is needed to tell."""
    monkeypatch.setattr("gradcanary.tracking.fast_path.HANDS_OVER_S", NEVER)
    loop, called = Loop(0, 1), []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        called.append(event == "call" and frame.f_code.co_filename.startswith(OURS))

    with recording() as collector, watching(collector, loop.model, loop.optimizer, is_watched=True):
        for _ in range(34):
            loop.window()
        sys.setprofile(note)
        loop.window()
        sys.setprofile(None)
    resting = len([*loop.model.parameters()])
    assert 10 < sum(called) < 47 + resting


def test_fast_path_is_off_where_cuda_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gradcanary.tracking.fast_path._is_on_cuda", lambda: True)
    begun: list[bool] = []
    monkeypatch.setattr(FastPath, "_enter", lambda *_: begun.append(True))
    loop = Loop(0, 1)
    with recording() as collector, watching(collector, loop.model, loop.optimizer, is_watched=True):
        for _ in range(101):
            loop.window()
    assert not begun
    assert collector.steps() == [*range(0, 101, EVERY)]


@pytest.mark.parametrize("part", ["_go_on", "_note", "_step_begins", "_step_ended"])
def test_a_fault_ends_it_for_good_and_no_step_is_missed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, part: str
) -> None:
    bare, loop, called = Loop(0, 2), Loop(0, 2), []
    works = getattr(FastPath, part)

    def fail(path: FastPath, *given: object, **more: object) -> object:
        called.append(part)
        if len(called) > 20:
            raise RuntimeError("broken")
        return works(path, *given, **more)

    monkeypatch.setattr(FastPath, part, fail)
    with recording() as collector, watching(collector, loop.model, loop.optimizer, is_watched=True):
        for each in (loop, bare):
            torch.manual_seed(1)
            for _ in range(101):
                each.window()
    assert_identical(loop.model, bare.model)
    assert len(called) == 21
    assert [record.exc_text.splitlines()[-1] for record in caplog.records] == ["RuntimeError: broken"]
    assert collector.steps() == [*range(0, 101, EVERY)]
    assert set(collector.per_step("micro_steps")) == {2}
