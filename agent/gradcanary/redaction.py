"""Removes secrets and home folders from texts of the training that leave its machine. Standard library only.

A text is shortened by its reader after this, never before it: half of a token is not found any more.
"""

from __future__ import annotations

import re

HIDDEN = "***"
MOST_READ = 4_000
"""Characters of a text that are looked at; its middle is dropped: a search in a text of any length would keep the
interpreter from the training."""

_URL = re.compile(
    r"\b([a-z][a-z0-9+.-]*://)(?:[^\s/@'\"]*@)?([^\s/?#'\"]*)([^\s?#'\"]*)(?:[?#][^\s'\"]*)?", re.IGNORECASE
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_LOOKS_SECRET = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:hf|sk|pk|rk|gh[pousr]|github_pat|glpat|xox[abeprs]|gc|whsec|npm|pypi|dop_v1)[_-](?=[\w-]*\d)[\w-]{16,}"
    r"|(?:AKIA|ASIA|AIza)[\w-]{12,}|eyJ[\w-]{8,}\.[\w.-]+|[0-9a-fA-F]{32,})"
)
_PAIR = re.compile(
    r"(?i)\b([\w-]*(?:token|secret|passw(?:or)?d|pwd|credential|api[_-]?key|access[_-]?key)s?['\"]?\s*[=:]\s*['\"]?)"
    r"(?=[^\s'\",;&]*[a-z])[^\s'\",;&]{8,}"
)
"""The value of a name; a number or a short word is a count of tokens, or a name."""

_HOME = re.compile(r"(?i)/(?:home|Users)/[^/\s'\":]+|\b[a-z]:\\Users\\[^\\\s'\":]+")


def redact(text: str, home: str | None = None) -> str:
    """Return a text without credentials, addresses' queries, values of secrets, kinds of tokens, and home folders."""
    if len(text) > MOST_READ:
        text = f"{text[: MOST_READ // 2]} … {text[-MOST_READ // 2 :]}"
    if home and len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?![\w.-])", "~", text)
    return _HOME.sub("~", hide_secrets(text, _PAIR))


def hide_secrets(text: str, pair: re.Pattern[str]) -> str:
    """Return a text with ``***`` for each secret; ``pair`` matches a name, its first group, and its secret value."""
    text = _URL.sub(_without_secrets, text)
    text = _BEARER.sub(rf"\1 {HIDDEN}", text)
    text = pair.sub(rf"\1{HIDDEN}", text)
    return _LOOKS_SECRET.sub(HIDDEN, text)


def _without_secrets(url: re.Match[str]) -> str:
    """Return a URL without user, password and query; of a webhook without its path."""
    scheme, host, path = url[1], url[2], url[3]
    rest = url[0][len(scheme) :]
    is_hook = "hook" in f"{host}{path}".lower()
    shown = f"{scheme}{HIDDEN + '@' if '@' in rest.split('/')[0] else ''}{host}{'/' + HIDDEN if is_hook else path}"
    return f"{shown}?{HIDDEN}" if re.search(r"[?#]", url[0]) else shown
