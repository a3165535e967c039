"""How a query leaves out the runs of a node that does not answer, and what may ask all nodes."""

import pytest
from sqlalchemy import Select, exists, func, select
from sqlalchemy.dialects import postgresql

from gradcanary_server.storage.citus_statements import may_ask_all_nodes, restricted
from gradcanary_server.storage.schema import incident, launch, run, session


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
