"""Collectors on one store whose rules are not the same, as while they are restarted one after the other."""

from dataclasses import replace

from sqlalchemy import select

from gradcanary import wire
from gradcanary_server.incidents import service, text, watchdog
from gradcanary_server.ingest.service import Ingest
from gradcanary_server.rules.config import Explosion, Rules, Silent
from gradcanary_server.rules.types import Transition
from gradcanary_server.storage import runs
from gradcanary_server.storage.layers import LayerSetCache
from gradcanary_server.storage.schema import incident
from gradcanary_server.tsdb.log import BatchLog
from gradcanary_server.tsdb.reader import Reader
from gradcanary_server.tsdb.tiles import TileStore
from support.server.archives import RUN
from support.streams import Stream, healthy

LOUD = Rules(explosion=Explosion(ratio=10))


def started(archive, rules):
    sets = LayerSetCache()
    ingest = Ingest(archive.database, rules, sets, Reader(BatchLog(sets), TileStore()), "http://here")
    ingest.rule_versions.begin()
    return ingest


def test_later_rules_stand_until_the_last_collector_has_them(archive):
    old, stream = started(archive, Rules()), Stream(healthy(40, 3))
    old.hello(RUN, "s", wire.dump(stream.hello()))
    versions = []
    collectors = [old, started(archive, LOUD), old, started(archive, replace(LOUD)), started(archive, Rules())]
    for seq, ingest in enumerate(collectors):
        ingest.batch(RUN, "s", seq, wire.dump(stream.batch(8 * seq, 8 * seq + 8)))
        with archive.database.read() as connection:
            versions.append(runs.get_run(connection, RUN).rules_version)
    assert [ingest.rule_versions.current for ingest in collectors] == [1, 2, 1, 2, 3]
    assert versions == [1, 2, 2, 2, 3]


def test_finding_of_a_changed_clock_rule_is_closed(archive):
    old, stream = started(archive, Rules()), Stream(healthy(8, 3))
    old.hello(RUN, "s", wire.dump(stream.hello()))
    old.batch(RUN, "s", 0, wire.dump(stream.batch(0, 8)))
    for rule, severity in watchdog.SEVERITIES.items():
        with archive.database.write() as connection:
            missed = Transition(7, rule, None, "fired", severity, 7, 400.0)
            service.record_transitions(
                connection, runs.get_run(connection, RUN).run_id, 1, [missed], archive.database.now(connection)
            )
    started(archive, replace(LOUD, silent=Silent(after_s=600)))
    with archive.database.read() as connection:
        rows = connection.execute(select(incident).order_by(incident.c.rule)).mappings().all()
        summary = text.current_summary(connection, rows[0])
    found = [(row["rule"], row["resolution"]) for row in rows]
    assert found == [("silent", "rule_changed"), ("stalled", None)]
    assert summary.endswith("The rule became another one at step 7.")
