"""``gradcanary export``: every sample of a run, or its metrics, as Parquet, CSV or lines of JSON.

CSV is the collector's own. The others are made here of the arrays that it streams, so that the collector does the least
work, and each number is what was stored, bit for bit. One piece of the run is in memory at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import secrets
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone
from math import isfinite, isnan
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from gradcanary import wire
from gradcanary.cli import console
from gradcanary.cli.console import UsageError
from gradcanary.export.collector import check_metrics, run_path
from gradcanary.export.tables import Stream, Table

if TYPE_CHECKING:
    from gradcanary.cli.console import Commands
    from gradcanary.export.collector import CollectorClient

FORMATS = ("parquet", "csv", "ndjson")

ROW_GROUP_CELLS, ROW_GROUP_ROWS, MAX_ROW_GROUP_CELLS = 2**22, 2**13, 2**25
"""Values, or rows where that is more, of a row group of Parquet, and the most values: 16 MB of float32 up to 512
columns, 128 MB from 4,096 on. It is in memory until it is full, and so is the index of the file, which has an entry for
each column of each group: smaller groups would make that the larger part."""

CSV_WITHOUT_COLUMNS = b"step,time\n"

TERMINATED = 128 + signal.SIGTERM
"""The exit status after SIGTERM, as shells report it."""

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_REDRAWN_S = 0.5


def add_command(commands: Commands) -> None:
    """Add ``export``."""
    text = "write all samples of a run, a column per parameter, or its metrics: Parquet, CSV or lines of JSON"
    command = console.add_command(commands, "export", text, _export)
    command.add_argument("name", metavar="RUN", help="a run in the collector")
    text = "parquet needs the package pyarrow (default: %(default)s)"
    command.add_argument("--format", choices=FORMATS, default="csv", help=text)
    text = "this file, which appears when it is complete (default: standard output)"
    command.add_argument("--out", type=Path, metavar="FILE", help=text)
    text = f"{', '.join(wire.STATS)} (default: absmax); may be given several times, a column for each"
    command.add_argument("--stat", action="append", choices=wire.STATS, metavar="STAT", help=text)
    text = "only this parameter, by name or number; may be given several times"
    command.add_argument("--layer", action="append", metavar="LAYER", help=text)
    command.add_argument("--match", metavar="REGEX", help="only parameters in whose name this is found")
    command.add_argument("--from", dest="first", type=int, metavar="STEP", help="the first step")
    command.add_argument("--to", dest="last", type=int, metavar="STEP", help="the last step")
    text = "loss, learning rates and all that was logged instead, a column per metric"
    command.add_argument("--metrics", action="store_true", help=text)
    text = "only the metrics of this name; may be given several times"
    command.add_argument("--metric", action="append", metavar="METRIC", help=text)


def _export(arguments: argparse.Namespace, client: CollectorClient) -> None:
    is_of_metrics = arguments.metrics or arguments.metric is not None
    if is_of_metrics and (arguments.stat or arguments.layer or arguments.match):
        raise UsageError("gradcanary export: --stat, --layer and --match choose parameters, and metrics have none")
    first, last = arguments.first, arguments.last
    if first is not None and last is not None and first > last:
        raise UsageError(f"gradcanary export: --from {first} is after --to {last}")
    if arguments.format == "parquet":
        _check_parquet(arguments.out)
    routes = {"csv": ("export.csv", "metrics.csv")}.get(arguments.format, ("samples", "points"))
    path = f"{run_path(arguments.name)}/{routes[is_of_metrics]}"
    query = {"stat": arguments.stat, "layer": arguments.layer, "match": arguments.match, "name": arguments.metric}
    query |= {"from": first, "to": last}
    reading = contextlib.closing(client.blocks(path, **query))
    with client.nearest_names(arguments.name, console.LISTS_RUNS), _opened(arguments) as output, reading as blocks:
        if arguments.metric:
            check_metrics(client.request("GET", run_path(arguments.name)), arguments.metric)
        if arguments.format == "csv":
            head = next(blocks, b"")
            _check_columns(arguments, has_some=not head.startswith(CSV_WITHOUT_COLUMNS))
            has_rows = write_csv(itertools.chain([head], blocks), output)
        else:
            stream = Stream(blocks)
            _check_columns(arguments, has_some=bool(stream.titles))
            if stream.raw_start is not None:
                start = f"{stream.raw_start:,}"
                console.print_error(
                    f"gradcanary: samples of {arguments.name} before step {start} are not stored any more"
                )
            (write_parquet if arguments.format == "parquet" else write_ndjson)(stream, output)
            has_rows = stream.rows > 0
    if not has_rows:
        console.print_error(f"gradcanary: {arguments.name} has no such values at these steps: the file has no rows")


def _check_parquet(out: Path | None) -> None:
    """Raise UsageError where Parquet cannot be written."""
    try:
        import pyarrow.parquet  # noqa: F401 -- only this command needs it, and it takes half a second
    except ImportError as error:
        raise UsageError(f"gradcanary export: Parquet is written by pyarrow: pip install pyarrow ({error})") from error
    if out is None and sys.stdout is not None and sys.stdout.isatty():
        raise UsageError(
            "gradcanary export: Parquet is not text for a terminal: add > run.parquet, or --out run.parquet"
        )


def _check_columns(arguments: argparse.Namespace, *, has_some: bool) -> None:
    """Raise UsageError if the names that were given choose no parameter; a run may have none yet."""
    if not has_some and arguments.match is not None:
        also = f" and --layer {', '.join(arguments.layer)}" if arguments.layer else ""
        run, match = arguments.name, arguments.match
        raise UsageError(f"gradcanary export: no parameter of {run} is one of --match {match!r}{also}")


def write_csv(blocks: Iterable[bytes], output: Output) -> bool:
    """Write the collector's CSV; return True if it has a row below its first line."""
    lines = 0
    for block in blocks:
        output.write(block)
        lines += block.count(b"\n")
    return lines > 1


def write_parquet(stream: Stream, output: Output) -> None:
    """Write the tables as Parquet."""
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"step": pa.int64(), "time": pa.timestamp("us", tz="UTC"), "launch": pa.int32()}
    kind = {"float32": pa.float32(), "float64": pa.float64()}[stream.dtype]
    own = {name: kinds[name] for name in stream.own}
    schema = pa.schema({**own, **dict.fromkeys(stream.titles, kind)})
    width = max(1, len(stream.titles))
    most = max(ROW_GROUP_CELLS // width, min(ROW_GROUP_ROWS, MAX_ROW_GROUP_CELLS // width), 1)

    def arrow(table: Table) -> pa.RecordBatch:
        columns = [pa.array(column, own[name]) for name, column in zip(own, table.own, strict=True)]
        values, is_valid = pa.py_buffer(table.values), pa.py_buffer(table.is_valid)
        size = len(table) * table.values.itemsize
        for column in range(len(stream.titles)):
            buffers = [is_valid.slice(column * table.stride, table.stride), values.slice(column * size, size)]
            columns.append(pa.Array.from_buffers(kind, len(table), buffers))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    # Values of float32 take less room than a dictionary of them. Statistics of each column would make the index of the
    # file large; steps are what a reader looks for.
    options = {"compression": "zstd", "use_dictionary": False, "write_statistics": list(own)}
    writer = parquet.ParquetWriter(pa.PythonFile(output, mode="w"), schema, **options)
    waiting: list[pa.RecordBatch] = []
    try:
        for table in stream:
            waiting.append(arrow(table))
            if sum(map(len, waiting)) >= most:
                writer.write_table(pa.Table.from_batches(waiting), row_group_size=most)
                waiting.clear()
        if waiting:
            writer.write_table(pa.Table.from_batches(waiting), row_group_size=most)
        writer.close()
    except BaseException:
        output.is_cut = True
        writer.is_open = False  # it would try to end the file when it is deleted
        raise


def write_ndjson(stream: Stream, output: Output) -> None:
    """Write a JSON object per step; a value that is not finite is ``"NaN"``, ``"Infinity"`` or ``"-Infinity"``."""
    keys = [json.dumps(key).replace("%", "%%") for key in (*stream.own, *stream.titles)]
    line = f"{{{', '.join(f'{key}: %s' for key in keys)}}}\n"
    for table in stream:
        steps, times, *launches = table.own
        own = zip(steps, map(_time_text, times), *launches, strict=True)
        cells, rows = _cells(table), len(table)
        lines = (line % (*head, *cells[row::rows]) for row, head in enumerate(own))
        output.write("".join(lines).encode())


def _cells(table: Table) -> list[object]:
    """Return the values column by column, each finite one as it is, others as JSON."""
    cells: list[object] = list(table.values)
    if all(map(isfinite, table.values)):
        return cells
    for place, value in enumerate(table.values):
        if not isfinite(value):
            text = '"NaN"' if isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'
            cells[place] = text if table.has_value(*divmod(place, len(table))) else "null"
    return cells


def _time_text(at: int | None) -> str:
    if at is None:
        return "null"
    return f'"{(_EPOCH + timedelta(microseconds=at)).isoformat(timespec="microseconds").removesuffix("+00:00")}Z"'


class Output:
    """The file that is written to, or standard output; shows the size so far on stderr if that is a terminal.

    After a failure it refuses what still comes: the writer of Parquet would end a part as if it were complete.
    """

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self.is_cut = False
        self._file, self._bytes = file, 0
        self._is_drawn = sys.stderr is not None and sys.stderr.isatty()
        self._drawn_at = time.monotonic()

    def write(self, data: bytes) -> int:
        """Write all of the data."""
        if self.is_cut:
            raise ValueError("the output was cut off")
        self._bytes += len(data)
        if self._is_drawn and time.monotonic() - self._drawn_at > _REDRAWN_S:
            self._draw("")
            self._drawn_at = time.monotonic()
        self._file.write(data)
        return len(data)

    def flush(self) -> None:
        """Do nothing: what is open is flushed when it is closed."""

    def end(self) -> None:
        """Show the size."""
        if self._is_drawn:
            self._draw("\n")

    def _draw(self, end: str) -> None:
        print(f"\r{self._bytes / 1e6:,.1f} MB", end=end, file=sys.stderr, flush=True)  # noqa: T201 -- redrawn in its line


@contextlib.contextmanager
def _opened(arguments: argparse.Namespace) -> Iterator[Output]:
    """Yield the output; a file gets its name when it is complete, and is removed if it does not become that."""
    path: Path | None = arguments.out
    if path is None:
        if sys.stdout is None:
            raise UsageError("gradcanary export: standard output is closed: add --out FILE")
        with _ended(Output(sys.stdout.buffer)) as output:
            yield output
        return
    path = path.resolve()  # of a link, the file that it leads to
    if path.is_dir():
        example = path / f"{arguments.name}.{arguments.format}"
        raise UsageError(f"gradcanary export: {path} is a folder: name a file in it, such as --out {example}")
    if path.exists() and not path.is_file():
        raise UsageError(f"gradcanary export: {path} is not a file; standard output can go there: > {path}")
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        file = part.open("xb")  # follows no link that another user of the folder made
    except OSError as error:
        raise UsageError(f"gradcanary export: {path} cannot be written: {error.strerror}") from error
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    try:
        with file, _ended(Output(file)) as output:
            yield output
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _ended(output: Output) -> Iterator[Output]:
    try:
        yield output
    except BaseException:
        output.is_cut = True
        raise
    finally:
        output.end()
