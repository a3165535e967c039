"""What can go wrong when a page asks the collector.

DashboardError
├── Unreachable   nobody answered, or the answer was no JSON of the collector: try again later
└── NotFound      the collector knows no such run, layer or incident
"""

from __future__ import annotations


class DashboardError(Exception):
    """The base of the dashboard's errors; the message is for the person who looks at the page."""


class Unreachable(DashboardError):
    """The collector did not give a usable answer."""


class NotFound(DashboardError):
    """The collector does not know what was asked for."""
