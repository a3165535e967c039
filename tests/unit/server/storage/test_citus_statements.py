"""How a query leaves out the runs of a node that does not answer, and what may ask all nodes."""

import pytest
from sqlalchemy import Select, bindparam, exists, func, insert, select, update
from sqlalchemy.dialects import postgresql

from gradcanary_server.storage.citus_statements import ClusterStatement
from gradcanary_server.storage.schema import deleted_run, incident, launch, run, session


def test_what_may_ask_all_nodes():
    """By the run of the outer query alone Citus 13 does not find the node of one inside a condition with OR."""
    of_run = select(incident).where(incident.c.run_id == 7)
    assert ClusterStatement(of_run).may_ask_all_nodes(())
    assert ClusterStatement(of_run).may_ask_all_nodes((7, 8))
    assert not ClusterStatement(of_run).may_ask_all_nodes((7,))
    assert not ClusterStatement(of_run.join(run, run.c.run_id == incident.c.run_id)).may_ask_all_nodes((7,))
    inner = incident.alias()
    is_later = exists().where(inner.c.run_id == incident.c.run_id, inner.c.incident_id > incident.c.incident_id)
    assert ClusterStatement(of_run.where((incident.c.state == "open") | ~is_later)).may_ask_all_nodes((7,))
    assert not ClusterStatement(update(incident).values(state="open")).may_ask_all_nodes(())


@pytest.mark.parametrize(
    ("build", "given"),
    [
        (lambda run_id: select(incident).where(incident.c.run_id == run_id, incident.c.state == "open"), {}),
        (lambda run_id: select(run).where(run.c.name == "7", run.c.run_id.in_([run_id, run_id])), {}),
        (lambda run_id: update(run).where(run.c.run_id == run_id).values(step=7), {}),
        (lambda _: select(run).where(run.c.step == 7, run.c.run_id == bindparam("which")), {"which": None}),
        (lambda run_id: insert(deleted_run).values(run_id=run_id), {}),
        (lambda _: insert(deleted_run), {"run_id": None}),
    ],
    ids=["equal", "in", "update", "parameter", "values", "insert"],
)
def test_runs_that_a_statement_names_also_when_its_shape_is_known(build, given):
    for run_id in (11, 12, 13):
        statement = ClusterStatement(build(run_id))
        assert statement.is_of_runs
        assert set(statement.named_runs(dict.fromkeys(given, run_id), postgresql.dialect())) == {run_id}


def _joined() -> Select:
    of_runs = run.join(incident, incident.c.run_id == run.c.run_id).outerjoin(launch, launch.c.run_id == run.c.run_id)
    inside = select(func.count()).select_from(session).where(session.c.run_id == run.c.run_id).scalar_subquery()
    return select(run.c.run_id, inside).select_from(of_runs)


def _plain() -> Select:
    return select(run.c.run_id).join(incident, incident.c.run_id == run.c.run_id).where(incident.c.state == "open")


def _aliased() -> Select:
    other = run.alias("other")
    return select(other.c.run_id).where(other.c.run_id > 3)


def _derived() -> Select:
    first = select(run.c.step).where(run.c.step > 1).subquery()
    second = select(incident.c.incident_id).where(incident.c.state == "open").subquery()
    return select(first.c.step, second.c.incident_id)


def test_of_several_derived_tables_each_is_restricted_by_its_own_column():
    """SQLAlchemy visits them in any order."""
    built = [ClusterStatement(_derived()).restricted([1]) for _ in range(40)]
    for each in built:
        text = " ".join(str(each.compile(dialect=postgresql.dialect())).split())
        assert "FROM run WHERE run.step > %(step_1)s::BIGINT AND run.run_id = ANY" in text
        assert "FROM incident WHERE incident.state = %(state_1)s::VARCHAR AND incident.run_id = ANY" in text


@pytest.mark.parametrize(
    ("query", "tables"),
    [(_joined, ["session", "run", "incident", "run"]), (_plain, ["run", "incident"]), (_aliased, ["other"])],
    ids=["inside", "tables", "alias"],
)
def test_a_query_is_restricted_for_each_table_also_when_its_shape_is_known(query, tables):
    texts = []
    for run_ids in ([1, 2], [3], [4, 5, 6]):
        compiled = ClusterStatement(query()).restricted(run_ids).compile(dialect=postgresql.dialect())
        assert [value for value in compiled.params.values() if isinstance(value, list)] == [run_ids] * len(tables)
        texts.append(str(compiled))
    assert len(set(texts)) == 1
    for table in tables:
        assert f"{table}.run_id = ANY" in texts[0]
    assert texts[0].count("= ANY") == len(tables)
