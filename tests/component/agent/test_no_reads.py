"""No value of a tensor is read in the training's thread on our account: on a GPU each such read would wait for it.

A dispatch mode sees what torch itself does, and :class:`Reads` the few methods that read a CPU tensor without it.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import gradcanary
from gradcanary.hooks import backward
from support.agent.recorded import Recorded
from support.agent.torch_loops import watching

AROUND = ("tolist", "numpy", "__array__", "__dlpack__")
"""Ways to read a CPU tensor that pass no dispatcher."""

WAITING = {
    *("_local_scalar_dense", "item", "is_nonzero", "equal", "allclose", "nonzero", "masked_select", "_to_copy"),
    *("unique", "_unique2", "unique_dim", "unique_consecutive", "bincount", "repeat_interleave", "_assert_async"),
    "lift_fresh",
}
"""Operations that read values, whose result has a size that depends on them, or that go from device to device; and what
is made of a number of Python's."""


class Reads(TorchDispatchMode):
    """Counts, in the thread that enters it, what reads values."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self._thread = threading.get_ident()
        for name in AROUND:
            patch.setattr(torch.Tensor, name, self._counted(name, getattr(torch.Tensor, name)))

    def _counted(self, name: str, original: Callable[..., object]) -> Callable[..., object]:
        def read(*args: object, **kwargs: object) -> object:
            self.found[name] += threading.get_ident() == self._thread
            return original(*args, **kwargs)

        return read

    def __torch_dispatch__(
        self, func: torch._ops.OpOverload, _types: object, args: tuple[object, ...] = (), kwargs: object = None
    ) -> object:
        name = func.overloadpacket.__name__
        indices = args[1] if name in ("index", "index_put", "index_put_") else ()
        is_mask = any(each is not None and each.dtype in (torch.bool, torch.uint8) for each in indices)
        # Casts on one device read nothing: a copy from one to another is what is looked for.
        is_cast = name == "_to_copy" and (kwargs or {}).get("device") is None
        if (name in WAITING and not is_cast) or is_mask:
            self.found[name] += 1
        return func(*args, **(kwargs or {}))


class Loop:
    """A training of some kind: ``step`` is called with the watch, None without one."""

    dtype, rate = torch.float32, 1e-3

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).to(self.dtype)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=self.rate)

    def loss(self) -> torch.Tensor:
        return self.model(torch.ones(4, 6, dtype=self.dtype)).float().square().mean()

    def step(self, watch: gradcanary.Watch | None) -> None:
        self.loss().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


class Clipped(Loop):
    """Accumulation with a clip and logged tensors."""

    def step(self, watch: gradcanary.Watch | None) -> None:
        for _ in range(3):
            loss = self.loss()
            loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), 1e-3)
        self.optimizer.step()
        if watch is not None:
            watch.log(loss=loss.detach(), norm=norm)
        self.optimizer.zero_grad(set_to_none=False)


class LowPrecision(Loop):
    """Where sums are shadowed, weights found frozen, and things foreseen."""

    dtype, rate = torch.bfloat16, 1e-6

    def step(self, watch: gradcanary.Watch | None) -> None:
        self.loss().backward()
        super().step(watch)


class Remedied(LowPrecision):
    def __init__(self) -> None:
        super().__init__()
        self.sums = gradcanary.fp32_accumulators(self.optimizer)


class Scaled(Loop):
    """Under autocast, with steps that the scaler skips."""

    fused = False

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=self.fused)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=4)
        self.taken = 0

    def step(self, watch: gradcanary.Watch | None) -> None:
        self.taken += 1
        with torch.autocast("cpu", torch.bfloat16):
            loss = self.loss() * (torch.inf if self.taken % 5 == 0 else 1.0)
        self.scaler.scale(loss).backward()
        if not self.fused:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


class Fused(Scaled):
    fused = True


class Closure(Loop):
    def __init__(self) -> None:
        super().__init__()
        self.optimizer = torch.optim.LBFGS(self.model.parameters(), lr=1e-2, max_iter=3)

    def step(self, watch: gradcanary.Watch | None) -> None:
        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = self.loss()
            loss.backward()
            return loss

        self.optimizer.step(closure)


class Summed(Loop):
    """Gradients are summed by hand."""

    def step(self, watch: gradcanary.Watch | None) -> None:
        self.loss().backward()
        for name, each in self.model.named_parameters():
            if watch is not None:
                watch.observe_accumulator(name, each.grad.double())
        self.optimizer.step()
        self.optimizer.zero_grad()


class ByHand(Loop):
    """Updates by hand, without an optimizer, in windows of which some are short."""

    optimizer = None

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
        self.taken = 0

    def step(self, watch: gradcanary.Watch | None) -> None:
        self.taken += 1
        for _ in range(1 + self.taken % 2):
            self.loss().backward()
        with torch.no_grad():
            for each in self.model.parameters():
                each -= 0.1 * each.grad
        gradcanary.step()
        self.model.zero_grad()


class Several(Loop):
    """Two optimizers, a learning rate in a tensor, a layer that is sparse, one that is not finite, and evaluations."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 6, sparse=True)
        self.other = torch.optim.SGD(self.table.parameters(), lr=0.1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=torch.tensor(1e-3), foreach=False)
        self.taken = 0

    def loss(self) -> torch.Tensor:
        self.taken += 1
        bad = torch.nan if self.taken == 7 else 1.0
        return self.model(self.table(torch.tensor([1, 2, 2]))).square().mean() * bad

    def step(self, watch: gradcanary.Watch | None) -> None:
        super().step(watch)
        self.other.step()
        self.other.zero_grad()
        if watch is not None and self.taken % 4 == 0:
            watch.pause()


KINDS = (Loop, Clipped, LowPrecision, Remedied, Scaled, Fused, Closure, Summed, ByHand, Several)
STEPS = {LowPrecision: 104}
"""Two turns of the weights that stand still are fifty steps each, as is the time before something is foreseen."""


def reads_of(kind: type[Loop], collector: Recorded, patch: pytest.MonkeyPatch, *, is_watched: bool) -> Counter[str]:
    loop, steps = kind(), STEPS.get(kind, 14)
    optimizers = () if kind is Several else (loop.optimizer,)
    with patch.context() as patched, Reads(patched) as reads:
        with watching(collector, loop.model, *optimizers, is_watched=is_watched) as watch:
            for _ in range(steps):
                loop.step(watch)
        if isinstance(loop, Remedied):
            loop.sums.close()
    return reads.found


@pytest.mark.parametrize("kind", KINDS)
def test_a_watched_training_reads_no_value_more(
    collector: Recorded, kind: type[Loop], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert reads_of(kind, collector, monkeypatch, is_watched=True) == reads_of(
        kind, collector, monkeypatch, is_watched=False
    )
    assert collector.steps() == list(range(STEPS.get(kind, 14)))
    assert collector.stat("norm")
    if kind not in (Closure, ByHand):
        assert collector.stat("update_ratio")
    if kind is LowPrecision:
        assert collector.stat("accumulation_error")
        assert collector.stat("frozen_fraction")
        assert collector.facts("bf16_weights_lr")


WAYS = (
    lambda value: value.item(),
    lambda value: value.tolist(),
    lambda value: bool(value > 0),
    lambda value: value.numpy(),
    lambda value: value.new_ones(3)[value.new_ones(3) > 0],
    lambda value: value.to("meta", copy=True),
    lambda value: torch.tensor(1.0),
)


def test_a_single_read_by_the_agent_would_be_seen(collector: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each kind one per backward pass."""
    original, passes = backward.BackwardCalls.add, itertools.count()

    def reading(self: backward.BackwardCalls, roots: list[torch.Tensor]) -> None:
        WAYS[next(passes) % len(WAYS)](roots[0].detach())
        original(self, roots)

    monkeypatch.setattr(backward.BackwardCalls, "add", reading)
    more = reads_of(Loop, collector, monkeypatch, is_watched=True)
    more.subtract(reads_of(Loop, collector, monkeypatch, is_watched=False))
    assert next(passes) == 14
    assert +more == Counter(["_local_scalar_dense"] * 4 + ["tolist", "numpy", "index", "_to_copy", "lift_fresh"] * 2)
