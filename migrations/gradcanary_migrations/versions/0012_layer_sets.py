"""What sessions told of their layers, kept once per run: each one had its copy, and what was told anew since twice."""

import hashlib
import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
import zstandard
from alembic import op
from sqlalchemy import Row

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

AT_ONCE = 100
"""Runs whose sessions are in memory."""

_layer = sa.table(
    "layer", *map(sa.column, ("run_id", "layer_no", "name", "shape", "param_dtype", "module_class", "group_no"))
)
_kept = sa.table("layer_set", *map(sa.column, ("run_id", "digest", "numbers", "described")))
_session = sa.table(
    "session", *map(sa.column, ("run_id", "session", "hello", "layer_sets", "local_numels", "sends_shards"))
)


def upgrade() -> None:
    """Make the table, move into it what the sessions have, and drop the column that it was in."""
    op.create_table(
        "layer_set",
        sa.Column("run_id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("numbers", sa.LargeBinary(), nullable=False),
        sa.Column("described", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["run_id"], ["run.run_id"], name=op.f("fk_layer_set_run_id"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("run_id", "digest", name=op.f("pk_layer_set")),
    )
    op.add_column("session", sa.Column("sends_shards", sa.Boolean(), server_default=sa.false(), nullable=False))
    connection = op.get_bind()
    run_ids = connection.scalars(sa.select(_session.c.run_id).distinct().order_by(_session.c.run_id)).all()
    for begin in range(0, len(run_ids), AT_ONCE):
        _move(connection, run_ids[begin : begin + AT_ONCE])
    with op.batch_alter_table("session") as table:
        table.drop_column("local_numels")


def _move(connection: sa.Connection, run_ids: Sequence[int]) -> None:
    layers: dict[int, dict[int, Row[Any]]] = {}
    for row in connection.execute(sa.select(_layer).where(_layer.c.run_id.in_(run_ids))):
        layers.setdefault(row.run_id, {})[row.layer_no] = row
    found: dict[tuple[int, str], dict[str, object]] = {}
    changed = []
    for row in connection.execute(sa.select(_session).where(_session.c.run_id.in_(run_ids))):
        hello, numels = json.loads(row.hello), json.loads(row.local_numels or "{}")
        digests = {}
        for set_id, numbers, told in _sets(row, hello, layers.get(row.run_id, {})):
            sizes = numels.get(set_id, [0] * len(numbers))
            kept = _packed(numbers, [[*each, size] for each, size in zip(told, sizes, strict=True)])
            digests[set_id] = kept["digest"]
            found[row.run_id, str(kept["digest"])] = {"run_id": row.run_id, **kept}
        if "layer_sets" in hello:
            hello["layer_sets"] = []
        values = {"new_hello": json.dumps(hello), "new_sets": json.dumps(digests)}
        changed.append({"of": row.run_id, "at": row.session, "shards": row.local_numels is not None, **values})
    if found:
        connection.execute(sa.insert(_kept), list(found.values()))
    its = (_session.c.run_id == sa.bindparam("of")) & (_session.c.session == sa.bindparam("at"))
    is_shards: sa.BindParameter[Any] = sa.bindparam("shards", type_=sa.Boolean())
    new = {"hello": sa.bindparam("new_hello"), "layer_sets": sa.bindparam("new_sets"), "sends_shards": is_shards}
    connection.execute(sa.update(_session).where(its).values(new), changed)


def _sets(
    row: Row[Any], hello: Mapping[str, Any], layers: Mapping[int, Row[Any]]
) -> Iterator[tuple[str, list[int], list[list[object]]]]:
    """Yield the sets of a session: id, numbers, and name, shape, dtype, module class and group of each layer."""
    anew = {each["id"]: each["layers"] for each in hello.get("layer_sets", ())}
    for set_id, numbers in json.loads(row.layer_sets).items():
        if set_id in anew:
            yield set_id, numbers, [told[1:] for told in anew[set_id]]
            continue
        mine = (layers[number] for number in numbers)
        yield (
            set_id,
            numbers,
            [[each.name, json.loads(each.shape), each.param_dtype, each.module_class, each.group_no] for each in mine],
        )


def _packed(numbers: list[int], told: list[list[object]]) -> dict[str, object]:
    packed = struct.pack(f"<{len(numbers)}i", *numbers)
    text = json.dumps(told, separators=(",", ":")).encode()
    digest = hashlib.sha256(packed + text).hexdigest()
    return {"digest": digest, "numbers": packed, "described": zstandard.compress(text, 1)}
