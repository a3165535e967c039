"""A store that an older version wrote, with a training in it, is upgraded and answers the same.

What the older version wrote is what this one writes, put into the older one's tables: columns that both know.
"""

import json

import numpy as np
import pytest
from alembic import command
from alembic.script import ScriptDirectory
from archives import RUN, Store
from sqlalchemy import MetaData, insert, select, text
from streams import Stream, collapsed, falling_loss

from gradcanary import wire
from gradcanary_server import attempts, deliveries, dossiers, incident_views, log_bodies, revisions, runs
from gradcanary_server.database import Database
from gradcanary_server.pace import Pace
from gradcanary_server.schema import batch, chain, endpoint, incident, layer_set, metadata, session, tile

LATER = 4e9
"""A moment at which all that was opened is due to be told, and what is silent is silent in both."""


def before_the_last() -> str:
    """The revision before the newest one."""
    script = ScriptDirectory.from_config(revisions.config())
    return str(script.get_revision("head").down_revision)


@pytest.fixture(scope="module")
def filled(new_store_url):
    """A store with tiles and a log, an open incident and a message that is to be delivered."""
    store = Store(new_store_url())
    stream = Stream(collapsed(700, 3, (1,), 300), falling_loss(700))
    store.send("session-1", stream, 50)
    store.compactor.compact()
    with store.database.write() as connection:
        connection.execute(insert(endpoint).values(url="http://127.0.0.1:9/", secret="whsec_eA==", created=0.0))
        for step in deliveries.plan(connection, Pace(), LATER, holding=True):
            deliveries.carry_out(connection, step, "http://here", LATER)
    assert store.count(tile) > 5
    assert (store.count(chain), store.count(incident)) == (2, 1)
    yield store
    store.database.close()


def transplant(store, url, revision, monkeypatch):
    """Lay out a database as it was at a revision, with the rows of a store in it."""
    to_head = command.upgrade
    with monkeypatch.context() as patch:
        patch.setattr(command, "upgrade", lambda config, _: to_head(config, revision))
        older = Database(url)
        older.migrate()
    with store.database.read() as reading, older.write() as writing:
        known = MetaData()
        known.reflect(writing)
        for table in metadata.sorted_tables:
            if table.name not in known.tables:
                continue
            common = [column for column in table.c if column.name in known.tables[table.name].c]
            rows = [dict(row) for row in reading.execute(select(*common)).mappings()]
            if table is session and revision < "0012":
                rows = [{**row, "layer_sets": numbered(reading, row["layer_sets"])} for row in rows]
            if table is batch and revision < "0016":
                rows = [{**row, "body": log_bodies.restored(row["body"])} for row in rows]
                assert all(row["body"].startswith(b"{") for row in rows), "as it came"
            if rows:
                writing.execute(insert(known.tables[table.name]), rows)
        assert revisions.revision(writing) == revision
    older.close()


def numbered(connection, kept):
    """Return the layer sets of a session as versions before 0012 had them: with the numbers of their layers."""
    found = {row.digest: np.frombuffer(row.numbers, "<i4").tolist() for row in connection.execute(select(layer_set))}
    return json.dumps({set_id: found[digest] for set_id, digest in json.loads(kept).items()})


def answers(store):
    """All that the API tells of the run, and the message that waits."""

    def told(connection):
        seen = runs.one(connection, RUN, LATER)
        url, quiet = "http://here", ()
        found = [incident_views.full(connection, each, url, quiet) for each in dossiers.load(connection, [1])]
        return json.dumps([runs.detail(connection, seen, LATER), found])

    with store.database.read() as connection:
        keys = deliveries.claimable(connection, LATER)
        bodies = connection.execute(text("SELECT body FROM delivery")).scalars().all()
        return told(connection), keys, [bytes(body) for body in bodies], store.pictures(50), store.pictures(5000)


@pytest.mark.parametrize("revision", sorted({"0008", before_the_last()}))
def test_a_store_of_an_older_version_answers_the_same(filled, empty_url, revision, monkeypatch):
    transplant(filled, empty_url, revision, monkeypatch)
    upgraded = Store(empty_url)
    try:
        before = answers(filled)
        assert before[1], "a message waits"
        assert answers(upgraded) == before
        with upgraded.database.write() as connection:
            claim = attempts.claim(connection, before[1][0], LATER)
            assert claim is not None
            assert claim.message.body == before[2][0]
    finally:
        upgraded.database.close()


def test_and_goes_on_as_if_it_had_always_been_of_this_version(filled, empty_url, monkeypatch):
    transplant(filled, empty_url, before_the_last(), monkeypatch)
    upgraded = Store(empty_url)
    further = Stream(collapsed(1000, 3, (1,), 300), falling_loss(1000))
    for store in (filled, upgraded):
        store.forget()
        for seq in range(14, 20):
            message = wire.dump(further.batch(seq * 50, seq * 50 + 50))
            assert store.ingest.batch(RUN, "session-1", seq, message).status == "stored"
        store.compactor.compact()
    assert upgraded.pictures(50) == filled.pictures(50)
    assert upgraded.count(tile) == filled.count(tile)
    upgraded.database.close()
