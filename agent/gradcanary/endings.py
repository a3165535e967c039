"""How a process ends, and what is told of it."""

from __future__ import annotations

import sys

from gradcanary import arguments

MAX_ERROR = 1000


def error_of_process() -> BaseException | None:
    """Return what ends this process, None where it ends well."""
    if hasattr(sys, "ps1") or is_notebook():
        return None  # the last error of an interactive session did not end it
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None) or _error_of_child()


def is_notebook() -> bool:
    """Say whether cells run here, each maybe again."""
    return hasattr(sys.modules.get("__main__"), "get_ipython") or "ipykernel" in sys.modules


def told(error: BaseException | None) -> str | None:
    """Return an error in one printable line."""
    if error is None:
        return None
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 -- an error that cannot be told must not hide itself behind another one
        text = type(error).__name__
    return arguments.UNPRINTABLE.sub(" ", text)[:MAX_ERROR]


def _error_of_child() -> BaseException | None:
    """Return what ends a child of multiprocessing, which tells nobody; torch exits with 1 while handling it."""
    error = sys.exc_info()[1]
    return error.__context__ if isinstance(error, SystemExit) else error
