"""Addresses and secrets that the operator gives; retries; signatures."""

from datetime import datetime, timedelta, timezone

import pytest
from sqlalchemy import select, update
from standardwebhooks import Webhook

from gradcanary_server.errors import RequestError, SettingsError
from gradcanary_server.notify import configured_endpoints, egress, endpoints, webhook
from gradcanary_server.notify.webhook import OutgoingMessage
from gradcanary_server.settings import Settings
from gradcanary_server.storage.schema import endpoint

SECRET = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVowMTIzNDU="

OTHER = "whsec_" + "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="


def ensure(store, url, secret=None):
    with store.database.write() as connection:
        return endpoints.upsert_configured(connection, endpoints.ConfiguredEndpoint(url), secret, 1.0)


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
        connection.execute(update(endpoint).values(disabled=1.0, disabled_reason="gone", failing_since=1.0))
        assert endpoints.enabled_endpoints(connection) == []
    ensure(store, "http://127.0.0.1:9/hook")
    with store.database.read() as connection:
        assert [target.url for target in endpoints.enabled_endpoints(connection)] == ["http://127.0.0.1:9/hook"]


def test_an_endpoint_that_is_not_given_any_more_is_told_no_more(store):
    ensure(store, "http://127.0.0.1:9/old")
    ensure(store, "http://127.0.0.1:9/new")
    with store.database.write() as connection:
        endpoints.disable_missing(connection, ["http://127.0.0.1:9/new"], 2.0)
        assert [target.url for target in endpoints.enabled_endpoints(connection)] == ["http://127.0.0.1:9/new"]
        endpoints.disable_missing(connection, [], 3.0)
        assert endpoints.enabled_endpoints(connection) == []
    assert [row["disabled"] for row in store.rows(select(endpoint).order_by(endpoint.c.endpoint_id))] == [2.0, 3.0]


def test_endpoints_made_over_http_are_not_the_command_lines(store):
    with store.database.write() as connection:
        number = endpoints.create_endpoint(connection, "http://8.8.8.8/", {}, None, 1.0)
        endpoints.disable_missing(connection, [], 2.0)
        assert [target.id for target in endpoints.enabled_endpoints(connection)] == [number]
        endpoints.upsert_configured(connection, endpoints.ConfiguredEndpoint("http://8.8.8.8/"), None, 3.0)
        endpoints.disable_missing(connection, [], 4.0)
        assert endpoints.enabled_endpoints(connection) == [], "one that the command line named is the operator's"


def test_command_line_endpoints_change_on_the_command_line_only(store):
    ensure(store, "http://127.0.0.1:9/hook")
    with store.database.write() as connection:
        for wished in ({"min_severity": "critical"}, {"url": "http://8.8.8.8/"}, {"sends_ended": True}):
            with pytest.raises(RequestError, match="command line"):
                endpoints.change_endpoint(connection, 1, wished, None, 1.0)
        with pytest.raises(RequestError, match="start without it"):
            endpoints.delete_endpoint(connection, 1, 1.0)
        with pytest.raises(RequestError, match="GRADCANARY_WEBHOOK_SECRET"):
            endpoints.rotate_secret(connection, 1, 1.0, is_given=True)
        endpoints.change_endpoint(connection, 1, {"name": "nights", "min_severity": "warning"}, False, 1.0)
        endpoints.delete_endpoint(connection, 1, 2.0)
    [row] = store.rows(select(endpoint))
    assert (row["url"], row["secret"], row["name"], row["disabled"]) == ("deleted:1", "", "nights", 2.0)
    assert ensure(store, "http://127.0.0.1:9/hook") is not None, "given again it is another endpoint"


def test_a_secret_that_changes_signs_beside_the_one_before_for_a_day(store):
    old = ensure(store, "http://127.0.0.1:9/hook")
    ensure(store, "http://127.0.0.1:9/hook", SECRET)
    ensure(store, "http://127.0.0.1:9/hook", SECRET)
    [row] = store.rows(select(endpoint))
    assert endpoints.signing_secrets(row, 1.0 + 86_399) == (SECRET, old)
    assert endpoints.signing_secrets(row, 1.0 + 86_400) == (SECRET,)


def test_number_of_endpoints_is_limited(store, monkeypatch):
    monkeypatch.setattr(endpoints, "MAX_ENDPOINTS", 1)
    with store.database.write() as connection:
        endpoints.create_endpoint(connection, "http://8.8.8.8/1", {}, None, 1.0)
        with pytest.raises(RequestError, match="remove some"):
            endpoints.create_endpoint(connection, "http://8.8.8.8/2", {}, None, 1.0)


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
        "https://bücher.example/hook",
    ],
)
def test_endpoint_without_an_http_address_is_refused(store, url):
    with pytest.raises(SettingsError, match="--webhook"):
        ensure(store, url)


def test_an_address_given_twice_is_refused(tmp_path):
    settings = Settings(tmp_path, "sqlite://", webhooks=("http://here/hook", "critical=http://here/hook"))
    with pytest.raises(SettingsError, match="http://here/hook is given twice"):
        configured_endpoints.read_configured(settings)


def test_an_address_is_shown_without_its_keys():
    assert (
        egress.redact_url("https://a.example/hooks/catch/123/b7hf93ksl20dkf93")
        == "https://a.example/hooks/catch/123/****"
    )
    assert egress.redact_url("http://here:81/hook?key=1#x") == "http://here:81/hook?****#****"
    assert egress.redact_url("http://here/hook") == "http://here/hook"
    assert (
        egress.redact_url("https://a.example/api/v2/T024/aB3xyz/secret-9") == "https://a.example/api/v2/****/****/****"
    )
    assert egress.redact_url("https://a.example/web-hooks/x/") == "https://a.example/web-hooks/x/"


@pytest.mark.parametrize("place", ["example.com", "example.com:port", "[example"])
def test_credentials_are_refused_and_not_repeated(store, place):
    with pytest.raises(SettingsError, match="user@") as refused:
        ensure(store, f"https://user:hunter2@{place}/hook")
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize("secret", ["short", "whsec_", "whsec_!!", "whsec_QUJD", SECRET.removeprefix("whsec_")])
def test_a_weak_secret_is_refused(store, secret):
    with pytest.raises(SettingsError, match="whsec_"):
        ensure(store, "https://example.com/hook", secret)


def test_signature_uses_both_secrets():
    message = OutgoingMessage("msg_1_1", "http://x", (SECRET, OTHER), b'{"type":"x"}')
    headers = webhook.signed_headers(message, datetime.now(timezone.utc))
    for secret in (SECRET, OTHER):
        Webhook(secret).verify(message.body, headers)


def test_signatures_hold_in_every_time_zone():
    message = OutgoingMessage("msg_1_1", "http://x", (SECRET,), '{"type":"é"}'.encode())
    for hours in (-9, 0, 5):
        moment = datetime.now(timezone(timedelta(hours=hours)))
        assert Webhook(SECRET).verify(message.body, webhook.signed_headers(message, moment)) == {"type": "é"}


def test_retries_begin_at_five_seconds_and_end_at_four_hours():
    delays = [webhook.retry_delay(failures, None, 0.0) for failures in range(1, 20)]
    assert delays[:4] == [5, 10, 20, 40]
    assert delays == sorted(delays)
    assert delays[-1] == 4 * 3600
    assert webhook.retry_delay(1, 60.0, -1.0) == 60
    assert webhook.retry_delay(1, 1e9, 0.0) == 4 * 3600
    assert webhook.retry_delay(1, None, -1.0) == 4
