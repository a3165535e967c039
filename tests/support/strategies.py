"""Streams for hypothesis: whatever an agent may send of a few layers, healthy or not."""

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from gradcanary import wire
from gradcanary_server.rules.config import (
    LAYER_RULES,
    AccumulationLoss,
    Accumulator,
    Collapse,
    Explosion,
    Fp16Underflow,
    Frozen,
    Grace,
    InVain,
    LayerRule,
    NeverCleared,
    Nonfinite,
    NotOptimized,
    NoUpdate,
    Rules,
    SecondMoments,
    Unused,
    Vanished,
)
from support.traces import ACCUMULATED, POST_CLIP, Trace, healthy, launch, lora

# Short counts, so that short streams come to everything.
QUICK = Rules(
    collapse=Collapse(baseline_observations=5, siblings_min=3, fire_after_steps=6, resolve_after_steps=12),
    grace=Grace(steps=5, max_steps=20),
    nonfinite=Nonfinite(skipped_in_row=3),
    vanished=Vanished(observations=8, fire_after_steps=6, rare_factor=2),
    unused=Unused(observations=9),
)
LAYERS = 6


@st.composite
def traces(draw: st.DrawFn, layers: int = LAYERS) -> Trace:
    """A stream of phases, each with its own level per layer, with gaps, zeros, skips and losses."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    levels = st.sampled_from([1e-2, 3e-3, 2e-4, 5e-5, 1e-7, 0.0, np.nan, -1.0, -2.0, 5.0, 1e5])
    parts = []
    for _ in range(draw(st.integers(1, 5))):
        level = np.array(draw(st.lists(levels, min_size=layers, max_size=layers)))
        noise = 10 ** random.normal(0, 0.2, (draw(st.integers(1, 25)), layers))
        parts.append(np.where(level < 0, level, level * noise))
    absmax = np.concatenate(parts)
    every, rows = draw(st.sampled_from([1, 10, 100])), len(absmax)
    loss = 10.0 ** -random.integers(0, 4, rows * every) * random.choice([1, 1, 1, 1, 1, 1, np.nan, -1], rows * every)
    return Trace(
        absmax,
        every=every,
        loss=loss if draw(st.booleans()) else None,
        lr=drawn_rates(rows, int(random.integers(2**32))),
        skipped=random.choice([0, 0, 0, 0, 1, 2], rows) if draw(st.booleans()) else None,
        clipped=random.choice([0, 1], rows) if draw(st.booleans()) else None,
        phase=draw(st.sampled_from([ACCUMULATED, ACCUMULATED, POST_CLIP])),
        extra_state={(int(random.integers(rows)), int(random.integers(layers))): 5 for _ in range(3)},
        micro_steps=np.sort(random.choice([1, 8, 64], rows)).astype(np.int16) if draw(st.booleans()) else None,
        accumulators=draw(st.sampled_from([(), SUMS])),
        scales=random.choice([np.nan, 0.5, 1.0, 64.0, 65_536.0, 65_536.0], rows) if draw(st.booleans()) else None,
        values=in_turns(random, rows, layers) if draw(st.booleans()) else {},
    )


def drawn_rates(rows: int, seed: int) -> np.ndarray:
    """Learning rates of two groups that stay, rise, jump, are zero or not logged."""
    random = np.random.default_rng(seed)
    factors = random.choice([1, 1, 1, 1, 1, 1, 20, 0, np.nan], (rows, 2))
    return np.cumsum(random.integers(0, 2, (rows, 2)), axis=0) * 1e-5 * factors


SUMS = (
    wire.Accumulator((0, 2), "float32", "bfloat16", None),
    wire.Accumulator((1, 3), None, "float32", "float16"),
    wire.Accumulator((4,), "float32", "float32", "float32"),
)


def in_turns(random: np.random.Generator, rows: int, layers: int) -> dict[str, np.ndarray]:
    """Stats that a layer has now and then."""
    stats = dict.fromkeys(("accumulation_error", "norm_ratio", "frozen_fraction", "zero_fraction"))
    for stat in stats:
        some = random.choice([0, 0.02, 0.3, 0.7, 0.95, 1], (rows, layers))
        stats[stat] = np.where(random.random((rows, layers)) < random.choice([0.05, 0.5]), some, np.nan)
    moved = np.where(random.random((rows, layers)) < 0.3, np.nan, random.choice([0, 1e-9, 1e-3, 1], (rows, layers)))
    norms = 10.0 ** -random.integers(0, 4, (rows, layers))
    stats["update_ratio"], stats["weight_norm"] = moved, np.where(np.isnan(moved), np.nan, norms)
    stats["norm_ratio"] = np.where(np.isnan(stats["accumulation_error"]), np.nan, 1 - stats["accumulation_error"] / 2)
    return stats


def now_and_then(steps: int, every: int, seed: int) -> Trace:
    """A healthy stream of layers that are idle now and then, each in its own way and for spans of its own length."""
    random, absmax = np.random.default_rng(seed), healthy(steps, LAYERS, seed)
    for layer in range(LAYERS):
        span = int(random.integers(1, 12))
        is_idle = np.repeat(random.random(steps // span + 1) < random.choice([0, 0.02, 0.1, 0.5, 0.95]), span)[:steps]
        absmax[is_idle, layer] = random.choice([0, -1, -1, -2])
    return Trace(absmax, every=every)


SAID = (
    wire.Fact("dead_config_key", "", (lora(3)[1].name,)),
    wire.Fact("bf16_moments", "", (lora(3)[4].name,)),
    wire.Fact("fp16_without_scaler", "", ()),
    wire.Fact("clip_before_unscale", "", ()),
    wire.Fact("not_optimized", "", (lora(3)[2].name,)),
    wire.Fact(wire.OWN_LOSS, "", (lora(3)[3].name, lora(3)[4].name, lora(3)[5].name)),
    wire.Fact("never_cleared", "", (lora(3)[3].name,)),
    wire.Fact("fp16_gradients", "", (lora(3)[0].name,)),
    wire.Fact("fp16_limit", "", (lora(3)[5].name,)),
    wire.Fact("undone_updates", "", (lora(3)[5].name,)),
)

launches = st.builds(
    lambda late, absmax, norm, facts, optimizers: launch(
        lora(LAYERS // 2), late=late, absmax_below=absmax, norm_below=norm, facts=facts, optimizers=optimizers
    ),
    st.booleans(),
    st.sampled_from([None, 1e-4]),
    st.sampled_from([None, 1e-6]),
    st.sampled_from([(), SAID, SAID[:2]]),
    st.sampled_from([(), ("AdamW",), ("LBFGS",)]),
)


PICKY = LayerRule(
    "lora_A",
    collapse=replace(QUICK.collapse, enter=1e-3, exit=2e-3, norm_below=1e-4),
    nonfinite=Nonfinite(enabled=False),
    explosion=Explosion(ratio=10, observations=1),
    vanished=Vanished(steady_share=0.5, observations=5, fire_after_steps=3, rare_factor=1),
    unused=Unused(observations=3),
    accumulation_loss=AccumulationLoss(error=0.5, norm_ratio=0.5),
    accumulator=Accumulator(warn_above=1e-4),
    frozen=Frozen(share=0.9, moved_share=0.1, stopped_share=0.5),
    in_vain=InVain(share=0.2),
    no_update=NoUpdate(ratio=1e-3, rate_share=0.5, apart_decades=0.5),
    second_moments=SecondMoments(notify=True),
    fp16_underflow=Fp16Underflow(growth=0.1, share=0.5, observations=2),
    not_optimized=NotOptimized(),
    never_cleared=NeverCleared(),
)


DEAF = LayerRule("0.lora_B", **{rule: replace(getattr(QUICK, rule), enabled=False) for rule in LAYER_RULES})


QUICK_BY_LAYER = replace(QUICK, layers=(PICKY, DEAF))
