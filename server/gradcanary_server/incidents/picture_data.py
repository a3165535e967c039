"""The values that the picture of an incident shows, read from the store: its worst layers, the loss, learning rates."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from gradcanary.display.rule_values import value_of
from gradcanary.wording import count, number, percent, shared_ends
from gradcanary_server.errors import unknown_incident
from gradcanary_server.incidents import picture, repository, silences
from gradcanary_server.incidents.detail import IncidentDetail, load_details
from gradcanary_server.incidents.lifecycle import Member, worst_members
from gradcanary_server.incidents.picture import Curve, Panel, Picture
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.types import SeriesFacts
from gradcanary_server.storage import runs
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import incident, metric
from gradcanary_server.tsdb.query import StepRange, query, query_metrics
from gradcanary_server.tsdb.reader import Reader
from gradcanary_server.tsdb.rollup import MAXIMUM, MEAN, MINIMUM, NONFINITE

MARGINS = (100, 1_000, 10_000)
"""Steps before the first sign and after the opening: the first of these with enough samples, which may be 1,000 steps
apart."""

ENOUGH, LEAST = 12, 3
"""Samples that show a course well, and at all."""

POINTS = 400
MOST_CURVES = len(picture.CURVES)

_ABSMAX = "absmax"
_TITLES = {
    _ABSMAX: "largest absolute value of the gradient",
    "accumulation_error": "error of the summed gradient",
    "frozen_fraction": "share of the weights that stand still",
    "update_ratio": "size of a step, beside that of the weights",
    "zero_fraction": "share of the gradient that is exactly zero",
}
_FRACTIONS = ("frozen_fraction", "zero_fraction")
"""Stats on a linear axis."""

_LOSS, _NORM = "loss", "total_norm"
_RATE = re.compile(r"lr\d+")


@dataclass(frozen=True)
class PictureReader:
    """Draws incidents of a store."""

    database: Database
    measurements: Reader
    rules: Rules

    def draw(self, incident_id: int, *, hides_silenced: bool = False) -> bytes:
        """Return the picture of an incident as PNG, for a message without its silenced layers.

        Raises RequestError 501 without Pillow, before it reads anything, and 404 for an unknown incident. The
        transaction only reads, and ends before the drawing begins.
        """
        picture.require_pillow()
        with self.database.read() as connection:
            hidden = self._silenced(connection, incident_id) if hides_silenced else frozenset()
            details = load_details(connection, [incident_id], hidden, is_brief=True, measurements=self.measurements)
            if not details:
                raise unknown_incident(incident_id)
            shown = _Samples(connection, self.measurements, self.rules, details[0]).picture()
        return picture.draw(shown)

    def _silenced(self, connection: Connection, incident_id: int) -> frozenset[int | None]:
        active = silences.active_silences(connection, self.database.now(connection))
        rows = connection.execute(select(incident).where(incident.c.incident_id == incident_id)).mappings().all()
        found = silences.silenced_members_by_incident(connection, rows, active).get(incident_id)
        return frozenset() if found is None else found.covered


@dataclass(frozen=True)
class _Samples:
    """The samples around an incident, in one transaction."""

    connection: Connection
    measurements: Reader
    rules: Rules
    detail: IncidentDetail

    def picture(self) -> Picture:
        """Return what the picture shows, between the first and the last step with a sample."""
        about, panels = self.detail.incident, self._widened_panels()
        steps = np.concatenate([[about.since_step], *(curve.steps for panel in panels for curve in panel.curves)])
        is_against_siblings = any(member.evidence == "siblings" for _, member in self._members)
        return Picture(
            title=f"{self.detail.run}: {self.detail.headline}",
            subtitle=self._subtitle(),
            severity=about.severity,
            first=int(steps.min()),
            last=int(steps.max()),
            since=about.since_step,
            panels=panels,
            legend=self._legend(),
            reference="level of similar parameters" if is_against_siblings else "bound" if about.series else "baseline",
            corner=f"gradcanary #{self.detail.id}",
        )

    @cached_property
    def _members(self) -> list[tuple[int, Member]]:
        return worst_members(self.detail.members, self.detail.incident.rule)[:MOST_CURVES]

    @cached_property
    def _names(self) -> list[str]:
        """The short names of these members."""
        if self.detail.incident.series:
            return _short_names([self.detail.incident.series[number] for number, _ in self._members])
        names = repository.layer_names(self.connection, self._run_id)
        prefix, suffix = shared_ends(names.values())
        found = (names.get(layer, f"parameter {layer}") for layer, _ in self._members)
        return [name.removeprefix(prefix).removesuffix(suffix) for name in found]

    def _widened_panels(self) -> list[Panel]:
        """Return the panels with the first margin that has enough samples, or that no wider one has more than."""
        about = self.detail.incident
        panels: list[Panel] = []
        for margin in MARGINS:
            begin, end = max(about.since_step - margin, 0), max(about.since_step, about.opened_step) + margin
            wider = self._panels(StepRange(begin, end, POINTS))
            if not panels or _sample_count(wider) > _sample_count(panels):
                panels = wider
            if _sample_count(panels) >= ENOUGH:
                break
        return panels

    def _subtitle(self) -> str:
        about = self.detail.incident
        opened = datetime.fromtimestamp(about.opened, tz=timezone.utc)
        certain = "" if about.opened_step == about.since_step else f"certain at step {about.opened_step:,} · "
        over = "" if about.state == "open" else f" · {about.state}"
        return f"{about.severity} · {certain}opened {opened:%Y-%m-%d %H:%M} UTC{over}"

    def _legend(self) -> str:
        ever, shown = self.detail.incident.ever_firing, len(self._members)
        if self.detail.incident.series:
            return f"{shown} worst of {ever:,} series" if ever > shown else f"{ever:,} series"
        if ever > shown > 0:
            return f"{shown} worst of {ever:,} parameters"
        return count(ever, "parameter") if shown else ""

    def _panels(self, span: StepRange) -> list[Panel]:
        """Return the panels with a value: layers, or for an incident without any the norm of all gradients, then loss
        and learning rates."""
        names = select(metric.c.name).distinct().where(metric.c.run_id == self._run_id, metric.c.tags == "{}")
        logged = sorted(self.connection.scalars(names))
        rates = [name for name in logged if _RATE.fullmatch(name)][: len(picture.METRICS)]
        if self.detail.incident.series:
            top = self._series(span)
        elif self._members:
            top = self._layers(span)
        else:
            top = self._metrics("norm of all gradients", [_NORM], span, share=2.6)
        panels = [
            top,
            self._metrics("loss", [_LOSS], span),
            self._metrics("learning rate" if len(rates) < 2 else "learning rates", rates, span, share=0.7),
        ]
        return [panel for panel in panels if panel.curves]

    def _series(self, span: StepRange) -> Panel:
        """Return the worst series of metrics, each with the bound that it crossed."""
        facts = [self.detail.incident.series[number] for number, _ in self._members]
        panel = self._curves_of([(each.name, each.tags) for each in facts], self._names, span)
        curves = [
            replace(curve, reference=each.bound, note=self._note(member))
            for curve, each, (_, member) in zip(panel, facts, self._members, strict=True)
        ]
        title = ", ".join(dict.fromkeys(each.name for each in facts))
        return Panel(title, [curve for curve in curves if len(curve.steps)], share=2.6)

    def _layers(self, span: StepRange) -> Panel:
        """Return the stat that the rule judges, absmax where it has too few values: some stats are rarely measured."""
        about = self.detail.incident
        for stat in dict.fromkeys((value_of(about.rule).stat, _ABSMAX)):
            curves = self._curves(stat, span)
            if max(len(curve.steps) for curve in curves) >= LEAST:
                break
        own = runs.own_thresholds(self.connection, [self._run_id]).get(self._run_id)
        return Panel(
            _TITLES[stat],
            curves,
            is_log=stat not in _FRACTIONS,
            threshold=self.rules.collapse.of_run(own).enter if about.rule == "collapse" else None,
            share=2.6 if any(len(curve.steps) for curve in curves) else 0.7,
        )

    def _curves(self, stat: str, span: StepRange) -> list[Curve]:
        plane = MINIMUM if self.detail.incident.rule in ("collapse", "vanished", "no_update") else MAXIMUM
        found = query(self.measurements, self.connection, self._run_id, (stat,), span)
        numbers = np.array([number for number, _ in self._members], np.int32)
        read = found.read(self.measurements, self.connection, numbers, (plane, NONFINITE))
        return [
            _curve(
                self._names[column],
                found.buckets.steps(),
                read[plane][:, column],
                read[NONFINITE][:, column] > 0,
                _reference(member) if stat == _ABSMAX else None,
                self._note(member),
            )
            for column, (_, member) in enumerate(self._members)
        ]

    def _note(self, member: Member) -> str:
        """Return the value that the rule judges, and the level that it fell from."""
        share, reference = value_of(self.detail.incident.rule).share, _reference(member)
        if member.value is None or member.evidence == "sporadic":
            return "" if reference is None else f"baseline {number(reference)}"
        if share is not None:
            return f"{percent(member.value)} {share}"
        return number(member.value) if reference is None else f"{number(reference)} -> {number(member.value)}"

    def _metrics(self, title: str, names: Sequence[str], span: StepRange, share: float = 1.0) -> Panel:
        curves = self._curves_of([(name, "{}") for name in names], names, span)
        return Panel(title, [curve for curve in curves if len(curve.steps)], share=share)

    def _curves_of(self, keys: Sequence[tuple[str, str]], names: Sequence[str], span: StepRange) -> list[Curve]:
        """Return series of metrics by name and tags, under these names."""
        found = query_metrics(self.measurements, self.connection, self._run_id, keys, span)
        return [
            _curve(name, found.buckets.steps(), found.envelope[MEAN][:, row], found.envelope[NONFINITE][:, row] > 0)
            for row, name in enumerate(names)
        ]

    @property
    def _run_id(self) -> int:
        return self.detail.incident.run_id or 0


def _short_names(series: Sequence[SeriesFacts]) -> list[str]:
    """Return the values of the tags, which differ, before the names of them; with the metrics, if there are several."""
    is_one = len({facts.name for facts in series}) == 1
    values = [", ".join(json.loads(facts.tags).values()) for facts in series]
    named = zip(series, values, strict=True)
    return [tags if is_one and tags else f"{facts.name} {tags}".strip() for facts, tags in named]


def _sample_count(panels: Sequence[Panel]) -> int:
    """Return the samples of a curve of the first panel that has any."""
    counts = (max(len(curve.steps) for curve in panel.curves) for panel in panels)
    return next(filter(None, counts), 0)


def _curve(
    name: str,
    steps: NDArray[np.float64],
    values: NDArray[np.number],
    is_nonfinite: NDArray[np.bool_],
    reference: float | None = None,
    note: str = "",
) -> Curve:
    """Return the steps with a value, or with one that is not finite."""
    is_shown = np.isfinite(values) | is_nonfinite
    return Curve(name, steps[is_shown], values[is_shown].astype(np.float64), is_nonfinite[is_shown], reference, note)


def _reference(member: Member) -> float | None:
    """Return the level that a layer fell from, or that of its siblings; the numbers of a sporadic layer are counts."""
    if member.evidence == "sporadic":
        return None
    return member.siblings if member.evidence == "siblings" else member.baseline
