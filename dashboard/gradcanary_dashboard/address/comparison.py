"""The query of the comparison page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs, urlencode

from gradcanary_dashboard.address.run import CHOICES, View, parse

PATH = "/compare"

MOST_RUNS = 6
"""As many as colours that are distinct for colour-blind readers."""

LETTERS = "ABCDEF"

ALIGNS = ("step", "first")
"""Origins of the axis: step 0, or the first step of each run. The first is the default."""


@dataclass(frozen=True)
class CompareView:
    """The runs, of which the first is the reference; the rest as on the page of a run.

    ``view.from_step`` and ``view.to_step`` count from the origin of the axis. ``left_out`` are the runs beyond
    ``MOST_RUNS``.
    """

    runs: tuple[str, ...] = ()
    view: View = field(default_factory=View)
    align: str = ALIGNS[0]
    repeated: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def with_run(self, run: str) -> CompareView:
        """Return the view with another run."""
        return replace(self, runs=(*self.runs, run))

    def without_run(self, run: str) -> CompareView:
        """Return the view without a run."""
        return replace(self, runs=tuple(other for other in self.runs if other != run))

    def from_firsts(self) -> CompareView:
        """Return the view of all steps, counted from the first of each run."""
        return replace(self, align=ALIGNS[1], view=replace(self.view, from_step=None, to_step=None))


def parse_compare(search: str | None) -> CompareView:
    """Return the view of a query string; invalid parameters are ignored."""
    query = parse_qs((search or "").removeprefix("?"))
    named = [name for name in query.get("run", []) if name.strip()]
    runs = tuple(dict.fromkeys(named))
    align = next(iter(query.get("align", [])), "")
    return CompareView(
        runs=runs[:MOST_RUNS],
        view=parse(search),
        align=align if align in ALIGNS else ALIGNS[0],
        repeated=tuple(name for name in runs if named.count(name) > 1),
        left_out=runs[MOST_RUNS:],
    )


def compare_url(wanted: CompareView) -> str:
    """Return the address of a comparison."""
    view = wanted.view
    parts: dict[str, str | int | None] = {
        "align": None if wanted.align == ALIGNS[0] else wanted.align,
        "stat": None if view.stat == CHOICES["stat"][0] else view.stat,
        "layer": view.layer,
        "from": view.from_step,
        "to": view.to_step,
        "rows": view.rows,
    }
    told: Sequence[tuple[str, str | int]] = [
        *(("run", run) for run in wanted.runs),
        *((key, value) for key, value in parts.items() if value is not None),
    ]
    return f"{PATH}?{urlencode(told)}" if told else PATH
