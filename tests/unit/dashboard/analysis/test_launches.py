"""Launches, and the steps that nobody has."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis import launches as run_launches
from gradcanary_dashboard.analysis.events import Events
from gradcanary_dashboard.analysis.launches import Hole
from gradcanary_dashboard.components import notes
from gradcanary_dashboard.figures import axes
from gradcanary_dashboard.figures import events as event_marks
from support.api_answers import axis, gap, run, session


def holes(*sessions: dict[str, Any], gaps: tuple[dict[str, Any], ...] = ()) -> list[tuple[int, int]]:
    return [(hole.first, hole.last) for hole in run_launches.holes(run(sessions=list(sessions), gaps=list(gaps)))]


def test_a_launch_is_all_its_ranks() -> None:
    ranks = [session(number, 0, 99, launch="one", rank=number) for number in (0, 1, 2)]
    again = session(3, 90, 199, launch="two")
    found = run_launches.launches(run(sessions=[*ranks, again]))
    assert [(launch.number, launch.ranks, launch.steps) for launch in found] == [(1, 3, (0, 99)), (2, 1, (90, 199))]


def test_a_used_launch_id_is_the_next_launch() -> None:
    found = run_launches.launches(run(sessions=[session(0, 0, 9, launch="fixed"), session(1, 10, 19, launch="fixed")]))
    assert [launch.number for launch in found] == [1, 2]


def test_a_gap_that_a_later_launch_measured_again_is_none() -> None:
    first, again = session(1, 0, 100), session(2, 60, 200)
    assert holes(first, gaps=(gap(1, 50, 79),)) == [(50, 79)]
    assert holes(first, again, gaps=(gap(1, 50, 79), gap(2, 150, 159))) == [(50, 59), (150, 159)]
    assert holes(first, again, gaps=(gap(1, 70, 79),)) == []


def test_steps_between_two_launches_are_a_hole() -> None:
    assert holes(session(1, 0, 99), session(2, 100, 199)) == []
    assert holes(session(1, 0, 99), session(2, 130, 199)) == [(100, 129)]
    assert holes(session(1, 0, 90, every=10), session(2, 95, 199)) == []
    assert holes(session(1, 0, 99), session(2, 50, 60), session(3, 120, 130)) == [(100, 119)]
    assert holes(session(1, 0, None), session(2, 130, 199)) == []


def test_steps_beyond_the_run_are_a_hole() -> None:
    found = run_launches.launches(run(sessions=[session(1, 10, 99), session(2, 50, 199), session(3, 0, None)]))
    there = run_launches.measured(found)
    assert there == (10, 199)
    assert run_launches.measured([]) is None
    beyond = [(hole.first, hole.last) for hole in run_launches.around(there, 0, 299)]
    assert beyond == [(0, 9), (200, 299)]
    assert run_launches.around(there, 10, 199) == []
    assert [(hole.first, hole.last) for hole in run_launches.around(there, 300, 399)] == [(300, 399)]


def test_a_gap_of_any_rank_is_one_of_the_launch() -> None:
    """Of a sharded launch each rank holds a part; other ranks of a replicated one have no gaps."""
    first, second = session(1, 0, 99, launch="one"), session(2, 0, 99, launch="one", rank=1)
    assert holes(first, second, gaps=(gap(2, 5, 90),)) == [(5, 90)]


class Read(dict[str, Any]):
    """An answer that counts what is read of it."""

    reads = 0

    def __getitem__(self, key: str) -> Any:
        type(self).reads += 1
        return super().__getitem__(key)


def reads_of(sessions: list[dict[str, Any]], gaps: list[dict[str, Any]]) -> int:
    Read.reads = 0
    run_launches.holes(run(sessions=[*map(Read, sessions)], gaps=[*map(Read, gaps)]))
    return Read.reads


@pytest.mark.parametrize("launch", [None, "one"])
def test_ten_times_the_sessions_and_gaps_are_ten_times_the_work(launch: str | None) -> None:
    """Ranks of one launch, or launches after each other."""

    def work(count: int) -> int:
        places = range(count)
        sessions = [session(n, 9 * n, 9 * n + 8, rank=n, launch=launch or f"launch-{n}") for n in places]
        return reads_of(sessions, [gap(n, 9 * n + 1, 9 * n + 2) for n in places])

    assert work(400) <= 11 * work(40)


STEPS = st.integers(0, 300)
SPANS = st.lists(st.tuples(STEPS, STEPS).map(lambda pair: (min(pair), max(pair))), max_size=5)


@given(SPANS, SPANS)
def test_holes_are_the_gaps_without_what_came_later(lost: list[tuple[int, int]], later: list[tuple[int, int]]) -> None:
    first = session(0, 0, 300)
    after = [session(number, *span) for number, span in enumerate(later, start=1)]
    gaps = tuple(gap(0, *span) for span in lost)
    expected = {step for begin, end in lost for step in range(begin, end + 1)}
    expected -= {step for begin, end in later for step in range(begin, end + 1)}
    assert {step for begin, end in holes(first, *after, gaps=gaps) for step in range(begin, end + 1)} == expected


@given(SPANS, STEPS, st.integers(1, 100_000))
def test_no_hole_in_sight_is_left_out(lost: list[tuple[int, int]], first: int, width: int) -> None:
    found = sorted((Hole(begin, end, ("lost",)) for begin, end in lost), key=lambda hole: hole.first)
    seen = run_launches.in_sight(found, first, first + width)
    for hole in found:
        if hole.last >= first and hole.first <= first + width:
            assert any(shown.first <= hole.first and hole.last <= shown.last for shown in seen)
    assert sum(shown.gaps for shown in seen) <= len(found)
    assert len(seen) <= run_launches.RESOLUTION + 1


def test_holes_that_would_be_drawn_upon_each_other_are_told_together() -> None:
    near = [Hole(100, 110, ("dropped",)), Hole(112, 120, ("never received",)), Hole(9000, 9000, ("never received",))]
    first, second = run_launches.in_sight(near, 0, 10_000)
    assert first.text == "2 gaps in steps 100 to 120: dropped; never received"
    assert second.text == "Step 9,000: never received"


def span(first: float, last: float) -> axes.Span:
    return axes.Span.of("run", View(), axis([first], int(last - first + 1)))


def test_a_resumed_launch_begins_at_a_marked_line() -> None:
    events = Events.of(run(sessions=[session(1, 0, 279), session(2, 260, 399), session(3, 440, 599)]), [])
    layout: dict[str, Any] = {"margin": {"t": 20}, "height": 200}
    told = event_marks.draw(layout, events, span(0, 599), "red", "grey")
    lines = [shape["x0"] for shape in layout["shapes"] if shape["type"] == "line"]
    assert lines == [260, 440]
    assert [note["text"] for note in layout["annotations"]] == ["launch 2", "launch 3"]
    texts = [event["text"] for event in told]
    assert "Steps 400 to 439: between the end of launch 2 and the beginning of launch 3" in texts
    assert "Launch 2 begins at step 260, 20 steps before the end of launch 1: what it measures again counts" in texts
    out_of_sight = event_marks.draw({"margin": {"t": 20}, "height": 200}, events, span(300, 390), "red", "grey")
    assert out_of_sight == []


def test_labels_are_not_written_upon_each_other() -> None:
    incidents = [{"step": 100 + number, "incident": number, "kind": "fired"} for number in range(9)]
    layout: dict[str, Any] = {"margin": {"t": 20}, "height": 200}
    event_marks.draw(layout, Events(incidents), span(0, 9999), "red", "grey")
    assert [note["text"] for note in layout["annotations"]] == ["#0"]
    assert len(layout["shapes"]) == 9


@pytest.mark.parametrize(("first", "last", "least"), [(10, 10, 1), (0, 599, 60)])
def test_a_hole_answers_the_pointer_along_its_width(first: int, last: int, least: int) -> None:
    (trace,) = event_marks.pointers([{"from": first, "to": last, "text": "<lost>"}], span(0, 599), 1.0)
    assert len(trace["x"]) >= least
    assert all(first <= place <= last for place in trace["x"])
    assert set(trace["customdata"]) == {"&lt;lost&gt;"}
    assert event_marks.pointers([], span(0, 599), 1.0) == []


def test_the_notes_say_what_happened_and_no_more_than_can_be_read() -> None:
    listed = run(
        sessions=[session(1, 0, 9999, dropped_steps=400), session(2, 9990, 12_000, every=10)],
        gaps=[gap(1, first, first + 9, "dropped") for first in range(0, 4000, 100)],
        facts=[{"code": "c", "text": "A found fact.", "layers": []}],
    )
    said = str(notes.cards(listed))
    assert "28 earlier gaps, and then" in said
    assert "Steps 3,900 to 3,909: dropped by the agent" in said
    assert "400 steps dropped in all" in said
    assert "A found fact." in said
    assert notes.cards(run()) == []
