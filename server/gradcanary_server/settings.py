"""What the operator decides, from the command line and the environment."""

from __future__ import annotations

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_network
from pathlib import Path
from urllib.parse import urlsplit

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from gradcanary_server import addresses, log_lines
from gradcanary_server.addresses import Network
from gradcanary_server.errors import SettingsError

MAX_DAYS = 36_500

DEFAULT_PUBLIC_URL = "http://127.0.0.1:8787"


@dataclass(frozen=True)
class Certificate:
    """The files, PEM, with which TLS is spoken: the certificate with those that lead to its authority, and its key."""

    chain: Path
    key: Path


@dataclass(frozen=True)
class Settings:
    """Where data lives, which rules hold, who is told, who is let in; ``db`` is an SQLAlchemy URL."""

    data: Path
    db: str
    rules: Path | None = None
    webhooks: tuple[str, ...] = ()
    webhook_secret: str | None = field(default=None, repr=False)
    webhook_networks: tuple[Network, ...] = ()
    notify: tuple[str, ...] = field(default=(), repr=False)
    public_url: str = DEFAULT_PUBLIC_URL
    hosts: tuple[str, ...] = ()
    raw_days: float | None = None
    log: str = "text"
    auth: bool = False
    proxies: tuple[str, ...] = ()
    tls: Certificate | None = None

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
    ) -> Settings:
        """Return the settings of these arguments and variables; raises SettingsError.

        ``GRADCANARY_WEBHOOK_SECRET`` or its ``_FILE``: what messages are signed with.
        ``GRADCANARY_DB_PASSWORD`` or its ``_FILE``: the password of a ``db`` that has none in it.
        ``GRADCANARY_RAW_DAYS``: how long single samples are kept, after which the pyramid alone is (default: ever).
        ``GRADCANARY_HOSTS``: names, with commas, under which a collector that asks for no tokens may be asked, beside
        loopback ones.
        ``GRADCANARY_AUTH=on``: tokens are asked for, as by ``auth``, and as always where it is ``reached_by_others``.
        ``GRADCANARY_PROXIES``: addresses and networks whose ``X-Forwarded-For`` and ``-Proto`` are believed.
        ``GRADCANARY_PUBLIC_URL``: the address that people use, where it is not the one that this machine knows.
        ``GRADCANARY_LOG``: ``text`` or ``json``, how the process writes what happens to it.
        ``GRADCANARY_WEBHOOK_NETWORKS``: networks (10.0.0.0/8) where receivers of endpoints made over HTTP may be.
        ``GRADCANARY_NOTIFY_FILE``: a file with a ``--notify`` in each line.
        ``GRADCANARY_WEBHOOK_FILE``: a file with a ``--webhook`` in each line.
        ``GRADCANARY_RULES_FILE``: the ``--rules`` where that is not given.
        """
        data = data.expanduser().absolute()
        return cls(
            data=data,
            db=address(environ, data=data, db=db),
            rules=rules or _file(environ.get("GRADCANARY_RULES_FILE")),
            webhooks=(*webhooks, *_lines(environ, "GRADCANARY_WEBHOOK_FILE")),
            webhook_secret=_secret(environ, "GRADCANARY_WEBHOOK_SECRET"),
            webhook_networks=_networks(environ.get("GRADCANARY_WEBHOOK_NETWORKS", "")),
            notify=(*notify, *_lines(environ, "GRADCANARY_NOTIFY_FILE")),
            public_url=_public_url(environ.get("GRADCANARY_PUBLIC_URL") or url),
            raw_days=_days(environ.get("GRADCANARY_RAW_DAYS")),
            log=_log(environ.get("GRADCANARY_LOG")),
            hosts=_listed(environ.get("GRADCANARY_HOSTS")),
            auth=_auth(environ.get("GRADCANARY_AUTH"), asked=auth, needed=reached_by_others),
            proxies=_proxies(environ.get("GRADCANARY_PROXIES")),
            tls=_certificate(tls_cert, tls_key),
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
        return db  # what is wrong with it is said by who opens it
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
    lines = (line.strip() for line in _text(path, key, "with an address in each line").splitlines()) if path else ()
    return [line for line in lines if line and not line.startswith("#")]


def _file(given: str | None) -> Path | None:
    return Path(given) if given else None


def _text(path: str, key: str, holding: str) -> str:
    try:
        return Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{key}={path!r} cannot be read ({error}): name a text file {holding}.") from error


def _networks(given: str) -> tuple[Network, ...]:
    try:
        return addresses.networks(given)
    except ValueError as error:
        raise SettingsError(
            f"GRADCANARY_WEBHOOK_NETWORKS={given!r} must be networks with commas, 10.0.0.0/8 for example ({error})."
        ) from error


def _listed(given: str | None) -> tuple[str, ...]:
    return tuple(each.strip() for each in (given or "").split(",") if each.strip())


def _auth(given: str | None, *, asked: bool, needed: bool) -> bool:
    if given not in (None, "", "on", "off"):
        raise SettingsError(f"GRADCANARY_AUTH={given!r} must be on or off.")
    if given == "off" and (asked or needed):
        why = "--auth asks for tokens" if asked else "other machines reach this --host, and are asked for tokens"
        raise SettingsError(f"GRADCANARY_AUTH=off cannot be: {why}. Leave it away, or listen on 127.0.0.1.")
    return asked or needed or given == "on"


def _proxies(given: str | None) -> tuple[str, ...]:
    try:
        return tuple(str(ip_network(each)) for each in _listed(given))
    except ValueError as error:
        raise SettingsError(
            f"GRADCANARY_PROXIES={given!r} must be addresses and networks, such as 10.0.0.7,10.1.0.0/24 ({error})."
        ) from error


def _public_url(given: str) -> str:
    try:
        parts = urlsplit(given.rstrip("/"))
        is_address = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_address = False
    if not is_address or parts.path or parts.query or parts.fragment or parts.username or not given.isprintable():
        raise SettingsError(f"GRADCANARY_PUBLIC_URL={given!r} must be scheme, host and port: https://HOST[:PORT].")
    return given.rstrip("/")


def _certificate(chain: Path | None, key: Path | None) -> Certificate | None:
    if chain is None and key is None:
        return None
    if chain is None or key is None:
        raise SettingsError("--tls-cert and --tls-key go together: the certificate's file and its key's, PEM.")
    try:
        # A key with a password would ask for it at a terminal that may not be there.
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


def _log(given: str | None) -> str:
    kind = given or "text"
    if kind not in log_lines.KINDS:
        raise SettingsError(f"GRADCANARY_LOG={given!r} must be {' or '.join(log_lines.KINDS)}.")
    return kind
