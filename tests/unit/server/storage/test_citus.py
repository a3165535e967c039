"""Where each table is on Citus, and why; and what Citus says of a node that is away. No cluster is needed."""

import importlib
import pkgutil

import psycopg
import pytest
from sqlalchemy import BigInteger, BindParameter, Exists, ScalarSelect, Select, UniqueConstraint
from sqlalchemy.exc import InternalError, OperationalError
from sqlalchemy.sql import operators, visitors

import gradcanary_server
from gradcanary_server.errors import NodeUnavailable, StoreError, StoreUnavailable
from gradcanary_server.storage.citus import DISTRIBUTED, KEPT
from gradcanary_server.storage.driver_errors import translated
from gradcanary_server.storage.prepared import Prepared
from gradcanary_server.storage.schema import metadata

OF_RUNS = {
    "run": "its row is locked by whatever changes the run, so it is where the rest is",
    "launch": "each batch reads its launch",
    "configuration": "each batch reads that of its launch",
    "session": "each batch moves its session on",
    "layer": "batches change what is known of accumulators",
    "layer_set": "batches are decoded by it",
    "incident": "batches open and resolve incidents",
    "incident_layer": "members of incidents, written with them",
    "delivery": "planned under the lock of its incident",
    "attempt": "written with the result of its delivery",
    "deleted_run": "written where the run is deleted, and deleted with its last measurements",
    "batch": "measurements",
    "stream": "measurements: locked by whatever writes tiles",
    "tile": "measurements",
    "rule_state": "each batch changes it",
    "metric": "each batch changes it",
}
ON_COORDINATOR = {
    "run_name": "unique over all runs; read before a run is locked, written when one begins or gets a name",
    "session_tombstone": "by the name of a run that is not there any more",
    "compaction_claim": "work is claimed where all collectors look; it protects nothing of the run",
    "collector_heartbeat": "of collectors; a node that is away must not keep it from being written",
    "counter": "numbers of incidents are unique over all runs, and committed before the batch that uses one",
    "endpoint": "never joined to deliveries: its failures are counted while a node is away",
    "silence": "few, read as a whole",
    "rule_set": "few, read by version",
    "token": "read every few seconds, whatever the nodes do",
    "web_session": "with its token",
    "audit": "of people and not of runs",
}


def test_each_table_is_where_it_is_for_a_reason():
    assert {table.name for table in DISTRIBUTED} == OF_RUNS.keys()
    assert {table.name for table in KEPT} == ON_COORDINATOR.keys()
    assert {*OF_RUNS, *ON_COORDINATOR} == metadata.tables.keys()


@pytest.mark.parametrize("table", DISTRIBUTED, ids=str)
def test_rows_of_a_run_can_lie_on_one_node(table):
    unique = [constraint.columns for constraint in table.constraints if isinstance(constraint, UniqueConstraint)]
    unique += [index.columns for index in table.indexes if index.unique]
    for columns in unique:
        assert "run_id" in columns, "it is unique over all nodes only where run_id is in it"
    assert table.primary_key.columns.keys()[0] == "run_id", "rows of a run lie together"
    assert isinstance(table.c.run_id.type, BigInteger), "rows of a run are on one node by equal types"
    assert table.c.run_id.autoincrement is not True
    for constraint in table.foreign_key_constraints:
        assert "run_id" in constraint.column_keys, "it leads to rows of the same run"
        assert DISTRIBUTED.index(constraint.referred_table) < DISTRIBUTED.index(table), "that is distributed before"


def statements():
    """Yield each query that a module of the server keeps, by name."""
    for module in pkgutil.walk_packages(gradcanary_server.__path__, "gradcanary_server."):
        if not module.name.endswith("__main__"):
            for name, value in vars(importlib.import_module(module.name)).items():
                query = value._statement if isinstance(value, Prepared) else value
                if isinstance(query, Select):
                    yield f"{module.name}.{name}", query


def names_its_runs(clause):
    return clause is not None and any(
        getattr(each, "operator", None) in (operators.eq, operators.in_op)
        and getattr(each.left, "name", None) == "run_id"
        and isinstance(each.right, BindParameter)
        for each in visitors.iterate(clause)
    )


def test_a_subquery_in_the_select_list_of_a_query_for_a_run_names_it():
    """By the run of the outer query alone Citus 13 does not find its node: it asks all, also one that is away."""
    found = {
        (name, subquery)
        for name, query in statements()
        if names_its_runs(query.whereclause)
        for column in query.selected_columns
        for subquery in visitors.iterate(column)
        if isinstance(subquery, Exists | ScalarSelect)
    }
    assert len(found) > 2
    assert {name for name, subquery in found if not names_its_runs(subquery)} == set()


@pytest.mark.parametrize("table", KEPT, ids=str)
def test_the_tables_of_the_coordinator_lead_to_no_other_node(table):
    assert all(constraint.referred_table in KEPT for constraint in table.foreign_key_constraints)


@pytest.mark.parametrize(
    "said",
    [
        "failure on connection marked as essential: 10.0.0.2:5432",
        "could not commit transaction for shard 102008 on at least one active node",
        "connection to the remote node gradcanary@10.0.0.2:5432 failed with the following error: timeout expired",
        "failed to prepare transaction 'citus_0_1_2_3' on host 10.0.0.2:5432",
        "execution cannot recover from multiple connection failures. Last node failed 10.0.0.2:5432",
        "server closed the connection unexpectedly",
    ],
)
def test_a_node_that_is_away_is_temporary(said):
    with pytest.raises(StoreUnavailable, match="A node of the database's cluster cannot be reached"), translated():
        raise InternalError("COMMIT", {}, psycopg.errors.InternalError_(said))


def test_a_node_that_stops_amid_a_statement_is_temporary():
    said = "terminating connection due to administrator command"
    at_node = f"{said}\nCONTEXT:  while executing command on 10.0.0.2:5432"
    with pytest.raises(NodeUnavailable), translated():
        raise OperationalError("SELECT", {}, psycopg.errors.AdminShutdown(at_node))
    with pytest.raises(StoreUnavailable, match="The database cannot be reached"), translated():
        raise OperationalError("SELECT", {}, psycopg.errors.AdminShutdown(said))


def test_a_coordinator_that_is_away_is_temporary():
    with pytest.raises(StoreUnavailable, match="The database cannot be reached"), translated():
        raise InternalError("SELECT", {}, psycopg.errors.InternalError_("postmaster was shut down, exiting"))
    with pytest.raises(StoreUnavailable, match="The database cannot be reached"), translated():
        raise OperationalError("SELECT", {}, psycopg.OperationalError("server closed the connection unexpectedly"))


def test_another_internal_error_is_not():
    with pytest.raises(StoreError) as raised, translated():
        raise InternalError("SELECT", {}, psycopg.errors.InternalError_("invalid memory alloc request size"))
    assert not isinstance(raised.value, StoreUnavailable)
