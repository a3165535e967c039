"""Synthetic gradients for the fold: a LoRA of some blocks, and how to cut and fold a stream."""

from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np

from gradcanary import wire
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.evaluator import evaluate
from gradcanary_server.rules.state import RuleState
from gradcanary_server.rules.types import Launch, LayerFacts, Samples, Transition

MEASURED, NO_GRADIENT, ZERO, NONFINITE, NOT_TRAINABLE, PARTIAL = range(len(wire.STATES))
ACCUMULATED, POST_CLIP = wire.PHASES.index("accumulated"), wire.PHASES.index("post_clip")


def lora(blocks: int = 8) -> tuple[LayerFacts, ...]:
    """Return lora_A and lora_B of each block, in model order: A of block b is layer 2 b."""
    names = [f"blocks.{block}.lora_{part}" for block in range(blocks) for part in "AB"]
    return tuple(LayerFacts(number, name, (8, 128), "float32", "Linear", 0) for number, name in enumerate(names))


def launch(layers: tuple[LayerFacts, ...] | None = None, **changes: object) -> Launch:
    return replace(Launch(1, 0, False, None, None, lora() if layers is None else layers), **changes)


def healthy(steps: int, layers: int = 16, seed: int = 0, size: float = 5e-3) -> np.ndarray:
    """Return absmax [steps, layers] that wanders by a few tenths of a decade."""
    random = np.random.default_rng(seed)
    return size * 10 ** random.normal(0, 0.1, (steps, layers))


@dataclass
class Trace:
    """A run as arrays; ``absmax`` [n, L] holds 0 for exact zero, NaN for non-finite, -1 for no gradient, -2 for a
    layer that is not trainable. ``records`` are those of a later row, at which a part must begin."""

    absmax: np.ndarray
    every: int = 1
    first: int = 0
    loss: np.ndarray | None = None
    lr: np.ndarray | None = None
    phase: int = ACCUMULATED
    skipped: np.ndarray | None = None
    clipped: np.ndarray | None = None
    norm_factor: float = 3.0
    micro_steps: np.ndarray | None = None
    accumulators: tuple[wire.Accumulator, ...] = ()
    records: dict[int, tuple[wire.Accumulator, ...]] = field(default_factory=dict)
    values: dict[str, np.ndarray] = field(default_factory=dict)
    scales: np.ndarray | None = None
    extra_state: dict[tuple[int, int], int] = field(default_factory=dict)

    def samples(self, start: int = 0, end: int | None = None) -> Samples:
        """Return the part of the rows, with the losses of the steps from its first row to before the next part."""
        absmax = self.absmax[start:end]
        kinds = [absmax == 0, np.isnan(absmax), absmax == -2, absmax < 0]
        state = np.select(kinds, [ZERO, NONFINITE, NOT_TRAINABLE, NO_GRADIENT], MEASURED).astype(np.uint8)
        for (row, column), value in self.extra_state.items():
            if start <= row < start + len(absmax):
                state[row - start, column] = value
        known = np.where((state == MEASURED) | (state == ZERO), absmax, np.nan).astype(np.float32)
        count = len(absmax)
        steps = (self.first + self.every * np.arange(start, start + count)).astype(np.int64)
        zeros = np.zeros(count)
        skips = np.zeros(len(self.absmax)) if self.skipped is None else self.skipped == 1
        loss = np.empty(0) if self.loss is None else self.loss[start * self.every : (start + count) * self.every]
        return Samples(
            steps=steps,
            every=self.every,
            phase=np.full(count, self.phase, np.uint8),
            state=state,
            values={"absmax": known, "norm": known * self.norm_factor}
            | {stat: values[start:end].astype(np.float32) for stat, values in self.values.items()},
            skipped=zeros.astype(np.uint8) if self.skipped is None else self.skipped[start:end].astype(np.uint8),
            clipped=(zeros if self.clipped is None else self.clipped[start:end]).astype(np.bool_),
            micro_steps=np.full(count, 8, np.int16) if self.micro_steps is None else self.micro_steps[start:end],
            accumulators=self.records.get(start, () if start else self.accumulators),
            lr=np.full((count, 1), 1e-4, np.float32) if self.lr is None else self.lr[start:end].astype(np.float32),
            loss_steps=(steps[0] + np.arange(len(loss))).astype(np.int64) if count else np.empty(0, np.int64),
            loss=loss.astype(np.float64),
            scales=None if self.scales is None else self.scales[start:end],
            skipped_totals=None if self.scales is None else self.every * np.cumsum(skips)[start:end].astype(np.float64),
        )


def run(
    trace: Trace,
    of: Launch | None = None,
    rules: Rules | None = None,
    state: RuleState | None = None,
    cuts: tuple[int, ...] = (),
) -> tuple[RuleState, tuple[Transition, ...]]:
    """Fold a trace in one piece, or cut before these rows; the state is packed and unpacked between pieces."""
    of, rules, state = of or launch(), rules or Rules(), state or RuleState.empty()
    changes: list[Transition] = []
    borders = [0, *sorted(set(cuts)), len(trace.absmax)]
    for start, end in pairwise(borders):
        state, found = evaluate(RuleState.unpack(state.pack()), of, trace.samples(start, end), rules)
        changes += found
    return state, tuple(changes)


def fired(changes: tuple[Transition, ...], rule: str = "collapse") -> dict[int | None, Transition]:
    """Return the first fired change of each layer."""
    found: dict[int | None, Transition] = {}
    for change in changes:
        if change.rule == rule and change.kind == "fired":
            found.setdefault(change.layer, change)
    return found
