"""The endpoints of the command line: what ``--webhook`` and ``--notify`` say, and the tables after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlalchemy import Connection

from gradcanary_server import addresses, channels, endpoint_changes, endpoint_views, endpoints
from gradcanary_server.channels import Channel
from gradcanary_server.database import Database
from gradcanary_server.endpoints import Given
from gradcanary_server.errors import SettingsError
from gradcanary_server.settings import Settings


@dataclass(frozen=True)
class Operators:
    """The endpoints that the operator gives, and ``channels``: how those of apprise are reached."""

    given: tuple[Given, ...]
    channels: dict[str, Channel]
    secret: str | None = field(default=None, repr=False)


def read(settings: Settings) -> Operators:
    """Return what the command line says; raises SettingsError on what apprise cannot take."""
    opened = channels.open_all(settings.notify)
    webhooks = [Given(url, severity) for severity, url in map(channels.split, settings.webhooks)]
    named = [each.url for each in webhooks]
    for url in named:
        if named.count(url) > 1:
            raise SettingsError(f"--webhook {addresses.shown(url)} is given twice: give it once, with one severity.")
    return Operators(
        (*webhooks, *opened), {channel.key: channel for channel in opened.values()}, settings.webhook_secret
    )


def settle(database: Database, operators: Operators) -> tuple[str, ...]:
    """Let the tables say what the command line says, and return in lines who is told, with each secret made just now.

    Endpoints of the operator's that it does not name are disabled: leaving one out is how it is removed. Those that
    were made over HTTP stay as they are. Raises SettingsError.
    """
    with database.set_up() as connection:
        now = database.now(connection)
        endpoints.disable_others(connection, [each.url for each in operators.given], now)
        made = {each.url: endpoints.ensure(connection, each, operators.secret, now) for each in operators.given}
        return tuple(_told(connection, made))


def _told(connection: Connection, made: dict[str, str | None]) -> Iterator[str]:
    rows = [row for row in endpoint_changes.every(connection) if row["disabled"] is None]
    for row in rows:
        only = "" if row["min_severity"] == "warning" else f", {row['min_severity']} and above"
        yield f"incidents are told to {endpoint_views.label(row)}{only}"
    for url, secret in made.items():
        if secret is not None:
            of = f" of {addresses.shown(url)}" if len(made) > 1 else ""
            yield f"webhook secret{of} (shown once): {secret}"
