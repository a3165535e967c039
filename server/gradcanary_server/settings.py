"""What the operator decides, from the command line and the environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gradcanary_server import log_lines
from gradcanary_server.errors import SettingsError

MAX_DAYS = 36_500

DEFAULT_PUBLIC_URL = "http://127.0.0.1:8787"


@dataclass(frozen=True)
class Settings:
    """Where data lives, which rules hold, who is told; ``db`` is an SQLAlchemy URL."""

    data: Path
    db: str
    rules: Path | None = None
    webhook: str | None = None
    webhook_secret: str | None = None
    public_url: str = DEFAULT_PUBLIC_URL
    hosts: tuple[str, ...] = ()
    raw_days: float | None = None
    log: str = "text"

    @classmethod
    def from_env(
        cls,
        environ: Mapping[str, str],
        *,
        data: Path,
        db: str | None = None,
        rules: Path | None = None,
        webhook: str | None = None,
        url: str = DEFAULT_PUBLIC_URL,
    ) -> "Settings":
        """Return the settings of these arguments; secrets come from ``GRADCANARY_WEBHOOK_SECRET`` or its ``_FILE``.

        ``GRADCANARY_HOSTS`` lists host names, with commas, under which the collector may be asked beside loopback ones;
        ``GRADCANARY_RAW_DAYS`` is how long single samples are kept, after which the pyramid alone is (default: ever);
        ``GRADCANARY_LOG`` is ``text`` or ``json``: how the process writes what happens to it.
        """
        data = data.expanduser().absolute()
        return cls(
            data=data,
            db=db or address(data),
            rules=rules,
            webhook=webhook,
            webhook_secret=_secret(environ, "GRADCANARY_WEBHOOK_SECRET"),
            public_url=url.rstrip("/"),
            raw_days=_days(environ.get("GRADCANARY_RAW_DAYS")),
            log=_log(environ.get("GRADCANARY_LOG")),
            hosts=tuple(name.strip() for name in environ.get("GRADCANARY_HOSTS", "").split(",") if name.strip()),
        )


def address(data: Path) -> str:
    """Return the address of the SQLite store in a collector's folder."""
    return f"sqlite:///{data.expanduser().absolute() / 'gradcanary.db'}"


def _secret(environ: Mapping[str, str], key: str) -> str | None:
    path = environ.get(f"{key}_FILE")
    if path is None:
        return environ.get(key) or None
    if environ.get(key):
        raise SettingsError(f"{key} and {key}_FILE are both set: set one of them.")
    try:
        return Path(path).read_text("utf-8").strip() or None
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(
            f"{key}_FILE={path!r} cannot be read ({error}): name a text file with the secret."
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


def _log(given: str | None) -> str:
    kind = given or "text"
    if kind not in log_lines.KINDS:
        raise SettingsError(f"GRADCANARY_LOG={given!r} must be {' or '.join(log_lines.KINDS)}.")
    return kind
