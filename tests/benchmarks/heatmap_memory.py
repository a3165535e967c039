"""The memory of a heatmap of the largest run: 20,000 layers, 5,000 columns.

    python tests/benchmarks/heatmap_memory.py

The run lies in tiles of a store of its own, and is read by the collector's own code in this process. The peak is that
of all that Python and numpy allocate while one question is answered, without the collector's cache of tiles, which has
a bound of its own. One plane is a float64 for each layer and column. Exit status 1 where a target is missed.
"""

import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

import ratios

sys.path[:0] = [str(Path(__file__).parent.parent)]

from gradcanary_server.api import charts
from gradcanary_server.api.charts import HeatmapOptions
from gradcanary_server.ingest.service import Ingest
from gradcanary_server.rules.config import Rules
from gradcanary_server.storage import runs
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.layers import LayerSetCache
from gradcanary_server.tsdb.log import BatchLog
from gradcanary_server.tsdb.query import StepRange
from gradcanary_server.tsdb.reader import Reader
from gradcanary_server.tsdb.tiles import TileStore
from support import wide_runs

LAYERS, COLUMNS = 20_000, 5_000
CACHE_BYTES = 2**20

PICTURES = (
    HeatmapOptions("min", "model", None, 1),
    HeatmapOptions("mean", "model", None, 800),
    HeatmapOptions("max", "worst", None, 400),
    HeatmapOptions("mean", "worst", None, 800),
)

MOST_MB = 100


def main() -> int:
    """Measure all pictures."""
    plane = 8 * LAYERS * COLUMNS
    peaks = []
    print(f"{LAYERS:,} layers, {COLUMNS:,} columns, a plane of {plane / 1e6:.0f} MB\n")
    print("| rows | order | value | answered in | peak | of a plane |\n|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="gradcanary-heatmap-") as folder:
        database = Database(f"sqlite:///{folder}/gradcanary.db")
        database.migrate()
        sets = LayerSetCache()
        archive = Reader(BatchLog(sets), TileStore(CACHE_BYTES))
        wide_runs.lay(database, Ingest(database, Rules(), sets, archive, "http://here"), LAYERS, COLUMNS)
        for picture in PICTURES:
            took_s, peak = measured(database, archive, picture)
            peaks.append(peak / 1e6)
            cells = f"{took_s:.1f} s | {peak / 1e6:.1f} MB | {peak / plane:.3f}"
            print(f"| {picture.rows} | {picture.order} | {picture.value} | {cells} |", flush=True)
        database.close()
    print()
    return int(not ratios.judged("largest peak, MB", max(peaks), MOST_MB))


def measured(database: Database, archive: Reader, picture: HeatmapOptions) -> tuple[float, int]:
    """Answer one question; return the seconds and the peak of what was allocated for it, in bytes."""
    tracemalloc.start()
    began = time.perf_counter()
    with database.read() as connection:
        row = runs.get_run(connection, wide_runs.NAME)
        answer = charts.build_heatmap(
            connection, archive, Rules(), row, "absmax", picture, StepRange(None, None, COLUMNS)
        )
    took_s = time.perf_counter() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    if answer["steps"]["shape"] != [COLUMNS]:  # type: ignore[index]  # an array as it is sent
        raise SystemExit("the picture has other columns than were asked for")
    return took_s, peak


if __name__ == "__main__":
    raise SystemExit(main())
