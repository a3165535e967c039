"""Databases of the tests' own on a Citus cluster that somebody has: on each of its nodes, gone at the end.

``CITUS_URL`` is the address of a database of the coordinator, of a superuser that reaches all nodes by the addresses
that Citus has of them, without another password: each new database is made on each node.
"""

import contextlib
import os
import time
from collections.abc import Iterator

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from gradcanary_server.ops.commands import migrate_command
from support.postgres import Server

WAIT_S = 60


class Cluster(Server):
    """A cluster, in the place of a server of the tests' own; it is not started, stopped or looked into."""

    def __init__(self, url: str) -> None:
        self._given = conninfo_to_dict(url)
        self._made: list[str] = []
        self._template = ""
        with psycopg.connect(url) as connection:
            nodes = connection.execute(
                "SELECT groupid, nodename, nodeport FROM pg_dist_node ORDER BY groupid"
            ).fetchall()
        if not nodes or nodes[0][0] != 0:
            pytest.fail("CITUS_URL is no coordinator: say SELECT citus_set_coordinator_host('HOST', PORT) there")
        self._nodes = [(str(host), int(port)) for _, host, port in nodes]

    def create_database(self, template: str = "template0") -> str:
        name = f"gradcanary_test_{os.getpid()}_{len(self._made)}"
        self._made.append(name)
        for node in range(len(self._nodes)):
            self._create(node, name, template)
        if template == "template0":
            self._join(name)
        return self.url(name)

    def create_store(self) -> str:
        if not self._template:
            address = self.create_database()
            migrate_command(address, with_citus=True)
            self._template = address.rsplit("/", 1)[1]
        return self.create_database(self._template)

    def execute(self, statement: str, database: str = "postgres") -> None:
        self._execute(0, statement, database)

    def url(self, database: str, **_: str) -> str:
        user, password = self._given["user"], self._given.get("password")
        host, port = self._nodes[0]
        return f"postgresql://{user}{f':{password}' if password else ''}@{host}:{port}/{database}"

    def start(self) -> None:
        pytest.skip("nobody stops or starts a cluster that was given")

    def stop(self, signal_number: int = 0) -> None:
        pytest.skip("nobody stops or starts a cluster that was given")

    def run(self, program: str, *words: str) -> None:
        pytest.skip("backups of a cluster are made by node")

    def close(self) -> None:
        for name in self._made:
            for node in range(len(self._nodes)):
                self._execute(node, f"DROP DATABASE IF EXISTS {name} WITH (FORCE)", "postgres")

    def _create(self, node: int, name: str, template: str) -> None:
        end = time.monotonic() + WAIT_S
        while time.monotonic() < end:
            # A process of Citus looks into each database, and nobody may while it is copied.
            ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{template}'"
            self._execute(node, ended, "postgres")
            with contextlib.suppress(psycopg.errors.ObjectInUse):
                self._execute(node, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY", "postgres")
                return
        pytest.fail(f"somebody uses {template}")

    def _join(self, name: str) -> None:
        for node in range(len(self._nodes)):
            self._execute(node, "CREATE EXTENSION citus", name)
        (host, port), *workers = self._nodes
        self._execute(0, f"SELECT citus_set_coordinator_host('{host}', {port})", name)
        for host, port in workers:
            self._execute(0, f"SELECT citus_add_node('{host}', {port})", name)

    def _execute(self, node: int, statement: str, database: str) -> None:
        host, port = self._nodes[node]
        address = make_conninfo(**{**self._given, "host": host, "port": port, "dbname": database})
        with psycopg.connect(address, autocommit=True) as connection:
            connection.execute(statement)


@contextlib.contextmanager
def using(url: str) -> Iterator[Cluster]:
    """Yield a cluster; at the end the databases that were made there are dropped."""
    with contextlib.closing(Cluster(url)) as cluster:
        yield cluster
