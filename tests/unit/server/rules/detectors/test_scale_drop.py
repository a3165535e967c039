"""All gradients fall together: one incident of the run, as bad as the loss says."""

import numpy as np
import pytest

from gradcanary import wire
from gradcanary_server.rules.config import Rules, ScaleDrop
from support.traces import Trace, fired, healthy, launch, run


def dropped(rows: int = 500, at: int = 250, by: float = 1e-3) -> np.ndarray:
    absmax = healthy(rows)
    absmax[at:] *= by
    return absmax


def losses(then: float, rows: int = 500, at: int = 250) -> np.ndarray:
    return np.where(np.arange(rows) < at, 2.0, then)


@pytest.mark.parametrize(
    ("loss", "severity"),
    [
        (losses(2e-3), "information"),
        (losses(0.05), "information"),
        (losses(-1e-7), "information"),  # a divergence, rounded
        (losses(1.5), "warning"),
        (None, "warning"),
        (losses(-1.0), "warning"),
        (losses(2.0), "critical"),
        (losses(3.0), "critical"),
    ],
)
def test_severity_is_what_the_loss_says(loss, severity):
    _, changes = run(Trace(dropped(), loss=loss))
    last = [change for change in changes if change.rule == "scale_drop"][-1]
    assert (last.layer, last.severity, last.kind) == (None, severity, "fired")
    assert {change.rule for change in changes} == {"scale_drop"}
    assert last.value == pytest.approx(3, abs=0.4)


@pytest.mark.parametrize(("loss", "is_known"), [(losses(1.5), True), (None, False), (losses(-1.0), False)])
def test_a_warning_says_whether_a_loss_can_be_held_against_the_fall(loss, is_known):
    _, changes = run(Trace(dropped(), loss=loss))
    last = [change for change in changes if change.rule == "scale_drop"][-1]
    assert (last.severity, last.evidence) == ("warning", None if is_known else "no_loss")


def to_zero(over: int) -> np.ndarray:
    """A loss that is 2, then falls by three decades over so many steps, then is exactly zero from step 250 on."""
    steps = np.arange(500)
    return np.where(steps < 250, 2.0 * 10 ** (-3 * np.clip((steps - 250 + over) / over, 0, 1)), 0.0)


@pytest.mark.parametrize(
    ("loss", "severity"),
    [(to_zero(100), "information"), (to_zero(60), "information"), (losses(0.0), "critical"), (losses(2.0), "critical")],
)
def test_gradients_of_exactly_zero_are_explained_by_a_loss_that_came_there(loss, severity):
    """A margin that every example reaches, and a loss that somebody multiplies by zero."""
    _, changes = run(Trace(dropped(by=0.0), loss=loss))
    assert [(change.rule, change.severity) for change in changes][-1] == ("scale_drop", severity)
    assert {change.rule for change in changes} == {"scale_drop"}


@pytest.mark.parametrize(
    ("loss", "severity", "evidence"), [(losses(1.5), "critical", "all_zeros"), (None, "warning", "no_loss")]
)
def test_gradients_of_exactly_zero_and_a_loss_that_is_left_are_critical(loss, severity, evidence):
    """A loss that came down a bit does not make it better; of one that nobody logged nothing is known."""
    _, changes = run(Trace(dropped(by=0.0), loss=loss))
    assert (changes[-1].rule, changes[-1].severity, changes[-1].evidence) == ("scale_drop", severity, evidence)


def in_turns(share: float, rows: int = 700) -> np.ndarray:
    """Gradients of which so large a share of the steps has none but exact zeros, at random."""
    absmax = healthy(rows)
    absmax[np.random.default_rng(1).random(rows) < share] = 0
    return absmax


@pytest.mark.parametrize("share", [0.2, 0.5, 0.7])
def test_batches_without_a_gradient_are_no_fall_of_all_layers(share):
    """All rewards of a group are the same, or no triplet is hard: its loss is exactly zero, and all gradients are."""
    absmax = in_turns(share)
    loss = np.where(absmax[:, 0] == 0, 0.0, 2.0)
    assert run(Trace(absmax, loss=loss))[1] == ()


def test_all_layers_without_gradients_have_vanished():
    absmax = in_turns(0.5, 1000)
    absmax[700:] = 0
    _, changes = run(Trace(absmax, loss=np.where(absmax[:, 0] == 0, 0.0, 2.0)))
    assert {(change.rule, change.evidence, change.severity) for change in changes} == {
        ("vanished", "sporadic", "warning")
    }
    assert len(fired(changes, "vanished")) == 16


def test_a_margin_that_more_and_more_batches_reach_is_no_fault():
    steps, random = np.arange(1000), np.random.default_rng(2)
    part = np.clip((steps - 300) / 400, 0, 1)
    absmax = healthy(1000)
    absmax[random.random(1000) < part] = 0
    loss = np.where(absmax[:, 0] == 0, 0.0, 2.0 * 10 ** (-3 * part))
    assert [change for change in run(Trace(absmax, loss=loss))[1] if change.severity != "information"] == []


def learnt(
    begin: int = 100, over: int = 150, decades: float = 3.0, start: float = 2.0, floor: float = 1.2, rows: int = 500
) -> Trace:
    """Gradients fall in so many steps while the loss goes from its start to its floor, within the noise of batches."""
    steps, random = np.arange(rows), np.random.default_rng(3)
    way = decades * np.clip((steps - begin) / over, 0, 1)
    absmax = healthy(rows) * (10**-way)[:, None]
    excess = (start - floor) * 10 ** -(2 * way + np.minimum(steps / 100, 1))
    return Trace(absmax, loss=floor + excess + random.normal(0, 0.03, rows))


def severities(changes) -> list[str]:
    assert {change.rule for change in changes} <= {"scale_drop"}
    return [change.severity for change in changes]


@pytest.mark.parametrize("floor", [1.2, 0.0, -1.0])
def test_a_loss_that_came_down_to_its_floor_explains_a_fall_that_went_step_by_step(floor):
    """Distillation ends at the entropy of its teacher, a cosine at -1, a divergence at zero, rounded."""
    trace = learnt(start=floor + 0.8, floor=floor)
    state, changes = run(trace)
    assert severities(changes) == ["information"]
    resumed = Trace(trace.absmax[400:], first=500, loss=trace.loss[400:])
    assert run(resumed, launch(number=2, first_step=500), state=state)[1] == ()


@pytest.mark.parametrize("cut", [160, 175, 190, 220])
def test_a_resume_on_the_way_down_changes_nothing(cut):
    trace = learnt()
    before = Trace(trace.absmax[:cut], loss=trace.loss[:cut])
    after = Trace(trace.absmax[cut:], first=cut, loss=trace.loss[cut:])
    state, first = run(before)
    _, second = run(after, launch(number=2, first_step=cut), state=state)
    assert severities((*first, *second)) == ["information"]


@pytest.mark.parametrize(("moves", "severity"), [(1e-5, "information"), (0.1, "critical")])
def test_a_loss_that_stands_still_explains_any_fall(moves, severity):
    """Batches that are all the same: gradients swing by decades where next to nothing is left to learn."""
    trace = learnt(begin=250, over=1)
    trace.loss = 1.2 + 0.8 * 10 ** -np.minimum(np.arange(500) / 50, 5) + moves * np.sin(np.arange(500) / 5)
    assert severities(run(trace)[1])[-1] == severity


@pytest.mark.parametrize(
    "trace",
    [
        learnt(begin=250, over=1),
        learnt(begin=250, over=1, decades=1.6),
        learnt(begin=250, over=20),
        learnt(start=1.2),  # a net that never learns, and goes on dying
        learnt(start=0.5),  # and one that loses what it had
        learnt(begin=3_000, rows=3_500),  # what is learnt late takes long
    ],
)
def test_no_other_fall_is_explained_by_where_the_loss_is(trace):
    assert severities(run(trace)[1])[-1] != "information"


def test_a_converged_job_may_still_lose_its_gradients_at_once():
    trace = learnt()
    trace.absmax[400:] *= 1e-2
    _, changes = run(trace)
    assert severities(changes) == ["information", "warning"]
    assert changes[-1].step < 440


@pytest.mark.parametrize("at", [None, 100, 300])
def test_batches_without_a_gradient_do_not_end_the_way_down(at):
    trace = learnt()
    if at is not None:
        trace.absmax[at : at + 150 : 10], trace.loss[at : at + 150 : 10] = 0, 0
    assert severities(run(trace)[1]) == ["information"]


def test_severity_rises_and_never_falls():
    loss = losses(2e-3, 900)
    loss[400:600], loss[600:] = 2.5, 2e-3
    _, changes = run(Trace(dropped(900), loss=loss))
    ranks = [change.severity for change in changes]
    assert ranks[0] == "information"
    assert ranks[-1] == "critical"
    assert ranks == sorted(ranks, key=["information", "warning", "critical"].index)


@pytest.mark.parametrize(("loss", "named"), [(losses(2e-3, 700), False), (losses(2.0, 700), True)])
def test_collapse_does_not_vote_while_the_loss_explains(loss, named):
    absmax = dropped(700)
    absmax[400:, 6] *= 1e-3
    _, changes = run(Trace(absmax, loss=loss))
    assert set(fired(changes)) == ({6} if named else set())


def test_scale_drop_resolves_after_recovery_and_can_be_disabled():
    absmax = dropped(600)
    absmax[350:] *= 1e3
    _, changes = run(Trace(absmax))
    assert [(change.kind, change.severity) for change in changes] == [("fired", "warning"), ("resolved", "warning")]
    assert run(Trace(absmax), rules=Rules(scale_drop=ScaleDrop(enabled=False)))[1] == ()


def test_scale_drop_with_one_healthy_layer_of_sixteen():
    # The second smallest fall is the common one: one layer that has a life of its own does not pin it at 0.
    absmax = healthy(400)
    absmax[250:, 1:] *= 1e-3
    _, changes = run(Trace(absmax))
    assert {change.rule for change in changes} == {"scale_drop"}


def test_a_loss_that_explains_later_does_not_lower_the_severity():
    loss = losses(2e-3, 900)
    loss[250:350] = 2.5
    absmax = dropped(900)
    absmax[600:, 6] *= 1e-3
    _, changes = run(Trace(absmax, loss=loss))
    assert set(fired(changes)) == {6}
    assert [change.severity for change in changes if change.rule == "scale_drop"] == ["critical"]


OTHERS = slice(10, None)
"""Layers of another optimizer, with a loss of its own."""


def of_two_losses():
    layers = launch().layers
    return launch(facts=(wire.Fact(wire.OWN_LOSS, "", tuple(layer.name for layer in layers[OTHERS])),))


def both(of_main: float, of_others: float, rows: int = 500) -> np.ndarray:
    """Gradients that fall by these factors from step 250 on."""
    absmax = healthy(rows)
    absmax[250:, :10] *= of_main
    absmax[250:, OTHERS] *= of_others
    return absmax


@pytest.mark.parametrize(
    ("factors", "told"),
    [
        ((1e-3, 1e-3), [("information", None), ("warning", "own_loss")]),  # the loss explains only its own
        ((1e-3, 1.0), [("information", None)]),
        ((1.0, 1e-3), [("warning", "own_loss")]),
        ((1.0, 0.0), [("warning", "own_loss")]),
        ((1.0, 0.025), []),  # they fell, and are over a threshold that says small
    ],
)
@pytest.mark.parametrize("cuts", [(), (251, 260, 300)])
def test_a_loss_explains_no_fall_of_another_optimizer(factors, told, cuts):
    _, changes = run(Trace(both(*factors), loss=losses(2e-3)), of_two_losses(), cuts=cuts)
    assert {each.rule for each in changes} <= {"scale_drop"}
    found = [(each.severity, each.evidence) for each in changes]
    assert found[-1:] == told[-1:]
    assert set(found) <= set(told)


def test_one_layer_of_another_optimizer_collapses_while_the_loss_explains_the_main_ones():
    absmax = both(1e-3, 1.0)
    absmax[260:, 12] *= 1e-4
    _, changes = run(Trace(absmax, loss=losses(2e-3)), of_two_losses())
    assert {(each.rule, each.layer, each.severity) for each in changes} == {
        ("scale_drop", None, "information"),
        ("collapse", 12, "critical"),
    }
