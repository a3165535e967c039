"""What the operator decides, from the command line and the environment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradcanary_server import addresses
from gradcanary_server.addresses import Network
from gradcanary_server.errors import SettingsError

MAX_DAYS = 36_500

DEFAULT_PUBLIC_URL = "http://127.0.0.1:8787"


@dataclass(frozen=True)
class Settings:
    """Where data lives, which rules hold, who is told; ``db`` is an SQLAlchemy URL."""

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
    ) -> "Settings":
        """Return the settings of these arguments; secrets come from ``GRADCANARY_WEBHOOK_SECRET`` or its ``_FILE``.

        ``GRADCANARY_HOSTS`` lists host names, with commas, under which the collector may be asked beside loopback ones;
        ``GRADCANARY_WEBHOOK_NETWORKS`` networks (10.0.0.0/8) where receivers of endpoints made over HTTP may be;
        ``GRADCANARY_NOTIFY_FILE`` names a file with a ``--notify`` in each line;
        ``GRADCANARY_RAW_DAYS`` is how long single samples are kept, after which the pyramid alone is (default: ever).
        """
        data = data.expanduser().absolute()
        return cls(
            data=data,
            db=db or f"sqlite:///{data / 'gradcanary.db'}",
            rules=rules,
            webhooks=tuple(webhooks),
            webhook_secret=_secret(environ, "GRADCANARY_WEBHOOK_SECRET"),
            webhook_networks=_networks(environ.get("GRADCANARY_WEBHOOK_NETWORKS", "")),
            notify=(*notify, *_lines(environ, "GRADCANARY_NOTIFY_FILE")),
            public_url=url.rstrip("/"),
            raw_days=_days(environ.get("GRADCANARY_RAW_DAYS")),
            hosts=tuple(name.strip() for name in environ.get("GRADCANARY_HOSTS", "").split(",") if name.strip()),
        )


def _secret(environ: Mapping[str, str], key: str) -> str | None:
    path = environ.get(f"{key}_FILE")
    if path is None:
        return environ.get(key) or None
    if environ.get(key):
        raise SettingsError(f"{key} and {key}_FILE are both set: set one of them.")
    return _text(path, f"{key}_FILE", "with the secret").strip() or None


def _lines(environ: Mapping[str, str], key: str) -> list[str]:
    """Return the lines of a file, without empty ones and those that begin with #."""
    path = environ.get(key)
    lines = (line.strip() for line in _text(path, key, "with an address in each line").splitlines()) if path else ()
    return [line for line in lines if line and not line.startswith("#")]


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
