"""The pages of incidents: what is asked, what is said, and what a form sends."""

import json
from typing import Any

from gradcanary_dashboard.address.incidents import Filter
from gradcanary_dashboard.address.run import View, parse
from gradcanary_dashboard.analysis.picture import Curves
from gradcanary_dashboard.collector.incidents import IncidentPage
from gradcanary_dashboard.components import member_table, static
from gradcanary_dashboard.pages import incident as incident_page
from gradcanary_dashboard.pages import incidents as incidents_page
from gradcanary_dashboard.text import numbers
from support.api_answers import full, incident, member, run

URL = "http://collector:8787"
VIEW = View(from_step=240, to_step=440)


def contents(told: dict[str, Any], series: dict[str, Any] | None = None) -> dict[str, Any]:
    return incident_page.fill(told, Curves(run(), series, None), VIEW)


def test_the_page_of_an_incident_leads_to_the_steps_in_which_it_began() -> None:
    told = full(opened_step=12_359, since_step=12_259)
    assert incident_page.steps_around(told) == View(from_step=11_759, to_step=12_859, incident=31)
    for there, first, last in (
        ((0, 12_400), 11_759, 12_400),
        ((12_000, 20_000), 12_000, 12_859),
        (None, 11_759, 12_859),
    ):
        expected = View(from_step=first, to_step=last, incident=31)
        assert incident_page.steps_around(told, there) == expected, "no step that the run does not have"
    filled = contents(told)
    [table] = json.loads(filled["members"])
    row = table[3][2]
    href = row[2][2][1]["href"]
    assert href.startswith("/runs/run/layers/blocks.0.lora_A?")
    assert parse(href.partition("?")[2]) == View(from_step=11_759, to_step=12_859)
    assert (row[1]["data-key"], row[1]["class"]) == ("blocks.0.lora_A 1", "firing")
    assert [cell[2] for cell in row[3:]] == [
        "340",
        "firing",
        "0.0031",
        "6.1e-7",
        numbers.NOTHING,
        "fall",
        numbers.NOTHING,
    ]
    assert filled["members-tally"] == "2 firing"
    for words in (
        "1 of 2 parameters fell",
        "step 340 (opened",
        "Do first, for peft",
        "Lr changed. Its partner went to zero.",
        "Group 1 did not.",
        "Partners share a factor.",
        '"/incidents/30"',
        '"data-copy":"print(1)"',
    ):
        assert words in filled["incident-cause"], words


def test_frames_of_a_crash_are_a_block_of_code() -> None:
    crash = {"type": "ValueError", "message": "", "frames": ["train.py:12 in step", "train.py:40 in <module>"]}
    crash |= {"memory": None, "peak_bytes": None, "rank": None}
    cause = contents(full(rule="crash", crash=crash))["incident-cause"]
    assert '"data-copy":"train.py:12 in step\\ntrain.py:40 in <module>"' in cause.replace("\\u003c", "<").replace(
        "\\u003e", ">"
    )


def test_incident_of_a_whole_run_has_no_layers() -> None:
    silent = full(layers=[member(0, layer=None, name="(whole run)")], counts={"firing": 0, "ever": 0, "layers": 2})
    filled = contents(silent)
    assert filled["incident-has-members"]
    assert "run as a whole" in filled["members-tally"]
    assert member_table.tally(full(layers=[member(0), member(1, until_step=400)])) == "1 firing, 1 resolved"


def test_members_of_an_ended_run_are_not_firing() -> None:
    ended = full(state="ended", resolution="run_finished", layers=[member(0), member(1, until_step=400)])
    [table] = json.loads(contents(ended)["members"])
    first, second = table[3][2:]
    assert (first[4][2], second[4][2]) == ("not recovered", "400")
    assert member_table.tally(ended) == "1 not recovered, 1 resolved"


def test_a_row_says_how_bad_where_since_when_and_who_knows() -> None:
    told = [
        {"endpoint": 1, "name": "on call", "kind": "opened", "state": "delivered"},
        {"endpoint": 2, "name": "https://h.example/x", "kind": "opened", "state": "delivered"},
        {"endpoint": 3, "name": "", "kind": "opened", "state": "pending"},
    ]
    acked = {"at": "2026-11-20T02:00:00.000Z", "by": "ada", "note": ""}
    silenced = {"until": "2026-11-20T10:00:00.000Z", "members": 1, "firing": 2, "silences": [7]}
    said = static.encode(incidents_page.row(incident(last_deliveries=told, acked=acked, silenced=silenced)))
    for words in (
        "critical", "#31 Collapse: 1 of 2 parameters", '"/incidents/31"', "since 31",
        "acked by ada", "1 of 2 parameters silenced, ends",
        "on call, h.example: opened, delivered; webhook: opened, pending",
        '"data-do":"ack"', '"data-do":"silence"', '"data-do":"unsilence"',
    ):  # fmt: skip
        assert words in said, words
    over = static.encode(incidents_page.row(incident(state="resolved", resolution="recovered", resolved="2026-11-20T")))
    assert "data-do" not in over
    assert "told" not in over


def test_incidents_are_grouped_by_run_open_ones_first() -> None:
    opened = [incident(9, run="b"), incident(4, run="a")]
    over = [
        incident(number, run=name, run_state="crashed", state="ended", resolution="run_finished")
        for number, name in ((8, "c"), (7, "b"))
    ]
    chapters = [IncidentPage("open", opened, None), IncidentPage("over", over, None)]
    sections = json.loads(incidents_page.fill(chapters, Filter(), [], URL)["incidents-listed"])
    assert [section[1]["data-key"] for section in sections] == ["b", "a", "c"]
    heads = [json.dumps(section[2]) for section in sections]
    assert all(words in heads[0] for words in ('"/runs/b"', "live", "1 open, 1 ended"))
    assert "crashed" in heads[2]
    numbers_of_b = [article[2][1]["id"] for article in sections[0][3:]]
    assert numbers_of_b == ["row-9", "row-7"]


def test_pages_of_the_history_follow_each_other() -> None:
    listed = [incident(number, state="resolved", resolution="recovered") for number in (9, 8)]
    chosen = Filter(severity="critical")
    said = incidents_page.fill([IncidentPage("over", listed, "Wzhd")], chosen, ["scale_drop"], URL)
    assert '"/incidents?state=over&severity=critical&before=Wzhd"' in said["incidents-listed"]
    assert "the newest 2 are above" in said["incidents-listed"]
    opened = incidents_page.fill([IncidentPage("open", listed, "WzIsMSwxLDld")], Filter(), [], URL)["incidents-listed"]
    assert "the worst 2 are above" in opened
    assert '"/incidents?state=open&before=WzIsMSwxLDld"' in opened
    later = incidents_page.fill([IncidentPage("resolved", listed, None)], Filter(before="Wzhd"), [], URL)[
        "incidents-listed"
    ]
    assert '"/incidents"' in later
    assert "before=" not in later
    for chosen, words in (
        (Filter(), "No incident so far"),
        (Filter(run="x"), "See all"),
        (Filter(before="Wzhd"), "See the first"),
    ):
        assert words in incidents_page.fill([IncidentPage("open", [], None)], chosen, [], URL)["incidents-listed"]
