"""Which runs lie where, and how a query leaves out those of a node that does not answer."""

import numpy as np
import pytest
from sqlalchemy import Select, exists, func, select
from sqlalchemy.dialects import postgresql

from gradcanary_server.storage.citus_nodes import Away, Node, Shards, hash_ids, may_ask_all_nodes, restricted
from gradcanary_server.storage.schema import incident, launch, run, session

HASHES = {
    0: -272711505,
    1: -1905060026,
    5: -1330264708,
    -7: -82204417,
    2**33: 1134484726,
    123456789012345: 297539683,
    2**62 + 12345: 38467243,
}
"""By PostgreSQL 15: SELECT hashint8(...)."""


def test_ids_are_hashed_as_citus_does():
    assert hash_ids(np.array(list(HASHES), np.int64)).tolist() == list(HASHES.values())


def test_a_run_is_lost_with_the_node_of_its_shard():
    shards = Shards(np.array([-1, 2**30, 2**31 - 1], np.int32), np.array([1, 2, 1], np.int32))
    away = Away((Node(2, "10.0.0.2", 5432),), shards)
    assert away.holds(list(HASHES)).tolist() == [0 <= each <= 2**30 for each in HASHES.values()]
    assert away.holds([]).tolist() == []


def test_runs_of_nodes_that_answer_are_left_or_an_id_that_no_run_has():
    """Citus asks each node, also one that is away, for a query with an empty list of runs."""
    halves = Shards(np.array([-1, 2**31 - 1], np.int32), np.array([1, 2], np.int32))
    lost, left = [run_id for run_id, hashed in HASHES.items() if hashed >= 0], [0, 1, 5, -7]
    away = Away((Node(2, "10.0.0.2", 5432),), halves)
    assert away.left_of(list(HASHES)) == left
    (nobody,) = away.left_of(lost)
    assert nobody < 0
    assert not away.holds([nobody])[0]
    assert Away((Node(1, "10.0.0.1", 5432), *away.nodes), halves).left_of(lost) == []


def test_what_may_ask_all_nodes():
    """By the run of the outer query alone Citus 13 does not find the node of one inside a condition with OR."""
    of_run = select(incident).where(incident.c.run_id == 7)
    assert may_ask_all_nodes(of_run, ())
    assert may_ask_all_nodes(of_run, (7, 8))
    assert not may_ask_all_nodes(of_run, (7,))
    assert not may_ask_all_nodes(of_run.join(run, run.c.run_id == incident.c.run_id), (7,))
    inner = incident.alias()
    is_later = exists().where(inner.c.run_id == incident.c.run_id, inner.c.incident_id > incident.c.incident_id)
    assert may_ask_all_nodes(of_run.where((incident.c.state == "open") | ~is_later), (7,))


def _joined() -> Select:
    of_runs = run.join(incident, incident.c.run_id == run.c.run_id).outerjoin(launch, launch.c.run_id == run.c.run_id)
    inside = select(func.count()).select_from(session).where(session.c.run_id == run.c.run_id).scalar_subquery()
    return select(run.c.run_id, inside).select_from(of_runs)


def _aliased() -> Select:
    other = run.alias("other")
    return select(other.c.run_id).where(other.c.run_id > 3)


@pytest.mark.parametrize(
    ("query", "tables"),
    [(_joined, ["session", "run", "incident", "run"]), (_aliased, ["other"])],
    ids=["tables", "alias"],
)
def test_a_query_is_restricted_for_each_table_also_when_its_shape_is_known(query, tables):
    texts = []
    for run_ids in ([1, 2], [3], [4, 5, 6]):
        compiled = restricted(query(), run_ids).compile(dialect=postgresql.dialect())
        assert [value for value in compiled.params.values() if isinstance(value, list)] == [run_ids] * len(tables)
        texts.append(str(compiled))
    assert len(set(texts)) == 1
    for table in tables:
        assert f"{table}.run_id = ANY" in texts[0]
    assert texts[0].count("= ANY") == len(tables)
