"""Collectors on one store whose rules are not the same, as while they are restarted one after the other."""

from dataclasses import replace

from archives import RUN
from streams import Stream, healthy

from gradcanary import wire
from gradcanary_server import runs
from gradcanary_server.ingest import Ingest
from gradcanary_server.layers import KnownSets
from gradcanary_server.log import Log
from gradcanary_server.rules import Explosion, Rules

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
