"""What a watch was told: arguments over ``GRADCANARY_*`` over defaults, checked before anything is touched."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from gradcanary.budget import INTERVALS

DEFAULT_URL = "http://127.0.0.1:8787"
DEFAULT_EVERY = "auto"
DEFAULT_BUDGET = 0.01


@dataclass(frozen=True)
class Settings:
    """Checked settings; ``every`` is "auto" or an interval in steps, ``include`` and ``exclude`` search layer names;
    ``budget`` is the share of the time that "auto" keeps to."""

    url: str
    run: str | None
    token: str | None
    every: int | str
    include: re.Pattern[str] | None
    exclude: re.Pattern[str] | None
    absmax_below: float | None
    norm_below: float | None
    step: int | None
    budget: float = DEFAULT_BUDGET

    @classmethod
    def resolve(cls, environ: Mapping[str, str], spelled: str = "watch({}=)", **arguments: Any) -> Settings:  # noqa: ANN401 -- checked by the readers
        """Return the settings; raises ValueError that names the argument or variable, its value and what is allowed.

        ``spelled`` is how the one who gave the arguments writes them. Who gives a default is taken to give nothing.
        """
        chosen: dict[str, Any] = {}
        for name, read in _READERS.items():
            variable = f"GRADCANARY_{name.upper()}"
            given, where = arguments.get(name), spelled.format(name)
            is_given = given is not None and given != _DEFAULTS.get(name)
            if not is_given and environ.get(variable):
                given, where = environ[variable], variable
            chosen[name] = None if given is None else _read(read, given, where)
        filled: dict[str, Any] = {
            name: _DEFAULTS.get(name) if value is None else value for name, value in chosen.items()
        }
        return cls(**filled)


def _read(read: Callable[[Any], Any], given: object, where: str) -> object:
    try:
        return read(given)
    except (TypeError, ValueError) as error:
        said = "not usable" if read is _token else repr(given)  # what goes into a log must not open anything
        raise ValueError(f"{where} is {said}: {error}") from error


def _url(given: str) -> str:
    if not _text(given).isascii() or not given.isprintable() or " " in given:
        raise ValueError("it must be printable ASCII without spaces")
    parts = urlsplit(given)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"it must be the address of a collector, such as {DEFAULT_URL}")
    if parts.query or parts.fragment or parts.username or (parts.port is not None and parts.port < 1):
        raise ValueError("it must be scheme, host, port and path only")
    return given.rstrip("/")


def _text(given: str) -> str:
    if not isinstance(given, str) or not given.strip():
        raise ValueError("it must be a text that is not empty")
    return given


def _token(given: str) -> str:
    if not _text(given).isascii() or not given.isprintable():
        raise ValueError("it must be printable ASCII")
    return given


def _every(given: int | str) -> int | str:
    if given == "auto":
        return "auto"
    if isinstance(given, bool) or str(given) not in map(str, INTERVALS):
        raise ValueError('it must be "auto" or one of 1, 10, 100, 1000 steps')
    return int(given)


def _pattern(given: str) -> re.Pattern[str]:
    try:
        return re.compile(_text(given))
    except re.error as error:
        raise ValueError(f"it must be a regular expression ({error})") from error


def _float(given: float | str) -> float:
    with contextlib.suppress(ValueError):
        return math.nan if isinstance(given, bool) else float(given)
    return math.nan


def _threshold(given: float | str) -> float:
    threshold = _float(given)
    if not (math.isfinite(threshold) and threshold > 0):
        raise ValueError("it must be a number above 0")
    return threshold


def _budget(given: float | str) -> float:
    share = _float(given)
    if not 0 < share <= 1:
        raise ValueError("it must be a share of the step time above 0, at most 1")
    return share


def _step(given: int | str) -> int:
    if isinstance(given, (bool, float)) or not 0 <= int(given) < 2**31:
        raise ValueError("it must be a whole number of steps, 0 or more")
    return int(given)


_DEFAULTS: dict[str, Any] = {"url": DEFAULT_URL, "every": DEFAULT_EVERY, "budget": DEFAULT_BUDGET}
_READERS: dict[str, Callable[[Any], Any]] = {
    "url": _url,
    "run": _text,
    "token": _token,
    "every": _every,
    "include": _pattern,
    "exclude": _pattern,
    "absmax_below": _threshold,
    "norm_below": _threshold,
    "step": _step,
    "budget": _budget,
}
