"""Collectors on one store whose rules are not the same, as while they are restarted one after the other."""

from dataclasses import replace

from archives import RUN
from sqlalchemy import select
from streams import Stream, healthy

from gradcanary import wire
from gradcanary_server import absences, incidents, runs
from gradcanary_server.ingest import Ingest
from gradcanary_server.layer_sets import KnownSets
from gradcanary_server.log import Log
from gradcanary_server.observations import Change
from gradcanary_server.rules import Explosion, Rules, Silent
from gradcanary_server.schema import incident

LOUD = Rules(explosion=Explosion(ratio=10))


def started(store, rules):
    sets = KnownSets()
    ingest = Ingest(store.database, rules, sets, Log(sets), "http://here")
    ingest.rule_versions.begin()
    return ingest


def test_later_rules_stand_until_the_last_collector_has_them(store):
    old, stream = started(store, Rules()), Stream(healthy(40, 3))
    old.hello(RUN, "s", wire.dump(stream.hello()))
    versions = []
    collectors = [old, started(store, LOUD), old, started(store, replace(LOUD)), started(store, Rules())]
    for seq, ingest in enumerate(collectors):
        ingest.batch(RUN, "s", seq, wire.dump(stream.batch(8 * seq, 8 * seq + 8)))
        with store.database.read() as connection:
            versions.append(runs.find(connection, RUN).rules_version)
    assert [ingest.rule_versions.current for ingest in collectors] == [1, 2, 1, 2, 3]
    assert versions == [1, 2, 2, 2, 3]


def test_what_a_changed_rule_of_the_clock_said_is_over(store):
    old, stream = started(store, Rules()), Stream(healthy(8, 3))
    old.hello(RUN, "s", wire.dump(stream.hello()))
    old.batch(RUN, "s", 0, wire.dump(stream.batch(0, 8)))
    for rule, severity in absences.SEVERITIES.items():
        with store.database.write() as connection:
            missed = Change(7, rule, None, "fired", severity, 7, 400.0)
            incidents.report(connection, runs.find(connection, RUN).run_id, 1, missed, store.database.now(connection))
    started(store, replace(LOUD, silent=Silent(after_s=600)))
    with store.database.read() as connection:
        rows = connection.execute(
            select(incident.c.rule, incident.c.resolution, incident.c.summary).order_by(incident.c.rule)
        ).all()
    assert [tuple(row)[:2] for row in rows] == [("silent", "rule_changed"), ("stalled", None)]
    assert rows[0].summary.endswith("The rule became another one at step 7.")
