"""Where the nodes of a stretch come from: its tiles of some level, and its samples in the log."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from gradcanary_server import entries, nodes
from gradcanary_server.batches import NO_PHASE, NONFINITE, Columns
from gradcanary_server.entries import Entries
from gradcanary_server.log import Piece
from gradcanary_server.nodes import MINIMUM, Nodes, Plane, Ticks
from gradcanary_server.packing import Arrays
from gradcanary_server.samples import PHASE, inside, neighbours
from gradcanary_server.tiles import METRICS, SHELF, STATE, STEPS, Chain, Place, Tiles

Numbered = Mapping[tuple[str, str], int]
"""The number of each metric that is asked for, by name and tags."""


class TickSource:
    """Reads which steps a stretch has."""

    def __init__(
        self, tiles: Tiles, connection: Connection, run_id: int, chain: Chain, pieces: Sequence[Piece]
    ) -> None:
        self._tiles, self._connection, self._run_id = tiles, connection, run_id
        self._chain, self._pieces = chain, pieces

    def of_tiles(self, level: int, begin: int, end: int) -> Ticks:
        """Return the nodes that tiles of a level hold of these steps."""
        found = self._tiles.read(self._connection, self._run_id, self._chain, [STEPS], level, (begin, end))
        return self.joined([_ticks(level, head, begin, end) for _, head in found])

    def of_log(self, begin: int, end: int) -> Ticks:
        """Return the samples that the log holds of these steps."""
        cut = [inside(piece, begin, end).columns for piece in self._pieces]
        return self.joined(
            [
                nodes.ticks_of(each.steps, each.times, {s: _bits(seen) for s, seen in each.phases.items()})
                for each in cut
            ]
        )

    def joined(self, parts: Sequence[Ticks]) -> Ticks:
        """Return parts as one."""
        return nodes.joined_ticks(parts) if parts else nodes.no_ticks()

    def widened(self, part: Ticks, width: int) -> Ticks:
        """Return wider nodes."""
        return nodes.widened_ticks(part, width)


@dataclass(frozen=True)
class _Shelf:
    """Which layers of a shelf are asked for: their places among those asked for, and their columns in its tiles."""

    places: NDArray[np.intp]
    columns: NDArray[np.int32]
    runs: tuple[slice | NDArray[np.integer], slice | NDArray[np.integer]]

    @classmethod
    def of(cls, layers: NDArray[np.int32], mine: NDArray[np.bool_]) -> "_Shelf":
        """Return those of the ``mine`` among the layers, int32[L]."""
        places, columns = np.flatnonzero(mine), layers[mine] % SHELF
        return cls(places, columns, (neighbours(places), neighbours(columns)))

    def put(self, target: Plane, plane: NDArray[np.generic]) -> None:
        """Fill their places of a plane; a layer that came later is not in older tiles."""
        there = self.columns < plane.shape[1]
        if there.all():
            target[:, self.runs[0]] = plane[:, self.runs[1]]
        else:
            target[:, self.places[there]] = plane[:, self.columns[there]]


class StatSource:
    """Reads one stat of some layers, int32[L], as the ``wanted`` planes of nodes."""

    def __init__(
        self,
        tiles: Tiles,
        connection: Connection,
        run_id: int,
        chain: Chain,
        pieces: Sequence[Piece],
        stat: str,
        layers: NDArray[np.int32],
        wanted: Collection[str] = nodes.PLANES,
    ) -> None:
        self._tiles, self._connection, self._run_id = tiles, connection, run_id
        self._chain, self._pieces, self._stat, self._layers = chain, pieces, stat, layers
        self._wanted = wanted
        self._of_values, self._of_state = any(name != nodes.NONFINITE for name in wanted), nodes.NONFINITE in wanted
        shelves = layers // SHELF
        self._shelves = {int(shelf): _Shelf.of(layers, shelves == shelf) for shelf in np.unique(shelves)}

    def of_tiles(self, level: int, begin: int, end: int) -> Nodes:
        """Return the nodes that tiles of a level hold of these steps."""
        asked = ((STEPS, True), (STATE, self._of_state), (self._stat, self._of_values))
        kinds, shelves = [kind for kind, is_wanted in asked if is_wanted], {0, *self._shelves}
        found = self._tiles.read(self._connection, self._run_id, self._chain, kinds, level, (begin, end), shelves)
        heads = [(place, head) for place, head in found if place.kind == STEPS]
        planes: dict[tuple[int, int], list[tuple[Place, Arrays]]] = {}
        for place, arrays in found:
            if place.kind != STEPS and place.shelf in self._shelves:
                planes.setdefault((place.number, place.part), []).append((place, arrays))
        starts, rows = [], []
        for _, head in heads:
            mine = head["start" if level else "steps"].astype(np.int64, copy=False)
            rows.append(slice(*np.searchsorted(mine, [begin, end]).tolist()))
            starts.append(mine[rows[-1]])
        of_samples = ((MINIMUM, self._of_values), (nodes.NONFINITE, self._of_state))
        filled = self._wanted if level else [name for name, is_wanted in of_samples if is_wanted]
        whole = nodes.blank(np.concatenate([np.empty(0, np.int64), *starts]), len(self._layers), filled)
        at = 0
        for (place, _), each in zip(heads, rows, strict=True):
            end_at = at + each.stop - each.start
            self._fill(whole, slice(at, end_at), planes.get((place.number, place.part), []), each)
            at = end_at
        if level:
            return whole
        values, nonfinite = (whole.planes.get(name) for name, _ in of_samples)
        return nodes.leaves(whole.start, values, nonfinite, self._wanted)

    def of_log(self, begin: int, end: int) -> Nodes:
        """Return the samples that the log holds of these steps."""
        return self.joined([self._leaves(inside(piece, begin, end)) for piece in self._pieces])

    def joined(self, parts: Sequence[Nodes]) -> Nodes:
        """Return parts as one."""
        nothing = nodes.blank(np.empty(0, np.int64), len(self._layers), self._wanted)
        return nodes.joined(parts) if parts else nothing

    def widened(self, part: Nodes, width: int) -> Nodes:
        """Return wider nodes."""
        return nodes.widened(part, width)

    def _fill(self, whole: Nodes, at: slice, found: Sequence[tuple[Place, Arrays]], rows: slice) -> None:
        for place, arrays in found:
            for stored, plane in arrays.items():
                name = nodes.NONFINITE if place.kind == STATE else MINIMUM if stored == "plane" else stored
                if name in whole.planes:
                    told = plane[rows] == NONFINITE if place.kind == STATE and place.level == 0 else plane[rows]
                    self._shelves[place.shelf].put(whole.planes[name][at], told)

    def _leaves(self, piece: Piece) -> Nodes:
        columns = piece.columns
        shape = (len(columns.steps), len(self._layers))
        values, nonfinite = np.full(shape, np.nan, np.float32), np.zeros(shape, np.bool_)
        _, mine, theirs = np.intersect1d(self._layers, piece.numbers, assume_unique=True, return_indices=True)
        nonfinite[:, mine] = columns.state[:, theirs] == NONFINITE
        if self._stat in columns.values:
            values[:, mine] = columns.values[self._stat][:, theirs]
        return nodes.leaves(columns.steps, values, nonfinite, self._wanted)


class MetricSource:
    """Reads some metrics; a level 0 of their tiles and what lies in the log are one, for points may come late."""

    def __init__(
        self,
        tiles: Tiles,
        connection: Connection,
        run_id: int,
        chain: Chain,
        pieces: Sequence[Piece],
        numbered: Numbered,
    ) -> None:
        self._tiles, self._connection, self._run_id = tiles, connection, run_id
        self._chain, self._pieces, self._numbered = chain, pieces, numbered

    def of_tiles(self, level: int, begin: int, end: int) -> Entries:
        """Return the entries that tiles of a level hold of these steps, with the points of the log."""
        found = self._tiles.read(self._connection, self._run_id, self._chain, [METRICS], level, (begin, end))
        parts = [self._chosen(entries_of(level, arrays)) for _, arrays in found]
        if level == 0:
            parts += [self._chosen(_entries_of_piece(piece)) for piece in self._pieces]
        whole = self.joined(parts)
        kept = whole.chosen((whole.start >= begin) & (whole.start < end))
        return kept if level == 0 else self._with_late(kept, level, begin, end)

    def _with_late(self, found: Entries, level: int, begin: int, end: int) -> Entries:
        """Make those nodes anew that points in the log came too late for."""
        steps = [metric.steps for piece in self._pieces for metric in piece.columns.metrics]
        late = np.concatenate([np.empty(0, np.int64), *steps])
        width = self._chain.width(level)
        starts = np.unique(late[(late >= begin) & (late < end)] // width * width)
        if not len(starts):
            return found
        kept = found.chosen(~np.isin(found.start, starts))
        made = [self.widened(self.of_tiles(level - 1, at, at + width), width) for at in starts.tolist()]
        return self.joined([kept, *made])

    def of_log(self, _begin: int, _end: int) -> Entries:
        """Return nothing: it was told with the tiles."""
        return entries.nothing()

    def joined(self, parts: Sequence[Entries]) -> Entries:
        """Return parts as one."""
        return entries.joined(parts)

    def widened(self, part: Entries, width: int) -> Entries:
        """Return wider entries."""
        return entries.widened(part, width)

    def _chosen(self, named: tuple[list[tuple[str, str]], Entries]) -> Entries:
        names, found = named
        known = np.array([self._numbered.get(key, -1) for key in names], np.int64)
        kept = found.chosen(known[found.series] >= 0)
        return Entries(known[kept.series], *(getattr(kept, name) for name in list(Entries.__dataclass_fields__)[1:]))


def points_of(piece: Piece, names: dict[tuple[str, str], int]) -> tuple[NDArray[np.generic], ...]:
    """Return the points of a batch's metrics: number of the series in ``names``, which grows; step, value, time."""
    columns = piece.columns
    steps = [metric.steps for metric in columns.metrics]
    numbers = [names.setdefault((metric.name, metric.tags), len(names)) for metric in columns.metrics]
    whole = np.concatenate([np.empty(0, np.int64), *steps])
    return (
        np.repeat(np.array(numbers, np.int64), [len(each) for each in steps]),
        whole,
        np.concatenate([np.empty(0), *(metric.values for metric in columns.metrics)]),
        _times(columns, whole),
    )


def _times(columns: Columns, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return when these steps were, NaN where they were not sampled."""
    if not len(columns.steps):
        return np.full(len(steps), np.nan)
    rows = np.minimum(np.searchsorted(columns.steps, steps), len(columns.steps) - 1)
    return np.where(columns.steps[rows] == steps, columns.times[rows], np.nan)


def named(names: Iterable[tuple[str, str]]) -> NDArray[np.uint8]:
    """Return the series that a tile of metrics numbers, as it holds them."""
    return np.frombuffer(json.dumps(list(names)).encode(), np.uint8)


def entries_of(level: int, arrays: Arrays) -> tuple[list[tuple[str, str]], Entries]:
    """Return the series that a tile of metrics names, and its entries, numbered in that list."""
    names = [(name, tags) for name, tags in json.loads(arrays["names"].tobytes())]
    columns = {name: values for name, values in arrays.items() if name != "names"}
    if level == 0:
        return names, entries.points(*(columns[name] for name in ("series", "steps", "values", "times")))  # type: ignore[arg-type]  # as they were packed
    return names, Entries(**columns)  # type: ignore[arg-type]  # likewise


def _ticks(level: int, head: Arrays, begin: int, end: int) -> Ticks:
    starts = head["start" if level else "steps"]
    rows = slice(*np.searchsorted(starts, [begin, end]).tolist())
    phases = {name.removeprefix(PHASE): seen[rows] for name, seen in head.items() if name.startswith(PHASE)}
    if level == 0:
        seen = {stat: _bits(each) for stat, each in phases.items()}  # type: ignore[arg-type]  # as they were packed
        return nodes.ticks_of(starts[rows], head["times"][rows], seen)  # type: ignore[arg-type]  # likewise
    columns = {name: head[name][rows] for name in ("start", "first", "last", "time")}
    return Ticks(**columns, phases=phases)  # type: ignore[arg-type]  # likewise


def _bits(phases: NDArray[np.uint8]) -> NDArray[np.uint8]:
    return np.where(phases == NO_PHASE, 0, 1 << np.minimum(phases, 7)).astype(np.uint8)


def _entries_of_piece(piece: Piece) -> tuple[list[tuple[str, str]], Entries]:
    names: dict[tuple[str, str], int] = {}
    found = entries.points(*points_of(piece, names))  # type: ignore[arg-type]  # by their types
    return list(names), found
