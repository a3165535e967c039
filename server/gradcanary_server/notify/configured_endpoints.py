"""The endpoints of the command line (``--webhook``, ``--notify``), and their sync to the tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlalchemy import Connection

from gradcanary_server.errors import SettingsError
from gradcanary_server.notify import apprise_channel, egress, endpoints
from gradcanary_server.notify.apprise_channel import Channel
from gradcanary_server.notify.endpoints import ConfiguredEndpoint
from gradcanary_server.settings import Settings
from gradcanary_server.storage.database import Database


@dataclass(frozen=True)
class ConfiguredEndpoints:
    """The endpoints of the command line, and the ``channels`` of those for apprise by key."""

    endpoints: tuple[ConfiguredEndpoint, ...]
    channels: dict[str, Channel]
    secret: str | None = field(default=None, repr=False)


def read_configured(settings: Settings) -> ConfiguredEndpoints:
    """Return the endpoints of the command line; raises SettingsError."""
    channels = apprise_channel.open_channels(settings.notify)
    webhooks = [endpoints.parse_configured(text) for text in settings.webhooks]
    urls = [webhook.url for webhook in webhooks]
    for url in urls:
        if urls.count(url) > 1:
            raise SettingsError(f"--webhook {egress.redact_url(url)} is given twice: give it once, with one severity.")
    by_key = {channel.key: channel for channel in channels.values()}
    return ConfiguredEndpoints((*webhooks, *channels), by_key, settings.webhook_secret)


def sync_configured(database: Database, configured: ConfiguredEndpoints) -> tuple[str, ...]:
    """Sync the tables to the command line, and return the lines about endpoints and new secrets for the start.

    Endpoints that the command line does not name any more are disabled. Those made over HTTP stay as they are. Raises
    SettingsError.
    """
    with database.setup_transaction() as connection:
        now = database.now(connection)
        endpoints.disable_missing(connection, [endpoint.url for endpoint in configured.endpoints], now)
        secrets = {
            endpoint.url: endpoints.upsert_configured(connection, endpoint, configured.secret, now)
            for endpoint in configured.endpoints
        }
        return tuple(_startup_lines(connection, secrets))


def _startup_lines(connection: Connection, secrets: dict[str, str | None]) -> Iterator[str]:
    for row in endpoints.all_endpoints(connection):
        if row["disabled"] is None:
            only = "" if row["min_severity"] == "warning" else f", {row['min_severity']} and above"
            yield f"incidents are sent to {endpoints.label(row)}{only}"
    for url, secret in secrets.items():
        if secret is not None:
            owner = f" of {egress.redact_url(url)}" if len(secrets) > 1 else ""
            yield f"webhook secret{owner} (shown once): {secret}"
