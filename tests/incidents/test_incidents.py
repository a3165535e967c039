"""record() and its readers on a real store."""

import pytest
from changes import fired, resolved
from sqlalchemy import delete, event, insert, select, update

from gradcanary_server import dossiers, incident_rows, incidents
from gradcanary_server.schema import incident, incident_layer, launch

URL = "http://127.0.0.1:8787"


def read(store, reader, *arguments):
    with store.database.read() as connection:
        return reader(connection, *arguments)


def test_three_hundred_layers_are_one_row_with_three_hundred_members(store):
    store.record(*[fired(layer, step=359 + layer % 4, since=340) for layer in range(300)])
    [row] = store.rows(select(incident))
    assert (row["firing"], row["ever"], row["layers"], row["opened_step"], row["since_step"]) == (
        300,
        300,
        300,
        359,
        340,
    )
    assert row["summary"] == "All 300 layers fell from 3e-3 to 6e-7 at step 340."
    assert len(store.rows(select(incident_layer))) == 300


def test_rules_have_incidents_of_their_own(store):
    store.record(fired(0), fired(None, rule="nonfinite"), fired(1))
    assert [(row["rule"], row["ever"]) for row in store.rows(select(incident).order_by(incident.c.incident_id))] == [
        ("collapse", 2),
        ("nonfinite", 0),
    ]
    members = store.rows(select(incident_layer.c.layer_no).where(incident_layer.c.incident_id == 2))
    assert [member["layer_no"] for member in members] == [incident_rows.WHOLE_RUN_NO]


def test_a_big_batch_of_changes_takes_a_few_statements(store):
    statements = []
    event.listen(store.database._engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    store.record(*[fired(layer) for layer in range(300)])
    opening = len(statements)
    store.record(*[resolved(layer) for layer in range(300)])
    assert opening <= 12
    assert len(statements) - opening <= 12


def test_what_is_stored_is_what_the_core_says_for_any_cutting(store):
    story = [fired(0), fired(2), resolved(0), fired(4), resolved(2), resolved(4), fired(0, step=2000, since=1990)]
    for change in story:
        store.record(change)
    case = read(store, incident_rows.latest, 1, "collapse")
    assert (case.incident.state, case.incident.reopened, case.incident.ever, case.incident.firing) == ("open", 1, 3, 1)
    assert case.members[0].since_step == 1990
    assert case.members[2].until_step == 900


def test_a_later_refire_is_a_new_incident(store):
    store.record(fired(0))
    store.record(resolved(0))
    store.record(fired(0, step=5000), shift_s=21_601)
    assert [row["opened_step"] for row in store.rows(select(incident).order_by(incident.c.incident_id))] == [359, 5000]
    store.record(fired(2, step=5010), shift_s=21_602)
    assert [row["ever"] for row in store.rows(select(incident).order_by(incident.c.incident_id))] == [1, 2]


def test_the_number_of_a_deleted_incident_is_not_used_again(store):
    store.record(fired(0))
    with store.database.write() as connection:
        connection.execute(delete(incident))
    store.record(fired(0))
    assert [row["incident_id"] for row in store.rows(select(incident))] == [2]


def test_an_end_of_the_run_is_no_recovery(store):
    store.record(*[fired(layer) for layer in range(18)])
    store.close_run(step=1000)
    [row] = store.rows(select(incident))
    assert (row["state"], row["resolution"], row["resolved_step"], row["firing"]) == (
        "resolved",
        "run_finished",
        1000,
        18,
    )
    assert {member["until_step"] for member in store.rows(select(incident_layer))} == {None}
    headline = read(store, incidents.headlines, [1])[1]
    assert (headline.open_incidents, headline.worst, headline.firing) == ([], None, {"collapse": 18})
    assert headline.headline == "18 of 300 layers collapsed at step 340"
    assert headline.ended_on == "critical"


def test_a_run_that_ended_on_what_is_worth_knowing_says_so(store):
    store.record(fired(None, severity="information", rule="scale_drop", since=480))
    store.record(fired(None, rule="silent"))
    store.close_run(step=1000)
    headline = read(store, incidents.headlines, [1])[1]
    assert (headline.ended_on, headline.headline) == ("information", "all gradients fell together at step 480")


def resume(store):
    """Let a second launch of the run begin at step 900."""
    with store.database.write() as connection:
        second = {"run_id": 1, "launch_no": 2, "launch": "b", "world_size": 1, "late": False, "first_step": 900}
        connection.execute(insert(launch).values(**second))


def test_what_a_resumed_run_does_not_recover_from_is_open_again(store):
    store.record(fired(0), fired(2))
    store.close_run(step=1000)
    resume(store)
    store.record(resolved(0, step=1050), launch_no=2, reached=1099)
    assert store.rows(select(incident))[0]["state"] == "resolved"
    store.record(launch_no=2, reached=1100)
    [row] = store.rows(select(incident))
    assert (row["state"], row["reopened"], row["firing"], row["ever"]) == ("open", 1, 1, 2)
    store.record(launch_no=2, reached=1200)
    assert store.rows(select(incident))[0]["reopened"] == 1


@pytest.mark.parametrize(("step", "reopened"), [(1050, 0), (1100, 0), (1101, 1)])
def test_a_resumed_run_that_recovers_in_time_is_quiet(store, step, reopened):
    store.record(fired(0))
    store.close_run(step=1000)
    resume(store)
    store.record(resolved(0, step=step), launch_no=2, reached=1500)
    [row] = store.rows(select(incident))
    assert (row["state"], row["reopened"]) == ("resolved", reopened)


def test_what_a_run_ended_on_goes_on_however_long_it_stood(store):
    store.record(fired(0), fired(2))
    store.close_run(step=1000)
    resume(store)
    store.record(fired(4, step=950), launch_no=2, reached=950, shift_s=86_400)
    [row] = store.rows(select(incident))
    assert (row["state"], row["reopened"], row["firing"], row["ever"]) == ("open", 1, 3, 3)


def test_the_runs_list_speaks_of_the_worst(store):
    store.record(fired(0, severity="warning", evidence="siblings"), fired(None, rule="nonfinite", since=500))
    store.record(fired(5, severity="information", rule="scale_drop"))
    headline = read(store, incidents.headlines, [1, 2])[1]
    assert headline == incidents.Headline(
        [1, 2, 3],
        "critical",
        {"collapse": 1, "nonfinite": 0, "scale_drop": 0},
        "the loss became NaN or infinite at step 500",
    )
    assert read(store, incidents.headlines, [1, 2])[2] == incidents.Headline()


def test_marks_are_where_it_began_and_ended(store):
    store.record(fired(0, since=340), fired(2, since=338))
    store.record(resolved(0), resolved(2, step=950))
    assert read(store, incidents.marks, 1) == [incidents.Mark(338, 1, "fired"), incidents.Mark(950, 1, "resolved")]


def test_the_agent_hears_what_is_open(store):
    store.record(fired(0))
    [brief] = read(store, incidents.open_briefs, 1, URL)
    assert (brief.id, brief.rule, brief.layers, brief.url) == (1, "collapse", 1, f"{URL}/runs/sdxl?incident=1")
    assert brief.summary.startswith("1 of 300 layers (blocks.0.attn.lora_A.weight) fell")
    store.record(resolved(0))
    assert read(store, incidents.open_briefs, 1, URL) == ()


def test_a_new_report_has_news(store):
    store.record(fired(0))
    with store.database.write() as connection:
        connection.execute(update(incident).values(settled=True))
    store.record(fired(2))
    assert store.rows(select(incident.c.settled))[0]["settled"] is False


@pytest.mark.parametrize(("opened_step", "known"), [(200, True), (100, False)])
def test_what_opened_shortly_before_may_be_the_cause(store, opened_step, known):
    store.record(fired(None, rule="nonfinite", step=opened_step, since=opened_step))
    store.record(resolved(None, rule="nonfinite", step=320))
    store.record(fired(0))
    [dossier] = read(store, dossiers.load, [2])
    assert dossier.cause.incidents == ((1,) if known else ())
    assert (dossier.cause.code == "after_nonfinite") is known
