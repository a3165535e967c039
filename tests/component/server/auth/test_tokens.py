"""Tokens in the store: what opens, until when, who used it, and that no secret is kept. On both databases."""

import contextlib

import pytest
from sqlalchemy import func, select, text, update

from gradcanary_server.auth import token_cache, tokens
from gradcanary_server.auth.policy import Principal
from gradcanary_server.auth.token_cache import FRESH_S, TokenCache
from gradcanary_server.errors import CollectorError, RequestError, StoreError, StoreUnavailable
from gradcanary_server.ops import commands
from gradcanary_server.storage import heartbeat, maintenance
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import metadata, web_session
from gradcanary_server.storage.schema import token as token_table

DAY = 86_400.0


class Clock:
    """What a keyring takes for the time that passes."""

    def __init__(self):
        self.now = 1_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def ring(archive, clock):
    return TokenCache(archive.database, clock)


@pytest.fixture
def make(archive):
    def make(scope="read", name="ada", days=None):
        with archive.database.write() as connection:
            return tokens.create_token(connection, name, scope, days, archive.database.now(connection))

    return make


def revoke(archive, number):
    with archive.database.write() as connection:
        return tokens.revoke_token(connection, number, archive.database.now(connection))


def test_a_token_is_told_once_and_not_kept(archive, make):
    made, secret = make("ingest", "laptop")
    assert secret.startswith("gc_ingest_")
    assert len(secret) >= len("gc_ingest_") + 43
    assert make("ingest", "desktop")[1] != secret
    with archive.database.read() as connection:
        for table in metadata.tables:
            rows = connection.execute(text(f'SELECT * FROM "{table}"')).all()
            assert secret not in str(rows)
            assert secret.removeprefix("gc_ingest_") not in str(rows)
        first = tokens.all_tokens(connection)[0]
    assert (first.id, first.name, first.scope) == (made.id, "laptop", "ingest")


def test_statement_parameters_are_not_in_errors(archive):
    with pytest.raises(StoreError) as failed, archive.database.write() as connection:
        connection.execute(text("SELECT nonsense FROM token WHERE name = :given"), {"given": "gc_read_x"})
    assert "nonsense" in str(failed.value)
    assert "gc_read_x" not in f"{failed.value} {failed.value.__cause__}"


def test_token_names_its_owner(ring, make):
    made, secret = make("read", "ada")
    assert ring.get(secret) is None
    assert ring.load(secret) == Principal("ada", "read", made.id)
    assert ring.get(secret) == Principal("ada", "read", made.id)
    for other in ("", "gc_read_", secret[:-1], secret.upper(), f"{secret} "):
        assert ring.load(other) is None, other


def test_a_new_one_opens_at_once_even_after_somebody_tried_another(ring, make):
    assert ring.load("gc_read_guess") is None
    assert ring.load(make()[1]) is not None


def test_guesses_do_not_make_it_read_the_tables_each_time(ring, make, clock, monkeypatch):
    secret = make()[1]
    reads = []
    read = tokens.credentials
    monkeypatch.setattr(tokens, "credentials", lambda *given: reads.append(1) or read(*given))
    for guess in range(200):
        assert ring.load(f"gc_read_{guess}") is None
    assert len(reads) <= token_cache.UNKNOWN[0] + 1
    assert ring.load(secret) is not None
    clock.now += 0.1
    assert ring.load("gc_read_more") is None
    assert len(reads) <= token_cache.UNKNOWN[0] + 1


def test_token_revocation_is_seen_here_at_once_and_elsewhere_soon(archive, ring, make, clock):
    made, secret = make()
    other = TokenCache(archive.database, clock)
    assert ring.load(secret) is not None
    assert other.load(secret) is not None
    clock.now += 0.1
    assert revoke(archive, made.id).revoked is not None
    ring.invalidate()
    clock.now += 0.1
    assert ring.get(secret) is None
    assert ring.load(secret) is None
    clock.now += FRESH_S
    assert other.get(secret) is None
    assert other.load(secret) is None
    with pytest.raises(RequestError, match="no token"):
        revoke(archive, made.id)


def test_token_expires_with_its_days(archive, ring, make, clock, monkeypatch):
    monkeypatch.setattr(token_cache, "FRESH_S", 10 * DAY)
    _, secret = make(days=1.0)
    assert ring.load(secret) is not None
    assert ring.get(secret) is not None
    clock.now += DAY + 1  # the keyring's; the database's is where it was
    assert ring.get(secret) is None
    assert ring.load(secret) is None
    with archive.database.write() as connection:
        connection.execute(update(token_table).values(expires=archive.database.now(connection) - 1))
    assert TokenCache(archive.database).load(secret) is None


def test_token_use_is_recorded_once_a_minute(archive, ring, make, clock):
    _, secret = make()

    def noted():
        with archive.database.read() as connection:
            return tokens.all_tokens(connection)[0].last_used

    assert noted() is None
    ring.load(secret)
    first = noted()
    assert first is not None
    with archive.database.write() as connection:
        connection.execute(update(token_table).values(last_used=1.0))
    clock.now += 59
    assert ring.load(secret) is not None
    assert noted() == 1.0
    clock.now += 2
    assert ring.get(secret) is None, "that it is in use has to be noted"
    assert ring.load(secret) is not None
    assert noted() >= first


def test_read_token_works_while_nothing_can_be_written(archive, ring, make, monkeypatch):
    _, secret = make()

    @contextlib.contextmanager
    def full():
        raise StoreUnavailable("The disk is full.")
        yield

    monkeypatch.setattr(archive.database, "write", full)
    assert ring.load(secret) is not None
    assert ring.get(secret) is not None


def test_a_visit_opens_what_its_token_does_and_ends_with_it(archive, ring, make, clock):
    made, _ = make("admin", "ada", days=1.0)
    with archive.database.write() as connection:
        now = archive.database.now(connection)
        cookies = [tokens.create_web_session(connection, made.id, now + place) for place in range(3)]
    assert ring.load(cookies[0]) == Principal("ada", "admin", made.id)
    with archive.database.write() as connection:
        tokens.end_web_session(connection, cookies[0])
    clock.now += FRESH_S
    assert ring.load(cookies[0]) is None
    assert ring.load(cookies[1]) is not None
    with archive.database.read() as connection:
        expires = {key.expires for key in tokens.credentials(connection, now).values()}
        assert max(expires) <= now + DAY + 1
        assert tokens.credentials(connection, now + 2 * DAY) == {}
    revoke(archive, made.id)
    clock.now += FRESH_S
    assert ring.load(cookies[1]) is None


def test_oldest_web_sessions_end(archive, make, monkeypatch):
    monkeypatch.setattr(tokens, "MAX_WEB_SESSIONS", 3)
    made, _ = make()
    with archive.database.write() as connection:
        now = archive.database.now(connection)
        cookies = [tokens.create_web_session(connection, made.id, now + place) for place in range(5)]
        found = set(connection.scalars(select(web_session.c.secret_hash)))
        assert found == {tokens.secret_digest(each) for each in cookies[2:]}
        tokens.create_web_session(connection, made.id, now + 2 * tokens.WEB_SESSION_S)
        assert connection.execute(select(func.count()).select_from(web_session)).scalar_one() == 1


def test_a_visit_that_began_after_the_clock_was_set_back_is_the_newest(archive, make, monkeypatch):
    monkeypatch.setattr(tokens, "MAX_WEB_SESSIONS", 2)
    made, _ = make()
    with archive.database.write() as connection:
        now = archive.database.now(connection)
        for place in range(2):
            tokens.create_web_session(connection, made.id, now + DAY + place)
        cookies = [tokens.create_web_session(connection, made.id, now + place) for place in range(2)]
        found = set(connection.scalars(select(web_session.c.secret_hash)))
        assert found == {tokens.secret_digest(each) for each in cookies}


def test_token_use_is_recorded_after_the_clock_was_set_back(archive, ring, make):
    made, secret = make()
    with archive.database.write() as connection:
        now = archive.database.now(connection)
        tokens.write_last_use(connection, made.id, now + DAY)
    ring.load(secret)
    with archive.database.read() as connection:
        assert tokens.all_tokens(connection)[0].last_used < now + 60


@pytest.mark.parametrize(
    ("name", "scope", "days"),
    [("", "read", None), ("x" * 101, "read", None), ("a\nb", "read", None), ("a", "root", None), ("a", "read", 0.0),
     ("a", "read", -1.0), ("a", "read", float("nan")), ("a", "read", 1e9)],
)  # fmt: skip
def test_invalid_tokens_are_refused(archive, make, name, scope, days):
    with pytest.raises(RequestError):
        make(scope, name, days)


def test_number_of_tokens_is_limited(make, monkeypatch):
    monkeypatch.setattr(tokens, "MAX_TOKENS", 2)
    make(name="ada")
    make(name="bob")
    with pytest.raises(RequestError, match="revoke some"):
        make(name="eve")


def test_no_two_valid_tokens_have_one_name(archive, make):
    made, _ = make("read", "ada")
    with pytest.raises(RequestError, match=rf"Token {made.id} has the name 'ada'.*gradcanary token revoke {made.id}"):
        make("admin", "ada")
    revoke(archive, made.id)
    make("admin", "ada")


def test_the_first_ones_are_made_once(archive):
    with archive.database.setup_transaction() as connection:
        now = archive.database.now(connection)
        first = tokens.ensure_first(connection, now)
        assert set(first) == {"admin", "ingest"}
        assert tokens.ensure_first(connection, now) == {}
        made = tokens.all_tokens(connection)
        assert [(each.name, each.scope) for each in made] == [("first administrator", "admin"), ("agents", "ingest")]
        told = [each["target"] for each in tokens.audit_page(connection, None)[0]]
        assert told == [f"{each.id} {each.name} ({each.scope})" for each in reversed(made)]
        tokens.revoke_token(connection, tokens.all_tokens(connection)[0].id, now)
        assert set(tokens.ensure_first(connection, now)) == {"admin", "ingest"}
        names = [each.name for each in tokens.all_tokens(connection)]
        assert names == ["first administrator", "agents", "first administrator", "agents 2"]


def test_ended_tokens_are_listed_for_a_month(archive, make):
    made, _ = make()
    make("admin", "bob", 1.0)
    revoke(archive, made.id)
    with archive.database.write() as connection:
        now = archive.database.now(connection)
        assert [each.is_valid(now) for each in tokens.all_tokens(connection)] == [False, True]
        tokens.create_token(connection, "new", "read", None, now + 40 * DAY)
        assert [each.name for each in tokens.all_tokens(connection)] == ["new"]


def test_the_audit_log_is_bounded_in_age(archive):
    with archive.database.write() as connection:
        tokens.write_audit_record(connection, 0.0, "ada", "10.0.0.1", "DELETE /runs/x")
        tokens.write_audit_record(connection, 1.0, "", "10.0.0.2", tokens.REFUSED)
        tokens.write_audit_record(connection, 40 * DAY, "x" * 999, "y" * 999, "z" * 999, "w" * 999, 7)
        assert [(each["action"][:5], each["token"]) for each in tokens.audit_page(connection, None)[0]] == [
            ("zzzzz", 7),
            ("DELET", None),
        ]
        tokens.write_audit_record(connection, 400 * DAY, "ada", "", "last")
        assert [each["action"][:5] for each in tokens.audit_page(connection, None)[0]] == ["last", "zzzzz"]


def test_token_commands(archive, ring):
    said = []
    commands.list_tokens(archive.url, said.append)
    place = maintenance.display_address(archive.url)
    assert said == [f"No tokens in {place}: gradcanary token create --scope admin --name YOU"]
    remarks = []
    commands.create_token(archive.url, "read", "ada's laptop", 3.0, said.append, remarks.append)
    assert remarks == [f"it opens the store at {place}"]
    secret = said.pop()
    assert ring.load(secret).name == "ada's laptop"
    said.clear()
    commands.list_tokens(archive.url, said.append)
    assert len(said) == 2
    assert "ada's laptop" in said[1]
    assert said[0].endswith("EXPIRES")
    assert secret not in str(said)
    number = ring.load(secret).token_id
    commands.revoke_token(archive.url, number, said.append)
    assert "opens nothing any more" in said[-1]
    ring.invalidate()
    assert ring.load(secret) is None
    commands.list_tokens(archive.url, said.append)
    assert said[-1].endswith("revoked")
    with pytest.raises(CollectorError, match=f"no token {number}"):
        commands.revoke_token(archive.url, number, said.append)
    with archive.database.read() as connection:
        assert [each["action"] for each in tokens.audit_page(connection, None)[0]] == [
            f"DELETE /tokens/{number}",
            "POST /tokens",
        ]


def test_a_list_waits_for_no_writer(archive, make):
    make(name="ada")
    said = []
    with archive.database.write() as connection:
        tokens.write_audit_record(connection, 0.0, "ada", "", "something that takes long")
        commands.list_tokens(archive.url, said.append)
    assert "ada" in said[1]


def test_a_store_is_used_once_a_collector_has_had_it_open(empty_url):
    assert not commands.is_used(empty_url)
    commands.create_token(empty_url, "admin", "ada", None, print, print)
    assert not commands.is_used(empty_url)
    with contextlib.closing(Database(empty_url)) as database:
        with database.write() as connection:
            heartbeat.listen(database, connection)
        assert commands.is_used(empty_url)


@pytest.mark.parametrize(
    ("found", "says"),
    [("0001", "The tables are of revision 0001, and"), ("9999", r"by a newer gradcanary \(revision 9999; here is")],
)
def test_a_store_of_another_version_is_left_alone(archive, make, found, says):
    make(name="ada")
    with archive.database.write() as connection:
        before = maintenance.revision(connection)
        connection.execute(text("UPDATE alembic_version SET version_num = :found"), {"found": found})
    try:
        for asks in (
            lambda: commands.list_tokens(archive.url, print),
            lambda: commands.revoke_token(archive.url, 1, print),
            lambda: commands.create_token(archive.url, "admin", "bob", None, print, print),
            lambda: commands.is_used(archive.url),
        ):
            with pytest.raises(CollectorError, match=says):
                asks()
    finally:
        with archive.database.write() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = :before"), {"before": before})
    with archive.database.read() as connection:
        assert [(each.name, each.revoked) for each in tokens.all_tokens(connection)] == [("ada", None)]


def test_the_first_token_makes_the_store(empty_url):
    said = []
    for asks in (
        lambda: commands.list_tokens(empty_url, said.append),
        lambda: commands.revoke_token(empty_url, 1, print),
    ):
        with pytest.raises(CollectorError, match=r"There is no store at .* --data DIR, or its database with --db URL"):
            asks()
    commands.create_token(empty_url, "admin", "ada", None, said.append, said.append)
    assert "is new; of a collector that runs elsewhere, name" in said[0]
    commands.list_tokens(empty_url, said.append)
    assert "ada" in said[-1]
    assert said[-1].endswith("never")
