"""The first worker of a cluster is dead for a while: ``make test-citus`` with ``CITUS_KILL`` and ``CITUS_START``."""

import argparse
import os

import pytest

from support.server.citus_outage import READ_PAUSE_S, faults_of

SECONDS, TRAININGS = 20.0, 8


@pytest.mark.skipif(not os.environ.get("CITUS_KILL"), reason="no command ends a node of the cluster")
@pytest.mark.timeout(600)
def test_a_dead_node_stops_no_run_of_the_others(postgres_server):
    group, address = min((group, address) for group, address in postgres_server.addresses.items() if group > 0)
    commands = [os.environ[name].format(node=group) for name in ("CITUS_KILL", "CITUS_START")]
    given = argparse.Namespace(
        db=postgres_server.create_store(), node=address, seconds=SECONDS, trainings=TRAININGS, workers=1
    )
    given.away, given.back, given.read_pause = *commands, READ_PAUSE_S
    assert faults_of(given) == []
