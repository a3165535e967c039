"""A cause is named only where the facts allow it: on both sides of each bound, and of one incident after another."""

from dataclasses import replace

import pytest

from gradcanary.wire import Crash, Setting
from gradcanary_server.incidents import causes
from gradcanary_server.incidents.causes import CauseContext, LayerInfo, LikelyCause, NearbyIncident, Norms
from gradcanary_server.incidents.lifecycle import Incident, Member
from gradcanary_server.incidents.setting_causes import Configuration
from gradcanary_server.rules.types import Jump, ScaleFall, SeriesFacts

PLAIN = tuple(f"net.{number}.weight" for number in range(4))
STEP = 1_000


def incident(rule, step=STEP, severity="critical", **fields):
    return Incident(rule, 1, severity, "open", step, 0.0, step, 4, **fields)


def member(evidence=None, value=None, since=STEP, until=None):
    return Member("critical", since, value, None, None, evidence, until)


def near(rule, step=STEP - 10, severity="critical", number=30):
    return NearbyIncident(number, rule, severity, step)


def cause(rule, *members, others=(), names=PLAIN, settings=(), groups=1, weights=(), severity="critical", **fields):
    layers = {number: LayerInfo(name, "float32", 0) for number, name in enumerate(names)}
    of_layers = dict(members if members and isinstance(members[0], tuple) else enumerate(members))
    context = CauseContext(
        incident(rule, severity=severity, **fields),
        of_layers,
        layers,
        tuple(others),
        (),
        Configuration(settings, groups),
    )
    return causes.likely_cause(replace(context, weights=dict(weights)))


STOPPED = member("stopped")
LOSS = (None, member())
STANDING = Jump(0, STEP - 500, 1e-3, 0.1, 1e-3, 0.1)
SKIPPING = ScaleFall(65_536.0, 1.0, STEP - 50, STEP, 0.5)


@pytest.mark.parametrize(
    ("found", "code"),
    [
        (lambda: cause("unused", member("not_in_graph"), others=[near("not_optimized", 5)]), "after_not_optimized"),
        (lambda: cause("silent", LOSS, others=[near("stalled", 5)]), "ended_while_stalled"),
        (lambda: cause("silent", LOSS, others=[near("stalled", 5, "information")]), "gone"),
        (lambda: cause("silent", LOSS), "gone"),
        (lambda: cause("stalled", LOSS), "waiting"),
        (lambda: cause("stalled", (None, member("lost_rank"))), "lost_rank"),
        (lambda: cause("collapse", member("fall"), others=[near("explosion", STEP - 200)]), "after_explosion"),
        (lambda: cause("collapse", member("fall"), others=[near("explosion", STEP - 201)]), "after_earlier"),
        (lambda: cause("collapse", member("fall"), others=[near("explosion", severity="information")]), "unknown_fall"),
        (lambda: cause("nonfinite", LOSS, others=[near("explosion", STEP - 200)]), "diverged"),
        (lambda: cause("nonfinite", LOSS, others=[near("explosion", STEP - 201)]), "nonfinite_loss"),
        (lambda: cause("nonfinite", LOSS, others=[near("explosion", STEP)]), "nonfinite_loss"),
        (lambda: cause("nonfinite", LOSS, others=[near("collapse")]), "nonfinite_loss"),
        (lambda: cause("nonfinite", LOSS, others=[near("explosion")], lr_jumps=(STANDING,)), "rate_stays"),
        (lambda: cause("nonfinite", (0, member()), lr_jumps=(STANDING,)), "rate_stays"),
        (lambda: cause("nonfinite", (None, member("loss_steady")), lr_jumps=(STANDING,)), "sudden_nonfinite_loss"),
        (lambda: cause("nonfinite", (None, member("loss_rose"))), "loss_diverged"),
        (lambda: cause("nonfinite", (None, member("loss_steady"))), "sudden_nonfinite_loss"),
        (lambda: cause("nonfinite", (0, member())), "nonfinite_gradient"),
        (lambda: cause("nonfinite", (0, member()), scale_fall=SKIPPING), "scale_fell"),
        (lambda: cause("vanished", member("stopped", 0.0), scale_fall=SKIPPING), "scale_too_low"),
        (lambda: cause("explosion", member(), scale_fall=SKIPPING), "diverging"),
        (lambda: cause("explosion", member(), severity="warning"), "exploding"),
        (lambda: cause("vanished", member("by_script", until=STEP + 1), STOPPED, firing=1), "cut_off"),
        (
            lambda: cause("vanished", member("by_script"), member("stopped", until=STEP + 1), firing=1),
            "frozen_by_script",
        ),
        (lambda: cause("vanished", member("handed_over", until=STEP + 1), firing=0), "handed_over"),
        (lambda: cause("unused", member("not_in_graph"), member("multiplied_by_zero", 0.0)), "not_in_graph"),
        (
            lambda: cause("unused", member("not_in_graph"), *[member("multiplied_by_zero", 0.0)] * 2),
            "multiplied_by_zero",
        ),
        (lambda: cause("collapse", member("fall"), lr_jumps=(Jump(0, 990, 1.0, 0.1),)), "unknown_fall"),
        (lambda: cause("collapse", member("fall"), lr_jumps=(Jump(0, 990, 1.0, 0.08),)), "rate_jump"),
        (lambda: cause("collapse", member("fall"), lr_jumps=(Jump(0, 990, 1.0, 4.0),)), "rate_jump"),
        (lambda: cause("collapse", member("fall"), lr_jumps=(Jump(0, 990, 1.0, 10.0),)), "rate_rose"),
    ],
)
def test_cause_is_the_one_that_the_facts_allow(found, code):
    assert (found().code, found().text) == (code, causes.CAUSES[code].text)


CLIP = SeriesFacts("clip_score", '{"category":"cars"}', 0.2, 12, 3, None, None)


@pytest.mark.parametrize(
    ("evidence", "series", "others", "code", "lines"),
    [
        ("fell", 1, [], "metric_of_tags", ("2 of 3 series of clip_score are not in this incident",)),
        ("fell", 3, [], "metric_of_all", ()),
        ("not_finite", 1, [], "metric_not_finite", ()),
        ("fell", 1, [near("explosion")], "metric_after", ("incident 30 (explosion) opened at step 990",)),
        ("fell", 3, [near("unused")], "metric_of_all", ("incident 30 (unused) opened at step 990",)),
    ],
)
def test_fall_of_a_metric_has_its_cause(evidence, series, others, code, lines):
    members = [(-2 - number, member(evidence, 0.1)) for number in range(series)]
    found = cause("metric", *members, others=others, series={number: CLIP for number, _ in members})
    assert (found.code, found.evidence) == (code, lines)
    assert (found.follows == 30) == (code == "metric_after")


@pytest.mark.parametrize(
    ("memory", "step", "code", "incidents"),
    [
        ("cuda", STEP - 10, "out_of_memory", ()),
        (None, STEP - 200, "exception_after_fault", (30,)),
        (None, STEP - 201, "exception", ()),
    ],
)
def test_crash_after_a_fault_may_be_its_consequence(memory, step, code, incidents):
    crash = Crash("ValueError", "no", ("train.py:3 in step", "torch.py:4 in run"), memory)
    found = cause("crash", LOSS, others=[near("explosion", step), near("collapse", step, number=31)], crash=crash)
    assert (found.code, found.incidents) == (code, incidents)
    lines = tuple(f"incident 30 (explosion) opened at step {step:,}" for _ in incidents)
    assert found.evidence == ("raised in train.py:3 in step", *lines)


def test_crash_without_frames_names_none():
    assert cause("crash", LOSS, crash=Crash("ValueError", "no", ())).evidence == ()


def test_a_third_of_the_weights_did_not_shrink():
    pair = ("h.0.lora_A.weight", "h.0.lora_B.weight")
    codes = [
        cause("collapse", member("fall"), names=pair, weights={1: Norms(3.0, 990, after, 1_000)}.items()).code
        for after in (1.0, 0.99)
    ]
    assert codes == ["lora_own", "lora_partner"]


def test_setting_that_rose_long_before_is_told_beside_the_cause():
    decay = Setting(STEP - 500, STEP - 501, (0,), "weight_decay", 200.0)
    began = {"optimizer": "AdamW", "lr": 1e-3, "weight_decay": 0.0}
    first = [Setting(0, None, (0,), name, value) for name, value in began.items()]
    beside = cause("collapse", member("fall"), settings=(*first, decay), others=[near("explosion")])
    assert beside.code == "after_explosion"
    decay_line = (
        "weight decay rose from 0 to 200 at step 500: with the learning rate 0.001 each step multiplies its weights by "
        "1 - 0.001 * 200 = 0.8, and was still in force 500 steps later"
    )
    assert beside.evidence == (decay_line, "incident 30 (explosion) opened at step 990")


def test_largest_loss_is_told_of_the_members_that_have_one():
    found = cause("accumulation_loss", member(value=0.1), member(value=0.22), member())
    assert found.evidence == ("up to 22 % of the norm, measured against a float32 sum",)
    assert cause("accumulation_loss", member()).evidence == ()


def test_only_the_first_line_of_an_earlier_cause_is_repeated():
    own = LikelyCause("after_explosion", "", ("the rate rose", "incident 30 (explosion) opened"), (30,), 30)
    first = LikelyCause("rate_rose", "", ("the rate rose", "eps is 1"), (), None, 900)
    assert causes.follow(own, first) == replace(own, step=900)


def test_all_layers_are_needed_only_where_members_are_compared():
    kinds = [("collapse", "fall"), ("vanished", "stopped"), ("collapse", "siblings"), ("explosion", None)]
    needed = [causes.needs_all_layers(rule, [member(kind)]) for rule, kind in kinds]
    assert needed == [True, True, False, False]


def test_incidents_that_a_covered_one_covers_are_covered():
    opened = [("explosion", 100), ("scale_drop", 300), ("collapse", 500), ("collapse", 501), ("loss_scale", 100)]
    first, *others = [incident(rule, step, id=number) for number, (rule, step) in enumerate(opened)]
    resolved, told = replace(others[0], id=7, state="resolved"), replace(others[0], id=8, severity="information")
    assert [each.id for each in causes.covered_incidents(first, [*others, resolved, told])] == [1, 2]


def test_first_cause_is_the_earliest_and_of_two_the_first_stored():
    effect = incident("scale_drop", 300)
    others = [incident("nonfinite", 200, id=6), incident("explosion", 200, id=5), incident("collapse", 110, id=1)]
    assert causes.first_cause(effect, others) == others[1]
    assert causes.first_cause(effect, others[2:]) is None


@pytest.mark.parametrize(
    ("effect", "rule", "beside", "is_cause"),
    [
        ("collapse", "loss_scale", None, False),
        ("no_update", "explosion", 5, True),
        ("no_update", "explosion", 6, False),
        ("no_update", "explosion", None, False),
        ("nonfinite", "explosion", None, True),
        ("vanished", "loss_scale", None, True),
    ],
)
def test_rule_that_explains_another(effect, rule, beside, is_cause):
    later = incident(effect, 120, beside=beside)
    assert causes.is_caused_by(later, incident(rule, 119, id=5)) == is_cause
    assert not causes.is_caused_by(later, incident(rule, 119, "information", id=5))
    assert not causes.is_caused_by(later, replace(incident(rule, 119, id=5), launch_no=2))
