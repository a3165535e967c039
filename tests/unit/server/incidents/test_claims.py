"""Each claim of a headline and a sentence is held against the incident, by a reader that parses the text.

The reader shares no code with the writer: it knows what the words mean, and reads counts, steps and values back.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gradcanary.wire import Crash
from gradcanary_server.incidents import text
from gradcanary_server.incidents.lifecycle import Incident, Member, TransitionContext, apply_transitions
from gradcanary_server.rules.signals import RULES
from gradcanary_server.rules.types import SEVERITIES, Evidence, ScaleFall, SeriesFacts, Transition

NAMES = dict(enumerate("abcdefghijkl"))
Members = dict[int | None, Member]

SUBJECT = re.compile(
    r"(?:(\d+) of (\d+) parameters?|all (\d+) parameters|(the only parameter)|(\d+) more)(?: \(([a-l][^)]*)\))?"
)
STEPS = re.compile(r"(?:at|since) steps? ([\d,]+)(?: to ([\d,]+))?")
BETWEEN = re.compile(r"(?:over ([\d,]+) steps, measured in turns from|between) step ([\d,]+) (?:to|and) ([\d,]+)")
NUMBER = r"(-?[\d,.]+(?:e-?\d+)?)"
FROM_TO = re.compile(rf"from {NUMBER} to {NUMBER}( \(medians\))?")
UP_TO = re.compile(rf"(?:fell|went up) to {NUMBER}( \(median\))? at")
LARGEST = re.compile(rf"\((median )?largest gradient {NUMBER}\)")
INSTEAD = re.compile(rf": {NUMBER} instead of {NUMBER}( \(medians\))?")
SHARE = re.compile(r"(\d[\d.]*) %( \(median\))?")
IDLE = re.compile(r"at least every ([\d,]+) sampled steps, and then none in ([\d,]+)")

MEANINGS: dict[tuple[str, str | None], tuple[str, str]] = {
    ("collapse", "fall"): ("collapsed", r"fell (from|to|at) "),
    ("collapse", "straight"): ("gradients that fall exponentially", "exponentially: each step took the same part"),
    ("collapse", "threshold"): ("under the threshold", "under the threshold given for"),
    ("collapse", "siblings"): ("than similar parameters", "than similar parameters"),
    ("collapse", "follows"): ("fell beside collapsed", "beside collapsed ones fell (from|to|at) "),
    ("collapse", "joined_late"): ("already low when the run was joined", "already low .*when the run was joined"),
    ("nonfinite", "loss"): ("^the loss became NaN or infinite", "^The loss became NaN or infinite"),
    ("nonfinite", "both"): ("^the loss became NaN or infinite", "^The loss and the gradients? of .* became NaN"),
    ("nonfinite", None): ("^the gradients? of .* became NaN", "^The gradients? of .* became NaN"),
    ("explosion", None): ("exploded", "went up (from|to|at) "),
    ("vanished", "stopped"): ("lost (its|their) gradient", "lost (its|their) gradient"),
    ("vanished", "sporadic"): ("lost (its|their) gradient", "one came (now and then|at least every)"),
    ("vanished", "never"): ("had no gradient", "watched had (only gradients of exactly zero|no gradient) "),
    ("vanished", "by_script"): ("frozen by the script", "the script froze"),
    ("unused", "not_in_graph"): ("never had a gradient", "trainable and never had a gradient: no backward pass"),
    ("unused", "multiplied_by_zero"): ("had only gradients of exactly", "trainable and had only gradients of exactly"),
    ("vanished", "handed_over"): ("handed (its|their) gradient over", "when similar parameters that had none"),
    ("accumulation_loss", None): ("lost gradient while summing", "lost .* of (its|their) gradient while"),
    ("accumulator", "low_precision_sum"): ("summed in low precision", "summed over micro-steps in low precision"),
    ("accumulator", "declared"): ("another dtype than declared", "another dtype than the configuration asks for"),
    ("frozen", "measured"): ("stand still", "weights of which"),
    ("frozen", "stopped"): ("stand still", "moved before, and"),
    ("in_vain", "clipped"): ("trained in vain", "trained in vain.* while the loop clips"),
    ("in_vain", "rounded"): ("trained in vain", "trained in vain"),
    ("no_update", "undone"): (
        "undone updates",
        "changed by the optimizer and (has|have) the old weights again",
    ),
    ("no_update", "too_fine"): ("weights that do not move", "steps finer than the precision of (its|their) weights"),
    ("no_update", "unmoved"): ("weights that do not move", "none of the compared weights changed in a step"),
    ("no_update", "no_rate"): ("a learning rate of zero", "gradients, and a learning rate of zero in all steps"),
    ("no_update", "slow"): ("hardly any updates", "updates that change .* far less than (its|their) optimizer"),
    ("no_update", "tiny"): ("hardly any updates", "updates that change (its|their) weights by"),
    ("no_update", "apart"): ("far smaller updates than others", "updates decades smaller than those of others"),
    ("second_moments", None): ("second moments that cannot decay", "second moments in low precision that rise"),
    ("fp16_underflow", "no_scaler"): ("without a GradScaler", "without a GradScaler"),
    ("fp16_underflow", "all_zeros"): ("go to zero", "float16 gradients that had fewer"),  # the worse one comes first
    ("fp16_underflow", "zeros"): ("go to zero", "float16 gradients that had fewer"),
    ("fp16_underflow", "at_limit"): ("go to zero", "exact zeros in float16 gradients cut off at the smallest number"),
    ("clip_before_unscale", None): ("clipped before unscaling", "clipped while"),
    ("not_optimized", None): ("in no optimizer", "in no optimizer: .* gradients and never"),
    ("never_cleared", None): (
        "never (has its gradient|have their gradients) cleared",
        "cleared after a step: each step uses the sum of all",
    ),
    ("scale_drop", "information"): ("all gradients fell together", "and the loss came down, too"),
    ("scale_drop", "warning"): ("all gradients fell together", r"the loss did not fall enough to explain it\."),
    ("scale_drop", "no_loss"): ("all gradients fell together", "whether the loss explains it is not known"),
    ("scale_drop", "critical"): ("all gradients fell together", "and the loss did not fall"),
    ("scale_drop", "own_loss"): ("all gradients of a loss that is not on record", "which is not on record became"),
    ("scale_drop", "all_zeros"): ("all gradients fell together", "did not fall enough to explain that"),
    ("loss_scale", None): ("the GradScaler's scale", "The GradScaler's scale"),
    ("metric", "under_bound"): ("under the bound of", "under the bound of"),
    ("metric", "over_bound"): ("over the bound of", "over the bound of"),
    ("metric", "fell"): ("fell", "fell"),
    ("metric", "rose"): ("rose", "rose"),
    ("metric", "not_finite"): ("NaN or infinite", "NaN or infinite"),
    ("silent", None): ("nothing heard since step", "Nothing was heard .* its last step was"),
    ("silent", "no_step"): ("nothing heard since its start", "Nothing was heard .* it had made no step"),
    ("stalled", None): ("no new step since step", "no step since step"),
    ("stalled", "no_step"): ("no new step since its start", "no step since its start"),
    ("crash", "exception"): ("^ValueError", "^ValueError .* ended the training"),
    ("crash", "memory"): ("out of memory", "(?i)^(cuda )?out of memory .* ended the training: ValueError"),
}
"""What a reader recognizes each template by, in a headline and in a sentence; a new template needs its line here."""

COUNTED = {key: words for key, words in MEANINGS.items() if key[0] in RULES and key[1] not in ("loss", "both")}


def value_of(written: str) -> float:
    return float(written.replace(",", ""))


def means(written: str, true: float) -> bool:
    """Return True if a written number is a value to two digits."""
    return value_of(written) == pytest.approx(true, rel=0.051, abs=0)


def check_subject(subject: re.Match[str], count: int, total: int) -> None:
    some, of, every, only, more, _ = subject.groups()
    if only:
        assert count == total == 1
    elif every:
        assert int(every) == count == total > 1
    elif some:
        assert (int(some), int(of)) == (count, total)
        assert count < total
    else:
        assert int(more) == count


SPAN = 19
"""Steps from the first bad observation to the one that opens an incident here."""


def check_steps(clause: str, members: Sequence[Member]) -> None:
    steps = [member.since_step for member in members]
    if found := BETWEEN.search(clause):
        assert bool(found[1]) == (len(set(steps)) > 1), clause
        assert value_of(found[1] or str(SPAN)) == SPAN, clause
        assert (value_of(found[2]), value_of(found[3])) == (min(steps), max(steps) + SPAN), clause
        return
    found = STEPS.search(clause)
    assert found is not None, clause
    assert value_of(found[1]) == min(steps), clause
    assert (value_of(found[2]) if found[2] else min(steps)) == max(steps), clause


def check_values(clause: str, members: Sequence[Member]) -> None:
    pairs = [(each.baseline, each.value) for each in members if None not in (each.baseline, each.value)]
    values = [each.value for each in members if each.value is not None]
    is_rise = "went up" in clause
    if found := FROM_TO.search(clause):
        pairs = [(before, now) for before, now in pairs if (now > before if is_rise else now < before)]
        assert means(found[1], median(before for before, _ in pairs)), clause
        assert means(found[2], median(now for _, now in pairs)), clause
        assert bool(found[3]) == (len(set(pairs)) > 1), clause
    if found := UP_TO.search(clause):
        kept = [value for value in values if value > 0] if is_rise else values
        assert means(found[1], median(kept)), clause
        assert bool(found[2]) == (len(set(kept)) > 1), clause
    if found := LARGEST.search(clause):
        assert means(found[2], median(values)), clause
        assert bool(found[1]) == (len(set(values)) > 1), clause
    if found := INSTEAD.search(clause):
        apart = [(each.value, each.siblings) for each in members if None not in (each.value, each.siblings)]
        apart = [(now, others) for now, others in apart if now < others]
        assert means(found[1], median(now for now, _ in apart)), clause
        assert means(found[2], median(others for _, others in apart)), clause
    if found := SHARE.search(clause):
        assert value_of(found[1]) == pytest.approx(100 * median(values), rel=0.06, abs=0.01), clause
        assert bool(found[2]) == (len(set(values)) > 1), clause
    if found := IDLE.search(clause):
        spans = [(before, now) for before, now in pairs if now]
        assert value_of(found[1]) == pytest.approx(max(before for before, _ in spans), abs=0.5), clause
        assert value_of(found[2]) == pytest.approx(min(now for _, now in spans), abs=0.5), clause
    if re.search(r"\bonly gradients of exactly zero|: exact zeros followed", clause):
        assert {each.value for each in members} == {0.0}, clause
    if re.search(r"had no gradient since|: no gradient followed", clause):
        assert "never" in clause or None in {each.value for each in members} or 0.0 not in values, clause


def check_agreement(clause: str, count: int) -> None:
    wrong = "are|were|have|their|them|gradients of \\d" if count == 1 else "is|was|has|its|it|gradient of \\d"
    told = re.sub(
        r"\([^)]*\)|float16 gradients that had|similar parameters|while it was|the run was|gradients (before|in)",
        "",
        clause,
    )
    assert not re.search(rf"\b({wrong})\b", told), clause


def check_layers(incident: Incident, members: Members) -> set[tuple[str, str | None]]:
    """Hold the clauses about layers against the members; return the templates that were found."""
    told = text.sentence(incident, members, NAMES)
    body = told.rsplit(". ", 1)[0] if ". " in told else told.removesuffix(".")
    left = {kind: [each for each in members.values() if each.evidence == kind] for _, kind in COUNTED}
    left = {kind: each for kind, each in left.items() if each}
    used = set()
    for clause in body.split("; "):
        kinds = [kind for rule, kind in COUNTED if rule == incident.rule and kind in left]
        kinds = [kind for kind in kinds if re.search(COUNTED[incident.rule, kind][1], clause)]
        assert kinds, clause
        known = left.pop(kinds[0])
        subject = SUBJECT.search(clause) or SUBJECT.search(clause[0].lower() + clause[1:])
        assert subject is not None, clause
        check_subject(subject, len(known), incident.layers)
        check_steps(clause, known)
        check_values(clause, known)
        check_agreement(clause, len(known))
        used.add((incident.rule, kinds[0]))
    assert not left, told
    return used


def check_headline(incident: Incident, members: Members) -> None:
    told = text.headline(incident, members)
    counted = [each for each in members.values() if incident.state == "resolved" or each.until_step is None]
    main, _, rest = told.partition("; ")
    kinds = {kind for rule, kind in COUNTED if rule == incident.rule and re.search(COUNTED[rule, kind][0], main)}
    subject = SUBJECT.search(main)
    assert subject is not None, told
    candidates = [[each for each in counted if each.evidence == kind] for kind in kinds]
    others = int(rest.removesuffix(" more by other evidence")) if rest else 0
    fitting = [each for each in candidates if each and len(each) + others == len(counted)]
    assert any(fits(subject, main, known, incident.layers) for known in fitting), told


def fits(subject: re.Match[str], main: str, known: Sequence[Member], total: int) -> bool:
    try:
        check_subject(subject, len(known), total)
        check_steps(main, known)
        check_agreement(main, len(known))
    except AssertionError:
        return False
    return True


def check_ending(incident: Incident, members: Members) -> None:
    told = text.sentence(incident, members, NAMES)
    open_ones = sum(each.until_step is None for each in members.values())
    found = re.search(r"(\d+) of them (has|have) not recovered\.$", told)
    if incident.state == "open":
        assert bool(found) == (open_ones < len(members)), told
        if found:
            assert int(found[1]) == open_ones
            assert found[2] == ("has" if open_ones == 1 else "have")
        return
    words = {"recovered": "Recovered", "run_finished": "The run ended", "layer_gone": "does not train"}
    assert words[str(incident.resolution)] in told
    assert f"at step {incident.resolved_step:,}" in told


VALUES = st.none() | st.just(0.0) | st.floats(1e-12, 1e6)
OF_RULE = {
    "vanished": st.sampled_from([None, 0.0, 400.0]),
    **dict.fromkeys(("accumulation_loss", "frozen", "in_vain", "fp16_underflow"), st.none() | st.floats(0, 1)),
}
"""Values that a rule judges, where they are no gradients: none, zero or a number of samples; and shares."""


@st.composite
def incidents(draw: st.DrawFn, rule: str) -> tuple[Incident, Members]:
    kinds = [kind for each, kind in COUNTED if each == rule]
    total = draw(st.integers(1, len(NAMES)))
    layers = draw(st.permutations(range(total)))[: draw(st.integers(1, total))]
    state = draw(st.sampled_from(["open", "resolved"]))
    values = OF_RULE.get(rule, VALUES)
    shared = draw(values), draw(VALUES)
    members: Members = {}
    for place, layer in enumerate(layers):
        value, baseline = shared if draw(st.booleans()) else (draw(values), draw(VALUES))
        is_open = state == "open" and (place == 0 or draw(st.booleans()))
        since = draw(st.sampled_from([340, 341, 12_340]))
        kind = draw(st.sampled_from(kinds))
        if rule == "vanished" and kind != "sporadic" and value:
            value = None
        value = {"not_in_graph": None, "multiplied_by_zero": 0.0}.get(kind, value)
        until = None if is_open else since + 99
        members[layer] = Member("warning", since, value, baseline, draw(VALUES), kind, until)
    firing = sum(each.until_step is None for each in members.values())
    began = min(each.since_step for each in members.values())
    counts = {"layers": total, "firing": firing, "ever_firing": len(members)}
    over = {} if state == "open" else {"resolution": draw(st.sampled_from(["recovered", "run_finished", "layer_gone"]))}
    if over:
        over |= {"resolved_step": 20_000, "resolved": 9.0}
    return Incident(rule, 1, "warning", state, began + SPAN, 1.0, began, **counts, **over), members


@pytest.mark.parametrize("rule", sorted({rule for rule, _ in COUNTED}))
def test_every_claim_about_layers_is_true(rule: str) -> None:
    used: set[tuple[str, str | None]] = set()

    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
    @given(incidents(rule))
    def check(drawn: tuple[Incident, Members]) -> None:
        used.update(check_layers(*drawn))
        check_headline(*drawn)
        check_ending(*drawn)
        assert not re.search(r"unknown|None|nan|[{}]", text.sentence(*drawn, NAMES) + text.headline(*drawn))

    check()
    assert used == {key for key in COUNTED if key[0] == rule}, "a template that no example used"


def run_wide(rule: str, severity: str, **member: object) -> tuple[Incident, Members]:
    incident = Incident(rule, 1, severity, "open", 500, 1_000_000.0, 480, 300)
    fields = {"value": None, "baseline": None, "siblings": None, "evidence": None, **member}
    return incident, {None: Member(severity, 480, **fields)}


FALLS = st.builds(
    ScaleFall,
    st.none() | st.sampled_from([65_536.0, 1.0, 2.0**40]),
    st.sampled_from([0.5, 2.0**-12, 64.0]),
    st.just(480),
    st.just(500),
    st.none() | st.floats(0, 1),
)


@given(FALLS)
def test_every_claim_about_a_scale_is_true(fall: ScaleFall) -> None:
    incident, members = run_wide("loss_scale", "warning")
    told = text.sentence(replace(incident, scale_fall=fall), members, NAMES)
    head = text.headline(replace(incident, scale_fall=fall), members)
    assert re.search(MEANINGS["loss_scale", None][1], told)
    assert told.casefold().startswith(head.casefold())
    found = re.search(rf"from {NUMBER} to {NUMBER} between steps ([\d,]+) and ([\d,]+)", told)
    if fall.before is None:
        assert re.search(r"is [\d.e-]+ at step 500\.$", told), told
        return
    assert found is not None, told
    assert [value_of(each) for each in found.groups()] == pytest.approx([fall.before, fall.after, 480, 500], rel=1e-9)
    share = SHARE.search(told)
    assert bool(share) == (fall.skipped is not None), told
    if share and fall.skipped is not None:
        assert value_of(share[1]) == pytest.approx(100 * fall.skipped, rel=0.06, abs=0.01)


OF_LOSS = [*((severity, None) for severity in SEVERITIES), ("warning", "no_loss"), ("warning", "own_loss")]
OF_LOSS += [("critical", "all_zeros")]


@given(st.sampled_from(OF_LOSS), st.none() | st.floats(0.5, 40))
def test_every_claim_about_a_common_fall_is_true(of_loss: tuple[str, str | None], decades: float | None) -> None:
    severity, evidence = of_loss
    told = text.sentence(*run_wide("scale_drop", severity, value=decades, evidence=evidence), NAMES)
    kinds = [kind for rule, kind in MEANINGS if rule == "scale_drop"]
    assert [kind for kind in kinds if re.search(MEANINGS["scale_drop", kind][1], told)] == [evidence or severity]
    found = re.search(rf"became (?:{NUMBER} times smaller|(exactly zero)) at step 480", told)
    assert found is not None, told
    if decades is None:
        assert found[2]
    else:
        assert means(found[1], 10**decades)


@pytest.mark.parametrize("key", [key for key in MEANINGS if key[0] in ("silent", "stalled")])
def test_every_claim_about_an_absence_is_true(key: tuple[str, str | None]) -> None:
    told = run_wide(key[0], "critical", value=600.0, evidence=key[1])
    for words, meaning in zip((text.headline(*told), text.sentence(*told, NAMES)), MEANINGS[key], strict=True):
        assert re.search(meaning, words), words
        assert ("480" in words) == (key[1] is None)
    assert "1970-01-12 13:36 UTC" in text.sentence(*told, NAMES), "ten minutes before it was noticed"


CRASHES = st.builds(
    Crash,
    st.just("ValueError"),
    st.text(max_size=300),
    st.just(("train.py:3 in step",)),
    st.sampled_from([None, "cpu", "cuda"]),
    st.none() | st.integers(0, 2**45),
)


@given(CRASHES, st.none() | st.integers(0, 7), st.none() | st.integers(0, 10**6))
def test_every_claim_about_a_crash_is_true(crash: Crash, rank: int | None, step: int | None) -> None:
    since = step or 0
    members: Members = {
        None: Member("critical", since, None, None, None, "no_step" if step is None else None, rank=rank)
    }
    incident = Incident("crash", 1, "critical", "open", since, 1.0, since, 300, crash=crash)
    head, told = text.headline(incident, members), text.sentence(incident, members, NAMES)
    meaning = MEANINGS["crash", "exception" if crash.memory is None else "memory"]
    where = "before the first step" if step is None else f"at step {step:,}"
    for words, pattern in zip((head, told), meaning, strict=True):
        start = words.removesuffix(crash.message)
        assert re.search(pattern, words, re.DOTALL), words
        assert where in start
        assert ("in rank" in start.partition(where)[0]) == (rank is not None)
        assert rank is None or f"in rank {rank} {where}" in start
        assert ("CUDA" in start.partition(where)[0]) == (crash.memory == "cuda")
    assert ("(peak " in told.partition(" ended")[0]) == (crash.memory is not None and crash.peak_bytes is not None)
    assert crash.message.rstrip(".") in told
    assert len(head) < 200


@pytest.mark.parametrize("loss", [None, 500, 502])
@pytest.mark.parametrize("layers", [(), (501,), (500, 503)])
def test_every_claim_about_values_that_are_not_finite_is_true(loss: int | None, layers: tuple[int, ...]) -> None:
    steps = {**({} if loss is None else {None: loss}), **dict(enumerate(layers))}
    if not steps:
        return
    members = {each: Member("critical", since, None, None, None, None) for each, since in steps.items()}
    counts = {"layers": 4, "firing": len(layers), "ever_firing": len(layers)}
    incident = Incident("nonfinite", 1, "critical", "open", 510, 1.0, min(steps.values()), **counts)
    kind = None if loss is None else "both" if layers else "loss"
    told, head = text.sentence(incident, members, NAMES), text.headline(incident, members)
    assert re.search(MEANINGS["nonfinite", kind][1], told)
    assert re.search(MEANINGS["nonfinite", kind][0], head)
    check_steps(told, list(members.values()))
    check_steps(head, [members[None]] if None in members else list(members.values()))
    if layers:
        check_subject(SUBJECT.search(told), len(layers), 4)
        assert ("gradients of" in told) == (len(layers) > 1)


SERIES = re.compile(rf"clip_score of category=(\w+)(?: (fell|rose) from {NUMBER} to {NUMBER}| is {NUMBER})?")
MEAN = re.compile(
    rf"over all (\d+) series of clip_score the mean of the values is {NUMBER}, of their levels {NUMBER} \("
)
LEVELS = st.floats(0.01, 10)


@given(
    evidence=st.sampled_from([kind for rule, kind in MEANINGS if rule == "metric"]),
    level=LEVELS | st.none(),
    value=LEVELS,
    others=st.none() | st.tuples(LEVELS, LEVELS),
    since=st.integers(0, 10**6),
)
def test_a_series_of_a_metric(
    evidence: Evidence, level: float | None, value: float, others: tuple[float, float] | None, since: int
) -> None:
    is_rise = evidence in ("over_bound", "rose")
    if evidence in ("fell", "rose"):
        level = level or 1.0
        value = level * (1.5 if is_rise else 0.5)
    elif level is not None and (value >= level) != is_rise:
        level = None
    seen = None if evidence == "not_finite" else value
    facts = SeriesFacts("clip_score", '{"category":"cars"}', value, 12, 12, *(others or (None, None)))
    change = Transition(since, "metric", -2, "fired", "warning", since, seen, level, evidence=evidence, series=facts)
    [case] = apply_transitions(None, [change], TransitionContext(1, 300, 0.0), 60)
    head = text.headline(case.incident, case.members)
    told = text.sentence(case.incident, case.members, NAMES)
    for words, meaning in zip((head, told), MEANINGS["metric", evidence], strict=True):
        assert words.startswith("clip_score of category=cars ")
        assert re.search(meaning, words)
        assert f"since step {since:,}" in words
    verb, before, after, now = SERIES.search(told).groups()[1:]
    if evidence == "not_finite":
        assert (verb, now) == (None, None)
    elif level is None or level == value:
        assert (verb, means(now, value)) == (None, True)
    else:
        assert (verb, means(before, level), means(after, value)) == ("rose" if is_rise else "fell", True, True)
    mean = MEAN.search(told)
    assert (mean is not None) == (others is not None and evidence != "not_finite")
    if mean is not None and others is not None:
        assert mean[1] == "12"
        assert means(mean[2], others[1])
        assert means(mean[3], others[0])


def test_several_series_are_counted_and_named() -> None:
    names = ("cars", "dogs", "maps", "signs")
    changes = [
        Transition(9, "metric", -2 - place, "fired", "warning", 5, 0.1, 0.3, evidence="fell", series=facts)
        for place, facts in enumerate(
            SeriesFacts("clip_score", f'{{"category":"{name}"}}', 0.2, 12, 12, None, None) for name in names
        )
    ]
    [case] = apply_transitions(None, changes, TransitionContext(1, 300, 0.0), 60)
    assert text.headline(case.incident, case.members) == "4 of 12 series fell by 67 % since step 5"
    assert text.sentence(case.incident, case.members, NAMES) == (
        "4 of 12 series (clip_score of category=cars; clip_score of category=dogs; clip_score of category=maps; 1 "
        "more) fell from 0.3 to 0.1 (67 %) since step 5."
    )


def test_every_template_has_a_reader() -> None:
    assert set(MEANINGS) == set(text.WORDS), "give each template of text.WORDS the words of its claim, in MEANINGS"
