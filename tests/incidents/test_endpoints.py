"""Addresses and secrets that the operator gives; retries; signatures."""

from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import select, update
from standardwebhooks import Webhook

from gradcanary_server import endpoints, webhooks
from gradcanary_server.errors import SettingsError
from gradcanary_server.schema import endpoint
from gradcanary_server.webhooks import Message

SECRET = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="


def ensure(store, url, secret=None):
    with store.database.write() as connection:
        return endpoints.ensure_operator_endpoint(connection, url, secret, 1.0)


def test_a_secret_is_made_once(store):
    made = ensure(store, "http://127.0.0.1:9/hook")
    assert made.startswith("whsec_")
    assert ensure(store, "http://127.0.0.1:9/hook") is None
    assert [row["secret"] for row in store.rows(select(endpoint))] == [made]
    assert ensure(store, "http://127.0.0.1:9/hook", SECRET) is None
    assert [row["secret"] for row in store.rows(select(endpoint))] == [SECRET]
    assert ensure(store, "https://example.com/hook", SECRET) is None


def test_the_operator_enables_an_endpoint_again(store):
    ensure(store, "http://127.0.0.1:9/hook")
    with store.database.write() as connection:
        connection.execute(update(endpoint).values(disabled=1.0, disabled_why="gone", failing_since=1.0))
        assert endpoints.enabled(connection) == []
    ensure(store, "http://127.0.0.1:9/hook")
    with store.database.read() as connection:
        assert [target.url for target in endpoints.enabled(connection)] == ["http://127.0.0.1:9/hook"]


def test_an_endpoint_that_is_not_given_any_more_is_told_no_more(store):
    ensure(store, "http://127.0.0.1:9/old")
    ensure(store, "http://127.0.0.1:9/new")
    with store.database.write() as connection:
        endpoints.disable_others(connection, ["http://127.0.0.1:9/new"], 2.0)
        assert [target.url for target in endpoints.enabled(connection)] == ["http://127.0.0.1:9/new"]
        endpoints.disable_others(connection, [], 3.0)
        assert endpoints.enabled(connection) == []
    assert [row["disabled"] for row in store.rows(select(endpoint).order_by(endpoint.c.endpoint_id))] == [2.0, 3.0]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "ftp://host/x",
        "file:///etc/passwd",
        "http://",
        "http:///x",
        "host:80/x",
        "http://host:99999/",
        "http://h\nx/",
        "http://a b/",
        "http://[::1/",
    ],
)
def test_what_is_no_http_address_is_refused_with_a_reason(store, url):
    with pytest.raises(SettingsError, match="--webhook"):
        ensure(store, url)


def test_credentials_are_refused_and_not_repeated(store):
    with pytest.raises(SettingsError, match="password") as refused:
        ensure(store, "https://user:hunter2@example.com/hook")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("secret", ["short", "whsec_", "whsec_!!", "whsec_QUJD", SECRET.removeprefix("whsec_")])
def test_a_weak_secret_is_refused(store, secret):
    with pytest.raises(SettingsError, match="whsec_"):
        ensure(store, "https://example.com/hook", secret)


def test_signatures_hold_in_every_time_zone():
    message = Message("msg_1_1", "http://x", (SECRET,), '{"type":"é"}'.encode())
    for hours in (-9, 0, 5):
        moment = datetime.now(timezone(timedelta(hours=hours)))
        assert Webhook(SECRET).verify(message.body, webhooks.signed(message, moment)) == {"type": "é"}


def test_retries_begin_at_five_seconds_and_end_at_four_hours():
    delays = [webhooks.retry_delay(failures, None, 0.0) for failures in range(1, 20)]
    assert delays[:4] == [5, 10, 20, 40]
    assert delays == sorted(delays)
    assert delays[-1] == 4 * 3600
    assert webhooks.retry_delay(1, 60.0, -1.0) == 60
    assert webhooks.retry_delay(1, 1e9, 0.0) == 4 * 3600
    assert webhooks.retry_delay(1, None, -1.0) == 4
