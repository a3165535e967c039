"""Databases of the tests' own on a Citus cluster that somebody has: on each of its nodes, gone at the end.

``CITUS_URL`` is the address of a database of the coordinator, of a superuser that reaches all nodes by the addresses
that Citus has of them, without another password: each new database is made on each node. With ``CITUS_AT_WORKER=1``
stores are used through the last worker.
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

STAND_IN = """
CREATE TABLE pg_dist_partition (logicalrelid regclass, partkey text, beside text);
CREATE TABLE pg_dist_node (nodeid int, groupid int, setting text, nodename text DEFAULT '127.0.0.1', nodeport int,
    isactive bool DEFAULT true, noderole text DEFAULT 'primary');
CREATE TABLE pg_dist_shard (logicalrelid regclass, shardid int, shardmaxvalue text);
CREATE TABLE pg_dist_placement (shardid int, groupid int);
CREATE TABLE pg_dist_local_group (groupid int);
INSERT INTO pg_dist_local_group VALUES (0);
CREATE TABLE silent (port int);
CREATE TABLE emptied (name regclass);
CREATE TABLE told (command text);
GRANT SELECT ON pg_dist_partition, pg_dist_node, pg_dist_shard, pg_dist_placement, pg_dist_local_group TO PUBLIC;
GRANT SELECT ON silent, emptied, told TO PUBLIC;
CREATE FUNCTION create_distributed_table(table_name regclass, distribution_column text,
    distribution_type text DEFAULT 'hash', colocate_with text DEFAULT 'default', shard_count int DEFAULT NULL)
    RETURNS void LANGUAGE sql SECURITY DEFINER AS 'INSERT INTO pg_dist_partition VALUES ($1, $2, $4)';
CREATE FUNCTION citus_add_local_table_to_metadata(table_name regclass, cascade_via_foreign_keys bool DEFAULT false)
    RETURNS void LANGUAGE sql SECURITY DEFINER AS $$INSERT INTO pg_dist_partition VALUES ($1, NULL, 'kept')$$;
CREATE FUNCTION truncate_local_data_after_distributing_table(function_name regclass)
    RETURNS void LANGUAGE sql SECURITY DEFINER AS 'INSERT INTO emptied VALUES ($1)';
CREATE FUNCTION run_command_on_all_nodes(command text, parallel bool DEFAULT true,
    give_warning_for_connection_errors bool DEFAULT false, OUT nodeid int, OUT success bool, OUT result text)
    RETURNS SETOF record LANGUAGE plpgsql SECURITY DEFINER AS $$BEGIN
    IF command LIKE 'ALTER%' THEN INSERT INTO told VALUES (command); END IF;
    RETURN QUERY SELECT node.nodeid, true, node.setting FROM pg_dist_node AS node;
    END$$;
CREATE FUNCTION citus_check_connection_to_node(nodename text, nodeport int DEFAULT 5432)
    RETURNS bool LANGUAGE sql AS 'SELECT NOT EXISTS (SELECT FROM silent WHERE port = $2)';
CREATE FUNCTION master_run_on_worker(worker_name text[], port int[], command text[], parallel bool,
    OUT node_name text, OUT node_port int, OUT success bool, OUT result text) RETURNS SETOF record LANGUAGE sql
    AS $$SELECT *, true, '1000' FROM unnest($1, $2)$$;
SET allow_system_table_mods = on;
INSERT INTO pg_extension SELECT 9999, 'citus', extowner, extnamespace, false, '13.0-1' FROM pg_extension LIMIT 1;
"""
"""With the names and types of Citus' own tables and functions, of a superuser, for a database without Citus."""


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
        self.addresses = {int(group): f"{host}:{port}" for group, host, port in nodes}
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
        address = self.create_database(self._template)
        return self.at_worker(address) if os.environ.get("CITUS_AT_WORKER") else address

    def at_worker(self, address: str) -> str:
        """Return the address of a store on the last worker; each node plans the statements that it gets."""
        return address.replace(self.addresses[0], self.addresses[max(self.addresses)])

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
