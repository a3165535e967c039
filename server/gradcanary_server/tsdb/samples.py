"""Samples and their level-0 tiles; slicing and merging of sample streams; pure.

Every number is stored as it was sent. A range of steps has one ``steps`` tile and, per group of layers, a ``state``
tile and one for each stat that has values.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gradcanary import wire
from gradcanary_server.tsdb.batch import NO_PHASE, Columns
from gradcanary_server.tsdb.log import LoggedBatch
from gradcanary_server.tsdb.tile_codec import Arrays
from gradcanary_server.tsdb.tiles import ABSENT, STATE, STEPS, TILE_LAYERS, SampleStream, TileKey

PHASE = "phase."
"""Before the name of a stat in a ``steps`` tile."""

MAX_STEP_EXCLUSIVE = 2**31

STEP_COLUMNS = ("steps", "times", "micro_steps", "skipped", "clipped")
"""The columns of a batch with one value per step."""


def slice_steps(batch: LoggedBatch, begin: int, end: int) -> LoggedBatch:
    """Return the samples from one step to before another."""
    columns = batch.columns
    rows = slice(*np.searchsorted(columns.steps, [begin, end]).tolist())
    if rows == slice(0, len(columns.steps)):
        return batch
    part = Columns(
        layer_set=columns.layer_set,
        every=columns.every,
        **{name: getattr(columns, name)[rows] for name in (*STEP_COLUMNS, "state")},
        values={stat: plane[rows] for stat, plane in columns.values.items()},
        phases={stat: phase[rows] for stat, phase in columns.phases.items()},
        accumulators=(),
        metrics=(),
        dropped_steps=columns.dropped_steps,
    )
    return replace(batch, columns=part)


def merge_streams(streams: Iterable[tuple[int, Iterator[LoggedBatch]]]) -> Iterator[LoggedBatch]:
    """Yield the samples of several streams in the order of their steps; batches are cut where they meet.

    Each stream comes with its first possible step: it is not read before that.
    """
    waiting = sorted(streams, key=lambda stream: stream[0])
    opened: list[tuple[LoggedBatch, Iterator[LoggedBatch]]] = []
    while waiting or opened:
        if waiting and (not opened or waiting[0][0] <= _first_step(opened[0][0])):
            _, batches = waiting.pop(0)
            following = _next_batch(batches)
        else:
            batch, batches = opened.pop(0)
            others = [*(_first_step(other) for other, _ in opened[:1]), *(first for first, _ in waiting[:1])]
            border = min(others, default=MAX_STEP_EXCLUSIVE)
            yield slice_steps(batch, 0, border)
            remainder = slice_steps(batch, border, MAX_STEP_EXCLUSIVE)
            following = remainder if len(remainder.columns.steps) else _next_batch(batches)
        if following is not None:
            opened.append((following, batches))
            opened.sort(key=lambda stream: _first_step(stream[0]))


def as_slice(numbers: NDArray[np.integer]) -> slice | NDArray[np.integer]:
    """Return consecutive numbers as a slice: copying those columns is several times faster."""
    if len(numbers) and (np.diff(numbers) == 1).all():
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers


def build_sample_tiles(
    batches: Sequence[LoggedBatch], stream: SampleStream, until: int
) -> Iterator[tuple[TileKey, Arrays]]:
    """Yield the tiles of the samples from the end of a stream's tiles to before a step."""
    parts = [slice_steps(batch, stream.sealed_until, until) for batch in batches if batch.columns.every == stream.every]
    steps = np.concatenate([np.empty(0, np.int64), *(part.columns.steps for part in parts)])
    span = stream.span(0)
    for range_no in np.unique(steps // span).tolist():
        slices = [slice_steps(part, range_no * span, (range_no + 1) * span) for part in parts]
        yield from _build_range([part for part in slices if len(part.columns.steps)], stream, range_no)


def batch_of_tiles(stream: SampleStream, tiles: Mapping[tuple[str, int], Arrays]) -> LoggedBatch:
    """Return the samples of a ``steps`` tile and the planes beside it, by kind and layer group; these may be none."""
    head = tiles[STEPS, 0]
    rows = len(head["steps"])
    groups = sorted(group for kind, group in tiles if kind == STATE)
    states = [tiles[STATE, group]["plane"] for group in groups]
    numbers = [group * TILE_LAYERS + np.arange(state.shape[1]) for group, state in zip(groups, states, strict=True)]
    blanks = [{"plane": np.full(state.shape, np.nan, np.float32)} for state in states]
    values = {
        stat: np.hstack([tiles.get((stat, group), blank)["plane"] for group, blank in zip(groups, blanks, strict=True)])
        for stat in wire.STATS
        if any(kind == stat for kind, _ in tiles)
    }
    columns = Columns(
        layer_set="",
        every=stream.every,
        **{name: head[name] for name in STEP_COLUMNS},  # type: ignore[arg-type]  # as they were packed
        state=np.hstack([np.empty((rows, 0), np.uint8), *states]),
        values=values,  # type: ignore[arg-type]  # likewise
        phases={name.removeprefix(PHASE): phase for name, phase in head.items() if name.startswith(PHASE)},  # type: ignore[misc]  # likewise
        accumulators=(),
        metrics=(),
        dropped_steps=0,
    )
    layers = np.concatenate([np.empty(0, np.int64), *numbers]).astype(np.int32)
    return LoggedBatch(stream.launch_no, "", 0, layers, columns)


def _build_range(
    batches: Sequence[LoggedBatch], stream: SampleStream, range_no: int
) -> Iterator[tuple[TileKey, Arrays]]:
    head = {name: np.concatenate([getattr(batch.columns, name) for batch in batches]) for name in STEP_COLUMNS}
    for stat in sorted({stat for batch in batches for stat in batch.columns.phases}):
        blanks = [np.full(len(batch.columns.steps), NO_PHASE, np.uint8) for batch in batches]
        phases = [batch.columns.phases.get(stat, blank) for batch, blank in zip(batches, blanks, strict=True)]
        head[PHASE + stat] = np.concatenate(phases)
    key = TileKey(0, STEPS, stream.launch_no, stream.every, range_no, 0, int(head["steps"][0]))
    yield key, head
    width = 1 + max(int(batch.numbers.max(initial=-1)) for batch in batches)
    columns = [as_slice(batch.numbers) for batch in batches]
    for kind in (STATE, *wire.STATS):
        plane = _merge_planes(batches, columns, kind, width)
        if plane is None:
            continue
        is_empty = plane == ABSENT if kind == STATE else np.isnan(plane)
        for group in range(-(-width // TILE_LAYERS)):
            layers = slice(group * TILE_LAYERS, (group + 1) * TILE_LAYERS)
            if not is_empty[:, layers].all():
                yield key._replace(kind=kind, layer_group=group), {"plane": plane[:, layers]}


def _merge_planes(
    batches: Sequence[LoggedBatch], columns: Sequence[slice | NDArray[np.integer]], kind: str, width: int
) -> NDArray[np.generic] | None:
    """Return a plane by layer number, None where no batch has it; ``columns`` are those of each batch."""
    if kind != STATE and not any(kind in batch.columns.values for batch in batches):
        return None
    steps = sum(len(batch.columns.steps) for batch in batches)
    missing = np.uint8(ABSENT) if kind == STATE else np.float32(np.nan)
    merged: NDArray[np.generic] = np.full((steps, width), missing)
    row = 0
    for batch, targets in zip(batches, columns, strict=True):
        plane = batch.columns.state if kind == STATE else batch.columns.values.get(kind)
        if plane is not None:
            merged[row : row + len(plane), targets] = plane
        row += len(batch.columns.steps)
    return merged


def _next_batch(batches: Iterator[LoggedBatch]) -> LoggedBatch | None:
    """Return the next batch that has samples."""
    return next((batch for batch in batches if len(batch.columns.steps)), None)


def _first_step(batch: LoggedBatch) -> int:
    return int(batch.columns.steps[0])
