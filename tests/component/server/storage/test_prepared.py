"""Statements that SQLite's driver executes itself: the answers, types and errors are those of SQLAlchemy."""

import pytest
from sqlalchemy import bindparam, func, insert, select, update
from sqlalchemy.exc import DBAPIError

from gradcanary_server.storage.prepared import Prepared
from gradcanary_server.storage.schema import deleted_run, launch, run, run_name

KEY = launch.c.run_id == bindparam("run_id")
OF_RUN = select(launch.c.launch_no, launch.c.launch, launch.c.late, launch.c.has_own_layers, launch.c.first_step)
ROWS = [(1, "a", True, False, None), (2, "b", False, True, 7)]


@pytest.fixture
def connection(archive):
    """A transaction in a store with a run of two launches."""
    with archive.database.write() as connection:
        connection.execute(insert(run).values(run_id=5, name="r", created=0.0, last_seen=0.0))
        for number, name, is_late, has_own, step in ROWS:
            values = {"run_id": 5, "launch_no": number, "launch": name, "late": is_late, "first_step": step}
            connection.execute(insert(launch).values(world_size=1, has_own_layers=has_own, **values))
        yield connection


def test_rows_have_the_types_of_sqlalchemy(connection):
    query = OF_RUN.where(KEY).order_by(launch.c.launch_no)
    rows = Prepared(query).rows(connection, {"run_id": 5})
    assert [tuple(row) for row in rows] == ROWS == [tuple(row) for row in connection.execute(query, {"run_id": 5})]
    assert [type(value) for value in rows[0][2:4]] == [bool, bool]


def test_a_change_counts_rows_once_and_many_times(connection):
    change = Prepared(update(launch).where(launch.c.run_id == 5, launch.c.launch_no == bindparam("number")))
    assert change.change(connection, {"number": 1, "first_step": 3}) == 1
    assert change.change(connection, {"number": 9, "first_step": 3}) == 0
    many = [{"number": number, "first_step": None} for number in (1, 2)]
    assert change.change(connection, *many) == 2
    assert connection.scalars(select(launch.c.first_step)).all() == [None, None]


def test_errors_are_those_of_sqlalchemy(connection):
    twice = Prepared(insert(deleted_run))
    twice.change(connection, {"run_id": 1})
    with pytest.raises(DBAPIError) as raised, connection.begin_nested():
        twice.change(connection, {"run_id": 1})
    assert type(raised.value).__name__ == "IntegrityError"


def test_an_error_of_a_later_row_is_one_of_sqlalchemy(connection):
    if connection.dialect.name != "sqlite":
        return  # PostgreSQL sends all rows at once
    connection.execute(update(launch).where(launch.c.launch_no == 2).values(launch="no JSON"))
    read = Prepared(select(func.json_extract(launch.c.launch, "$")).where(KEY).order_by(launch.c.launch_no))
    connection.execute(update(launch).where(launch.c.launch_no == 1).values(launch="1"))
    with pytest.raises(DBAPIError):
        read.rows(connection, {"run_id": 5})


def test_what_only_sqlalchemy_can_do_is_refused(connection):
    with pytest.raises(ValueError, match="run has defaults"):
        Prepared(insert(run))
    names = Prepared(select(run_name).where(run_name.c.name.in_(bindparam("names", expanding=True))))
    if connection.dialect.name == "sqlite":
        with pytest.raises(ValueError, match="a list as a parameter"):
            names.rows(connection, {"names": ["r"]})
