"""The first worker of a cluster is dead for a while: ``make test-citus`` with ``CITUS_KILL`` and ``CITUS_START``."""

import argparse
import os
import subprocess

import pytest

from support.collectors import Collector
from support.server.citus_outage import READ_PAUSE_S, faults_of
from support.waiting import eventually

SECONDS, TRAININGS = 20.0, 8


pytestmark = pytest.mark.skipif(not os.environ.get("CITUS_KILL"), reason="no command ends a node of the cluster")


@pytest.mark.timeout(600)
def test_a_dead_node_stops_no_run_of_the_others(postgres_server):
    group, address = min((group, address) for group, address in postgres_server.addresses.items() if group > 0)
    commands = [os.environ[name].format(node=group) for name in ("CITUS_KILL", "CITUS_START")]
    given = argparse.Namespace(
        db=postgres_server.create_store(), node=address, seconds=SECONDS, trainings=TRAININGS, workers=1
    )
    given.away, given.back, given.read_pause = *commands, READ_PAUSE_S
    assert faults_of(given) == []


def test_lists_are_empty_while_no_run_is_on_another_node(postgres_server, tmp_path):
    group = min(group for group in postgres_server.addresses if group > 0)
    kill, start = (os.environ[name].format(node=group) for name in ("CITUS_KILL", "CITUS_START"))
    collector = Collector(tmp_path, db=postgres_server.create_store()).start()
    subprocess.run(kill, shell=True, check=True)
    try:
        eventually(lambda: "gradcanary-missing" in collector.get("/readyz").headers)
        told = {path: collector.get(path) for path in ("/api/v1/runs", "/api/v1/incidents", "/api/v1/storage")}
    finally:
        subprocess.run(start, shell=True, check=True)
        collector.kill()
    assert {path: answer.status_code for path, answer in told.items()} == dict.fromkeys(told, 200)
    assert told["/api/v1/runs"].json()["runs"] == []
