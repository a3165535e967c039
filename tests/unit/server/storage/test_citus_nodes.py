"""Which runs lie where, and which are left while a node does not answer."""

import numpy as np

from gradcanary_server.storage.citus_nodes import Away, Node, Shards, hash_ids

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
