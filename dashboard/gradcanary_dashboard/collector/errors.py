"""Errors of a request to the collector.

DashboardError
├── UnreachableError  no answer, or not the JSON of a collector: try again later
├── DeniedError       no token, or one of another scope: the message has the reason
├── NotFoundError     no such run, layer or incident
└── RefusedError      an invalid request: the message has the reason
"""

from __future__ import annotations


class DashboardError(Exception):
    """The base of the dashboard's errors; pages show the message."""


class UnreachableError(DashboardError):
    """The collector did not give a usable answer."""


class DeniedError(DashboardError):
    """The collector requires a token, or one of another scope."""


class NotFoundError(DashboardError):
    """The collector has no such run, layer or incident."""


class RefusedError(DashboardError):
    """The collector refuses the request, for example for an invalid expression."""
