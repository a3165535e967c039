"""A run over its launches, and its state over a restart."""

import struct
from dataclasses import replace

import numpy as np
import pytest

from gradcanary_server.errors import StoreError
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.evaluator import evaluate
from gradcanary_server.rules.state import RuleState
from support.traces import Trace, fired, healthy, launch, lora, run


def collapsed() -> RuleState:
    absmax = healthy(300)
    absmax[200:, 4] *= 1e-4
    absmax[295:, 6] *= 1e-4
    absmax[:, 8] = -1
    return run(Trace(absmax))[0]


def test_resume_is_quiet_and_keeps_baselines():
    before, _ = run(Trace(healthy(300)))
    absmax = healthy(300, seed=4)
    absmax[:40] *= 1e-4
    after, changes = run(Trace(absmax, first=150), launch(number=2, first_step=150), state=before)
    assert changes == ()
    assert after.verdict(3).baseline == pytest.approx(before.verdict(3).baseline, rel=0.2)


def test_firing_rule_continues_in_the_next_launch_and_recovers_there():
    after, changes = run(Trace(healthy(150), first=100), launch(number=2, first_step=100), state=collapsed())
    assert [(c.rule, c.layer, c.kind, c.step) for c in changes] == [
        ("collapse", 4, "resolved", 199),
        ("unused", 8, "resolved", 199),
    ]
    assert after.verdict(4).rules == {}


def test_absent_layers_are_gone_and_their_baselines_wait():
    rest = tuple(each for each in lora() if each.number != 4)
    gone, changes = run(Trace(healthy(5, 15)), launch(rest, number=2), state=collapsed())
    assert [(c.layer, c.kind, c.resolution, c.severity) for c in changes] == [(4, "resolved", "layer_gone", "critical")]
    assert gone.verdict(4).rules == {}
    assert gone.verdict(4).baseline is not None


def test_reshaped_layers_forget():
    other = tuple(replace(each, shape=(16, 128)) if each.number == 4 else each for each in lora())
    state, changes = run(Trace(healthy(5)), launch(other, number=2), state=collapsed())
    assert [(c.layer, c.resolution) for c in changes] == [(4, "layer_gone")]
    assert state.verdict(4).baseline is None
    assert state.verdict(2).baseline is not None


def test_layers_of_a_second_set_of_a_launch_are_known_by_their_shape_too():
    first, _ = run(Trace(healthy(200, 8)), launch(lora(4)))
    grown, _ = run(Trace(healthy(200), first=200), launch(lora(8)), state=first)
    assert grown.verdict(15).baseline is not None
    other = tuple(replace(each, shape=(4, 4)) for each in lora(8))
    assert run(Trace(healthy(1)), launch(other, number=2), state=grown)[0].verdict(15).baseline is None


def test_stragglers_of_an_older_launch_and_replays_are_not_folded():
    first = run(Trace(healthy(100)))[0]
    second = run(Trace(healthy(10)), launch(number=2), state=first)[0]
    for number, trace in ((1, Trace(healthy(50), first=100)), (2, Trace(healthy(10, size=1e-9)))):
        state, changes = run(trace, launch(number=number, newer=frozenset({2} - {number})), state=second)
        assert state.pack() == second.pack()
        assert changes == ()


def test_losses_come_without_samples_where_few_steps_are_sampled():
    none = np.empty((0, 0))
    alone = replace(
        Trace(healthy(0)).samples(), state=none.astype(np.uint8), values={"absmax": none.astype(np.float32)}
    )
    losses = replace(alone, loss_steps=np.arange(1, 4), loss=np.array([0.5, np.nan, 0.25]))
    state, changes = evaluate(run(Trace(healthy(1)))[0], launch(), losses, Rules())
    assert [(change.step, change.kind) for change in changes] == [(2, "fired")]
    assert state.losses.tolist()[-1] == 0.25


def test_late_losses_are_not_folded():
    state, _ = run(Trace(healthy(100), loss=np.ones(100)))
    late = replace(Trace(healthy(1), first=100).samples(), loss_steps=np.array([40]), loss=np.array([np.nan]))
    assert evaluate(state, launch(), late, Rules())[1] == ()


def test_all_states_survive_a_restart():
    state = collapsed()
    known = RuleState.unpack(state.pack())
    assert known.pack() == state.pack()
    assert [known.verdict(n) for n in range(17)] == [state.verdict(n) for n in range(17)]
    assert state.verdict(4).rules == {"collapse": "firing"}
    assert state.verdict(6).rules == {"collapse": "suspect"}
    recovering = run(Trace(healthy(30), first=300), state=known)[0]
    assert recovering.verdict(4).rules == {"collapse": "recovering"}
    assert RuleState.unpack(RuleState.empty().pack()).pack() == RuleState.empty().pack()


@pytest.mark.parametrize("raw", [b"", b"\1", struct.pack("<HI", 99, 0)])
def test_a_state_of_another_version_is_a_clear_error(raw):
    with pytest.raises(StoreError, match="another version of its format"):
        RuleState.unpack(raw)


def test_folding_leaves_the_state_it_was_given():
    state = collapsed()
    packed = state.pack()
    run(Trace(healthy(50, size=1e-8), first=300), state=state)
    evaluate(state, launch(), Trace(healthy(50, size=1e-8), first=300).samples(), Rules())
    assert state.pack() == packed
    assert fired(()) == {}


def test_what_an_earlier_launch_left_firing_is_told_again_if_it_fires_still():
    """Not a layer with a sign of recovery, or without a measurement, and nothing in the launch that it began in."""
    second = launch(number=2, first_step=300, has_older=True)
    sick = healthy(60, seed=3)
    sick[:, 4] *= 1e-4
    sick[:, 8] = -1

    def told(absmax, of, *cuts):
        _, changes = run(Trace(absmax, first=300), of, state=collapsed(), cuts=cuts)
        return [(change.layer, change.rule, change.kind, change.step) for change in changes]

    for cuts in ((), (7, 19, 20), (20, 21), range(60)):
        assert told(sick, second, *cuts) == [(4, "collapse", "fired", 319), (8, "unused", "fired", 319)]
    assert told(sick[:19], second) == []
    assert told(sick, launch(number=2, first_step=300)) == []
    better = sick.copy()
    better[3, 4] = healthy(60)[3, 4]
    assert told(better, second) == [(8, "unused", "fired", 319)]
    better[:, 4] = -1
    assert told(better, second) == [(8, "unused", "fired", 319)]
