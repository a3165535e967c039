"""Samples as tiles of level 0, and back: every number as it was sent, and nothing else; pure.

A range of steps has one ``steps`` tile (what holds for a step as a whole), and per shelf of layers a ``state`` tile and
one for each stat that has a value there.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from gradcanary import wire
from gradcanary_server.batches import NO_PHASE, Columns
from gradcanary_server.log import Piece
from gradcanary_server.packing import Arrays
from gradcanary_server.tiles import ABSENT, SHELF, STATE, STEPS, Chain, Place

PHASE = "phase."
"""Before the name of a stat in a ``steps`` tile."""

FOR_EVER = 2**31
"""Behind every step."""

OF_STEPS = ("steps", "times", "micro_steps", "skipped", "clipped")


def inside(piece: Piece, begin: int, end: int) -> Piece:
    """Return the samples from one step to before another."""
    columns = piece.columns
    rows = slice(*np.searchsorted(columns.steps, [begin, end]).tolist())
    if rows == slice(0, len(columns.steps)):
        return piece
    cut = {name: getattr(columns, name)[rows] for name in (*OF_STEPS, "state")}
    values = {stat: plane[rows] for stat, plane in columns.values.items()}
    phases = {stat: seen[rows] for stat, seen in columns.phases.items()}
    kept = Columns(
        layer_set=columns.layer_set,
        every=columns.every,
        **cut,
        values=values,
        phases=phases,
        accumulators=(),
        metrics=(),
        dropped_steps=columns.dropped_steps,
    )
    return Piece(piece.launch_no, piece.session, piece.seq, piece.numbers, kept)


def in_order(parts: Iterable[tuple[int, Iterator[Piece]]]) -> Iterator[Piece]:
    """Yield the samples of several chains in the order of their steps; pieces are cut where they meet.

    Each chain comes with a step before which it has none: it is not looked into sooner.
    """
    waiting = sorted(parts, key=lambda part: part[0])
    sources: list[tuple[Iterator[Piece], Piece]] = []
    while waiting or sources:
        while waiting and waiting[0][0] <= min((_first(piece) for _, piece in sources), default=FOR_EVER):
            _, source = waiting.pop(0)
            if (opened := _next(source)) is not None:
                sources.append((source, opened))
        if not sources:
            break
        place = min(range(len(sources)), key=lambda number: _first(sources[number][1]))
        source, piece = sources.pop(place)
        border = min([*(_first(other) for _, other in sources), *(begin for begin, _ in waiting[:1]), FOR_EVER])
        yield inside(piece, 0, border)
        rest: Piece | None = inside(piece, border, FOR_EVER)
        if rest is None or not len(rest.columns.steps):
            rest = _next(source)
        if rest is not None:
            sources.insert(place, (source, rest))


def neighbours(numbers: NDArray[np.integer]) -> slice | NDArray[np.integer]:
    """Return numbers that follow each other as a slice: to copy those columns is several times faster."""
    if len(numbers) and (np.diff(numbers) == 1).all():
        return slice(int(numbers[0]), int(numbers[-1]) + 1)
    return numbers


def tiles_of(pieces: Sequence[Piece], chain: Chain, until: int) -> Iterator[tuple[Place, Arrays]]:
    """Yield the tiles of what a chain did not seal before a step."""
    mine = [inside(piece, chain.sealed, until) for piece in pieces if piece.columns.every == chain.every]
    steps = np.concatenate([piece.columns.steps for piece in mine]) if mine else np.empty(0, np.int64)
    span = chain.span(0)
    for number in np.unique(steps // span).tolist():
        cut = [inside(piece, number * span, (number + 1) * span) for piece in mine]
        yield from _tiles_of_range([piece for piece in cut if len(piece.columns.steps)], chain, number)


def piece_of(chain: Chain, head: Arrays, planes: Mapping[tuple[str, int], Arrays]) -> Piece:
    """Return the samples of a ``steps`` tile and the planes beside it, by kind and shelf."""
    shelves = sorted(shelf for kind, shelf in planes if kind == STATE)
    states = [planes[STATE, shelf]["plane"] for shelf in shelves]
    numbers = [shelf * SHELF + np.arange(state.shape[1]) for shelf, state in zip(shelves, states, strict=True)]
    values = {}
    for stat in wire.STATS:
        if any(kind == stat for kind, _ in planes):
            blank = [np.full(state.shape, np.nan, np.float32) for state in states]
            found = [
                planes.get((stat, shelf), {}).get("plane", none) for shelf, none in zip(shelves, blank, strict=True)
            ]
            values[stat] = np.hstack(found)
    columns = Columns(
        layer_set="",
        every=chain.every,
        **{name: head[name] for name in OF_STEPS},  # type: ignore[arg-type]  # as they were packed
        state=np.hstack(states),
        values=values,  # type: ignore[arg-type]  # likewise
        phases={name.removeprefix(PHASE): seen for name, seen in head.items() if name.startswith(PHASE)},  # type: ignore[misc]  # likewise
        accumulators=(),
        metrics=(),
        dropped_steps=0,
    )
    return Piece(chain.launch_no, "", 0, np.concatenate(numbers).astype(np.int32), columns)


def _tiles_of_range(pieces: Sequence[Piece], chain: Chain, number: int) -> Iterator[tuple[Place, Arrays]]:
    head = {name: np.concatenate([getattr(piece.columns, name) for piece in pieces]) for name in OF_STEPS}
    for stat in sorted({stat for piece in pieces for stat in piece.columns.phases}):
        none = [np.full(len(piece.columns.steps), NO_PHASE, np.uint8) for piece in pieces]
        seen = [piece.columns.phases.get(stat, blank) for piece, blank in zip(pieces, none, strict=True)]
        head[PHASE + stat] = np.concatenate(seen)
    part = int(head["steps"][0])
    yield Place(0, STEPS, chain.launch_no, chain.every, number, 0, part), head
    width = 1 + max(int(piece.numbers.max(initial=-1)) for piece in pieces)
    columns = [neighbours(piece.numbers) for piece in pieces]
    for kind in (STATE, *wire.STATS):
        plane = _plane(pieces, columns, kind, width)
        if plane is None:
            continue
        empty = plane == ABSENT if kind == STATE else np.isnan(plane)
        for shelf in range(-(-width // SHELF)):
            mine = slice(shelf * SHELF, (shelf + 1) * SHELF)
            if not empty[:, mine].all():
                place = Place(0, kind, chain.launch_no, chain.every, number, shelf, part)
                yield place, {"plane": plane[:, mine]}


def _plane(
    pieces: Sequence[Piece], columns: Sequence[slice | NDArray[np.integer]], kind: str, width: int
) -> NDArray[np.generic] | None:
    """Return a plane by layer number, None where no piece has it; ``columns`` are those of each piece."""
    if kind != STATE and not any(kind in piece.columns.values for piece in pieces):
        return None
    steps = sum(len(piece.columns.steps) for piece in pieces)
    nothing = np.uint8(ABSENT) if kind == STATE else np.float32(np.nan)
    blank: NDArray[np.generic] = np.full((steps, width), nothing)
    at = 0
    for piece, mine in zip(pieces, columns, strict=True):
        plane = piece.columns.state if kind == STATE else piece.columns.values.get(kind)
        if plane is not None:
            blank[at : at + len(plane), mine] = plane
        at += len(piece.columns.steps)
    return blank


def _next(source: Iterator[Piece]) -> Piece | None:
    return next((piece for piece in source if len(piece.columns.steps)), None)


def _first(piece: Piece) -> int:
    return int(piece.columns.steps[0])
