"""What only a server has: several collectors on it, restarts under them, limits, passwords."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from sqlalchemy import select, update

from gradcanary import cli
from gradcanary_server.errors import StoreError, StoreUnavailable
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import new_id, run, silence
from support import postgres, streams
from support.collectors import Collector

STREAM = streams.Stream(streams.healthy(40, 6), streams.falling_loss(40))


@pytest.fixture
def db(postgres_server):
    return postgres_server.create_database()


@pytest.fixture
def database(db):
    opened = Database(db)
    opened.migrate()
    yield opened
    opened.close()


@pytest.fixture
def collectors_on(tmp_path):
    """Start collectors on one database, all at the same moment."""
    started = []

    def start(db, count):
        started.extend(Collector(tmp_path / f"collector-{number}", db=db) for number in range(count))
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(Collector.start, started[-count:]))

    yield start
    for collector in started:
        collector.kill()


def asked_to_come_back(answer):
    assert answer.status_code == 503, answer.text
    assert answer.json()["error"]["code"] == "unavailable"
    assert int(answer.headers["retry-after"]) >= 1
    return True


def test_collectors_that_start_together_serve_one_store(db, collectors_on):
    one, two = collectors_on(db, 2)
    session = streams.Session(one.url)
    session.put_hello(STREAM.hello()).raise_for_status()
    for seq, batch in enumerate(STREAM.batches(10)):
        at = streams.Session((one, two)[seq % 2].url)
        assert at.post_batch(seq, batch).json()["status"] == "stored"
        assert session.post_batch(seq, batch).json()["status"] == "duplicate"
    for path in ("", "/layers", "/layers/0", "/heatmap", "/metrics", "/series?layer=0"):
        assert one.get(f"/api/v1/runs/run-1{path}").json() == two.get(f"/api/v1/runs/run-1{path}").json()
    assert two.get("/api/v1/runs/run-1").json()["step"] == 39


def test_many_ranks_starting_at_once_are_one_run(db, collectors_on):
    both = collectors_on(db, 2)
    ranks = 8
    gate = threading.Barrier(ranks)

    def begin(rank):
        session = streams.Session(both[rank % 2].url, session=f"session-{rank}", client=httpx.Client(timeout=60))
        with session.client:
            answers = []
            for name in ("a", "b", "c", "d"):
                session.run = name
                gate.wait()
                answers.append(session.put_hello(STREAM.hello(rank=rank, world_size=ranks)))
                gate.wait()
                answers.append(session.post_batch(0, STREAM.batch(0, 20)))
                gate.wait()
                answers.append(session.post_batch(1, STREAM.batch(20, 40)))
            return [answer.status_code for answer in answers]

    with ThreadPoolExecutor(ranks) as pool:
        assert list(pool.map(begin, range(ranks))) == [[200] * 12] * ranks
    for name in ("a", "b", "c", "d"):
        told = both[0].get(f"/api/v1/runs/{name}").json()
        assert sorted(each["rank"] for each in told["sessions"]) == list(range(ranks))
        assert {each["launch"] for each in told["sessions"]} == {"launch-1"}
        assert (told["step"], told["layers"]) == (39, 6)


def test_a_run_that_is_held_holds_up_no_other(db, database, collectors_on):
    (collector,) = collectors_on(db, 1)
    held, free = streams.Session(collector.url, run="held"), streams.Session(collector.url, run="free")
    for session in (held, free):
        session.put_hello(STREAM.hello()).raise_for_status()
    with database.write() as connection, ThreadPoolExecutor(1) as pool:
        connection.execute(select(run).where(run.c.name == "held").with_for_update())
        waiting = pool.submit(held.post_batch, 0, STREAM.batch(0, 10))
        for seq, batch in enumerate(STREAM.batches(10)):
            assert free.post_batch(seq, batch).json()["status"] == "stored"
        assert not waiting.done()
        assert asked_to_come_back(waiting.result())
    assert held.post_batch(0, STREAM.batch(0, 10)).json()["status"] == "stored"


def test_a_restart_of_the_server_is_503_and_heals(collectors_on):
    with postgres.running() as server:
        (collector,) = collectors_on(server.create_database(), 1)
        session = streams.Session(collector.url)
        session.put_hello(STREAM.hello()).raise_for_status()
        for seq, how in enumerate((signal.SIGINT, signal.SIGQUIT)):  # stopped, crashed
            begin = 10 * seq
            session.post_batch(seq, STREAM.batch(begin, begin + 10)).raise_for_status()
            assert set(ask_at_once(collector)) == {200}
            server.stop(how)
            server.start()
            assert set(ask_at_once(collector)) == {200}, "nobody sees a restart between two requests"
            server.stop(how)
            assert asked_to_come_back(session.post_batch(seq, STREAM.batch(begin, begin + 10)))
            assert asked_to_come_back(collector.get("/api/v1/runs"))
            assert collector.get("/healthz").status_code == 200
            time.sleep(2.5)  # the loops of deliveries and tiles go round
            server.start()
            assert set(ask_at_once(collector)) == {200}
            assert session.post_batch(seq, STREAM.batch(begin, begin + 10)).json()["status"] == "duplicate"
        said = "".join(collector.output)
        assert "Traceback" not in said
        outages, loops = 4, 3  # a line for each
        assert 2 <= said.count("Trying again") <= outages * loops


def ask_at_once(collector):
    """Ask on so many connections that all of a pool are used."""
    with ThreadPoolExecutor(8) as pool:
        return [answer.status_code for answer in pool.map(lambda _: collector.get("/api/v1/runs"), range(16))]


def test_connections_that_run_out_are_503_and_heal(postgres_server, db, collectors_on):
    (collector,) = collectors_on(db, 1)
    session = streams.Session(collector.url)
    session.put_hello(STREAM.hello()).raise_for_status()
    name = db.rpartition("/")[2]
    postgres_server.execute(f"ALTER DATABASE {name} CONNECTION LIMIT 0")
    cut = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
    postgres_server.execute(cut)
    assert asked_to_come_back(session.post_batch(0, STREAM.batch(0, 10)))
    said = collector.get("/readyz")
    assert said.status_code == 503
    assert "cannot be reached" in said.json()["checks"]["database"]
    assert "\ngradcanary_database_up 0.0\n" in collector.get("/metrics").text
    postgres_server.execute(f"ALTER DATABASE {name} CONNECTION LIMIT -1")
    assert session.post_batch(0, STREAM.batch(0, 10)).json()["status"] == "stored"
    until = time.monotonic() + 60
    while collector.get("/readyz").status_code != 200:  # the loops go round
        assert time.monotonic() < until, collector.get("/readyz").text
        time.sleep(0.2)


def test_deadlock_continues_one_and_retries_the_other(database):
    for run_id, name in enumerate(("a", "b")):
        with database.write() as connection:
            connection.execute(run.insert().values(run_id=run_id, name=name, created=0.0, last_seen=0.0))
    gate = threading.Barrier(2)

    def change(first, second):
        try:
            with database.write() as connection:
                connection.execute(update(run).where(run.c.name == first).values(note=first))
                gate.wait()
                connection.execute(update(run).where(run.c.name == second).values(note=first))
        except StoreUnavailable as error:
            return error.status
        return 200

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(change, "ab", "ba")) == [200, 503]


@pytest.mark.parametrize(
    "statement",
    ["SET LOCAL statement_timeout = 50; SELECT pg_sleep(60)", "SELECT pg_terminate_backend(pg_backend_pid())"],
)
def test_cut_connections_are_opened_again(database, statement):
    with pytest.raises(StoreUnavailable), database.write() as connection:
        connection.exec_driver_sql(statement)
    with database.read() as connection:
        assert connection.execute(select(run)).all() == []


def test_a_fault_of_ours_is_none_of_the_databases(database):
    with pytest.raises(StoreError, match='column "nothing" does not exist'), database.write() as connection:
        connection.exec_driver_sql("SELECT nothing FROM run")


def test_a_new_id_follows_those_that_a_sequence_gave(database):
    with database.write() as connection:
        given = connection.exec_driver_sql("SELECT nextval('silence_silence_id_seq')").scalar_one()
    with database.write() as connection:
        found = [new_id(connection, silence)["silence_id"] for _ in range(2)]
    assert found == [given + 1, given + 2], "a number of a silence that is gone is not used again"


def test_singleton_lock_has_one_holder(database):
    with database.singleton_lock() as first:
        with database.singleton_lock() as second:
            assert (first, second) == (True, False)
        with database.singleton_lock() as third:
            assert not third
    with database.singleton_lock() as fourth:
        assert fourth


def refused(capsys, url):
    with ThreadPoolExecutor(1) as thread:  # Playwright, once used, keeps an event loop in the main one
        assert thread.submit(cli.main, ["up", "--port", "0", "--db", url]).result() == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    for secret in ("a password", "a%20password", "wrong", "sesame"):
        assert secret not in said.err
    return said.err


def test_up_says_in_a_sentence_what_is_wrong_with_the_address(capsys, postgres_server, db):
    said = refused(capsys, postgres_server.url("postgres", password="wrong"))
    assert "password authentication failed" in said
    assert "GRADCANARY_DB_PASSWORD or its _FILE" in said
    assert 'database "nothing" does not exist' in refused(capsys, postgres_server.url("nothing"))
    assert "cannot be reached" in refused(capsys, "postgresql://user:sesame@127.0.0.1:1/x")
    assert "cannot be reached" in refused(capsys, "postgresql://user:sesame@nowhere.invalid/x")
    assert "SQLite and PostgreSQL" in refused(capsys, "mysql://user:sesame@127.0.0.1/x")
    assert "not a database URL" in refused(capsys, "postgresql://user:sesame@127.0.0.1:port/x")
    for address in ("user:sesame?x@127.0.0.1:port/x", "127.0.0.1:port/x?sslmode=require&password=sesame"):
        assert "not a database URL" in refused(capsys, f"postgresql://{address}")
    assert "permission denied" in refused(capsys, db.rpartition("/")[0] + "/postgres")


def test_a_database_that_cannot_hold_every_name_is_refused(postgres_server):
    postgres_server.execute(
        f"CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C' OWNER {postgres.OWNER}"
    )
    database = Database(postgres_server.url("latin"))
    with pytest.raises(StoreError, match="encoding LATIN1"):
        database.migrate()
    database.close()


def test_every_common_spelling_of_the_address_works(db):
    for scheme in ("postgresql://", "postgres://", "postgresql+psycopg://"):
        database = Database(db.replace("postgresql://", scheme) + "?application_name=mine")
        database.migrate()
        with database.read() as connection:
            assert connection.exec_driver_sql("SHOW application_name").scalar_one() == "mine"
        database.close()
