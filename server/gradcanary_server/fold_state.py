"""What the rules remember of a run between two batches, as one value that packs into bytes. Pure."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.baselines import Baselines
from gradcanary_server.beginnings import Beginnings
from gradcanary_server.duty import Duty
from gradcanary_server.errors import StoreError
from gradcanary_server.observations import Jump
from gradcanary_server.precision import Precision
from gradcanary_server.scores import Scores
from gradcanary_server.tracks import EXPLOSION, INFORMATION, RULES, RUN_TRACKS, TRACKS, Meaning

VERSION = 4
"""Of what is packed. Older ones are read, and never written: version 1 had the first five tracks, and no duty; of
version 2 nobody knew how large layers began; up to version 3 a block lay layer by layer, behind what every batch
moves."""
_HEAD = struct.Struct("<HI")
"""The version, and a length: up to version 3 that of the JSON, then the number of layers."""
_LENGTH = struct.Struct("<I")

LOSSES = 50
"""Losses kept: as many as observations make a block, so that a baseline knows the loss of its time."""


SUSPECT, NOTED, FIRING, RECOVERING = range(1, 5)
STATES = ("", "suspect", "noted", "firing", "recovering")


@dataclass(frozen=True)
class Verdict:
    """What the rules say of a layer now.

    ``rules`` holds suspect, firing, recovering, noted (information) per rule, ok ones left out; ``low`` = under
    ``enter`` without evidence that anything was lost; ``baseline`` is an absmax, None while unknown.
    """

    rules: dict[str, str]
    low: bool
    baseline: float | None


@dataclass(frozen=True)
class Progress:
    """Where the present launch is: ``skipped`` counts the steps that a GradScaler skipped in a row."""

    launch: int = 0
    last_step: int = -1
    last_loss_step: int = -1
    grace_over: bool = False
    skipped: int = 0
    skipped_since: int = -1
    lr: tuple[float, ...] = ()
    loss_level: float | None = None
    """The median loss of the block that set the baselines of most layers; None = unknown."""
    loss_first: float | None = None
    """The median of the first losses of the run."""
    calm_step: int = -1
    """The last step of this launch at which the common fall was small, or first known; -1 = none yet."""
    reach: float = 0.0
    """Decades that all gradients fell step by step, -1 = they fell at once, 0 = they did not, or a little."""
    scale_severity: int = -1
    """The highest severity of the scale_drop that is open, as an index into SEVERITIES; -1 = none open."""
    explosion_severity: int = -1
    lr_most: tuple[float, ...] = ()
    """The highest learning rate of each group in this launch, NaN = unknown."""
    micro_steps: int = 0
    """The most that a window of this launch had."""
    facts: int = 0
    """A digest of what the agents had said at the last step."""
    jumps: tuple[Jump, ...] = ()
    """The last one of each group that had any in this launch, by group."""


@dataclass
class FoldState:
    """N layers by their numbers; ``present`` bool[N] are those of the present launch, ``alive`` bool[N] those that had
    a non-zero gradient after grace, ``shapes`` uint32[N] checksums, ``losses`` float64[<= 50] the last ones.
    """

    progress: Progress = field(default_factory=Progress)
    present: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    alive: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    low: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    shapes: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    losses: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0, np.float64))
    baselines: Baselines = field(default_factory=lambda: Baselines.none(0, 0))
    duty: Duty = field(default_factory=lambda: Duty.none(0))
    precision: Precision = field(default_factory=lambda: Precision.none(0))
    scores: Scores = field(default_factory=lambda: Scores.zeros(TRACKS, 0))
    of_run: Scores = field(default_factory=lambda: Scores.zeros(RUN_TRACKS, 1))
    resolve_after: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))
    """float32[N], the score of a layer that fires and shows no sign of recovery."""
    accepted: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """bool[N]: somebody said that these shall be as they are, also beside their siblings."""
    began: Beginnings = field(default_factory=lambda: Beginnings.none(0))

    @classmethod
    def empty(cls) -> FoldState:
        """Return the state of a run that was never heard of."""
        return cls()

    def copy(self) -> FoldState:
        """Return a state that can be moved without moving this one."""
        return replace(
            self,
            present=self.present.copy(),
            alive=self.alive.copy(),
            low=self.low.copy(),
            shapes=self.shapes.copy(),
            losses=self.losses.copy(),
            baselines=self.baselines.copy(),
            duty=self.duty.copy(),
            precision=self.precision.copy(),
            scores=self.scores.copy(),
            of_run=self.of_run.copy(),
            resolve_after=self.resolve_after.copy(),
            accepted=self.accepted.copy(),
            began=self.began.copy(),
        )

    def make_room(self, layers: int, observations: int) -> None:
        """Hold at least so many layers, and blocks of at least so many observations."""
        more = layers - len(self.present)
        if more > 0:
            for name in ("present", "alive", "low", "shapes", "resolve_after", "accepted"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros(more, array.dtype)]))
            self.scores = self.scores.widen(layers)
            self.duty, self.precision = self.duty.widen(layers), self.precision.widen(layers)
            self.began = self.began.widen(layers)
        if more > 0 or observations > len(self.baselines.block):
            self.baselines = self.baselines.widen(len(self.present), observations)

    def verdict(self, layer: int) -> Verdict:
        """Return what the rules say of a layer by its number; nothing of one they never saw."""
        return self.verdicts([layer])[0]

    def verdicts(self, layers: Sequence[int]) -> list[Verdict]:
        """Return what the rules say of each of these layers by their numbers."""
        numbers = np.array(layers, np.int64)
        places = np.flatnonzero(numbers < len(self.present))
        columns = numbers[places]
        found = [Verdict({}, low=False, baseline=None) for _ in layers]
        judged = zip(places.tolist(), self.low[columns].tolist(), self.baselines.absmax(columns), strict=True)
        for place, is_low, baseline in judged:
            found[place] = Verdict({}, is_low, baseline)
        for rule, meanings in RULES.items():
            kinds = _kinds(self.scores, meanings, columns, self.resolve_after[columns])
            for at in np.flatnonzero(kinds).tolist():
                found[places[at]].rules[rule] = STATES[kinds[at]]
        return found

    def low_count(self) -> int:
        """Return how many layers are low."""
        return int(self.low.sum())

    def pack(self) -> bytes:
        """Return the state as bytes. Equal ones may have others, by what nothing reads, values behind ``filled``: that
        costs a piece stored anew, and no more.

        What nearly every batch moves lies behind the rest, and in one place: only pieces that are others are stored
        anew (:mod:`gradcanary_server.fold_states`). So the JSON, of any length, comes last.
        """
        told: dict[str, object] = {
            "progress": {**vars(self.progress), "jumps": [astuple(jump) for jump in self.progress.jumps]},
            "losses": len(self.losses),
            "counting": [int((self.scores.score > 0).sum()), int((self.of_run.score > 0).sum())],
        }
        if self.accepted.any():  # seldom
            told["accepted"] = np.flatnonzero(self.accepted).tolist()
        text = json.dumps(told, sort_keys=True, separators=(",", ":")).encode()
        head = _HEAD.pack(VERSION, len(self.present)) + _LENGTH.pack(len(self.baselines.block))
        arrays = [*self._arrays(), *_sparse(self.scores), *_sparse(self.of_run), self.losses]
        return b"".join([head, *(array.tobytes() for array in arrays), text, _LENGTH.pack(len(text))])

    def _arrays(self) -> tuple[NDArray[Any], ...]:
        """Return what has one number per layer, in the order in which it is packed."""
        lines, duty = self.baselines, self.duty
        plain = (self.present, self.alive, self.low, self.shapes, self.resolve_after, lines.level)
        seldom = (duty.before, duty.longest, duty.idle, duty.since, duty.still)
        often = (lines.block, lines.filled, duty.ones, duty.seen)
        return (*plain, *seldom, *self.precision.arrays(), *self.began.arrays(), *often)

    @classmethod
    def unpack(cls, raw: bytes) -> FoldState:
        """Return a packed state; raises StoreError when another version packed it."""
        version, length = _head(raw)
        if version < VERSION:
            return _unpack_older(raw, version, length)
        (observations,), (text,) = (
            _LENGTH.unpack_from(raw, _HEAD.size),
            _LENGTH.unpack_from(raw, len(raw) - _LENGTH.size),
        )
        told = json.loads(raw[-_LENGTH.size - text : -_LENGTH.size])
        state, reader = cls(), _Reader(raw, _HEAD.size + _LENGTH.size)
        state.make_room(length, observations)
        for array in state._arrays():
            array[...] = reader.take(array.dtype.type, array.size).reshape(array.shape)
        state.scores = reader.scores(TRACKS, length, told["counting"][0])
        state.of_run = reader.scores(RUN_TRACKS, 1, told["counting"][1])
        state.losses = reader.take(np.float64, told["losses"])
        state.accepted[told.get("accepted", [])] = True
        state.progress = _progress(told["progress"])
        return state


def _unpack_older(raw: bytes, version: int, length: int) -> FoldState:
    """Return a state that a version before 4 packed: a JSON head, then arrays."""
    head = json.loads(raw[_HEAD.size : _HEAD.size + length])
    reader, layers, block = _Reader(raw, _HEAD.size + length), head["layers"], head["block"]
    state = FoldState()
    state.make_room(layers, block)
    lines, duty = state.baselines, state.duty
    for array in (state.present, state.alive, state.low, state.shapes, state.resolve_after):
        array[:] = reader.take(array.dtype.type, layers)
    state.losses = reader.take(np.float64, head["losses"])
    lines.level[:], lines.filled[:] = reader.take(np.float32, layers), reader.take(np.uint16, layers)
    lines.block[:] = reader.take(np.int16, layers * block).reshape(layers, block).T
    state.accepted[head.get("accepted", [])] = True
    since_2 = (*duty.arrays(), *state.precision.arrays()) if version > 1 else ()
    for array in (*since_2, *(state.began.arrays() if version > 2 else ())):
        array[:] = reader.take(array.dtype.type, layers)
    # A track keeps its number for ever, and new ones come behind: so a place among fewer is that among more.
    state.scores = reader.scores(TRACKS, layers, head["counting"][0])
    state.of_run = reader.scores(RUN_TRACKS, 1, head["counting"][1])
    if version < 3:
        # What explodes over a baseline did not begin so.
        state.began.level[state.scores.firing[EXPLOSION] & ~np.isnan(lines.level)] = -np.inf
    state.progress = _progress(head["progress"])
    return state


def _head(raw: bytes) -> tuple[int, int]:
    """Return the version of a packed state, and the length in its head; raises StoreError."""
    version, length = _HEAD.unpack_from(raw) if len(raw) >= _HEAD.size else (None, 0)
    if version not in (1, 2, 3, VERSION):
        raise StoreError(
            f"The rules' memory of a run was packed by another version ({version}, this one is {VERSION}): "
            "upgrade gradcanary."
        )
    return version, length


def _progress(told: Mapping[str, Any]) -> Progress:
    lists = {name: tuple(value) for name, value in told.items() if isinstance(value, list)}
    return Progress(**{**told, **lists, "jumps": tuple(Jump(*jump) for jump in told.get("jumps", []))})


def _sparse(scores: Scores) -> tuple[NDArray[Any], ...]:
    counting = np.flatnonzero(scores.score > 0)
    flat = (scores.score.ravel(), scores.since.ravel(), scores.firing.ravel())
    return (counting.astype(np.uint32), *(array[counting] for array in flat))


class _Reader:
    def __init__(self, raw: bytes, offset: int) -> None:
        self._raw = raw
        self._offset = offset

    def take(self, dtype: type[np.generic], count: int) -> NDArray[Any]:
        array = np.frombuffer(self._raw, dtype, count, self._offset).copy()
        self._offset += array.nbytes
        return array

    def scores(self, tracks: int, layers: int, counting: int) -> Scores:
        scores = Scores.zeros(tracks, layers)
        where = self.take(np.uint32, counting)
        scores.score.ravel()[where] = self.take(np.float32, counting)
        scores.since.ravel()[where] = self.take(np.int64, counting)
        scores.firing.ravel()[where] = self.take(np.bool_, counting)
        return scores


def _kinds(
    scores: Scores, meanings: tuple[Meaning, ...], columns: NDArray[np.int64], resolve_after: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """Return what a rule says of the layers at ``columns`` (int64[L]) as indices into STATES, 0 = nothing."""
    cells = np.ix_(np.array([each.track for each in meanings]), columns)
    score, firing = scores.score[cells], scores.firing[cells]
    kinds = np.where((score > 0).any(axis=0), SUSPECT, 0).astype(np.uint8)
    fires = firing.any(axis=0)
    if fires.any():
        severity = np.where(firing, np.array([[each.severity] for each in meanings]), -1).max(axis=0)
        is_full = (firing & (score >= resolve_after)).any(axis=0)
        of_firing = np.where(severity == INFORMATION, NOTED, np.where(is_full, FIRING, RECOVERING))
        kinds[fires] = of_firing[fires]
    return kinds
