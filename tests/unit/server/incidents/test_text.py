"""What incidents are called, and why they may have come."""

import itertools
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gradcanary import remedies, wire
from gradcanary_server.incidents import causes, text
from gradcanary_server.incidents.lifecycle import TransitionContext, apply_transitions, close_incident
from gradcanary_server.incidents.setting_causes import Configuration
from gradcanary_server.rules.signals import RULES, RUN_RULES
from gradcanary_server.rules.types import SEVERITIES, Jump, LayerFacts, Transition
from support.server.transitions import fired, resolved
from support.streams import layer_names

PRECISION = Path(__file__).parents[4] / "docs" / "results" / "precision.md"

NAMES = layer_names(300)
BLOCKS = tuple(f"blocks.{b}.{kind}.lora_{half}" for b in range(10) for kind in "qkv" for half in "AB")


def case_of(*changes, names=NAMES):
    [case] = apply_transitions(None, changes, TransitionContext(1, len(names), 0.0), 0.0)
    return case


def sentence(*changes, names=NAMES):
    case = case_of(*changes, names=names)
    return text.sentence(case.incident, case.members, dict(enumerate(names)))


def headline(*changes, names=NAMES):
    case = case_of(*changes, names=names)
    return text.headline(case.incident, case.members)


def lora_a(blocks):
    return [
        number for number, name in enumerate(BLOCKS) if name.endswith("lora_A") and int(name.split(".")[1]) in blocks
    ]


def test_a_fall_names_layers_values_and_when_it_began():
    changes = [fired(number, step=12_359, since=12_340 + number % 3) for number in lora_a((7, 8, 9))]
    said = sentence(*changes, names=BLOCKS)
    assert said == "9 of 60 parameters (lora_A in blocks.7-9) fell from 0.0031 to 6.1e-7 at steps 12,340 to 12,342."
    assert headline(*changes, names=BLOCKS) == "9 of 60 parameters collapsed at steps 12,340 to 12,342"


def test_the_beginning_that_all_names_share_is_left_out():
    changes = [fired(number) for number in lora_a((7, 8, 9))]
    names = [f"base_model.model.h.{name.removeprefix('blocks.')}.default.weight" for name in BLOCKS]
    assert "9 of 60 parameters (lora_A in h.7-9) fell" in sentence(*changes, names=names)
    assert "(h." in sentence(fired(14), names=names)
    assert "(lora_A in base_model.model.h.7-9)" in sentence(*changes, names=[*names, "head.weight"])


def test_several_kinds_of_evidence_are_told_apart():
    far = Transition(359, "collapse", 2, "fired", "warning", 340, 1e-9, None, 2e-4, "siblings")
    said = sentence(fired(0), far)
    assert said == (
        "1 of 300 parameters (blocks.0.attn.lora_A.weight) fell from 0.0031 to 6.1e-7 at step 340; 1 more "
        "(blocks.1.attn.lora_A.weight) has much smaller gradients than similar parameters: 1e-9 instead of 2e-4, since "
        "step 340 at the latest."
    )


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        ("threshold", "went under the threshold given for it (largest gradient 6.1e-7) at step 340"),
        ("joined_late", "was already low (largest gradient 6.1e-7) when the run was joined"),
    ],
)
def test_weaker_evidence_claims_no_fall(evidence, words):
    assert words in sentence(fired(0, evidence=evidence))


@pytest.mark.parametrize(
    ("severity", "words"),
    [
        ("information", "and the loss came down, too"),
        ("warning", "the loss did not fall enough to explain it"),
        ("critical", "and the loss did not fall"),
    ],
)
def test_a_scale_drop_says_what_the_loss_did(severity, words):
    change = Transition(500, "scale_drop", None, "fired", severity, 480, 2.1)
    assert words in sentence(change)
    assert headline(change) == "all gradients fell together at step 480"


def test_nonfinite_names_loss_and_gradients():
    loss = fired(None, rule="nonfinite", evidence=None, since=500, step=500)
    gradient = fired(7, rule="nonfinite", evidence=None, since=501, step=501)
    assert sentence(loss) == "The loss became NaN or infinite at step 500."
    assert sentence(loss, gradient) == (
        "The loss and the gradient of 1 of 300 parameters (blocks.3.attn.lora_B.weight) became NaN or infinite at "
        "steps 500 to 501."
    )
    assert headline(gradient) == "the gradient of 1 of 300 parameters became NaN or infinite at step 501"


@pytest.mark.parametrize(
    ("rule", "evidence", "value", "few", "words"),
    [
        ("collapse", "straight", 6.1e-7, "has gradients that fall exponentially", "to 6.1e-7 at step 340, expo"),
        ("explosion", None, 5.0, "exploded", "went up from 0.0031 to 5"),
        ("vanished", "stopped", None, "lost its gradient", "lost its gradient at step 340: no gradient followed"),
        ("vanished", "stopped", 0.0, "lost its gradient", "at step 340: exact zeros followed"),
        ("vanished", "sporadic", 400.0, "lost its gradient", "sampled steps, and then none in 400."),
        ("vanished", "by_script", None, "frozen by the script", "the script froze it"),
        (
            "unused",
            "not_in_graph",
            None,
            "never had a gradient",
            "trainable and never had a gradient: no backward pass",
        ),
        ("unused", "multiplied_by_zero", 0.0, "had only gradients of exactly zero", "only gradients of exactly zero"),
        (
            "vanished",
            "handed_over",
            None,
            "handed its gradient over",
            "lost its gradient at step 340, when similar parameters",
        ),
        ("accumulation_loss", None, 0.22, "lost gradient while summing", "lost 22 % of its gradient"),
        ("accumulator", "low_precision_sum", None, "summed in low precision", "in low precision since"),
        (
            "accumulator",
            "declared",
            None,
            "summed in another dtype than declared",
            "another dtype than the configuration asks for",
        ),
        ("frozen", "measured", 0.9, "has weights that stand still", "90 % stood still between step 340 and 359"),
        (
            "frozen",
            "stopped",
            0.95,
            "has weights that stand still",
            "moved before, and 95 % of its weights stood still",
        ),
        ("in_vain", "rounded", 0.98, "is trained in vain", "98 % of its weights stood still between step 340"),
        ("in_vain", "clipped", 0.98, "is trained in vain", "the loss did not fall, while the loop clips gradients"),
        ("no_update", "undone", None, "undone updates", "has the old weights again when a later step begins"),
        (
            "no_update",
            "too_fine",
            0.0,
            "weights that do not move",
            "steps finer than the precision of its weights, which do not move",
        ),
        ("no_update", "unmoved", 0.0, "weights that do not move", "none of the compared weights changed in a step"),
        ("no_update", "no_rate", 0.0, "has a learning rate of zero", "a learning rate of zero in all steps"),
        (
            "no_update",
            "slow",
            1e-6,
            "has hardly any updates",
            "by 1e-6 of themselves, far less than its optimizer makes",
        ),
        ("no_update", "tiny", 1e-9, "has hardly any updates", "change its weights by 1e-9 of themselves, since"),
        ("no_update", "apart", 1e-9, "far smaller updates than others", "decades smaller than those of others"),
        ("second_moments", None, None, "second moments that cannot decay", "that rise and cannot decay"),
        ("fp16_underflow", "no_scaler", None, "has float16 gradients without a GradScaler", "without a GradScaler"),
        ("fp16_underflow", "zeros", 0.5, "go to zero", "50 % exact zeros"),
        ("fp16_underflow", "all_zeros", 0.95, "go to zero", "95 % exact zeros"),
        ("fp16_underflow", "at_limit", 0.4, "go to zero", "40 % exact zeros in float16 gradients cut off at"),
        ("clip_before_unscale", None, None, "clipped before unscaling", "clipped while its gradients carry"),
        ("not_optimized", None, None, "is in no optimizer", "it receives gradients and never changes"),
        ("never_cleared", None, None, "never has its gradient cleared", "each step uses the sum of all, seen at"),
    ],
)
def test_each_rule_says_what_it_saw_of_whom_and_since_when(rule, evidence, value, few, words):
    change = fired(0, rule=rule, evidence=evidence, value=value)
    said = sentence(change)
    assert words in said
    assert said.startswith("1 of 300 parameters (blocks.0.attn.lora_A.weight) ")
    assert said.endswith("step 340.") or any(f"{word} step 340" in said for word in ("at", "since", "between"))
    assert few in headline(change)
    assert headline(change).endswith(("at step 340", "since step 340"))


@pytest.mark.parametrize(
    ("rule", "evidence"), [(rule, each.evidence) for rule, tracks in RULES.items() for each in tracks]
)
def test_all_evidence_that_the_rules_give_has_its_words_and_its_cause(rule, evidence):
    assert (rule, evidence) in text.WORDS
    change = fired(0, rule=rule, evidence=evidence)
    assert "{" not in sentence(change) + headline(change)
    assert scene(change).code in remedies.CAUSES


@pytest.mark.parametrize("rule", RUN_RULES)
def test_every_rule_of_the_whole_run_has_its_words_and_its_cause(rule):
    change = fired(None, rule=rule, evidence=None, severity=SEVERITIES[RUN_RULES[rule].severity])
    assert "{" not in sentence(change) + headline(change)
    assert scene(change).code in remedies.CAUSES


PLURAL = re.compile(r"\b(are|were|have|their|them)\b")


@pytest.mark.parametrize(
    ("rule", "evidence"), [(rule, each.evidence) for rule, tracks in RULES.items() for each in tracks]
)
def test_words_agree_with_the_number_of_layers(rule, evidence):
    one, two = (tuple(fired(number, rule=rule, evidence=evidence) for number in range(count)) for count in (1, 2))
    said = sentence(*one) + headline(*one)
    assert not PLURAL.search(said), said
    both = sentence(*two) + headline(*two)
    assert not re.search(r"\) (is|was|has)\b|\bits\b", both), both


def test_the_end_is_told():
    assert sentence(fired(0), fired(2), resolved(0)).endswith("1 of them has not recovered.")
    assert sentence(fired(0), resolved(0, step=900)).endswith("Recovered at step 900.")
    case = case_of(fired(0))
    ended = close_incident(case.incident, 1000, 1.0, "run_finished")
    assert text.sentence(ended, case.members, {}).endswith("The run ended at step 1,000 without a recovery.")


def test_sentences_name_no_number_of_the_default_rules():
    """``rare_factor`` is set in rules.yaml, and an agent that samples each 100th step counts 100 steps, not fifty."""
    words = [part for each in text.WORDS.values() for part in each]
    words += [cause.text for cause in remedies.CAUSES.values()]
    assert [each for each in words if "ten times" in each or "fifty steps" in each] == []


def test_no_word_is_torn_at_a_hyphen():
    texts = [cause.text for cause in remedies.CAUSES.values()]
    texts += [remedies.fix(cause, framework).text for cause in remedies.CAUSES for framework in remedies.FRAMEWORKS]
    assert [text for text in texts if re.search(r"[a-z]- ", text)] == []


def test_loss_of_a_sum_is_the_measured_one():
    """The first rows of docs/results/precision.md: independent micro-steps, and alike ones."""
    row = re.compile(r"^\| (\d+) \| bf16 weights, bf16 sums \| ([\d.]+) % \| ([\d.]+) %", re.MULTILINE)
    measured = {int(k): (float(low), float(high)) for k, low, high in row.findall(PRECISION.read_text())}
    assert 0.3 <= measured[8][0] <= measured[8][1] < 0.45
    text = f"0.4 % of the gradient with 8 micro-steps, {measured[64][0]:.0f} to {measured[64][1]:.0f} % with 64, and "
    text += f"{measured[512][0]:.0f} to {measured[512][1]:.0f} % with 512"
    assert text in remedies.CAUSES["low_precision_sum"].text


FIXES = {
    (code, framework): remedies.fix(code, framework) for code in remedies.CAUSES for framework in remedies.FRAMEWORKS
}

FITS = {
    r"untoggle_optimizer|loss / |accumulation_steps|['\"]cuda|\.cuda|loraplus|--train_text_encoder": "",
    "unscale_|GradScaler|[Ss]cale the loss|loss scal": "scaled_clip fp16_zeros fp16_overflow",
    "[Cc]lip|max_grad_norm": "after_explosion exploding diverging diverged loss_diverged scaled_clip clip_limit",
    r"LoRA\+": "parameter_group rate_jump unknown_fall",
}
"""What a fix may contain, and the causes that it can mend. No other job has a scaler or a clip, and none has a GPU."""


@pytest.mark.parametrize("pattern", FITS)
def test_a_fix_fits_its_cause(pattern):
    """Code to copy shows what is set, or repairs the cause; it trains no other model by another method."""
    found = {code for (code, _), fix in FIXES.items() if re.search(pattern, f"{fix.text}\n{fix.code}")}
    assert found <= set(FITS[pattern].split())


def test_a_fix_speaks_of_adapters_where_there_are_some():
    found = {framework for (_, framework), fix in FIXES.items() if re.search("lora|LoRA|adapter", fix.text + fix.code)}
    assert found <= {"peft", "diffusers"}
    assert [code for code in remedies.CAUSES if "loraplus" in FIXES[code, "peft"].code] == []


def test_a_cause_speaks_of_a_clip_only_where_one_was_seen():
    found = {code for code, cause in remedies.CAUSES.items() if re.search(r"\b[Cc]lip", cause.text)}
    assert found == {"scaled_clip", "clip_limit"}


def test_printed_groups_need_no_weight_decay():
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.1, "params": [1, 2]}])
    exec(remedies.fix("parameter_group", "pytorch").code, {"optimizer": optimizer})


def scene(*changes, names=BLOCKS, groups=lambda number: number % 2, near=(), facts=(), dtype="float32"):
    case = case_of(*changes, names=names)
    layers = {n: LayerFacts(n, name, (8, 8), dtype, "Linear", groups(n)) for n, name in enumerate(names)}
    return causes.likely_cause(causes.CauseContext(case.incident, case.members, layers, near, facts))


def test_collapsed_half_of_lora_pairs_points_to_the_partner():
    cause = scene(*[fired(number) for number in lora_a((3, 4, 5))])
    assert cause.code == "lora_partner"
    assert cause.evidence == (
        "all 9 are lora_A; none of their 9 lora_B partners collapsed",
        "the weights of lora_B were not measured around it",
    )


def test_a_partner_is_blamed_only_if_its_measured_weights_shrank():
    """They shrank if they are under a third of what they were."""
    number = lora_a((3,))[0]
    case = case_of(fired(number), names=BLOCKS)
    layers = {n: LayerFacts(n, name, (8, 8), "float32", "Linear", 0) for n, name in enumerate(BLOCKS)}
    partner = BLOCKS.index(BLOCKS[number].replace("lora_A", "lora_B"))
    first = [wire.Setting(0, None, (0,), "lr", 1e-3), wire.Setting(0, None, (0,), "weight_decay", 0.01)]

    def cause(norms, settings=first):
        configuration = Configuration(tuple(settings), 1)
        context = causes.CauseContext(case.incident, case.members, layers, (), (), configuration, {partner: norms})
        return causes.likely_cause(context)

    name = BLOCKS[partner]
    grew = cause(causes.Norms(3.2, 330, 3.26, 360))
    assert grew.code == "lora_own"
    assert grew.evidence == (
        "its lora_B partner did not collapse",
        f"its partner's weights did not shrink: the norm of {name} was 3.2 at step 330, 3.26 at step 360",
        "no setting of a parameter group had changed: lr 0.001, weight_decay 0.01",
    )
    fix = remedies.fix(grew.code, "peft")
    assert "parameter group" not in fix.text
    assert cause(causes.Norms(3.2, 330, 3.2 / 2.9, 360)).code == "lora_own"
    shrank = cause(causes.Norms(3.2, 330, 3.2 / 3.1, 360))
    assert shrank.code == "lora_partner"
    assert shrank.evidence[1].startswith("the weights of 1 of 1 measured partners shrank: the norm of")
    assert cause(causes.Norms(3.2, 330, 0.0, 360)).code == "lora_partner"
    changed = [*first, wire.Setting(300, 299, (0,), "weight_decay", 0.02)]
    assert [line for line in cause(causes.Norms(3.2, 330, 3.2, 360), changed).evidence if "no setting" in line] == []


def test_whole_blocks_and_whole_groups_are_seen():
    blocks = [number for number, name in enumerate(BLOCKS) if name.split(".")[1] in "34"]
    assert scene(*[fired(number) for number in blocks]).code == "whole_blocks"
    plain = tuple(f"net.{number}.weight" for number in range(20))
    cause = scene(*[fired(number) for number in range(5)], names=plain, groups=lambda number: int(number < 5))
    assert cause.code == "parameter_group"
    assert scene(fired(0), fired(7), names=plain).code == "unknown_fall"


def test_gradients_that_shrink_with_depth_are_seen():
    row = tuple(f"{place}.0.weight" for place in range(12))
    far = [
        Transition(70, "collapse", place, "fired", "warning", 50, 10.0 ** (place - 15), None, 1e-3, "siblings")
        for place in range(9)
    ]
    lines = ("gradients shrink from layer to layer, from 1e-7 in 8.0.weight to 1e-15 in 0.0.weight",)
    assert scene(*far, names=row).evidence == lines
    assert scene(*far[::-1], names=row).evidence == lines
    assert scene(*far[:5], names=row).evidence == (), "too few to be a row"
    assert scene(*far[:4], replace(far[4], value=1e-9), *far[5:], names=row).evidence == ()


def test_an_explosion_beside_a_collapse_has_its_cause():
    near = (causes.NearbyIncident(30, "collapse", "critical", 330),)
    case = case_of(fired(0, rule="explosion", evidence=None, severity="warning"))
    for beside, code in ((30, "beside_collapse"), (None, "exploding")):
        incident = replace(case.incident, beside=beside)
        cause = causes.likely_cause(causes.CauseContext(incident, case.members, {}, near))
        assert (cause.code, cause.follows) == (code, beside)


def test_earlier_cause_comes_first():
    near = (causes.NearbyIncident(30, "nonfinite", "critical", 330),)
    cause = scene(*[fired(number) for number in lora_a((3,))], near=near)
    assert (cause.code, cause.incidents) == ("after_nonfinite", (30,))
    assert cause.evidence == ("incident 30 (nonfinite) opened at step 330",)


def test_known_facts_are_evidence():
    about = wire.Fact("x", "this one has no scaler", (BLOCKS[0],))
    other = wire.Fact("x", "about another layer", (BLOCKS[1],))
    assert scene(fired(0), facts=(about, other)).evidence[-1] == "this one has no scaler"


def test_frozen_parameters_are_no_evidence():
    facts = [
        wire.Fact(wire.FROZEN_PARAMETERS, "some of all parameters are frozen", names) for names in ((), (BLOCKS[0],))
    ]
    assert not [line for line in scene(fired(0), facts=tuple(facts)).evidence if "frozen" in line]


def test_nonfinite_says_what_was_first():
    loss = fired(None, rule="nonfinite", step=500, since=500)
    gradient = fired(3, rule="nonfinite", step=490, since=490)
    assert scene(loss).code == "nonfinite_loss"
    assert scene(gradient, loss).code == "nonfinite_gradient"
    skipped = fired(3, rule="nonfinite", step=500, since=490)
    assert scene(skipped, loss).code == "nonfinite_loss"
    assert scene(gradient, dtype="float16").code == "fp16_overflow"


@pytest.mark.parametrize(
    ("rule", "evidence", "severity", "near", "code"),
    [
        ("collapse", "fall", "critical", "explosion", "after_explosion"),
        ("collapse", "fall", "critical", "vanished", "after_vanished"),
        ("collapse", "straight", "warning", None, "exponential_fall"),
        ("explosion", None, "warning", "nonfinite", "after_nonfinite"),
        ("explosion", None, "warning", None, "exploding"),
        ("explosion", None, "critical", None, "diverging"),
        ("vanished", "stopped", "critical", None, "cut_off"),
        ("vanished", "sporadic", "warning", None, "idle_for_long"),
        ("vanished", "never", "warning", None, "never_any_gradient"),
        ("vanished", "by_script", "information", None, "frozen_by_script"),
        ("vanished", "handed_over", "information", None, "handed_over"),
        ("unused", "not_in_graph", "warning", None, "not_in_graph"),
        ("unused", "not_in_graph", "information", None, "never_used"),
        ("unused", "not_in_graph", "warning", "not_optimized", "after_not_optimized"),
        ("accumulation_loss", None, "critical", None, "lossy_sum"),
        ("accumulator", "low_precision_sum", "information", None, "low_precision_sum"),
        ("accumulator", "declared", "information", None, "other_dtype"),
        ("frozen", "measured", "warning", None, "coarse_weights"),
        ("in_vain", "rounded", "critical", None, "in_vain"),
        ("in_vain", "clipped", "critical", None, "in_vain"),
        ("no_update", "undone", "critical", None, "lost_update"),
        ("no_update", "too_fine", "critical", None, "cannot_move"),
        ("no_update", "unmoved", "critical", None, "unmoved"),
        ("no_update", "no_rate", "warning", None, "rate_zero"),
        ("no_update", "slow", "warning", None, "hardly_moves"),
        ("no_update", "tiny", "warning", None, "hardly_moves"),
        ("no_update", "apart", "warning", None, "moves_less"),
        ("second_moments", None, "warning", None, "coarse_moments"),
        ("frozen", "stopped", "critical", None, "stopped_weights"),
        ("fp16_underflow", "zeros", "warning", None, "fp16_zeros"),
        ("fp16_underflow", "at_limit", "critical", None, "fp16_zeros"),
        ("clip_before_unscale", None, "warning", None, "scaled_clip"),
        ("not_optimized", None, "warning", None, "in_no_optimizer"),
        ("never_cleared", None, "critical", None, "kept_gradients"),
        ("explosion", None, "critical", "never_cleared", "after_never_cleared"),
    ],
)
def test_each_rule_has_its_likely_cause(rule, evidence, severity, near, code):
    neighbours = () if near is None else (causes.NearbyIncident(30, near, "critical", 330),)
    assert scene(fired(0, rule=rule, evidence=evidence, severity=severity), near=neighbours).code == code


def test_weights_that_stand_still_are_no_cause_of_a_training_in_vain():
    near = (
        causes.NearbyIncident(30, "frozen", "warning", 100),
        causes.NearbyIncident(31, "nonfinite", "critical", 330),
    )
    assert scene(fired(0, rule="in_vain", evidence="rounded"), near=near).incidents == (31,)


def test_accumulation_dtype_explains_no_fall():
    near = (
        causes.NearbyIncident(30, "accumulator", "information", 0),
        causes.NearbyIncident(31, "nonfinite", "critical", 330),
    )
    fell = scene(fired(0), near=near)
    assert fell.incidents == (31,)
    assert not [line for line in fell.evidence if "accumulator" in line]
    assert scene(fired(0, rule="accumulation_loss", evidence=None), near=near).incidents == (30, 31)


def test_blocks_that_lose_their_gradient_together_are_seen():
    blocks = [number for number, name in enumerate(BLOCKS) if name.split(".")[1] in "34"]
    lost = [fired(number, rule="vanished", evidence="stopped") for number in blocks]
    assert scene(*lost).code == "cut_off_blocks"
    assert scene(*lost).evidence == ("every parameter of 2 of 10 blocks lost its gradient, and no other",)
    everything = [fired(number, rule="vanished", evidence="stopped") for number in range(len(BLOCKS))]
    assert scene(*everything).code == "no_gradient_at_all"


@pytest.mark.parametrize(("cause", "framework"), list(itertools.product(remedies.CAUSES, remedies.FRAMEWORKS)))
def test_every_cause_has_a_fix_in_the_words_of_every_framework(cause, framework):
    fix = remedies.fix(cause, framework)
    assert fix.framework == framework
    assert fix.text
    assert bool(fix.code) == (cause != "converged")


@pytest.mark.parametrize("cause", remedies.CAUSES)
def test_plain_fix_names_no_part_that_the_run_may_not_have(cause):
    """Nothing tells the collector whether a plain loop has a scheduler, accumulates, or runs on a GPU."""
    fix = remedies.fix(cause, "pytorch")
    words = f"{remedies.CAUSES[cause].text} {fix.text} {fix.code}"
    if cause not in ("fp16_zeros", "fp16_overflow", "scaled_clip"):
        assert not re.search(r"\bscaler|unscal", words)
    assert not re.search(r"lr_lambda|accumulation_steps|'cuda'", words)


@pytest.mark.parametrize("framework", remedies.FRAMEWORKS)
def test_fix_fits_its_cause(framework):
    fixes = {code: remedies.fix(code, framework) for code in remedies.CAUSES}
    assert fixes["converged"].text.startswith("Nothing to fix")
    assert fixes["frozen_by_script"].text.startswith("Nothing to fix")
    assert "detach" not in fixes["frozen_by_script"].text
    assert "residual" in fixes["under_siblings"].text
    assert "clip_grad" not in fixes["nonfinite_loss"].code
    assert "momentum" in fixes["diverging"].text
    assert "higher learning rate" not in fixes["coarse_weights"].text


def test_groups_whose_rates_jump_alike_share_a_line():
    case = case_of(fired(0))
    jumps = (Jump(0, 330, 0.0015, 9.0), Jump(1, 330, 0.0015, 9.0), Jump(2, 331, 1e-3, 1.0))
    incident = replace(case.incident, lr_jumps=jumps)
    layers = {0: causes.LayerInfo("a", "float32", 0), 1: causes.LayerInfo("b", "float32", 0)}
    cause = causes.likely_cause(causes.CauseContext(incident, case.members, layers))
    assert cause.evidence == (
        "the learning rate of parameter groups 0 and 1 rose 6,000 times at step 330, from 0.0015 to 9",
        "the learning rate of parameter group 2 rose 1,000 times at step 331, from 0.001 to 1",
    )


ADAMW = (
    wire.Setting(0, None, (0, 1), "optimizer", "AdamW"),
    wire.Setting(0, None, (0, 1), "lr", 1e-3),
    wire.Setting(0, None, (0, 1), "weight_decay", 0.0),
)


def explained(*changes, settings=(), near=(), jumps=(), norm=None, names=BLOCKS):
    case = case_of(*changes, names=names)
    layers = {number: causes.LayerInfo(name, "float32", number % 2) for number, name in enumerate(names)}
    configuration = Configuration((*ADAMW, *settings), 2, norm)
    incident = replace(case.incident, lr_jumps=jumps)
    return causes.likely_cause(causes.CauseContext(incident, case.members, layers, near, (), configuration))


def test_root_cause_is_the_weight_decay_and_not_the_learning_rate_beside_it():
    """The change of the demo: lora_A falls because lora_B is driven to zero."""
    settings = (wire.Setting(335, 334, (1,), "lr", 5e-6), wire.Setting(335, 334, (1,), "weight_decay", 1e5))
    fell = [fired(number) for number in lora_a((3, 4, 5))]
    cause = explained(*fell, settings=settings, jumps=(Jump(1, 335, 1e-3, 5e-6),))
    assert cause.code == "weight_decay"
    assert cause.evidence == (
        (
            "weight decay of parameter group 1 rose from 0 to 100,000 at step 335: with the learning rate 5e-6 each "
            "step multiplies its weights by 1 - 5e-6 * 100,000 = 0.5"
        ),
        "the learning rate of parameter group 1 fell 200 times at step 335, from 0.001 to 5e-6",
        "all 9 are lora_A; none of their 9 lora_B partners collapsed",
    )


def test_root_cause_of_an_explosion_is_the_rate_that_rose():
    jumps = tuple(Jump(group, 338, 0.0015, 9.0) for group in (0, 1))
    cause = explained(fired(0, rule="explosion", evidence=None), jumps=jumps)
    assert (cause.code, cause.evidence) == (
        "rate_rose",
        ("the learning rate of all groups rose 6,000 times at step 338, from 0.0015 to 9",),
    )
    doubled = explained(fired(0, rule="explosion", evidence=None), jumps=(Jump(0, 338, 1e-3, 4e-3),))
    assert doubled.code == "diverging"


PLAIN = tuple(f"net.{number}.weight" for number in range(20))


def test_a_rate_that_rose_long_before_and_still_holds_is_named_where_nothing_nearer_is():
    rise = Jump(1, 100, 2e-4, 0.1, 3e-4, 0.1)
    line = (
        "the learning rate of parameter group 1 rose 500 times at step 100, from 0.0002 to 0.1, and was still in force "
        "240 steps later"
    )
    exploded = causes.NearbyIncident(30, "explosion", "critical", 330)
    for change in (fired(0), fired(0, rule="explosion", evidence=None), fired(0, rule="vanished", evidence="sporadic")):
        cause = explained(change, names=PLAIN, jumps=(rise,))
        assert (cause.code, cause.evidence, cause.step) == ("rate_stays", (line,), 100)
    assert (
        explained(fired(0), names=PLAIN, jumps=(replace(rise, now=0.05),))
        .evidence[0]
        .endswith(", and was still 0.05 240 steps later")
    )
    near = explained(fired(0), names=PLAIN, jumps=(rise,), near=(exploded,))
    assert (near.code, near.follows, near.evidence[0]) == ("after_explosion", 30, line)
    frozen = fired(0, rule="vanished", evidence="by_script")
    assert explained(frozen, jumps=(rise,)).code == "frozen_by_script"
    assert explained(fired(0, rule="unused", evidence="not_in_graph"), jumps=(rise,)).evidence == ()


def test_a_decay_that_rose_long_before_and_still_holds_is_named():
    rose = wire.Setting(100, 99, (1,), "weight_decay", 200.0)
    cause = explained(fired(0), names=PLAIN, settings=(rose,))
    assert (cause.code, cause.step) == ("weight_decay", 100)
    assert cause.evidence[0].endswith("1 - 0.001 * 200 = 0.8, and was still in force 240 steps later")
    back = wire.Setting(150, 149, (1,), "weight_decay", 0.0)
    assert explained(fired(0), names=PLAIN, settings=(rose, back)).code == "unknown_fall"
    usual = wire.Setting(100, 99, (1,), "weight_decay", 0.1)
    assert explained(fired(0), names=PLAIN, settings=(usual,)).code == "unknown_fall"


def test_an_incident_that_did_not_recover_is_named_without_certainty():
    early = causes.NearbyIncident(30, "explosion", "critical", 100)
    cause = explained(fired(0), names=PLAIN, near=(early,))
    assert (cause.code, cause.follows, cause.incidents) == ("after_earlier", 30, (30,))
    assert cause.evidence == ("incident 30 (explosion) opened at step 100, 259 steps before, and had not recovered",)
    assert "not certain" in cause.text
    other = explained(fired(0), names=PLAIN, near=(causes.NearbyIncident(30, "not_optimized", "warning", 10),))
    assert (other.code, other.follows, other.incidents) == ("unknown_fall", None, (30,))


def test_one_that_follows_another_has_what_is_known_of_that():
    exploded = causes.NearbyIncident(30, "explosion", "critical", 330)
    own = explained(fired(0), names=PLAIN, near=(causes.NearbyIncident(29, "not_optimized", "warning", 10), exploded))
    root = causes.LikelyCause("rate_rose", "", ("the learning rate rose 500 times at step 329",), (), None, 329)
    cause = causes.follow(own, root)
    assert (cause.follows, cause.step) == (30, 329)
    assert cause.evidence == (
        "incident 30 (explosion) opened at step 330: the learning rate rose 500 times at step 329",
        "incident 29 (not_optimized) opened at step 10, 349 steps before, and had not recovered",
    )


def test_root_cause_of_weights_that_stand_still_is_a_clip_that_leaves_next_to_nothing():
    tiny, usual = (wire.Setting(20, None, (), "max_norm", limit) for limit in (1e-9, 1.0))
    for rule, evidence, without in (("frozen", "forecast", "coarse_weights"), ("in_vain", "clipped", "in_vain")):
        cause = explained(fired(0, rule=rule, evidence=evidence), settings=(tiny,), norm=0.7)
        assert cause.code == "clip_limit"
        assert cause.evidence[0] == "gradients are clipped to a norm of 1e-9, and had one of 0.7 before the clip"
        for settings in ((), (usual,)):
            assert explained(fired(0, rule=rule, evidence=evidence), settings=settings, norm=2.7).code == without


def test_slow_updates_are_blamed_on_epsilon_only_where_it_is_large():
    def slow(evidence, *settings):
        change = fired(0, rule="no_update", evidence=evidence, severity="warning")
        return explained(change, settings=settings, norm=0.7)

    large, usual = (wire.Setting(0, None, (0, 1), "eps", eps) for eps in (1.0, 1e-8))
    clip = wire.Setting(20, None, (), "max_norm", 1e-9)
    assert (slow("slow", large, clip).code, slow("slow", large).evidence) == (
        "epsilon",
        ("eps of parameter group 0 is 1",),
    )
    assert [slow("slow", *settings).code for settings in ((), (usual,))] == ["hardly_moves", "hardly_moves"]
    assert [slow(evidence, usual, clip).code for evidence in ("slow", "tiny")] == ["clip_limit", "clip_limit"]
    assert slow("tiny", large).code == "hardly_moves"  # Adam with this epsilon may move by all of its rate
    assert (slow("apart", large).code, slow("apart", usual).code) == ("epsilon", "moves_less")


def test_setting_is_that_of_the_groups_it_explains():
    no_rate = [fired(number, rule="no_update", evidence="no_rate", severity="warning") for number in (1, 3)]
    apart = fired(0, rule="no_update", evidence="apart", severity="warning")
    cause = explained(*no_rate, apart)
    assert (cause.code, cause.evidence) == (
        "rate_zero",
        ("the learning rate of parameter group 1 has been 0 in each step of this launch",),
    )


def test_cause_is_that_of_most_members():
    few = fired(0, rule="frozen", evidence="stopped")
    most = [fired(number, rule="frozen", evidence="measured") for number in (1, 2, 3)]
    assert scene(few, *most).code == "coarse_weights"
    assert scene(few, most[0]).code == "stopped_weights"


def test_clip_that_adam_divides_out_is_no_cause():
    """It divides by the size of what the clip leaves, unless epsilon is larger than that."""
    eps = wire.Setting(0, None, (0, 1), "eps", 1e-8)
    limits = [wire.Setting(20, None, (), "max_norm", limit) for limit in (1e-2, 1e-6)]
    for rule, evidence, without in (("no_update", "unmoved", "unmoved"), ("in_vain", "clipped", "in_vain")):
        change = fired(0, rule=rule, evidence=evidence)
        codes = [explained(change, settings=(eps, limit), norm=40.0).code for limit in limits]
        assert codes == [without, "clip_limit"]
        assert explained(change, settings=limits[:1], norm=40.0).code == "clip_limit"


def test_settings_explain_nothing_that_the_script_did():
    change = wire.Setting(335, 334, (1,), "weight_decay", 1e5), wire.Setting(335, 334, (1,), "lr", 1e-5)
    frozen = explained(fired(0, rule="vanished", evidence="by_script"), settings=change)
    assert frozen.code == "frozen_by_script"
    fell = explained(fired(None, rule="scale_drop", severity="information"), settings=change)
    assert fell.code == "converged"


def test_gradients_of_exact_zeros_are_not_cut_off():
    def never(value):
        return fired(0, rule="vanished", evidence="never", value=value)

    assert scene(never(0.0)).code == "only_zeros"
    assert scene(never(0.0), dtype="float16").code == "fp16_zeros"
    assert "that is watched had only gradients of exactly zero since" in sentence(never(0.0))
    assert scene(never(None)).code == "never_any_gradient"


def test_gradients_that_became_exactly_zero_are_not_cut_off():
    def stopped(number, value):
        return fired(number, rule="vanished", evidence="stopped", value=value)

    assert scene(stopped(0, 0.0), stopped(1, 0.0)).code == "became_zero"
    assert scene(stopped(0, 0.0), stopped(1, None)).code == "cut_off"
    for code in ("became_zero", "only_zeros"):
        assert "detach" not in remedies.CAUSES[code].text


def test_unused_layer_without_a_module_may_be_that_of_a_replaced_one():
    def unused(value=None):
        evidence = "not_in_graph" if value is None else "multiplied_by_zero"
        return fired(0, rule="unused", evidence=evidence, value=value, severity="information")

    assert scene(unused(), names=("group0.4", "head.weight")).code == "never_used_unnamed"
    assert scene(unused(), names=("group0.bias", "head.weight")).code == "never_used"
    assert "replaced" not in remedies.CAUSES["never_used"].text
    assert scene(unused(0.0)).code == "cancelled"


def test_none_and_exact_zeros_have_causes_of_their_own():
    def unused(number, value):
        evidence = "not_in_graph" if value is None else "multiplied_by_zero"
        return fired(number, rule="unused", evidence=evidence, value=value)

    assert scene(unused(0, 0.0), unused(1, 0.0)).code == "multiplied_by_zero"
    both = scene(unused(0, 0.0), unused(1, None), unused(2, None))
    assert (both.code, both.evidence) == (
        "not_in_graph",
        ("of them 2 have no gradient at all, and 1 only exact zeros",),
    )


def test_loss_that_turns_infinite_after_an_explosion_diverged():
    near = (causes.NearbyIncident(30, "explosion", "critical", 330),)
    assert scene(fired(None, rule="nonfinite"), near=near).code == "diverged"
    assert scene(fired(None, rule="nonfinite", step=330, since=330), near=near).code == "nonfinite_loss"


def test_a_lost_gradient_may_be_that_of_a_module_which_was_replaced():
    for code in ("cut_off", "cut_off_blocks", "never_used_unnamed"):
        assert "replaced after the optimizer was made" in remedies.CAUSES[code].text


def test_nothing_blames_a_bf16_accumulation():
    texts = [cause.text for cause in remedies.CAUSES.values()]
    texts += [remedies.fix(cause, framework).text for cause in remedies.CAUSES for framework in remedies.FRAMEWORKS]
    assert not [text for text in texts if "accumulat" in text and ("bf16" in text or "bfloat16" in text)]
    assert not [text for text in texts if "6e-8" in text]


@pytest.mark.parametrize(
    ("name", "whose"),
    [("peft 0.18", "peft"), ("pytorch-lightning", "lightning"), (None, "pytorch"), ("jax", "pytorch")],
)
def test_frameworks_are_known_by_their_other_names(name, whose):
    assert remedies.framework(name) == whose
