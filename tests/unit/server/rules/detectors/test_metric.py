"""Bounds of metrics: what fires, for which series, and the same however the stream is cut."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary.wire import MetricBound
from gradcanary_server.rules.config import Metric, MetricRule, Rules
from gradcanary_server.rules.detectors import metric
from gradcanary_server.rules.evaluator import evaluate
from gradcanary_server.rules.resets import reset_changed_rules
from gradcanary_server.rules.state import RuleState
from gradcanary_server.rules.types import Launch, Transition, series_member
from gradcanary_server.tsdb.batch import MetricColumn
from support.traces import Trace, healthy, launch

NOTHING = Trace(healthy(1)).samples(1)
FALLING = Rules(metrics=(MetricRule("^clip_score$", falls_by=0.2),))

Point = tuple[int, str, float]
"""Step, category and value."""


def rule(**bounds: object) -> Rules:
    return Rules(metrics=(MetricRule("^clip_score$", **bounds),))


def columns(points: Sequence[Point], name: str = "clip_score") -> tuple[MetricColumn, ...]:
    by_series: dict[str, list[tuple[int, float]]] = {}
    for step, category, value in points:
        by_series.setdefault(category, []).append((step, value))
    return tuple(
        MetricColumn(
            name,
            json.dumps({"category": category} if category else {}),
            np.array([step for step, _ in pairs], np.int64),
            np.array([value for _, value in pairs], np.float64),
        )
        for category, pairs in by_series.items()
    )


def judged(
    parts: Sequence[Sequence[Point]],
    rules: Rules = FALLING,
    of: Launch | None = None,
    state: RuleState | None = None,
    name: str = "clip_score",
) -> tuple[RuleState, list[Transition]]:
    """Evaluate the points of some batches; the state is packed and unpacked between them."""
    state, found = state or RuleState.empty(), []
    for part in parts:
        samples = replace(NOTHING, metrics=columns(part, name))
        state, changes = evaluate(RuleState.unpack(state.pack()), of or launch(), samples, rules)
        found += changes
    return state, found


def course(*values: float, category: str = "bottles", every: int = 500, first: int = 0) -> list[Point]:
    return [(first + every * place, category, value) for place, value in enumerate(values)]


def told(changes: Sequence[Transition]) -> list[tuple[int, str, str | None, int]]:
    return [(each.step, each.kind, each.evidence or each.resolution, each.since_step) for each in changes]


def test_a_series_that_fell_by_a_share_of_its_level_fires_after_three_values_and_recovers_after_three() -> None:
    values = [0.3, 0.32, 0.31, 0.3, 0.31, 0.3, 0.12, 0.13, 0.12, 0.12, 0.3, 0.31, 0.3]
    _, changes = judged([course(*values)])
    assert told(changes) == [(4000, "fired", "fell", 3000), (6000, "resolved", "recovered", 6000)]
    [fired, resolved] = changes
    assert (fired.value, fired.baseline, fired.severity, fired.layer) == (0.12, 0.31, "warning", series_member(0))
    assert fired.series is not None
    assert fired.series.bound == pytest.approx(0.248)
    assert (resolved.layer, resolved.severity) == (series_member(0), "warning")


def test_one_noisy_value_is_no_fault_and_two_of_three_are_one_in_the_end() -> None:
    steady, low = [0.3] * 5, 0.1
    assert judged([course(*steady, low, 0.3, 0.3, low, 0.3, 0.3, low)])[1] == []
    assert len(judged([course(*steady, low, low, 0.3, low, low)])[1]) == 1


@pytest.mark.parametrize(
    ("bounds", "value", "evidence"),
    [
        ({"below": 0.25}, 0.24, "under_bound"),
        ({"above": 0.4}, 0.41, "over_bound"),
        ({"rises_by": 0.5}, 0.46, "rose"),
        ({"falls_by": 0.2}, 0.24, "fell"),
        ({"below": 0.25, "falls_by": 0.1}, 0.24, "under_bound"),
        ({"above": 9}, math.nan, "not_finite"),
        ({"below": 0}, math.inf, "not_finite"),
    ],
)
def test_each_bound_has_its_evidence(bounds: dict[str, float], value: float, evidence: str) -> None:
    points = course(*[0.3] * 6, *[value] * 3)
    [fired] = judged([points], rule(**bounds, severity="critical"))[1]
    assert (fired.evidence, fired.severity, fired.since_step, fired.step) == (evidence, "critical", 3000, 4000)
    assert fired.value == (value if math.isfinite(value) else None)


def test_values_at_a_bound_and_levels_of_zero_are_no_faults() -> None:
    assert judged([course(*[0.25] * 20)], rule(below=0.25, above=0.25001))[1] == []
    assert judged([course(*[0.0] * 10, *[-1.0] * 10)])[1] == []  # no share of zero is a fall
    assert len(judged([course(*[-10.0] * 10, *[-13.0] * 10)])[1]) == 1  # a log-likelihood


def test_bad_values_set_no_level() -> None:
    """A collapse that recovers is no rise."""
    points = course(*[0.3] * 6, *[0.1] * 20, *[0.3] * 6)
    _, changes = judged([points], rule(falls_by=0.2, rises_by=0.5))
    assert [each.kind for each in changes] == ["fired", "resolved"]


def test_each_series_is_judged_by_itself_and_told_with_the_mean_of_all() -> None:
    others = [course(*[0.3] * 12, category=f"other-{number}") for number in range(11)]
    _, changes = judged([[*course(*[0.3] * 6, *[0.1] * 6), *(point for each in others for point in each)]])
    [fired] = changes
    assert fired.series is not None
    assert json.loads(fired.series.tags) == {"category": "bottles"}
    assert (fired.series.total, fired.series.alike) == (12, 12)
    assert fired.series.mean_level == pytest.approx(0.3)
    assert fired.series.mean == pytest.approx((11 * 0.3 + 0.1) / 12)


def test_the_first_entry_that_matches_counts_and_tags_must_be_there() -> None:
    low = [*course(*[0.1] * 9), *course(*[0.1] * 9, category="misc"), *course(*[0.1] * 9, category="")]
    entries = (
        MetricRule("score", tags={"category": "misc"}, below=0.2, enabled=False),
        MetricRule("score", tags={"category": "."}, below=0.2),
    )
    _, changes = judged([low], Rules(metrics=entries))
    assert [json.loads(each.series.tags) for each in changes if each.series] == [{"category": "bottles"}]
    assert judged([low], Rules(metrics=entries), name="other")[1] == []
    assert judged([low], Rules(metrics=entries, metric=Metric(enabled=False)))[1] == []
    assert judged([low], Rules())[0].metrics == {}


def test_bounds_of_the_agent_are_of_one_metric_and_come_after_those_of_the_file() -> None:
    of = launch(metrics=(MetricBound("clip_score", below=0.2, observations=1, severity="critical"),))
    [fired] = judged([course(0.1)], Rules(), of)[1]
    assert (fired.severity, fired.step) == ("critical", 0)
    assert judged([course(0.1)], Rules(), of, name="clip_score_2")[1] == []
    assert judged([course(0.1)], rule(below=0.05), of)[1] == []


def test_a_series_that_fires_is_told_again_by_the_next_launch_or_is_over() -> None:
    state, first = judged([course(*[0.3] * 6, *[0.1] * 3)])
    assert len(first) == 1
    resumed = launch(number=2, first_step=1000, has_older=True)
    assert told(judged([course(*[0.1] * 3, first=1000)], of=resumed, state=state)[1]) == [(2000, "fired", "fell", 1000)]
    assert told(judged([course(*[0.3] * 3, first=1000)], of=resumed, state=state)[1]) == [
        (2000, "resolved", "recovered", 2000)
    ]
    assert told(judged([course(0.3, first=1000)], Rules(), resumed, state)[1]) == [
        (1000, "resolved", "rule_changed", 1000)
    ]


def test_other_bounds_begin_new_counts_and_keep_levels() -> None:
    state, _ = judged([course(*[0.3] * 6, *[0.1] * 3)])
    other = rule(falls_by=0.3)
    moved, changes = reset_changed_rules(state, {}, FALLING, other)
    assert [(each.kind, each.resolution) for each in changes] == [("resolved", "rule_changed")]
    later = course(*[0.1] * 3, first=10_000)
    assert [each.baseline for each in judged([later], other, state=moved)[1]] == [0.3]
    assert reset_changed_rules(state, {}, FALLING, replace(FALLING, metric=Metric(notify=False)))[1] == ()


def test_series_with_bounds_are_limited_and_numbers_of_any_size_are_taken() -> None:
    many = [(0, f"c{number}", 1.0) for number in range(metric.MAX_SERIES + 5)]
    state, _ = judged([many])
    assert len(state.metrics) == metric.MAX_SERIES
    huge = [*course(*[1.7e308] * 6, *[1e307] * 3), *course(*[1.7e308] * 9, category="other")]
    [fired] = judged([huge])[1]
    assert fired.series is not None
    assert (fired.series.mean, fired.series.mean_level) == (None, None)


VALUES = st.sampled_from([0.3, 0.31, 0.29, 0.1, math.nan])
COURSES = st.lists(st.lists(VALUES, min_size=3, max_size=3), max_size=40)


@given(COURSES, st.lists(st.integers(0, 120), max_size=8), st.data())
def test_any_cut_and_any_repeat_give_the_same(courses: list[list[float]], cuts: list[int], data: st.DataObject) -> None:
    # Each value is a message of its own but for the first ones, by which series get their numbers.
    points = [[(0, category, 0.3) for category in "abc"]]
    points += [
        [(5 * place, category, value)]
        for place, values in enumerate(courses, start=1)
        for category, value in zip("abc", values, strict=True)
    ]
    rules = rule(falls_by=0.2, below=0.05, observations=2)
    whole = judged([[point for row in points for point in row]], rules)
    borders = [0, *sorted(min(cut, len(points)) for cut in cuts), len(points)]
    parts = [[point for row in points[begin:end] for point in row] for begin, end in pairwise(borders)]
    again = data.draw(st.integers(0, len(parts) - 1))
    repeated = [*parts[: again + 1], parts[again], *parts[again + 1 :]]
    cut = judged(repeated, rules)
    assert cut[1] == whole[1]
    assert list(cut[0].metrics.items()) == list(whole[0].metrics.items())


def test_a_value_for_an_earlier_step_is_not_judged() -> None:
    late = [*course(*[0.3] * 6), (100, "bottles", 0.1), (200, "bottles", 0.1), (300, "bottles", 0.1)]
    state, changes = judged([late])
    assert changes == []
    assert state.metrics == judged([late[:6], late[6:]])[0].metrics == judged([late[:6]])[0].metrics
