"""Which runs lie where, and how a query leaves out those of a node that does not answer."""

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
