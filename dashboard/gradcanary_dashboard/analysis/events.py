"""Incident marks, launches and holes of a run. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradcanary_dashboard.analysis import launches as run_launches
from gradcanary_dashboard.analysis.launches import Hole, Launch


@dataclass(frozen=True)
class Events:
    """Incident marks of the API, launches in order, holes in order."""

    incidents: Sequence[Mapping[str, Any]] = ()
    launches: Sequence[Launch] = ()
    holes: Sequence[Hole] = ()

    @classmethod
    def of(cls, run: Mapping[str, Any], incidents: Sequence[Mapping[str, Any]]) -> Events:
        """Return the events of a run with these incident marks."""
        return cls(incidents, run_launches.launches(run), run_launches.holes(run))

    @property
    def every(self) -> int:
        """The widest sampling interval of any launch."""
        return max((launch.every for launch in self.launches), default=1)

    def resumed(self, first: float, last: float) -> list[tuple[Launch, str]]:
        """Return the visible starts of launches after the first, with their texts."""
        pairs = zip(self.launches[1:], self.launches[:-1], strict=True)
        return [
            (launch, f"Launch {launch.number} {run_launches.beginning(launch, before)}")
            for launch, before in pairs
            if launch.first is not None and first <= launch.first <= last
        ]
