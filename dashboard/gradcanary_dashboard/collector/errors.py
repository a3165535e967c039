"""What can go wrong when a page asks the collector.

DashboardError
├── UnreachableError  nobody answered, or the answer was no JSON of the collector: try again later
├── DeniedError       the collector does not let the reader in, or not that far: the message says why
├── NotFoundError     the collector knows no such run, layer or incident
└── RefusedError      the collector does not take the question: the message says why
"""

from __future__ import annotations


class DashboardError(Exception):
    """The base of the dashboard's errors; the message is for the person who looks at the page."""


class UnreachableError(DashboardError):
    """The collector did not give a usable answer."""


class DeniedError(DashboardError):
    """The collector wants a token, or another one."""


class NotFoundError(DashboardError):
    """The collector does not know what was asked for."""


class RefusedError(DashboardError):
    """The question holds something that the collector does not take, such as a broken expression."""
