"""The pyramid on the tiles: a tile of a level is made of the eight below it once these are whole."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace

import numpy as np
from sqlalchemy import Connection

from gradcanary import wire
from gradcanary_server import entries, tiles
from gradcanary_server.nodes import COUNT, FACTOR, MAXIMUM, MEAN, MINIMUM, NONFINITE, Ticks
from gradcanary_server.packing import Arrays
from gradcanary_server.samples import PHASE
from gradcanary_server.sources import MetricSource, StatSource, TickSource, entries_of, named
from gradcanary_server.tiles import METRICS, OF_METRICS, SHELF, STATE, STEPS, TOP, Chain, Place, Tiles

OF_STATS = (MINIMUM, MEAN, MAXIMUM, COUNT)
"""What a tile of a stat holds of its nodes."""


@dataclass(frozen=True)
class Work:
    """Tiles of one range to be written, none where nothing is in it, and the chain before and after."""

    run_id: int
    made: list[tuple[Place, Arrays]]
    packed: list[tuple[Place, bytes]]
    before: Chain
    after: Chain


def waiting(connection: Connection, runs: Collection[int] | None) -> list[tuple[int, int, int]]:
    """Return run, launch and interval of the chains of these runs, None = all, as far as they fill a tile."""
    found = tiles.every_chain(connection, runs)
    return [(run_id, of.launch_no, of.every) for run_id, of in found if _next(of) is not None]


def prepare(connection: Connection, store: Tiles, run_id: int, launch_no: int, every: int) -> Work | None:
    """Return the next tiles of a chain's pyramid, the lowest level first; None if all are there."""
    mine = [each for each in tiles.chains(connection, run_id) if (each.launch_no, each.every) == (launch_no, every)]
    for of in mine:
        if (following := _next(of)) is not None:
            return _range(connection, store, run_id, of, *following)
    return None


def carry_out(connection: Connection, work: Work, now: float) -> bool:
    """Write it, unless the chain was moved meanwhile; tell whether it is."""
    if work.before not in tiles.chains(connection, work.run_id, held=True):
        return False
    tiles.write(connection, work.run_id, work.packed, now)
    tiles.note(connection, work.run_id, work.after)
    return True


def _next(of: Chain) -> tuple[int, int, int] | None:
    """Return the lowest level that lacks whole tiles, and the steps that it lacks."""
    for level in range(1, TOP + 1):
        span = of.span(level)
        begin, whole = of.end(level), of.end(level - 1) // span * span
        if begin < whole:
            return level, begin, whole
    return None


def _range(connection: Connection, store: Tiles, run_id: int, of: Chain, level: int, begin: int, whole: int) -> Work:
    """Return the first range of a level with something in it; a job that jumped leaves empty ones."""
    kind = METRICS if of.every == OF_METRICS else STEPS
    first = store.first(connection, run_id, of, kind, level - 1, begin)
    number = whole // of.span(level) if first is None else min(whole // of.span(level), first // FACTOR)
    begin, end = number * of.span(level), (number + 1) * of.span(level)
    if begin >= whole:
        return Work(run_id, [], [], of, _rolled(of, level, whole))
    rolled = _metrics if of.every == OF_METRICS else _samples
    made = [
        (Place(level, kind, of.launch_no, of.every, number, shelf, 0), arrays)
        for kind, shelf, arrays in rolled(connection, store, run_id, of, level, begin, end)
    ]
    return Work(run_id, made, [tiles.packed(*each) for each in made], of, _rolled(of, level, end))


def _rolled(of: Chain, level: int, end: int) -> Chain:
    ends = [*of.rolled, *[0] * (level - len(of.rolled))]
    ends[level - 1] = end
    return replace(of, rolled=tuple(ends))


def _samples(
    connection: Connection, store: Tiles, run_id: int, of: Chain, level: int, begin: int, end: int
) -> Iterator[tuple[str, int, Arrays]]:
    source = TickSource(store, connection, run_id, of, ())
    yield STEPS, 0, _packable(source.widened(source.of_tiles(level - 1, begin, end), of.width(level)))
    widths: dict[tuple[str, int], int] = {}
    for place, arrays in store.read(connection, run_id, of, (STATE, *wire.STATS), level - 1, (begin, end)):
        width = max(plane.shape[1] for plane in arrays.values())
        widths[place.kind, place.shelf] = max(width, widths.get((place.kind, place.shelf), 0))
    for (kind, shelf), width in widths.items():
        layers = (shelf * SHELF + np.arange(width)).astype(np.int32)
        stat, wanted = (wire.STATS[0], (NONFINITE,)) if kind == STATE else (kind, OF_STATS)
        planes = StatSource(store, connection, run_id, of, (), stat, layers, wanted)
        found = planes.widened(planes.of_tiles(level - 1, begin, end), of.width(level))
        yield kind, shelf, {name: found.planes[name] for name in wanted}


def _metrics(
    connection: Connection, store: Tiles, run_id: int, of: Chain, level: int, begin: int, end: int
) -> Iterator[tuple[str, int, Arrays]]:
    found = store.read(connection, run_id, of, [METRICS], level - 1, (begin, end))
    names: dict[tuple[str, str], int] = {}
    for _, arrays in found:
        for key in entries_of(level - 1, arrays)[0]:
            names.setdefault(key, len(names))
    source = MetricSource(store, connection, run_id, of, (), names)
    wide = entries.widened(source.of_tiles(level - 1, begin, end), of.width(level))
    yield METRICS, 0, {"names": named(names), **vars(wide)}


def _packable(ticks: Ticks) -> Arrays:
    phases = {PHASE + stat: seen for stat, seen in ticks.phases.items()}
    return {"start": ticks.start, "first": ticks.first, "last": ticks.last, "time": ticks.time, **phases}
