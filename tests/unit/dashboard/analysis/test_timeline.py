"""The story of an incident."""

from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.analysis import timeline
from gradcanary_dashboard.analysis.picture import Curves
from gradcanary_dashboard.pages import incident as incident_page
from support.api_answers import delivery, full, member, run


def test_the_story_of_an_incident_is_told_in_its_order() -> None:
    tried = [
        {"at": "2026-11-20T10:01:00.000Z", "status": None, "ms": 9, "error": "refused"},
        delivery(2)["attempts"][0],
    ]
    told = full(
        layers=[member(0), member(1, since_step=380), member(2, since_step=400)],
        acked={"at": "2026-11-20T10:02:30.000Z", "by": "ada", "note": "restarting"},
        reopened=2,
        reopened_at="2026-11-20T10:04:00.000Z",
        state="resolved",
        resolved="2026-11-20T10:06:00.000Z",
        resolved_step=900,
        resolution="recovered",
        deliveries=[
            delivery(1, attempts=tried),
            delivery(7, kind="resolved", state="expired", name="https://h.example/x"),
        ],
    )
    story = timeline.entries(told)
    assert [entry.words for entry in story] == [
        "Opened at step 359; the first sign was step 340",
        "Grew by 2 parameters, since steps 380 to 400",
        "on call: opened, delivered",
        "Acked by ada: restarting",
        "Opened again, for the 2nd time",
        "Resolved at step 900: recovered",
        "h.example: resolved, expired: not delivered in time",
    ]
    said = str(incident_page.fill(told, Curves(run(), None, None), View())["incident-story"])
    assert "2 attempts, the last: 200" in said
    assert "no answer after 9 ms: refused" in said


def test_a_long_story_keeps_its_beginning_and_its_end() -> None:
    many = full(deliveries=[delivery(minute, kind="reminder") for minute in range(60)] * 2)
    shown, left_out = timeline.shortened(timeline.entries(many))
    assert (len(shown), left_out) == (timeline.SHOWN, 121 - timeline.SHOWN)
    assert shown[0].words.startswith("Opened")
    assert "and 61 more, and then" in incident_page.fill(many, Curves(run(), None, None), View())["incident-story"]
