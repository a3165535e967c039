"""Kills of the nodes of a cluster and of the collector, under trainings: ``make test-citus``, not in ``make test-all``.

``CITUS_KILL`` and ``CITUS_START`` are commands that end and start a node, with ``{node}`` for its ``groupid``, 0 is the
coordinator. Without them the collector is killed alone.
"""

import os

import pytest

from support import postgres
from support.collectors import Collector
from support.server.citus_kills import COLLECTOR, Proof, count, in_random_order

KILLS, TRAININGS = 10, 16


@pytest.fixture
def proof(postgres_server, tmp_path):
    with postgres.running() as plain:
        killed = Collector(tmp_path / "killed", db=postgres_server.create_store())
        alone = Collector(tmp_path / "alone", db=plain.create_store())
        yield Proof(killed.start(), alone.start(), TRAININGS)
        killed.kill()
        alone.kill()


@pytest.mark.timeout(3600)
def test_kills_leave_what_plain_postgresql_has(proof, postgres_server):
    commands = [os.environ.get(name, "") for name in ("CITUS_KILL", "CITUS_START")]
    assert all(commands) or not any(commands), "CITUS_KILL and CITUS_START go together"
    nodes = postgres_server.addresses if all(commands) else []
    rounds = []
    while count(rounds) < KILLS:
        targets = in_random_order([COLLECTOR, *map(str, nodes)], KILLS - count(rounds))
        rounds.append(proof.round(len(rounds), targets, *commands))
        assert (rounds[-1]["refused"], rounds[-1]["wrong"]) == ({}, {})
