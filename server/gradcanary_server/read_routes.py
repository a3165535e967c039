"""What pages and scripts read: JSON that says 304 as long as nothing changed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from sqlalchemy import Connection

from gradcanary import wire
from gradcanary_server import export, layer_table, recordings, runs, tags, views
from gradcanary_server.answer_shapes import answered
from gradcanary_server.archive import Archive
from gradcanary_server.database import Database
from gradcanary_server.heatmap import Order, Value
from gradcanary_server.precedence import Precedence
from gradcanary_server.requests import MAX_STEP
from gradcanary_server.rules import Rules
from gradcanary_server.run_choice import Choice, Sort, State
from gradcanary_server.window import Range

router = APIRouter(prefix="/api/v1")

Stat = Literal[
    "absmax",
    "norm",
    "zero_fraction",
    "nonfinite",
    "update_ratio",
    "weight_norm",
    "accumulation_error",
    "norm_ratio",
    "frozen_fraction",
]
if get_args(Stat) != wire.STATS:
    raise AssertionError("Stat and wire.STATS name the same stats")  # a type cannot be made from a tuple

From = Annotated[int | None, Query(alias="from", ge=0, le=MAX_STEP)]
To = Annotated[int | None, Query(ge=0, le=MAX_STEP)]
Points = Annotated[int, Query(ge=1, le=5_000)]
Layers = Annotated[list[str], Query(alias="layer")]
Names = Annotated[tuple[str, ...], Query()]
Stats = Annotated[tuple[Stat, ...], Query(min_length=1)]

CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {}}}}


class Reader:
    """What a read route works with."""

    def __init__(self, request: Request) -> None:
        state = request.app.state
        self._request = request
        self.database: Database = state.database
        self.archive: Archive = state.archive
        self.rules: Rules = state.rules
        self.rules_file = None if state.settings.rules is None else str(state.settings.rules)
        self.rules_version: int | None = state.ingest.rule_versions.current

    def of_run(self, name: str, build: Callable[[Connection, runs.Seen], Mapping[str, object]]) -> Response:
        """Answer about a run; ``build`` is called only when the asker's copy is old."""
        with self.database.read() as connection:
            seen = runs.one(connection, name, self.database.now(connection), self.rules.silent)
            return self.answer([seen], lambda: build(connection, seen))

    def answer(
        self, seen: list[runs.Seen], build: Callable[[], Mapping[str, object]], following: str | None = None
    ) -> Response:
        """Answer about runs: the tag is made of the question, the rules, what follows, each run and its state."""
        depends = [f"{each.row.run_id} {each.row.revision} {each.state}" for each in seen]
        return tags.answer(self._request, [self.rules, following, *depends], build)


async def _in_turn(request: Request) -> Reader:
    """Return the reader for a question once batches have what they need."""
    precedence: Precedence = request.app.state.precedence
    if request.app.state.database.has_one_writer:  # on others batches of two runs are not behind each other
        await precedence.give_way()
    return Reader(request)


Reading = Annotated[Reader, Depends(_in_turn)]


@router.get("/runs", responses=answered("runs"))
def list_runs(
    reader: Reading,
    named: Annotated[str, Query(max_length=100)] = "",
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=1_000)] = 200,
    text: Annotated[str, Query(max_length=100)] = "",
    state: State | None = None,
    sort: Sort = "heard",
    *,
    archived: bool = False,
) -> Response:
    """Answer runs in a few words, the one heard of last first; ``next`` is the ``after`` of the following page.

    ``named`` is a part of the name; each word of ``text`` is in the name, a tag or the note.
    """
    chosen = Choice(archived, named, limit, after, text, state, sort)
    with reader.database.read() as connection:
        seen, following = runs.page(connection, chosen, reader.database.now(connection), reader.rules.silent)
        return reader.answer(seen, lambda: {"runs": runs.summaries(connection, seen), "next": following}, following)


@router.get("/runs/{run}", responses=answered("run"))
def one_run(reader: Reading, run: str) -> Response:
    """Answer everything about a run but its measurements."""

    def build(connection: Connection, seen: runs.Seen) -> Mapping[str, object]:
        return runs.detail(connection, seen, reader.database.now(connection), reader.rules.silent)

    return reader.of_run(run, build)


@router.get("/runs/{run}/layers", responses=answered("layers"))
def list_layers(reader: Reading, run: str) -> Response:
    """Answer the layers of a run with their last values."""

    def build(connection: Connection, seen: runs.Seen) -> Mapping[str, object]:
        return {"revision": seen.row.revision, "layers": layer_table.table(connection, reader.archive, seen.row.run_id)}

    return reader.of_run(run, build)


@router.get("/runs/{run}/series", responses=answered("series"))
def series(
    reader: Reading,
    run: str,
    layer: Layers,
    stat: Stat = "absmax",
    begin: From = None,
    to: To = None,
    points: Points = 600,
) -> Response:
    """Answer the envelope of a stat for some layers, by number or name."""
    span = Range(begin, to, points)

    def build(connection: Connection, seen: runs.Seen) -> views.Json:
        return views.series(connection, reader.archive, reader.rules, seen.row, stat, layer, span)

    return reader.of_run(run, build)


@router.get("/runs/{run}/heatmap", responses=answered("heatmap"))
def heatmap(
    reader: Reading,
    run: str,
    stat: Stat = "absmax",
    begin: From = None,
    to: To = None,
    columns: Points = 600,
    rows: Annotated[int, Query(ge=1, le=20_000)] = 400,
    value: Value = "min",
    order: Order = "model",
    match: str | None = None,
) -> Response:
    """Answer the picture layer x step of a stat."""
    wanted, span = views.Picture(value, order, match, rows), Range(begin, to, columns)

    def build(connection: Connection, seen: runs.Seen) -> views.Json:
        return views.picture(connection, reader.archive, reader.rules, seen.row, stat, wanted, span)

    return reader.of_run(run, build)


@router.get("/runs/{run}/metrics", responses=answered("metrics"))
def metrics(
    reader: Reading,
    run: str,
    name: Names = (),
    tags: Names = (),
    begin: From = None,
    to: To = None,
    points: Points = 600,
) -> Response:
    """Answer the envelopes of the metrics of these names, or of all; with ``tags`` those whose tags are one of these.

    Tags are a JSON object; all of a metric's have to be named: ``{}`` is the metric without any.
    """
    chosen, span = views.Chosen.of(name, tags), Range(begin, to, points)

    def build(connection: Connection, seen: runs.Seen) -> views.Json:
        return views.metrics(connection, reader.archive, seen.row, chosen, span)

    return reader.of_run(run, build)


@router.get("/runs/{run}/export.csv", response_class=StreamingResponse, responses=CSV)
def export_csv(
    reader: Reading,
    run: str,
    stat: Stats = ("absmax",),
    layer: Names = (),
    match: str | None = None,
    begin: From = None,
    to: To = None,
) -> Response:
    """Answer every sample of a stat, or of several, between two steps, both included, as CSV, a column per layer.

    Of all layers, or those given by number or name, whose name ``match`` finds something in.
    """
    with reader.database.read() as connection:
        seen = runs.one(connection, run, reader.database.now(connection))
        known = layer_table.described(connection, seen.row.run_id)
    layers = views.matching(views.named(known, layer) if layer else known, match)
    pieces = views.samples(reader.database, reader.archive, seen.row.run_id, begin, to)
    stats = list(dict.fromkeys(stat))
    return _csv(export.lines(pieces, stats, layers), f"{run}-{'-'.join(stats)}", begin, to)


@router.get("/runs/{run}/metrics.csv", response_class=StreamingResponse, responses=CSV)
def metrics_csv(
    reader: Reading, run: str, name: Names = (), tags: Names = (), begin: From = None, to: To = None
) -> Response:
    """Answer every point of the metrics of these names and tags between two steps, both included, as CSV."""
    chosen = views.Chosen.of(name, tags)
    with reader.database.read() as connection:
        seen = runs.one(connection, run, reader.database.now(connection))
        series = views.logged(connection, seen.row.run_id, chosen)
    points = views.points(reader.database, reader.archive, seen.row.run_id, series, begin, to)
    return _csv(export.of_metrics(points, series), f"{run}-metrics", begin, to)


def _csv(lines: Iterator[str], what: str, begin: int | None, to: int | None) -> Response:
    bounds = "" if begin is None and to is None else f"-{begin or 0}-{'end' if to is None else to}"
    headers = {"Content-Disposition": f'attachment; filename="{what}{bounds}.csv"'}
    return StreamingResponse(lines, media_type="text/csv", headers=headers)


@router.get(
    "/runs/{run}/recording",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/x-ndjson": {}}}},
)
def recording(reader: Reading, run: str) -> Response:
    """Answer what the agents of a run sent, as far as it is still there, as lines of JSON."""
    with reader.database.read() as connection:
        seen = runs.one(connection, run, reader.database.now(connection))
    lines = recordings.lines(reader.database, reader.archive, seen.row, seen.state)
    return StreamingResponse(lines, media_type="application/x-ndjson")


@router.get("/rules", responses=answered("rules"))
def rules(reader: Reading) -> Response:
    """Answer the rules that this collector applies, their number in this store, and the file that they are from."""
    return JSONResponse({**asdict(reader.rules), "rules_version": reader.rules_version, "file": reader.rules_file})
