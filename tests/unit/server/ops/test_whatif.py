"""Forecasts of a schedule, on made-up runs whose outcome is known."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_server.ops import whatif
from gradcanary_server.ops.replay_source import ReplayChunk
from gradcanary_server.ops.whatif import History, Plan, Steps, WeightModel
from gradcanary_server.rules.types import LayerFacts
from support.traces import Trace, launch

SIZE, RATE = 0.02, 1e-4
LAYERS = (
    LayerFacts(0, "weights", (64, 64), "bfloat16", "Linear", 0),
    LayerFacts(1, "lora_A", (8, 64), "float32", "Linear", 0),
)


def model(scale: float, layer: LayerFacts = LAYERS[0]) -> WeightModel:
    """Return a model of weights whose measured share is that at RATE."""
    fitted = WeightModel(layer, 0.0, RATE, scale)
    return replace(fitted, share=float(fitted.shares(np.array([RATE]))[0]))


def read(trace: Trace, cuts: Sequence[int] = (), decay: float = 400.0, optimizer: str = "AdamW") -> History:
    """Return the history of a trace that comes in pieces."""
    of = launch(LAYERS, optimizers=(optimizer,))
    pieces = [trace.samples(*bounds) for bounds in pairwise([0, *sorted(set(cuts)), len(trace.absmax)])]
    history = whatif.read_history(ReplayChunk(of, piece, piece.steps * 1.0) for piece in pieces)
    assert history is not None
    return replace(history, decays=((0, decay),))


def trace(rates: np.ndarray, reach: float = 0.3, decay: float = 0.0, seed: int = 0) -> Trace:
    """Return a run at these learning rates: bfloat16 weights of which a share stands still, measured each 50 steps, and
    a gradient that falls as ``decay`` shrinks a weight.
    """
    steps, shape = len(rates), (len(rates), 2)
    values = {stat: np.full(shape, np.nan) for stat in whatif.SPARSE}
    values["weight_norm"][::10, 0] = SIZE * 64
    values["update_ratio"][::10, 0] = reach / whatif.REACH_PER_UPDATE * rates[::10] / SIZE
    measured = np.arange(50, steps, 50)
    highest = np.array([rates[step - 49 : step + 1].max() for step in measured])
    values["frozen_fraction"][measured, 0] = model(2**8 * reach / SIZE).shares(highest)
    noise = np.random.default_rng(seed).normal(0, 0.05, shape)
    falls = np.stack([np.zeros(steps), -np.cumsum(rates) * decay * whatif.DECADES], axis=1)
    return Trace(1e-3 * 10 ** (falls + noise), lr=rates[:, None], values=values)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("rate", [3e-6, 1e-5, 1e-4, 3e-4])
def test_the_shares_are_those_of_weights_that_are_rounded(dtype: str, rate: float) -> None:
    torch.manual_seed(0)
    weights = (torch.randn(100_000) * SIZE).to(getattr(torch, dtype))
    moved = (weights.float() + rate * torch.sign(torch.randn(100_000))).to(weights.dtype)
    share = float((moved == weights).double().mean())
    layer = replace(LAYERS[0], param_dtype=dtype)
    found = model(2 ** whatif.BITS[dtype] / SIZE, layer).shares(np.array([rate]))
    assert found[0] == pytest.approx(share, abs=0.04)


@given(st.floats(0.01, 0.99), st.floats(1e-2, 1e6))
def test_a_critical_rate_is_where_its_share_stands_still(level: float, scale: float) -> None:
    fitted = model(scale)
    assert fitted.shares(np.array([fitted.critical_rate(level)]))[0] == pytest.approx(level, abs=1e-3)


def test_a_cut_leaves_weights_behind_at_the_step_of_the_cut() -> None:
    history = read(trace(np.full(1_000, 1e-3)))
    steps = np.arange(1_000, 2_000)
    rates = np.where(steps < 1_500, 1e-3, 1e-5)[:, None]
    answer = whatif.foresee(history, Plan.following(history, steps, rates), 1e-9)
    assert [each.steps for each in answer.outlooks] == [Steps(1_500, 1_500, 1_500)] * 2
    assert [each.layer.name for each in answer.outlooks] == ["weights"] * 2
    assert answer.unknown["weights"] == {"not in bfloat16 or float16": ("lora_A",)}


def test_weights_that_all_move_are_told_from_their_updates() -> None:
    history = read(trace(np.full(1_000, 1e-3)))
    fitted = whatif.fit_weights(history, LAYERS[0], 999)
    assert isinstance(fitted, WeightModel)
    assert fitted.share < 0.03
    assert fitted.scale == pytest.approx(2**8 * 0.3 / SIZE, rel=0.01)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"layer": replace(LAYERS[0], group=None)}, "in no optimizer"),
        ({"layer": replace(LAYERS[0], shape=(31,))}, "fewer than 32 weights"),
        ({"optimizer": "SGD"}, "steps of SGD do not go by the learning rate alone"),
        ({"until": 40}, "no share of unmoved weights was measured at a known rate"),
        ({"rates": np.full(200, np.nan)}, "no share of unmoved weights was measured at a known rate"),
    ],
)
def test_weights_of_which_nothing_is_known_have_a_reason(changes: dict[str, object], says: str) -> None:
    history = read(trace(np.full(200, RATE)), optimizer=str(changes.get("optimizer", "AdamW")))
    if "rates" in changes:
        history = replace(history, rates=np.full((200, 1), np.nan))
    assert whatif.fit_weights(history, changes.get("layer", LAYERS[0]), int(str(changes.get("until", 199)))) == says


@pytest.mark.parametrize("factor", [2.0, 1.0, 0.5])
def test_a_fall_by_weight_decay_goes_on_with_the_sum_of_rates(factor: float) -> None:
    history = read(trace(np.full(1_000, RATE), decay=400))
    steps = np.arange(1_000, 9_000)
    rates = np.full((len(steps), 1), RATE * factor)
    threshold = 1e-3 * 10 ** -(2_000 * RATE * 400 * whatif.DECADES)
    (found,) = (
        each
        for each in whatif.foresee(history, Plan.following(history, steps, rates), threshold).outlooks
        if each.kind == "gradients"
    )
    assert found.layer.name == "lora_A"
    assert found.steps.likely == pytest.approx(1_000 + 1_000 / factor, abs=120 / factor)
    assert found.steps.earliest is not None
    assert found.steps.latest is not None
    assert found.steps.earliest < found.steps.likely < found.steps.latest


@pytest.mark.parametrize(
    ("of_run", "decay", "says"),
    [(400.0, 100.0, "a fall that no weight decay explains"), (0.0, 100.0, "no fall"), (400.0, 0.0, "a fall that no")],
)
def test_no_other_fall_is_continued(of_run: float, decay: float, says: str) -> None:
    history = read(trace(np.full(1_000, RATE), decay=of_run), decay=decay)
    assert str(whatif.fit_trend(history, 1, 999)).startswith(says)
    assert whatif.fit_trend(history, 1, 300) == "fewer than 400 samples"


def test_a_decay_that_begins_later_explains_nothing_before() -> None:
    history = replace(read(trace(np.full(1_000, RATE), decay=400)), decays=((900, 400.0),))
    assert isinstance(whatif.fit_trend(history, 1, 999), whatif.Trend)
    assert whatif.fit_trend(history, 1, 899) == "a fall that no weight decay explains"


def test_a_threshold_too_far_away_is_not_foretold() -> None:
    trend = whatif.Trend(LAYERS[1], 1.0, -3.0, 2.0, 0.1, 0.01)
    assert trend.crossings(1e-5) is None
    crossings = trend.crossings(10**-3.5)
    assert crossings is not None
    assert crossings[1] == pytest.approx(1.25)


@given(st.lists(st.integers(1, 399), max_size=12))
def test_a_history_is_the_same_however_it_was_cut(cuts: list[int]) -> None:
    whole, parts = read(trace(np.full(400, RATE))), read(trace(np.full(400, RATE)), cuts)
    assert np.array_equal(whole.levels, parts.levels)
    assert np.array_equal(whole.level_steps, parts.level_steps)
    assert np.array_equal(whole.rates, parts.rates)
    assert np.array_equal(whole.of("weight_norm", LAYERS[0]).values, parts.of("weight_norm", LAYERS[0]).values)


STEPS = np.arange(1_000)


@pytest.mark.parametrize(
    ("rates", "change"),
    [
        (np.where(STEPS < 600, 1e-3, 1e-4), 600),
        (np.where(STEPS < 600, 1e-3, 5e-4), 600),
        (1e-3 * np.cos(STEPS / 1_000 * np.pi / 2), 292),  # under 0.9 of the highest since step 50
        (np.where(STEPS < 700, 1e-3 * (1 - STEPS / 3_500), 1e-4), 700),  # the jump, not the slow fall before
        (np.minimum(STEPS + 1, 100) * 1e-5, None),  # a warm-up is no change
        (np.zeros(1_000), None),
    ],
)
def test_a_change_of_schedule_is_found(rates: np.ndarray, change: int | None) -> None:
    assert whatif.find_change(read(trace(np.full(1_000, RATE)), ())) is None
    found = whatif.find_change(replace(read(trace(np.full(1_000, RATE))), rates=rates[:, None]))
    assert found == pytest.approx(change, abs=1)


def verdicts(history: History, step: int, threshold: float) -> dict[tuple[str, float], whatif.Verdict]:
    """Return the verdicts by layer and level."""
    _, found = whatif.backtest(history, step, threshold)
    return {(each.outlook.layer.name, each.outlook.level): each for each in found}


def test_a_backtest_holds_forecasts_against_what_happened() -> None:
    rates = np.where(STEPS < 600, 1e-3, 1e-5)
    found = verdicts(read(trace(rates)), 600, 1e-9)
    # Measured at step 600 were the weights since 550, at the old rate; the first measurement after is that of 650.
    assert (found["weights", 0.5].happened, found["weights", 0.5].word) == (650, "hit")
    assert found["weights", 0.5].steps_away == 0
    assert found["lora_A", 1e-9].word == "quiet"


def test_a_backtest_says_what_it_missed_and_what_was_false() -> None:
    cut = trace(np.where(STEPS < 600, 1e-3, 1e-5))
    still = trace(np.full(1_000, 1e-3))
    moving = replace(cut, values={**cut.values, "frozen_fraction": still.values["frozen_fraction"]})
    assert {each.word for each in verdicts(read(moving), 600, 1e-9).values()} == {"false", "quiet"}
    stopped = replace(still, values={**still.values, "frozen_fraction": cut.values["frozen_fraction"]})
    assert {each.word for each in verdicts(read(stopped), 600, 1e-9).values()} == {"missed", "quiet"}
    halved = cut.values["frozen_fraction"].copy()
    halved[600:800] = still.values["frozen_fraction"][600:800]
    late = replace(cut, values={**cut.values, "frozen_fraction": halved})
    assert {each.word for each in verdicts(read(late), 600, 1e-9).values()} == {"off", "quiet"}


def test_a_backtest_needs_samples_on_both_sides() -> None:
    history = read(trace(np.full(200, RATE)))
    for step in (0, 200):
        with pytest.raises(ValueError, match="samples on one side of it only"):
            whatif.backtest(history, step, 1e-4)


def test_weights_that_stood_still_before_may_stop_again() -> None:
    rates = np.where((STEPS >= 500) & (STEPS < 700), 1e-3, 1e-5)
    found = verdicts(read(trace(rates)), 500, 1e-9)["weights", 0.5]
    assert (found.outlook.steps.likely, found.happened, found.word) == (750, 750, "hit")
