"""Admission of ranks that train other layers than rank 0: stages of a pipeline, jobs of their own under one launcher.

Of ranks with the same layers, a replicated model, one sends samples. A rank with a layer set that no other rank sends
is admitted: it sends samples, too, and from then on they are merged as shards are. No two such ranks share a layer: one
whose name is another rank's gets a prefix, as in ``rank3.head.weight``.

Every function runs inside a write transaction that holds the run's row.
"""

import json

from sqlalchemy import ColumnElement, Connection, and_, insert, select, update

from gradcanary_server.storage import layers, runs
from gradcanary_server.storage.database import Record
from gradcanary_server.storage.schema import batch, launch, session, update_row
from gradcanary_server.validation import LIMITS

_CONTINUED = (
    "run_id",
    "launch_no",
    "layer_sets",
    "next_seq",
    "sealed_seq",
    "every",
    "phase",
    "first_sample",
    "last_step",
    "started",
    "last_seen",
    "ended",
)
"""Columns of rank 0's session with which the merged session goes on."""


def admit_rank(connection: Connection, row: Record) -> bool:
    """Return True if a rank above 0 sends samples of its own layers; admits it if no other rank sends them.

    Nothing is decided before the layers of rank 0 are known. No rank is admitted with which the launch would have too
    many layers.
    """
    if row.rank <= 0 or not _is_whole(row):
        return False
    if row.is_sharded:
        return True
    sets = json.loads(row.layer_sets)
    first = connection.execute(select(session).where(_of_launch(row), session.c.rank == 0)).one_or_none()
    if not sets or first is None or not _is_whole(first) or first.layer_sets == "{}":
        return False
    known = [json.loads(first.layer_sets)]
    if known[0].keys().isdisjoint(sets):
        known += _admitted_sets(connection, row)
    for sent in known:
        shared = {name: digest for name, digest in sent.items() if name in sets}
        if shared:  # a replica; the layers of an admitted rank may have a prefix
            if sets | shared != sets:
                _set_columns(connection, row, layer_sets=json.dumps(sets | shared))
            return False
    sent_layers = layers.layers_of_sets(connection, row.run_id, {digest for sent in known for digest in sent.values()})
    own_layers = layers.layers_of_sets(connection, row.run_id, set(sets.values()))
    if len(sent_layers) + len(own_layers) > LIMITS.max_layers:
        return False
    if first.is_primary:
        _continue_merged(connection, first)
    separated = separate_sets(connection, row, sets)
    # Without ``every`` the steps before its first sample are no gap.
    _set_columns(connection, row, is_sharded=True, every=None, layer_sets=json.dumps(separated))
    return True


def separate_sets(connection: Connection, row: Record, sets: dict[str, str]) -> dict[str, str]:
    """Return layer sets of a rank, by id, with digests in which no layer is that of another rank that sends samples."""
    digests = {digest for sent in _admitted_sets(connection, row) for digest in sent.values()}
    taken = layers.layers_of_sets(connection, row.run_id, digests)
    newer = layers.layer_ids(connection, row.run_id, runs.newer_launches(connection, row.run_id, row.launch_no))
    prefix = f"rank{row.rank}."
    return {
        name: layers.prefix_layers(connection, row.run_id, digest, taken, prefix, newer)
        for name, digest in sets.items()
    }


def _continue_merged(connection: Connection, first: Record) -> None:
    """Move the series of rank 0 to the merged session; rank 0's next batches are merged with those of other ranks."""
    name = runs.merged_session_id(first.launch_no)
    columns = {column: getattr(first, column) for column in _CONTINUED}
    fixed = {"session": name, "rank": -1, "is_primary": True, "interval_s": 0.0, "hello": "{}"}
    connection.execute(insert(session).values(**columns, **fixed))
    is_first = (batch.c.run_id == first.run_id) & (batch.c.session == first.session)
    connection.execute(update(batch).where(is_first).values(session=name))
    _set_columns(connection, first, is_primary=False, is_sharded=True, sealed_seq=first.next_seq)
    key = {"run_id": first.run_id, "launch_no": first.launch_no}
    update_row(connection, launch, key, {"merged_step": first.last_step, "has_own_layers": True})


def _admitted_sets(connection: Connection, row: Record) -> list[dict[str, str]]:
    """Return the layer sets of the other ranks of a launch that send samples of their own layers."""
    query = select(session.c.layer_sets).where(_of_launch(row), session.c.is_sharded, session.c.session != row.session)
    return [json.loads(text) for text in connection.scalars(query)]


def _is_whole(row: Record) -> bool:
    """Return True if a session has its layers whole, not shards of them."""
    return json.loads(row.hello)["sharded"] is False


def _set_columns(connection: Connection, row: Record, **values: object) -> None:
    update_row(connection, session, {"run_id": row.run_id, "session": row.session}, values)


def _of_launch(row: Record) -> ColumnElement[bool]:
    return and_(session.c.run_id == row.run_id, session.c.launch_no == row.launch_no)
