"""Rules on trial: the incidents and messages of the collector, on a clock made of the samples' times."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gradcanary.wire import STATES
from gradcanary_server.errors import TraceError
from gradcanary_server.ops.replay_source import ReplayChunk, source_of_csv
from gradcanary_server.ops.simulation import Simulation
from gradcanary_server.rules.config import Collapse, Pace, Rules
from support.strategies import QUICK, launches, traces
from support.traces import Trace, healthy, launch, run

START = 1.7e9


def taken(trace, of=None, seconds=60.0, cuts=()):
    """Return a trace as takes, a step each so many seconds."""
    borders = [0, *sorted(set(cuts)), len(trace.absmax)]
    parts = [trace.samples(begin, end) for begin, end in pairwise(borders)]
    return [ReplayChunk(of or launch(), part, START + seconds * part.steps) for part in parts if len(part.steps)]


def tried(takes, rules=None, ended=(), *, is_over=False):
    trial = Simulation(rules or Rules(), 16, ended)
    for take in takes:
        trial.play(take)
    trial.finish(is_over=is_over)
    return trial


def falling(steps=400, first=200, last=None):
    absmax = healthy(steps)
    absmax[first:last, 4:7] *= 1e-3
    return Trace(absmax)


def said(trial):
    return [(message.kind, message.at - START, message.step) for story in trial.incidents for message in story.messages]


def test_simulation_sends_due_messages_as_time_passes():
    trial = tried(taken(falling(), seconds=900))
    fired = 219 * 900
    assert said(trial) == [
        ("opened", fired + 10, 219),
        ("reminder", fired + 10 + 86_400, 315),
    ]
    [story] = trial.incidents
    assert (story.case.incident.opened_step, story.case.incident.state) == (219, "open")


def test_simulation_does_not_send_recovered_incidents():
    trial = tried(taken(falling(last=222), seconds=0.01))
    assert [story.case.incident.resolution for story in trial.incidents] == ["recovered"]
    assert trial.message_count == 0


def test_the_last_word_is_counted_though_the_samples_end_before_it():
    trial = tried(taken(falling(last=222), seconds=0.5))
    assert [kind for kind, *_ in said(trial)] == ["opened", "resolved"]


@pytest.mark.parametrize(("rules", "kinds"), [(Rules(collapse=Collapse(notify=False)), []), (Rules(), ["opened"])])
def test_rules_without_messages_are_on_the_page_alone(rules, kinds):
    trial = tried(taken(falling()), rules)
    assert len(trial.incidents) == 1
    assert [kind for kind, *_ in said(trial)] == kinds


def test_simulation_reopens_incidents_of_an_ended_launch():
    first, second = falling(), Trace(falling(800, 0).absmax[:400], first=400)
    resumed = launch(number=2, first_step=400, has_older=True)
    takes = [*taken(first), *taken(second, resumed, cuts=range(0, 400, 50))]
    trial = tried(takes, ended=(1,), is_over=True)
    assert [(kind, step) for kind, _, step in said(trial)] == [
        ("opened", 219),
        ("reopened", 419),
    ]
    assert [kind for kind, *_ in said(tried(takes))] == ["opened"]


def test_cells_of_a_csv_file_are_what_was_seen_and_the_distance_of_steps_is_the_interval():
    cells = {0: "", 1: "0.0", 2: "nan", 3: "inf", 10: "1e-3", 20: "1", 30: "1", 100: "1", 200: "1", 300: "1"}
    text = ["step,time,'=a", *(f"{step},2026-01-01T00:{step // 10:02}:00.5Z,{cell}" for step, cell in cells.items())]
    source = source_of_csv("trace.csv", [*text[:1], *text[:0:-1]])  # rows of several intervals come in no order
    assert source.layers == {0: "=a"}
    parts = list(source.chunks)
    assert [(part.samples.every, part.samples.steps.tolist()) for part in parts] == [
        (1, [0, 1, 2, 3, 10]),
        (10, [20, 30, 100]),
        (100, [200, 300]),
    ]
    assert [STATES[state] for state in parts[0].samples.state[:, 0]] == [
        "partial",
        "zero",
        "nonfinite",
        "nonfinite",
        "measured",
    ]
    assert parts[1].times[0] - parts[0].times[0] == 120
    assert parts[0].launch.layers is parts[2].launch.layers


def test_norms_are_not_judged_as_absmax():
    lines = ["step,time,norm a,norm b", "0,2026-01-01T00:00:00Z,1,1"]
    with pytest.raises(TraceError, match=r"line 1: these are columns of norm.*stat=absmax"):
        source_of_csv("trace.csv", lines)


@settings(max_examples=6)
@given(traces(), launches, st.lists(st.integers(0, 125), max_size=4), st.sampled_from([0.1, 60.0, 4_000.0]))
def test_however_it_is_cut_the_incidents_are_the_folds_and_messages_keep_their_distance(trace, of, cuts, seconds):
    rules = Rules(**{**vars(QUICK), "pace": Pace(remind_s=3_600, reopen_s=600)})
    whole = tried(taken(trace, of, seconds), rules)
    cut = tried(taken(trace, of, seconds, (each for each in cuts if each < len(trace.absmax))), rules)
    assert said(cut) == said(whole)
    fired = {(change.rule, change.layer) for change in run(trace, of, rules)[1] if change.kind == "fired"}
    assert {(s.case.incident.rule, layer) for s in whole.incidents for layer in s.case.members} == fired
    for story in whole.incidents:
        ats = [message.at for message in story.messages]
        assert np.all(np.diff(ats) >= rules.pace.interval_s)
        assert [message.kind for message in story.messages].count("opened") <= 1
        assert not ats or story.case.incident.state == "open" or story.messages[-1].kind == "resolved"
