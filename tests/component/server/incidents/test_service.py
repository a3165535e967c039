"""record() and its readers on a real store."""

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import delete, event, insert, select, update
from starlette.testclient import TestClient

from gradcanary_server.api.runs import end_and_delete
from gradcanary_server.app import create_app
from gradcanary_server.incidents import detail, name_patterns, repository, service, text
from gradcanary_server.incidents.briefs import Briefs
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.types import Jump
from gradcanary_server.settings import Settings
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import incident, incident_layer, launch, next_number
from support.server.stores import Store
from support.server.transitions import fired, resolved
from support.streams import Session, Stream, collapsed

URL = "http://127.0.0.1:8787"
QUICK = "version: 1\npace: {wait_s: 0.1, interval_s: 600}\n"


def read(store, reader, *arguments):
    with store.database.read() as connection:
        return reader(connection, *arguments)


def test_three_hundred_layers_are_one_row_with_three_hundred_members(store):
    store.record(*[fired(layer, step=359 + layer % 4, since=340) for layer in range(300)])
    [row] = store.rows(select(incident))
    assert (row["firing"], row["ever_firing"], row["layers"], row["opened_step"], row["since_step"]) == (
        300,
        300,
        300,
        359,
        340,
    )
    assert read(store, text.current_summary, row) == "All 300 parameters fell from 0.0031 to 6.1e-7 at step 340."
    assert len(store.rows(select(incident_layer))) == 300


def test_rules_have_incidents_of_their_own(store):
    store.record(fired(0), fired(None, rule="nonfinite"), fired(1))
    assert [
        (row["rule"], row["ever_firing"]) for row in store.rows(select(incident).order_by(incident.c.incident_id))
    ] == [
        ("collapse", 2),
        ("nonfinite", 0),
    ]
    members = store.rows(select(incident_layer.c.layer_no).where(incident_layer.c.incident_id == 2))
    assert [member["layer_no"] for member in members] == [repository.WHOLE_RUN_NO]


@pytest.mark.parametrize(
    ("layer", "step", "is_beside"), [(21, 400, True), (22, 400, True), (40, 400, False), (22, 359, False)]
)
def test_an_explosion_that_begins_beside_an_open_collapse_is_told_with_it(store, layer, step, is_beside):
    """Layers 20 and 21 are block 10, layer 22 is of block 11."""
    store.record(fired(20, step=359))
    store.record(fired(layer, step=step, rule="explosion", severity="warning", evidence=None, value=5.0))
    fell, exploded = read(store, detail.load_details, [1, 2])
    assert exploded.incident.beside == (1 if is_beside else None)
    assert exploded.caused_by == (1 if is_beside else None)
    assert [other.rule for other in fell.covers] == (["explosion"] if is_beside else [])


def test_an_explosion_after_a_collapse_is_over_is_told_by_itself(store):
    store.record(fired(20, step=359), resolved(20, step=380))
    store.record(fired(22, step=400, rule="explosion", severity="warning", evidence=None, value=5.0))
    assert read(store, detail.load_details, [2])[0].incident.beside is None


@pytest.mark.parametrize(
    ("exploded", "layer", "evidence", "is_after"),
    [
        ((20, 21), 21, "apart", True),
        ((20,), 21, "apart", False),
        ((20, 21), 21, "tiny", False),
        (range(300), 21, "apart", False),
    ],
)
def test_smaller_updates_after_an_explosion_follow_it(store, exploded, layer, evidence, is_after):
    """Of some parameters whose gradients exploded: Adam's second moments remember. If all did, that tells nothing."""
    store.record(*[fired(each, step=359, rule="explosion", severity="warning", evidence=None) for each in exploded])
    store.record(*[resolved(each, step=380, rule="explosion") for each in exploded])
    store.record(fired(layer, step=900, rule="no_update", severity="warning", evidence=evidence))
    (found,) = read(store, detail.load_details, [2])
    assert found.caused_by == (1 if is_after else None)
    line = "incident 1 (explosion) opened at step 359, 541 steps before, in all of these parameters"
    assert found.cause.evidence == ((line,) if is_after else ())


def test_a_big_batch_of_changes_takes_a_few_statements(store):
    statements = []
    event.listen(store.database._engine, "before_cursor_execute", lambda *arguments: statements.append(arguments[2]))
    store.record(*[fired(layer) for layer in range(300)])
    opening = len(statements)
    store.record(*[resolved(layer) for layer in range(300)])
    assert opening <= 12
    assert len(statements) - opening <= 12


def test_stored_incidents_equal_the_pure_ones_for_any_cut(store):
    story = [fired(0), fired(2), resolved(0), fired(4), resolved(2), resolved(4), fired(0, step=2000, since=1990)]
    for change in story:
        store.record(change)
    case = read(store, repository.latest_incident, 1, "collapse")
    assert (case.incident.state, case.incident.reopened, case.incident.ever_firing, case.incident.firing) == (
        "open",
        1,
        3,
        1,
    )
    assert case.members[0].since_step == 1990
    assert case.members[2].until_step == 900


def test_a_later_refire_is_a_new_incident(store):
    store.record(fired(0))
    store.record(resolved(0))
    store.record(fired(0, step=5000), shift_s=21_601)
    assert [row["opened_step"] for row in store.rows(select(incident).order_by(incident.c.incident_id))] == [359, 5000]
    store.record(fired(2, step=5010), shift_s=21_602)
    assert [row["ever_firing"] for row in store.rows(select(incident).order_by(incident.c.incident_id))] == [1, 2]


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
        "ended",
        "run_finished",
        1000,
        18,
    )
    assert {member["until_step"] for member in store.rows(select(incident_layer))} == {None}
    headline = read(store, service.run_headlines, [1])[1]
    assert (headline.open_incidents, headline.worst, headline.firing) == ([], None, {"collapse": 18})
    assert headline.headline == "18 of 300 parameters collapsed at step 340"
    assert headline.severity_at_end == "critical"


def test_a_run_that_ended_on_what_is_worth_knowing_says_so(store):
    store.record(fired(None, severity="information", rule="scale_drop", since=480))
    store.record(fired(None, rule="silent"))
    store.close_run(step=1000)
    headline = read(store, service.run_headlines, [1])[1]
    assert (headline.severity_at_end, headline.headline) == ("information", "all gradients fell together at step 480")


def resume(store):
    """Let a second launch of the run begin at step 900."""
    with store.database.write() as connection:
        second = {"run_id": 1, "launch_no": 2, "launch": "b", "world_size": 1, "late": False, "first_step": 900}
        connection.execute(insert(launch).values(**second))


def test_unrecovered_incident_of_a_resumed_run_opens_again(store):
    store.record(fired(0), fired(2))
    store.close_run(step=1000)
    resume(store)
    store.record(resolved(0, step=1050), launch_no=2, reached=1099)
    assert store.rows(select(incident))[0]["state"] == "ended"
    store.record(launch_no=2, reached=1100)
    [row] = store.rows(select(incident))
    assert (row["state"], row["reopened"], row["firing"], row["ever_firing"]) == ("open", 1, 1, 2)
    store.record(launch_no=2, reached=1200)
    assert store.rows(select(incident))[0]["reopened"] == 1


@pytest.mark.parametrize(("step", "reopened"), [(1050, 0), (1100, 0), (1101, 1)])
def test_a_resumed_run_that_recovers_in_time_is_quiet(store, step, reopened):
    store.record(fired(0))
    store.close_run(step=1000)
    resume(store)
    store.record(resolved(0, step=step), launch_no=2, reached=1500)
    [row] = store.rows(select(incident))
    assert (row["state"], row["reopened"]) == ("resolved" if reopened else "ended", reopened)


def test_a_run_does_not_end_on_what_a_later_launch_recovered_from(store):
    store.record(fired(0))
    store.close_run(step=1000)
    assert read(store, service.run_headlines, [1])[1].severity_at_end == "critical"
    resume(store)
    store.record(resolved(0, step=1050), launch_no=2, reached=1050)
    assert read(store, service.run_headlines, [1])[1] == service.RunHeadline()
    store.record(fired(2, step=5000, severity="warning"), launch_no=2, reached=5000, shift_s=86_400)
    store.close_run(step=5100)
    assert store.count(incident) == 2
    headline = read(store, service.run_headlines, [1])[1]
    assert (headline.severity_at_end, headline.firing) == ("warning", {"collapse": 1})


def test_incident_opens_again_after_a_day_between_launches(store):
    store.record(fired(0), fired(2))
    store.close_run(step=1000)
    resume(store)
    store.record(fired(4, step=950), launch_no=2, reached=950, shift_s=86_400)
    [row] = store.rows(select(incident))
    assert (row["state"], row["reopened"], row["firing"], row["ever_firing"]) == ("open", 1, 3, 3)


def test_a_layer_that_is_told_again_opens_the_incident_of_an_earlier_launch_with_what_was_known_of_it(store):
    jump = Jump(330, 0, 1e-3, 1e-1)
    store.record(fired(0, jumps=(jump,)), fired(2))
    store.close_run(step=1000)
    resume(store)
    store.record(fired(0, step=919), fired(2, step=919), launch_no=2, reached=919)
    [row] = store.rows(select(incident))
    assert (row["state"], row["reopened"], row["launch_no"], row["firing"], row["ever_firing"]) == ("open", 1, 2, 2, 2)
    with store.database.read() as connection:
        assert repository.latest_incident(connection, 1, "collapse").incident.lr_jumps == (jump,)


def test_the_runs_list_speaks_of_the_worst(store):
    store.record(fired(0, severity="warning", evidence="siblings"), fired(None, rule="nonfinite", since=500))
    store.record(fired(5, severity="information", rule="scale_drop"))
    headline = read(store, service.run_headlines, [1, 2])[1]
    assert headline == service.RunHeadline(
        [1, 2, 3],
        "critical",
        service.WorstIncident(2, "nonfinite", "critical", 0, 300, acked=False),
        [2],
        {"collapse": 1, "nonfinite": 0, "scale_drop": 0},
        "the loss became NaN or infinite at step 500",
    )
    assert read(store, service.run_headlines, [1, 2])[2] == service.RunHeadline()


def test_the_headline_is_that_of_the_first_of_several_that_are_as_bad(store):
    store.record(fired(0, rule="explosion", evidence=None, step=340), fired(5, step=700, since=690))
    headline = read(store, service.run_headlines, [1])[1]
    assert (headline.worst_incident.id, headline.headline) == (1, "1 of 300 parameters exploded at step 340")
    with store.database.write() as connection:
        connection.execute(update(incident).where(incident.c.rule == "explosion").values(acked=1.0))
    assert read(store, service.run_headlines, [1])[1].worst_incident.id == 2


def test_what_opens_long_after_an_incident_that_did_not_recover_names_it(store):
    """Also once the run is over; nothing is certain, and what to do first is what the earlier one asks for."""
    store.record(fired(0, rule="explosion", evidence=None, step=340))
    store.record(fired(None, rule="scale_drop", evidence=None, step=700, since=690))
    for is_over in (False, True):
        if is_over:
            store.close_run(step=1000)
        first, second = read(store, detail.load_details, [1, 2])
        assert (second.cause.code, second.cause.follows) == ("after_earlier", 1)
        assert second.cause.evidence[0] == (
            "incident 1 (explosion) opened at step 340, 360 steps before, and had not recovered"
        )
        assert second.explanation.do_first == f"As for incident 1: {first.explanation.do_first}"
        assert second.fix == first.fix
        assert "go back to a checkpoint before step 340" in second.explanation.do_first


def test_a_number_is_not_used_again_after_a_deletion_and_a_restart(new_store_url):
    url = new_store_url()
    store = Store(url)
    store.record(fired(0), fired(None, rule="nonfinite"))
    with store.database.write() as connection:
        end_and_delete(connection, "sdxl", Rules(), URL, store.database.now(connection))
    store.database.close()
    store = Store(url)
    store.record(fired(0))
    assert [row["incident_id"] for row in store.rows(select(incident))] == [3]
    store.database.close()


def test_two_collectors_never_take_the_same_number(postgres_server):
    url = postgres_server.create_store()

    def take_numbers(_):
        database, numbers = Database(url), []
        for _ in range(25):
            with database.write() as connection:
                numbers.append(next_number(connection, "incident"))
        database.close()
        return numbers

    with ThreadPoolExecutor(3) as pool:
        taken = list(pool.map(take_numbers, range(3)))
    assert sorted(number for numbers in taken for number in numbers) == list(range(1, 76))
    assert all(numbers == sorted(numbers) for numbers in taken)


def test_marks_are_where_it_began_and_ended(store):
    store.record(fired(0, since=340), fired(2, since=338))
    store.record(resolved(0), resolved(2, step=950))
    assert read(store, service.incident_marks, 1) == [
        service.IncidentMark(338, 1, "fired"),
        service.IncidentMark(950, 1, "resolved"),
    ]


def test_the_agent_hears_what_is_open(store):
    store.record(fired(0))
    [brief] = read(store, Briefs(URL).read, 1, 0.0)
    assert (brief.id, brief.rule, brief.layers, brief.url) == (1, "collapse", 1, f"{URL}/runs/sdxl?incident=1")
    assert brief.summary.startswith("1 of 300 parameters (blocks.0.attn.lora_A.weight) fell")
    store.record(resolved(0))
    assert read(store, Briefs(URL).read, 1, 0.0) == ()


def test_a_new_report_has_news(store):
    store.record(fired(0))
    with store.database.write() as connection:
        connection.execute(update(incident).values(notifications_done=True))
    store.record(fired(2))
    assert store.rows(select(incident.c.notifications_done))[0]["notifications_done"] is False


@pytest.mark.parametrize(("opened_step", "known"), [(200, True), (100, False)])
def test_earlier_incident_may_be_the_cause(store, opened_step, known):
    store.record(fired(None, rule="nonfinite", step=opened_step, since=opened_step))
    store.record(resolved(None, rule="nonfinite", step=320))
    store.record(fired(0))
    [dossier] = read(store, detail.load_details, [2])
    assert dossier.cause.incidents == ((1,) if known else ())
    assert (dossier.cause.code == "after_nonfinite") is known


def test_a_text_of_an_earlier_revision_is_not_stored(store):
    store.record(fired(0))
    earlier = read(store, text.compose_missing)
    store.record(fired(2))
    with store.database.write() as connection:
        text.store_summaries(connection, earlier)
    [row] = store.rows(select(incident))
    assert text.stored_summary(row) is None
    assert read(store, text.current_summary, row).startswith("2 of 300 parameters (blocks.0-1.attn.lora_A.weight) fell")
    with store.database.write() as connection:
        text.store_summaries(connection, text.compose_missing(connection))
        text.store_summaries(connection, earlier)
    [row] = store.rows(select(incident))
    assert text.stored_summary(row) == read(store, text.compose_summary, row)
    assert read(store, text.compose_missing) == []


def is_writable(path):
    """Tell whether a writer gets its turn at SQLite within some seconds."""
    with closing(sqlite3.connect(path, timeout=3, isolation_level=None)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.execute("ROLLBACK")
        return True


def test_texts_are_composed_while_others_can_write(tmp_path, receiver_factory, monkeypatch):
    """Regexes over all names of a run take long, at the moment at which hundreds of layers fall."""
    path, rules, receiver = tmp_path / "gradcanary.db", tmp_path / "rules.yaml", receiver_factory()
    rules.write_text(QUICK)
    app = create_app(Settings(tmp_path, f"sqlite:///{path}", rules, webhooks=(receiver.url,)))
    found, grids = [], name_patterns._grids

    def watched(names):
        found.append(is_writable(path))
        return grids(names)

    monkeypatch.setattr(name_patterns, "_grids", watched)
    stream = Stream(collapsed(170, 330, range(300), 130))
    with TestClient(app, base_url="http://localhost") as client:
        in_an_hour = (datetime.now(timezone.utc) + timedelta(hours=1)).isoformat()
        hides_one = {"run": "run-1", "match": "blocks.0.attn.lora_A", "until": in_an_hour, "by": "ada"}
        client.post("/api/v1/silences", json=hides_one).raise_for_status()
        session = Session("", client=client)
        session.send(stream)
        [brief] = session.post_batch(2, stream.batch(128, 170)).json()["incidents"]
        assert brief["summary"].startswith("300 of 330 parameters (weight in blocks.0-149.attn) fell from ")
        receiver.wait(1)
        [listed] = client.get("/api/v1/incidents").json()["incidents"]
        shown = client.get("/api/v1/incidents/1").json()
        acked = client.post("/api/v1/incidents/1/ack", json={"by": "ada", "new_baseline": True}).json()
        assert shown["summary"] == listed["summary"] == brief["summary"]
        assert "Accepted at step" in acked["summary"]
        assert session.end(last_step=169).json()["incidents"] == []
    assert receiver.got[0].data["summary"].endswith(" 1 more parameter is silenced.")
    assert all(found)
    assert len(found) >= 4
