"""What the fold costs per step and keeps per layer, next to decoding the same batch.

    python tests/benchmarks/fold_speed.py

Batches of a healthy run are decoded and folded in turns, in one process, so that a busy machine slows both alike; the
figures are medians. The state is packed and unpacked around each fold, as ingest does. ``sick`` is the fold of a run of
which a tenth of the layers has fallen and stays low, beside that of the healthy one.
"""

import base64
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gradcanary import wire
from gradcanary_server.ingest import evaluation
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.evaluator import evaluate
from gradcanary_server.rules.state import RuleState
from gradcanary_server.rules.types import Launch, LayerFacts
from gradcanary_server.tsdb import batch as tsdb_batch

STEPS = 32
ROUNDS, SETTLED = 30, 20
"""Batches, and those before the ones of which the medians are: grace, baselines, and the incident of the sick run."""

FALLS_AT = 12
"""The batch from which on layers of the sick run are low."""


@dataclass
class Figures:
    """Microseconds per step for each part, and bytes per layer."""

    decode_us: float
    fold_us: float
    pack_us: float
    packed_bytes: float


def base64_of(array: np.ndarray) -> str:
    return base64.b64encode(array.tobytes()).decode()


def wire_batch(first: int, layers: int, low: int, random: np.random.Generator) -> wire.Batch:
    """A batch as rank 0 sends it: absmax, norm, loss and one learning rate; the first ``low`` layers have fallen."""
    steps = tuple(range(first, first + STEPS))
    absmax = (5e-3 * 10 ** random.normal(0, 0.1, (STEPS, layers))).astype("<f4")
    absmax[:, :low] *= np.float32(1e-4)
    blocks = tuple(
        wire.Block(stat, "accumulated", steps, None, base64_of(values))
        for stat, values in (("absmax", absmax), ("norm", absmax * np.float32(3)))
    )
    scalars = {"loss": random.uniform(0.5, 1, STEPS), "lr0": np.full(STEPS, 1e-4)}
    return wire.Batch(
        layer_set="0" * 16,
        every=1,
        steps=steps,
        times=base64_of(np.arange(STEPS, dtype="<f8")),
        micro_steps=(8,) * STEPS,
        skipped=(0,) * STEPS,
        clipped=(0,) * STEPS,
        state=base64_of(np.zeros((STEPS, layers), np.uint8)),
        blocks=blocks,
        accumulators=(),
        metrics=tuple(wire.Metric(name, (), steps, base64_of(values)) for name, values in scalars.items()),
        dropped_steps=0,
    )


def timed(act: Callable[[], object]) -> tuple[float, object]:
    """Return microseconds per step of the batch, and the result."""
    began = time.perf_counter()
    result = act()
    return (time.perf_counter() - began) / STEPS * 1e6, result


def measure(layers: int, *, is_sick: bool) -> Figures:
    random, rules = np.random.default_rng(0), Rules()
    names = (f"blocks.{n // 2}.lora_{'AB'[n % 2]}" for n in range(layers))
    facts = tuple(LayerFacts(n, name, (8, 640), "float32", "Linear", 0) for n, name in enumerate(names))
    launch = Launch(1, 0, False, None, None, facts)
    packed, spent = RuleState.empty().pack(), []
    for number in range(ROUNDS):
        low = layers // 10 if is_sick and number >= FALLS_AT else 0
        batch = wire_batch(number * STEPS, layers, low, random)
        decode_us, columns = timed(lambda batch=batch: tsdb_batch.decode_batch(batch))
        samples = evaluation.to_samples(columns, 1)
        unpack_us, state = timed(lambda packed=packed: RuleState.unpack(packed))
        fold_us, (state, changes) = timed(lambda state=state, samples=samples: evaluate(state, launch, samples, rules))
        pack_us, packed = timed(lambda state=state: state.pack())
        assert len(changes) == (layers // 10 if is_sick and number == FALLS_AT else 0), "one incident, or none"
        spent.append((decode_us, fold_us, unpack_us + pack_us))
    decode_us, fold_us, pack_us = (statistics.median(column) for column in zip(*spent[SETTLED:], strict=True))
    return Figures(decode_us, fold_us, pack_us, len(packed) / layers)


def main() -> None:
    head = f"{'layers':>6} {'decode':>9} {'fold':>9} {'pack':>9}   us per step   "
    print(head + f"{'fold/decode':>11} {'B/layer':>8} {'sick/healthy':>13}")
    for layers in (30, 500, 3_000):
        found, sick = (measure(layers, is_sick=is_sick) for is_sick in (False, True))
        ratio = found.fold_us / found.decode_us
        line = f"{layers:>6} {found.decode_us:>9.1f} {found.fold_us:>9.1f} {found.pack_us:>9.1f}"
        print(f"{line}                 {ratio:>11.1f} {found.packed_bytes:>8.1f} {sick.fold_us / found.fold_us:>13.1f}")


if __name__ == "__main__":
    main()
