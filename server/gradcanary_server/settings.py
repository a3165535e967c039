"""Settings of a collector, from the command line and the environment."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from gradcanary_server import caches
from gradcanary_server.errors import SettingsError

MAX_DAYS = 36_500
MAX_CACHE_MB = 2**20

LOG_KINDS = ("text", "json")

DEFAULT_PUBLIC_URL = "http://127.0.0.1:8787"

NETWORKS = "networks with commas, 10.0.0.0/8 for example"
PROXIES = "addresses and networks, such as 10.0.0.7,10.1.0.0/24"


LOOPBACK_ORIGINS = ("http://localhost:*", "http://127.0.0.1:*")
"""As sources of a Content-Security-Policy, which has no IPv6 address; those of TLS are among them."""

_ORIGIN = re.compile(r"https?://[a-z0-9]([a-z0-9.-]*[a-z0-9])?(:[0-9]{1,5})?", re.IGNORECASE)


@dataclass(frozen=True)
class Certificate:
    """The PEM files for TLS: the certificate with its chain, and its key."""

    chain: Path
    key: Path


@dataclass(frozen=True)
class Settings:
    """Data, rules, endpoints and access of a collector; ``db`` is an SQLAlchemy URL.

    ``embed_in`` are the origins whose pages may show those of the collector in a frame. ``cache_mb`` is of one of its
    ``workers``.
    """

    data: Path
    db: str
    rules: Path | None = None
    webhooks: tuple[str, ...] = ()
    webhook_secret: str | None = field(default=None, repr=False)
    webhook_networks: tuple[IPv4Network | IPv6Network, ...] = ()
    notify: tuple[str, ...] = field(default=(), repr=False)
    public_url: str = DEFAULT_PUBLIC_URL
    hosts: tuple[str, ...] = ()
    embed_in: tuple[str, ...] = ()
    raw_days: float | None = None
    log: str = "text"
    auth: bool = False
    reached_by_others: bool = False
    proxies: tuple[str, ...] = ()
    tls: Certificate | None = None
    cache_mb: int = caches.DEFAULT_MB
    workers: int = 1

    @property
    def framed_by(self) -> tuple[str, ...]:
        """The origins whose pages may show ours; without tokens also those of this machine."""
        return self.embed_in if self.auth else (*LOOPBACK_ORIGINS, *self.embed_in)

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str],
        *,
        data: Path,
        db: str | None = None,
        rules: Path | None = None,
        webhooks: Sequence[str] = (),
        notify: Sequence[str] = (),
        url: str = DEFAULT_PUBLIC_URL,
        auth: bool = False,
        reached_by_others: bool = False,
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        workers: int = 1,
    ) -> Settings:
        """Return the settings of these arguments and of the variables (docs/reference/environment.md).

        Raises SettingsError.
        """
        data = data.expanduser().absolute()
        rules_file = environ.get("GRADCANARY_RULES_FILE")
        db = address(environ, data=data, db=db)
        _check_workers(workers, db)
        return cls(
            data=data,
            db=db,
            rules=rules or (Path(rules_file) if rules_file else None),
            webhooks=(*webhooks, *_lines(environ, "GRADCANARY_WEBHOOK_FILE")),
            webhook_secret=_secret(environ, "GRADCANARY_WEBHOOK_SECRET"),
            webhook_networks=_networks(environ, "GRADCANARY_WEBHOOK_NETWORKS", NETWORKS),
            notify=(*notify, *_lines(environ, "GRADCANARY_NOTIFY_FILE")),
            public_url=_public_url(environ.get("GRADCANARY_PUBLIC_URL") or url),
            raw_days=_days(environ.get("GRADCANARY_RAW_DAYS")),
            log=_log(environ.get("GRADCANARY_LOG")),
            hosts=_items(environ.get("GRADCANARY_HOSTS")),
            embed_in=_origins(environ.get("GRADCANARY_EMBED_IN")),
            auth=_auth(environ.get("GRADCANARY_AUTH"), asked=auth, needed=reached_by_others),
            reached_by_others=reached_by_others,
            proxies=tuple(map(str, _networks(environ, "GRADCANARY_PROXIES", PROXIES))),
            tls=_certificate(tls_cert, tls_key),
            cache_mb=max(_cache_mb(environ.get("GRADCANARY_CACHE_MB")) // workers, 1),
            workers=workers,
        )


def address(environ: Mapping[str, str], *, data: Path, db: str | None) -> str:
    """Return the address of the store: ``db``, else an SQLite file in ``data``; raises SettingsError.

    ``GRADCANARY_DB_PASSWORD`` or its ``_FILE``: the password of a ``db`` that has none in it.
    """
    db = db or f"sqlite:///{data.expanduser().absolute() / 'gradcanary.db'}"
    password = _secret(environ, "GRADCANARY_DB_PASSWORD")
    if password is None:
        return db
    try:
        url = make_url(db)
    except (ArgumentError, ValueError):
        return db  # the database module reports the error
    if url.username is None or url.password is not None:
        raise SettingsError(
            "GRADCANARY_DB_PASSWORD is the password of --db postgresql://USER@HOST/NAME, with a user and without a "
            "password in it: give --db so, or unset GRADCANARY_DB_PASSWORD and GRADCANARY_DB_PASSWORD_FILE."
        )
    return url.set(password=password).render_as_string(hide_password=False)


def _secret(environ: Mapping[str, str], key: str) -> str | None:
    path = environ.get(f"{key}_FILE")
    if not path:
        return environ.get(key) or None
    if environ.get(key):
        raise SettingsError(f"{key} and {key}_FILE are both set: set one of them.")
    return _text(path, f"{key}_FILE", "with the secret").strip() or None


def _lines(environ: Mapping[str, str], key: str) -> list[str]:
    """Return the lines of a file, without empty ones and those that begin with #."""
    path = environ.get(key)
    lines = _text(path, key, "with an address in each line").splitlines() if path else ()
    return [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]


def _text(path: str, key: str, content: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{key}={path!r} cannot be read ({error}): name a text file {content}.") from error


def _networks(environ: Mapping[str, str], key: str, expected: str) -> tuple[IPv4Network | IPv6Network, ...]:
    value = environ.get(key)
    try:
        return tuple(ip_network(item) for item in _items(value))
    except ValueError as error:
        raise SettingsError(f"{key}={value!r} must be {expected} ({error}).") from error


def _items(value: str | None) -> tuple[str, ...]:
    return tuple(item.strip() for item in (value or "").split(",") if item.strip())


def _auth(value: str | None, *, asked: bool, needed: bool) -> bool:
    if value not in (None, "", "on", "off"):
        raise SettingsError(f"GRADCANARY_AUTH={value!r} must be on or off.")
    if value == "off" and (asked or needed):
        reason = "--auth asks for tokens" if asked else "other machines reach this --host, and are asked for tokens"
        raise SettingsError(f"GRADCANARY_AUTH=off cannot be: {reason}. Leave it away, or listen on 127.0.0.1.")
    return asked or needed or value == "on"


def _public_url(given: str) -> str:
    try:
        parts = urlsplit(given.rstrip("/"))
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or parts.path or parts.query or parts.fragment or parts.username or not given.isprintable():
        raise SettingsError(f"GRADCANARY_PUBLIC_URL={given!r} must be scheme, host and port: https://HOST[:PORT].")
    return given.rstrip("/")


def _origins(given: str | None) -> tuple[str, ...]:
    origins = tuple(item.rstrip("/") for item in _items(given))
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise SettingsError(
                f"GRADCANARY_EMBED_IN={given!r} must be origins with commas, https://jupyter.example:8888 for example; "
                f"{origin!r} is none."
            )
    return origins


def _certificate(chain: Path | None, key: Path | None) -> Certificate | None:
    if chain is None and key is None:
        return None
    if chain is None or key is None:
        raise SettingsError("--tls-cert and --tls-key go together: the certificate's file and its key's, PEM.")
    try:
        # With a password OpenSSL would prompt at a terminal that may not be there.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(chain, key, password="")
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"--tls-cert {chain} and --tls-key {key} cannot be used ({error}): name a certificate and its key, PEM, "
            "the key without a password."
        ) from error
    return Certificate(chain.absolute(), key.absolute())


def _days(given: str | None) -> float | None:
    if not given:
        return None
    try:
        days = float(given)
    except ValueError:
        days = -1.0
    if not 0 < days < MAX_DAYS:
        raise SettingsError(f"GRADCANARY_RAW_DAYS={given!r} must be a number of days over 0.")
    return days


def _cache_mb(given: str | None) -> int:
    if not given:
        return caches.DEFAULT_MB
    megabytes = int(given) if given.isascii() and given.isdigit() and len(given) <= len(str(MAX_CACHE_MB)) else 0
    if not 1 <= megabytes <= MAX_CACHE_MB:
        raise SettingsError(f"GRADCANARY_CACHE_MB={given!r} must be a whole number of MiB, 1 to {MAX_CACHE_MB}.")
    return megabytes


def _check_workers(workers: int, db: str) -> None:
    """Raise SettingsError unless so many processes can serve this store, on this system."""
    if workers > 1 and db.startswith("sqlite"):
        raise SettingsError(
            f"--workers {workers} needs PostgreSQL: SQLite is one file, which one process writes. Leave --workers out, "
            "or name a database with --db postgresql://USER@HOST/NAME."
        )
    if workers > 1 and not hasattr(os, "fork"):
        raise SettingsError(f"--workers {workers}: this system starts no second process so. Leave --workers out.")


def _log(value: str | None) -> str:
    kind = value or "text"
    if kind not in LOG_KINDS:
        raise SettingsError(f"GRADCANARY_LOG={value!r} must be {' or '.join(LOG_KINDS)}.")
    return kind
