"""Which rank a non-finite gradient came from: what each process saw of its own, before a reduction.

Of a replicated model the first rank has the gradients of all, and a NaN in one is in all of them. The other ranks send
only what is not finite of their own; that is nobody's series, and says where to look.
"""

from collections.abc import Mapping
from dataclasses import replace

from sqlalchemy import Connection, select

from gradcanary_server import incident_rows
from gradcanary_server.batches import NONFINITE
from gradcanary_server.log import Log, Piece
from gradcanary_server.schema import batch, session

RULE = "nonfinite"


def attribute(connection: Connection, run_id: int, launch_no: int, rank: int, pieces: list[Piece]) -> None:
    """Note for the members of the run's last nonfinite incident that a rank had this before the others.

    Of several ranks it is the lowest, whoever comes first.
    """
    own = _own(pieces)
    case = incident_rows.latest(connection, run_id, RULE) if own else None
    if case is None or case.incident.launch_no != launch_no:
        return
    for layer, member in case.members.items():
        if (
            layer is not None
            and layer in own.get(member.since_step, ())
            and (member.rank is None or rank < member.rank)
        ):
            case.members[layer] = replace(member, rank=rank)
            case.touched.add(layer)
    if case.touched:
        incident_rows.save(connection, run_id, case, incident_rows.names(connection, run_id))


def of_others(
    connection: Connection, log: Log, run_id: int, launch_no: int, first: int, last: int
) -> list[tuple[int, Piece]]:
    """Return what other ranks sent already about steps from first to last."""
    joined = (session.c.run_id == batch.c.run_id) & (session.c.session == batch.c.session)
    query = (
        select(batch.c.session, batch.c.seq, batch.c.launch_no, session.c.rank)
        .join(session, joined)
        .where(batch.c.run_id == run_id, batch.c.launch_no == launch_no, batch.c.seq >= session.c.sealed_seq)
        .where(session.c.rank > 0, session.c.sends_shards.is_(False))
        .where(batch.c.first_step <= last, batch.c.last_step >= first)
    )
    return [(row.rank, log.piece(connection, run_id, row)) for row in connection.execute(query).all()]


def _own(pieces: list[Piece]) -> Mapping[int, frozenset[int]]:
    """Return, by step, the layers that were not finite before a reduction."""
    found: dict[int, frozenset[int]] = {}
    for piece in pieces:
        columns = piece.columns
        for row, step in enumerate(columns.steps.tolist()):
            layers = sorted(columns.own.get(step, ()))
            if layers:
                bad = columns.state[row, layers] == NONFINITE
                found[step] = frozenset(piece.numbers[layers][bad].tolist())
    return found
