"""``gradcanary.Client``: the runs, measurements, incidents and silences of a collector.

import gradcanary
frame = gradcanary.Client().run("sdxl-0412").series("absmax", layers="lora_B").to_pandas()
"""

from __future__ import annotations

import contextlib
import difflib
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any, ClassVar, Literal, TypeVar
from urllib.parse import quote

from gradcanary.client.buckets import MOST_BUCKETS, Buckets, Page, read_finest
from gradcanary.client.heatmap import Heatmap
from gradcanary.client.records import Incident, Json, Layer, Records, Silence, fill, moment
from gradcanary.client.series import Line, Metrics, Series
from gradcanary.export.collector import (
    CollectorClient,
    CollectorError,
    NotFoundError,
    VersionError,
    check_metrics,
    run_path,
)
from gradcanary.export.tables import Stream

MOST_LINES = 100
"""Layers or metrics of one answer of the API."""

MOST_CELLS = 2_000_000
"""Buckets x layers that are read together: some 40 MB."""

ARGUMENTS = {"from": "start", "to": "end"}
"""The arguments of methods that are named otherwise in the API."""

LISTS = "Client.runs()"

T = TypeVar("T")


class Client:
    """A collector, by its address and a token.

    Each is that of ``GRADCANARY_URL`` and ``GRADCANARY_TOKEN`` if it is left out, as for the command line. Nothing is
    asked before the first call. All calls raise CollectorError, which says what to do.
    """

    def __init__(self, url: str | None = None, token: str | None = None) -> None:
        """Raises ValueError on an address or token that cannot be one."""
        self._collector = CollectorClient.resolve(
            url, token, "Client({}=)", lambda field: f"{ARGUMENTS.get(field, field)}="
        )
        self.url = self._collector.url

    def __repr__(self) -> str:
        return f"Client({self.url!r})"

    def runs(
        self, *, text: str | None = None, state: str | None = None, archived: bool = False, limit: int | None = None
    ) -> Records[Run]:
        """Return runs, the last active one first, all or ``limit`` of them.

        Each word of ``text`` is in the name, a tag or the note; ``state`` is live, stale, silent, detached, finished
        or crashed.
        """
        query = {"text": text, "state": state, "archived": "true" if archived else None}
        found = self._pages("/runs", "runs", "after", limit, query)
        return self._understand(lambda runs: Records(Run, tuple(Run.decode(self, each) for each in runs)), found)

    def run(self, name: str) -> Run:
        """Return a run by its name, or a former one; raises NotFoundError with the nearest names."""
        with self._collector.nearest_names(name, LISTS):
            if not name or "/" in name:
                raise NotFoundError(f"There is no run {name!r} here.", is_refusal=True, field="run")
            return self.fetch(partial(Run.decode, self), run_path(name))

    def incidents(
        self,
        run: str | None = None,
        *,
        state: Literal["open", "resolved", "ended"] | None = None,
        severity: str | None = None,
        rule: str | None = None,
        layer: str | int | None = None,
        since: datetime | None = None,
        sort: Literal["newest", "worst"] = "newest",
        limit: int | None = None,
    ) -> Records[Incident]:
        """Return incidents, all or the first ``limit``, of a run or of all.

        ``layer`` is a parameter of ``run``, by name or number: its incidents, and those of the whole run. ``since`` is
        the earliest time at which they opened.
        """
        query: dict[str, Any] = {"run": run, "state": state, "severity": severity, "rule": rule, "layer": layer}
        query |= {"since": None if since is None else _rfc3339(since), "sort": sort}
        with self._collector.nearest_names(run, LISTS):
            found = self._pages("/incidents", "incidents", "before", limit, query)
        return self._understand(lambda each: Records(Incident, tuple(map(Incident.decode, each))), found)

    def incident(self, number: int) -> Incident:
        """Return an incident with its members."""
        return self.fetch(Incident.decode, f"/incidents/{number}")

    def ack(
        self, incident: Incident | int, note: str | None = None, *, by: str | None = None, new_baseline: bool = False
    ) -> Incident:
        """Acknowledge an incident: no reminders, no messages when it grows. Returns it.

        Without a ``note`` an earlier one stays. ``by`` is the name of the token if it is left out, or your user name
        where no token is needed. With ``new_baseline`` the
        present values count as normal, and the incident is over.
        """
        body = {"note": note, "new_baseline": new_baseline}
        return self._understand(Incident.decode, self._collector.change(f"/incidents/{_id(incident)}/ack", body, by))

    def silences(self) -> Records[Silence]:
        """Return the silences in force."""
        return self.fetch(lambda found: Records(Silence, tuple(map(Silence.decode, found["silences"]))), "/silences")

    def silence(
        self,
        run: str,
        *,
        duration: timedelta | None = None,
        until: datetime | None = None,
        rule: str | None = None,
        match: str | None = None,
        note: str = "",
        by: str | None = None,
    ) -> Silence:
        """Send no notifications about a run for a ``duration`` or ``until`` a time; pages show its incidents as before.

        ``run`` is a name, or several with ``*`` and ``?``; ``match`` is a regular expression that is found in names of
        parameters, and ``by`` that of :meth:`ack`.
        """
        if (duration is None) == (until is None):
            raise ValueError("silence() ends: give duration=timedelta(hours=8), or until=")
        if not isinstance(duration, (timedelta, type(None))):
            raise TypeError(f"{duration=} is not a timedelta: give timedelta(hours={duration!r}), for example")
        end = until or datetime.now(timezone.utc) + (duration or timedelta())
        body = {"run": run, "until": _rfc3339(end), "rule": rule, "match": match, "note": note}
        return self._understand(Silence.decode, self._collector.change("/silences", body, by))

    def end_silence(self, silence: Silence | int) -> None:
        """End a silence now; incidents that are still open are notified."""
        self.fetch(lambda _: None, f"/silences/{_id(silence)}", method="DELETE")

    def fetch(
        self,
        decode: Callable[[Any], T],
        path: str,
        *,
        method: str = "GET",
        body: object = None,
        **query: Any,  # noqa: ANN401 -- texts, numbers, sequences of them
    ) -> T:
        """Return what ``decode`` makes of an answer of the API; for what has no method of its own."""
        found = self._collector.request(method, path, body, **query)
        return self._understand(decode, found)

    def fetch_stream(self, decode: Callable[[Stream], T], path: str, **query: Any) -> T:  # noqa: ANN401 -- as fetch
        """Return what ``decode`` makes of ``samples`` or ``points`` of the API."""
        with contextlib.closing(self._collector.blocks(path, **query)) as blocks:
            return self._understand(lambda found: decode(Stream(found)), blocks)

    def _pages(self, path: str, key: str, cursor: str, limit: int | None, query: dict[str, Any]) -> list[Json]:
        """Return the items of a list that comes in pages, all or ``limit`` of them."""
        items: list[Json] = []
        query["limit"] = limit if limit is None or limit <= 100 else None  # else as many as an answer has by default
        while limit is None or len(items) < limit:
            found, query[cursor] = self._collector.pages(path, key, cursor, 1, **query)
            items += found
            if query[cursor] is None:
                break
        return items[:limit]

    def _understand(self, decode: Callable[[Any], T], found: object) -> T:
        """Return an answer decoded; raises VersionError where it does not have what it should."""
        try:
            return decode(found)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            why = f"An answer is not understood ({type(error).__name__}: {error})."
            raise VersionError(f"{why} {self._collector.versions()}") from error


@dataclass(frozen=True)
class Run:
    """A run as it was when it was asked for; ``json`` has all of the API.

    ``headline`` is its worst open incident in words, ``worst`` the severity of it, ``severity_at_end`` the worst
    severity that fired when it ended; ``loss`` is the last value of the metric ``loss`` (NaN: not finite), ``enter``
    the absmax below which a parameter is low, and ``below_threshold`` the number of those without an incident.
    """

    shown: ClassVar = ("name", "state", "step", "loss", "last_seen", "headline")

    name: str
    state: str
    step: int | None
    created: datetime
    last_seen: datetime
    last_step_at: datetime | None
    host: str | None
    loss: float | None
    layer_count: int
    below_threshold: int
    enter: float
    worst: str | None
    headline: str
    severity_at_end: str | None
    open_incidents: tuple[int, ...]
    unacked: tuple[int, ...]
    note: str
    tags: tuple[str, ...]
    archived: bool
    url: str
    json: Json = field(repr=False, compare=False)
    _client: Client = field(repr=False, compare=False)

    @classmethod
    def decode(cls, client: Client, answer: Json) -> Run:
        """Return the run of an answer of the API."""
        loss = answer["loss"]
        return fill(
            cls,
            answer,
            name=answer["run"],
            created=moment(answer["created"]),
            last_seen=moment(answer["last_seen"]),
            last_step_at=answer["last_step_at"] and moment(answer["last_step_at"]),
            loss=loss and (math.nan if loss["last"] is None else loss["last"]),
            layer_count=answer["layers"],
            enter=answer["threshold"]["enter"],
            url=f"{client.url}/runs/{quote(answer['run'], safe='')}",
            json=answer,
            _client=client,
        )

    def layers(self) -> Records[Layer]:
        """Return the parameters of the run in the order of the model, with their last values."""
        return self._fetch(lambda found: Records(Layer, tuple(map(Layer.decode, found["layers"]))), "/layers")

    def series(
        self,
        stat: str = "absmax",
        layers: str | int | re.Pattern[str] | Sequence[str | int] | None = None,
        *,
        start: int | None = None,
        end: int | None = None,
        points: int | None = None,
    ) -> Series:
        """Return a stat of some parameters, from step ``start`` to ``end``, both included.

        Without ``points`` each bucket is one sample: all that the collector stores. Where old samples were removed, a
        bucket has 8 or more, and its ``count`` says so. With ``points`` (at most 5,000) there are at most that
        number of buckets, in one request.

        ``layers`` is the name or number of a parameter, or a list of them; any other text is a regular expression that
        is found in names, as ``match=`` of :meth:`heatmap`; None is all. Steps that a resumed job measured again are
        those of its last launch.
        """
        parts = self.iter_series(stat, layers, start=start, end=end, points=points)
        return Series.concat(list(parts))

    def iter_series(
        self,
        stat: str = "absmax",
        layers: str | int | re.Pattern[str] | Sequence[str | int] | None = None,
        *,
        start: int | None = None,
        end: int | None = None,
        points: int | None = None,
    ) -> Iterator[Series]:
        """Yield :meth:`series` in parts, in rising order of steps, at least one: the memory is bounded."""
        chosen = _choose(self.layers(), layers)
        groups = [chosen[first : first + MOST_LINES] for first in range(0, len(chosen), MOST_LINES)]
        most = points if points is not None else max(1, min(MOST_BUCKETS, MOST_CELLS // max(1, len(chosen))))

        def read(group: Sequence[Layer], begin: int | None, stop: int | None) -> Page:
            numbers = [layer.number for layer in group]
            decode = partial(Page.decode, lines="series", most=most)
            return self._fetch(decode, "/series", stat=stat, layer=numbers, points=most, **{"from": begin, "to": stop})

        def read_others(first: Page, begin: int | None, stop: int | None) -> Series:
            pages = [first, *(read(group, begin, stop).without_empty() for group in groups[1:])]
            if any(page.buckets.steps != first.buckets.steps for page in pages):
                raise CollectorError(f"{self.name} changed while it was read: read it again.")
            envelopes = [line for page in pages for line in page.lines]
            named = zip(chosen, envelopes, strict=True)
            lines = tuple(Line(layer.name, layer.number, {}, first.buckets, values) for layer, values in named)
            return Series(self.name, stat, first.phases, self.enter, first.buckets, lines)

        if not groups:
            yield Series(self.name, stat, (), self.enter, Buckets.empty(), ())
        elif points is not None:
            yield read_others(read(groups[0], start, end).without_empty(), start, end)
        else:
            for begin, stop, page in read_finest(partial(read, groups[0]), start, end):
                yield read_others(page, begin, stop)

    def heatmap(
        self,
        stat: str = "absmax",
        *,
        match: str | None = None,
        start: int | None = None,
        end: int | None = None,
        columns: int = 600,
        rows: int = 400,
        value: Literal["min", "mean", "max"] = "min",
        order: Literal["model", "worst", "block"] = "model",
    ) -> Heatmap:
        """Return a stat as a picture of at most ``rows`` x ``columns`` cells, from step ``start`` to ``end``.

        A cell is the minimum, mean or maximum of its samples; of more parameters than ``rows`` neighbours share a row.
        ``match`` is a regular expression without look-around that is found in names of parameters.
        """
        query = {"stat": stat, "match": match, "columns": columns, "rows": rows, "value": value, "order": order}
        return self._fetch(Heatmap.decode, "/heatmap", **query, **{"from": start, "to": end})

    def metrics(
        self,
        *names: str,
        start: int | None = None,
        end: int | None = None,
        points: int | None = None,
    ) -> Metrics:
        """Return logged metrics by their names, all without names, from step ``start`` to ``end``, both included.

        ``loss``, ``lr0`` (the learning rate of the first parameter group), ``step_time_s`` and so on, and what the
        training logs. Without ``points`` you get every point, each in a bucket of its own; with ``points`` (at most
        5,000) you get at most that number of buckets.
        """
        chosen = self._fetch(lambda found: check_metrics(found, names), "")
        if points is None:
            decode = partial(Metrics.decode, self.name)
            path = f"{run_path(self.name)}/points"
            return self._client.fetch_stream(decode, path, name=names, **{"from": start, "to": end})
        lines: list[Line] = []
        for group in _by_name(chosen):
            query = {"name": group[0]["name"], "tags": [json.dumps(metric["tags"]) for metric in group]}
            read = partial(Page.decode, lines="metrics", most=points)
            page = self._fetch(read, "/metrics", points=points, **query, **{"from": start, "to": end})
            named = zip(page.titles, page.lines, strict=True)
            lines += [Line(name, None, tags, page.buckets, values).without_empty() for (name, tags), values in named]
        return Metrics(self.name, tuple(lines))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:  # noqa: ARG002 -- as IPython calls it
        """Return the run as it is now for a notebook or IPython: HTML and text, or why there is none."""
        from gradcanary.client import card, picture

        try:
            now = self._client.run(self.name)
            standing: Json = {"run": now.name, "state": ["open", "ended"], "sort": "worst"}
            incidents: list[Json] = self._client.fetch(lambda found: found["incidents"], "/incidents", **standing)
            drawn = picture.draw(now.heatmap(columns=picture.COLUMNS, rows=picture.ROWS))
        except CollectorError as error:
            return {"text/plain": str(error), "text/html": card.failure(str(error))}
        html = card.html(now.json, incidents, drawn, now.url)
        return {"text/plain": card.text(now.json, incidents, now.url), "text/html": html}

    def _repr_html_(self) -> str:
        return self._repr_mimebundle_()["text/html"]

    def incidents(self, **options: Any) -> Records[Incident]:  # noqa: ANN401 -- those of Client.incidents
        """Return the incidents of the run; options as of :meth:`Client.incidents`."""
        return self._client.incidents(self.name, **options)

    def _fetch(self, decode: Callable[[Any], T], path: str, **query: Any) -> T:  # noqa: ANN401 -- as Client.fetch
        return self._client.fetch(decode, f"{run_path(self.name)}{path}", **query)


def _by_name(metrics: Sequence[Json]) -> list[list[Json]]:
    """Return metrics in groups of one name that fit into an answer each."""
    named: dict[str, list[Json]] = {}
    for metric in metrics:
        named.setdefault(metric["name"], []).append(metric)
    return [every[first : first + MOST_LINES] for every in named.values() for first in range(0, len(every), MOST_LINES)]


def _choose(
    layers: Sequence[Layer], wanted: str | int | re.Pattern[str] | Sequence[str | int] | None
) -> Sequence[Layer]:
    """Return the layers of a name, a regular expression, or names and numbers; raises NotFoundError or ValueError."""
    if wanted is None:
        return layers
    by_key: dict[str | int, Layer] = {layer.number: layer for layer in layers} | {layer.name: layer for layer in layers}
    if isinstance(wanted, int):
        wanted = [wanted]
    if not isinstance(wanted, (str, re.Pattern)):
        unknown = [key for key in wanted if key not in by_key]
        if unknown:
            raise _no_layer(unknown[0], layers)
        return [by_key[key] for key in dict.fromkeys(wanted)]
    if isinstance(wanted, str) and wanted in by_key:
        return [by_key[wanted]]
    try:
        found = [layer for layer in layers if re.search(wanted, layer.name)]
    except re.error as error:
        raise ValueError(f"layers={wanted!r} is not a parameter, and not a regular expression: {error}") from error
    if not found:
        raise _no_layer(wanted if isinstance(wanted, str) else wanted.pattern, layers)
    return found


def _no_layer(wanted: str | int, layers: Sequence[Layer]) -> NotFoundError:
    near = difflib.get_close_matches(str(wanted), [layer.name for layer in layers], 3, 0.3)
    hint = f"the nearest: {', '.join(near)}" if near else "Run.layers() lists them"
    return NotFoundError(f"no parameter of this run is {wanted!r}, and none has it in its name; {hint}", field="layer")


def _id(record: Incident | Silence | int) -> int:
    return record if isinstance(record, int) else record.id


def _rfc3339(time: datetime) -> str:
    if time.tzinfo is None:
        raise ValueError(f"{time!r} has no time zone: datetime.now(timezone.utc), or add tzinfo=timezone.utc")
    return time.astimezone(timezone.utc).isoformat()
