"""Layers without a gradient: missed only where they nearly always had one, and never as two faults."""

import numpy as np
import pytest

from gradcanary_server.rules.config import Collapse, Rules, Unused, Vanished
from gradcanary_server.rules.types import LayerFacts
from support.traces import POST_CLIP, Trace, fired, healthy, launch, run

NO_GRADIENT, NOT_TRAINABLE = -1, -2


def without(start, end=None, layer=6, value=NO_GRADIENT, steps=400):
    absmax = healthy(steps)
    absmax[start:end, layer] = value
    return absmax


def told(changes):
    return [(c.rule, c.layer, c.kind, c.step, c.severity, c.evidence) for c in changes]


def test_a_layer_that_always_had_a_gradient_is_missed_after_twenty_steps():
    _, changes = run(Trace(without(200, 260)))
    assert told(changes) == [
        ("vanished", 6, "fired", 219, "critical", "stopped"),
        ("vanished", 6, "resolved", 359, "critical", None),
    ]
    assert changes[0].since_step == 200
    assert 3e-3 < changes[0].baseline < 8e-3


@pytest.mark.parametrize("end", [219, 201])
def test_up_to_nineteen_steps_without_one_are_quiet(end):
    assert run(Trace(without(200, end)))[1] == ()


@pytest.mark.parametrize("every", [10, 100])
def test_five_observations_where_few_steps_are_sampled(every):
    _, changes = run(Trace(without(80, steps=120), every=every))
    assert [change.step for change in changes] == [84 * every]


def test_fewer_than_fifty_observations_tell_nothing():
    assert run(Trace(without(49)))[1] == ()
    assert set(fired(run(Trace(without(50)))[1], "vanished")) == {6}


def test_a_layer_that_the_script_froze_is_a_line_of_information():
    _, changes = run(Trace(without(200, value=NOT_TRAINABLE)))
    assert told(changes) == [("vanished", 6, "fired", 219, "information", "by_script")]


def test_unfreezing_begins_a_new_span():
    absmax = without(200, 300, value=NOT_TRAINABLE)
    absmax[300:319, 6] = NO_GRADIENT
    assert {change.severity for change in run(Trace(absmax))[1]} == {"information"}


def test_a_layer_that_is_idle_more_often_warns_after_ten_times_its_longest_span():
    absmax = healthy(900)
    absmax[:300][np.arange(300) % 5 >= 3, 6] = NO_GRADIENT  # two of five, and 298 and 299 begin the last span
    absmax[298:400, 6] = NO_GRADIENT
    absmax[410:500, 8] = NO_GRADIENT  # not when 6 has its gradient again: that would be a hand-over
    _, changes = run(Trace(absmax))
    found = fired(changes, "vanished")
    assert (found[6].step, found[6].severity, found[6].evidence) == (317, "warning", "sporadic")
    assert (found[6].value, found[6].baseline) == (20, 3), "samples without one, and from one to the next"
    assert (found[8].step, found[8].severity) == (429, "critical")


@pytest.mark.parametrize("value", [0, NO_GRADIENT])
@pytest.mark.parametrize("every", [1, 10])
def test_idle_experts_and_dead_batches_are_quiet(value, every):
    absmax = healthy(1_500)
    idle = np.random.default_rng(1).random((1_500, 4)) < 0.4
    absmax[:, 4:8][idle] = value
    assert run(Trace(absmax, every=every))[1] == ()


def test_an_expert_with_long_idle_spans_is_quiet():
    absmax = healthy(3_000)
    absmax[np.arange(3_000) % 120 >= 30, 6] = NO_GRADIENT
    assert run(Trace(absmax))[1] == ()


@pytest.mark.parametrize("every", [1, 10])
def test_a_layer_at_exactly_zero_is_one_incident_of_collapse(every):
    _, changes = run(Trace(without(200, value=0), every=every))
    assert {(change.rule, change.layer) for change in changes} == {("collapse", 6)}


def test_zeros_that_collapse_does_not_look_at_are_missed():
    rules = Rules(collapse=Collapse(enabled=False))
    _, changes = run(Trace(without(200, value=0)), rules=rules)
    assert told(changes) == [("vanished", 6, "fired", 219, "critical", "stopped")]
    assert run(Trace(without(200, value=0), every=10), rules=rules)[1] == ()  # other steps may have been not zero


def test_vanished_layer_does_not_collapse_as_well():
    rules = Rules(collapse=Collapse(fire_after_steps=60))
    assert set(fired(run(Trace(without(200, value=0)), rules=rules)[1], "collapse")) == set()


def test_zeros_of_all_layers_are_a_scale_drop_alone():
    absmax = healthy(400)
    absmax[200:] = 0
    assert {change.rule for change in run(Trace(absmax))[1]} == {"scale_drop"}


def test_clipping_hides_no_missing_gradient():
    _, changes = run(Trace(without(200), phase=POST_CLIP))
    assert set(fired(changes, "vanished")) == {6}


def test_a_new_launch_may_train_other_layers():
    before, _ = run(Trace(healthy(200)))
    absmax = healthy(40)
    absmax[:, 6] = NO_GRADIENT
    assert run(Trace(absmax, first=200), launch(number=2, first_step=200), state=before)[1] == ()


def test_never_used_is_said_once():
    absmax = healthy(400)
    absmax[:300, 6], absmax[:, 8] = NO_GRADIENT, NOT_TRAINABLE
    absmax[0, ::2] = 0  # the start of a LoRA
    absmax[0, 8] = NOT_TRAINABLE
    _, changes = run(Trace(absmax))
    assert told(changes)[:1] == [("unused", 6, "fired", 49, "information", "not_in_graph")]
    assert [change.kind for change in changes] == ["fired", "resolved"]


def test_without_a_gradient_at_the_steps_sampled_takes_fifty_of_them_and_zeros_tell_nothing():
    absmax = healthy(60)
    absmax[:, 6], absmax[:, 8] = NO_GRADIENT, 0
    assert [(c.rule, c.layer, c.step) for c in run(Trace(absmax, every=10))[1]] == [("unused", 6, 490)]


def begun(changes):
    return {(each[0], *each[3:]) for each in told(changes) if each[2] == "fired"}


@pytest.mark.parametrize("value", [0, NO_GRADIENT])
@pytest.mark.parametrize("loss", [None, np.full(120, 2.0)])
def test_no_layer_that_ever_had_one_is_one_incident_of_all(value, loss):
    """Gradients that are exactly zero while a loss says that there is something to learn are the worst of these."""
    absmax = np.full((120, 16), float(value))
    absmax[:, 8], absmax[100:] = NOT_TRAINABLE, healthy(20)
    _, changes = run(Trace(absmax, loss=loss))
    severity = "critical" if value == 0 and loss is not None else "warning"
    assert begun(changes) == {("vanished", 49, severity, "never")}
    assert set(fired(changes, "vanished")) == set(range(16)) - {8}
    assert run(Trace(np.full((49, 16), float(value)), loss=loss))[1] == ()


def test_batches_without_a_loss_have_no_gradient_to_miss():
    """Rewards that nobody has got yet: then these layers are unused, on the page."""
    loss = np.zeros(120)
    loss[70:] = 0.1
    assert {each[0] for each in begun(run(Trace(np.zeros((120, 16)), loss=loss))[1])} == {"unused"}


def names_of(*names, shape=(8, 128)):
    return launch(tuple(LayerFacts(number, name, shape, "float32", "Linear", 0) for number, name in enumerate(names)))


def told_most(absmax, *names, **words):
    """Return the layers of each evidence that most layers never had a gradient, with its step."""
    _, changes = run(Trace(absmax, **words), names_of(*names) if names else None)
    found = {}
    for change in changes:
        if change.rule == "unused" and change.severity == "warning":
            found.setdefault((change.evidence, change.step), set()).add(change.layer)
    return found


HALVES = [f"{block}.lora_{half}.weight" for block in range(3) for half in "AB"]


@pytest.mark.parametrize(("value", "evidence"), [(NO_GRADIENT, "not_in_graph"), (0, "multiplied_by_zero")])
def test_adapters_without_a_gradient_beside_other_layers_that_have_one_are_told(value, evidence):
    names = [*HALVES, *(f"{block}.norm.weight" for block in range(10))]
    absmax = healthy(120)
    absmax[:, :6] = value
    assert told_most(absmax, *names) == {(evidence, 49): set(range(6))}
    absmax[3:, 5] = 1e-3  # one half of one pair has a gradient
    assert told_most(absmax, *names) == {}


def test_one_half_of_each_adapter_is_on_the_page_only():
    names = [*HALVES, *(f"{block}.norm.weight" for block in range(10))]
    absmax = healthy(120)
    absmax[:, 1:6:2] = 0
    assert told_most(absmax, *names) == {}
    assert set(fired(run(Trace(absmax), names_of(*names))[1], "unused")) == {1, 3, 5}


@pytest.mark.parametrize(("dead", "is_told"), [(9, True), (8, False)])
def test_more_than_half_of_the_layers_is_most(dead, is_told):
    names = [
        f"{'body' if layer < dead else 'head'}.{layer}.{'weight' if layer < dead else 'bias'}" for layer in range(16)
    ]
    absmax = healthy(120)
    absmax[:, :dead] = NO_GRADIENT
    assert told_most(absmax, *names) == ({("not_in_graph", 49): set(range(dead))} if is_told else {})


@pytest.mark.parametrize("cuts", [(), (529,), (200, 528, 530)])
def test_layers_like_one_that_has_a_gradient_are_given_ten_times_as_long(cuts):
    absmax, rules = healthy(600), Rules(unused=Unused(observations=53))
    absmax[:, :12] = NO_GRADIENT
    _, changes = run(Trace(absmax), rules=rules, cuts=cuts)
    assert {(each.severity, each.step) for each in changes} == {("information", 52), ("warning", 529)}
    absmax[450:, 3:] = healthy(150, 13)  # another domain's turn
    assert {each.severity for each in run(Trace(absmax), rules=rules, cuts=cuts)[1]} == {"information"}


def test_layers_that_are_not_trainable_do_not_count():
    absmax = healthy(120)
    names = [f"{'body' if layer < 6 else 'head'}.{layer}.{'weight' if layer < 6 else 'bias'}" for layer in range(16)]
    absmax[:, :6], absmax[:, 6:12] = NO_GRADIENT, NOT_TRAINABLE
    assert told_most(absmax, *names) == {("not_in_graph", 49): set(range(6))}


def test_none_and_exact_zeros_are_told_apart():
    absmax = healthy(120)
    absmax[:, 3], absmax[:, 6] = NO_GRADIENT, 0
    found = fired(run(Trace(absmax))[1], "unused")
    assert {layer: change.evidence for layer, change in found.items()} == {3: "not_in_graph", 6: "multiplied_by_zero"}


def test_rules_that_are_off_say_nothing():
    rules = Rules(vanished=Vanished(enabled=False), unused=Unused(enabled=False))
    absmax = without(200)
    absmax[:, 8] = NO_GRADIENT
    assert run(Trace(absmax), rules=rules)[1] == ()
    nothing = np.zeros((120, 16))
    assert run(Trace(nothing), rules=rules)[1] == ()
    assert {each[0] for each in begun(run(Trace(nothing), rules=Rules(vanished=Vanished(enabled=False)))[1])} == {
        "unused"
    }


def test_layers_that_stay_without_a_gradient_where_others_begin_are_unused_and_no_longer_the_whole_model():
    absmax = healthy(400)
    absmax[:60] = NO_GRADIENT
    absmax[:, [2, 6]] = NO_GRADIENT
    state, changes = run(Trace(absmax))
    assert {change.layer for change in changes if change.evidence == "never"} == set(range(absmax.shape[1]))
    assert [layer for layer in range(absmax.shape[1]) if "vanished" in state.verdict(layer).rules] == []
    assert [layer for layer in range(absmax.shape[1]) if "unused" in state.verdict(layer).rules] == [2, 6]


def named(*names, classes="Linear"):
    """Return a launch of layers with these names; heads of several tasks have several sizes."""
    return launch(tuple(LayerFacts(at, name, (8, at + 2), "float32", classes, 0) for at, name in enumerate(names)))


TRUNK = tuple(f"trunk.{block}.weight" for block in range(4))
DOMAINS = named(*TRUNK, *(f"domains.{name}.head.{kind}" for name in ("law", "news", "wiki") for kind in "wb"))


def in_turns(steps, block, value, absent=()):
    """A trunk, and three heads of two layers that take turns in blocks of steps; ``absent`` turns go to nobody."""
    absmax, turns = healthy(steps, 10), np.arange(steps) // block
    for head in range(3):
        absmax[:, 4 + 2 * head : 6 + 2 * head][(turns % 3 != head) | np.isin(turns, absent)] = value
    return absmax


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("value", [0, NO_GRADIENT])
@pytest.mark.parametrize("block", [60, 200])
def test_domains_that_take_turns_hand_their_gradients_over(block, value, every):
    _, changes = run(Trace(in_turns(1_500, block, value), every=every), DOMAINS)
    assert {(each.rule, each.severity) for each in changes if each.kind == "fired" and each.rule != "unused"} == {
        ("vanished", "information")
    }
    of_law = [each for each in changes if each.layer == 4 and each.evidence == "handed_over"]
    assert of_law[0].since_step == block * every


def test_heads_of_no_trunk_that_take_turns_are_no_common_fall():
    absmax = in_turns(900, 100, 0)[:, 4:]
    of = named(*(layer.name for layer in DOMAINS.layers[4:]))
    assert "scale_drop" not in {each.rule for each in run(Trace(absmax), of)[1]}


@pytest.mark.parametrize("value", [0, NO_GRADIENT])
def test_a_turn_that_goes_to_nobody_is_a_cut(value):
    _, changes = run(Trace(in_turns(420, 200, value, absent=(1,))), DOMAINS)
    assert {(each.layer, each.severity) for each in changes if each.since_step == 200} == {
        (4, "critical"),
        (5, "critical"),
    }


def cut_while_another_gains(other, **gain):
    """A head that loses its gradient at step 200 of 300, and another layer that has none but where ``gain`` says."""
    absmax = healthy(300, 6)
    absmax[200:, 4] = NO_GRADIENT
    absmax[:, 5] = NO_GRADIENT
    absmax[:, 5][gain["at"]] = 5e-3
    return fired(run(Trace(absmax), named(*TRUNK, "heads.cats.weight", other))[1], "vanished").get(4)


@pytest.mark.parametrize(
    ("other", "at", "severity"),
    [
        ("heads.dogs.weight", slice(200, None), "information"),
        ("heads.dogs.weight", slice(199, None), "information"),  # the window of the change has both
        ("heads.dogs.weight", slice(201, None), "information"),
        ("heads.dogs.weight", slice(203, None), "critical"),
        ("heads.dogs.weight", slice(150, None), "critical"),
        ("heads.dogs.weight", slice(200, 203), "critical"),  # an expert that is asked once in a while
        ("heads.dogs.bias", slice(200, None), "critical"),
        ("encoder.stem.weight", slice(200, None), "critical"),
    ],
)
def test_only_a_layer_like_it_takes_a_gradient_over_and_only_in_that_step(other, at, severity):
    change = cut_while_another_gains(other, at=at)
    assert (change.step, change.severity) == (219, severity)


def test_a_gradient_that_was_handed_over_comes_back():
    absmax = healthy(500, 6)
    absmax[200:300, 4], absmax[:200, 5], absmax[300:, 5] = NO_GRADIENT, NO_GRADIENT, NO_GRADIENT
    state, changes = run(Trace(absmax), named(*TRUNK, "heads.0.weight", "heads.1.weight"))
    assert [(each.kind, each.severity) for each in changes if each.layer == 4] == [
        ("fired", "information"),
        ("resolved", "information"),
    ]
    assert state.verdict(5).rules == {"vanished": "info"}
