"""State of the rules of a run between two batches, and its packed bytes. Pure."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradcanary_server.errors import StoreError
from gradcanary_server.rules.activity import Activity
from gradcanary_server.rules.baselines import Baselines, InitialLevels, Weights
from gradcanary_server.rules.detectors.loss_scale import NO_SCALER, Scaler
from gradcanary_server.rules.detectors.metric import SeriesKey, SeriesState
from gradcanary_server.rules.detectors.no_update import Updates
from gradcanary_server.rules.detectors.precision import Precision
from gradcanary_server.rules.signals import INFORMATION, LAYER_SIGNALS, RULES, RUN_SIGNALS, Scores, Signal
from gradcanary_server.rules.types import (
    NO_FALL,
    NOTHING_UNMOVED,
    CommonFall,
    Floats,
    Ints,
    Jump,
    LayerArrays,
    Mask,
    Unmoved,
)

VERSION = 1
"""Of the packed bytes."""
_HEAD = struct.Struct("<HI")
"""The version, and the number of layers."""
_LENGTH = struct.Struct("<I")
_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

LOSSES = 50
"""Losses kept: as many as observations make a block, so a baseline knows the loss of its time."""

SUSPECT, INFO, FIRING, RECOVERING = range(1, 5)
STATES = ("", "suspect", "info", "firing", "recovering")


@dataclass(frozen=True)
class Verdict:
    """State of a layer by the rules: ``rules`` holds suspect, firing, recovering or info (information) per rule, and
    omits ok ones; ``below_threshold`` = under ``enter`` without evidence of a fall; ``baseline`` is an absmax,
    None = none yet.
    """

    rules: dict[str, str]
    below_threshold: bool
    baseline: float | None


@dataclass(frozen=True)
class Progress:
    """Position in the present launch; ``skipped`` counts the steps that a GradScaler skipped in a row."""

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
    last_small_step: int = -1
    """The last step of this launch at which the common fall was small, or first known; -1 = none yet."""
    common_fall: CommonFall = NO_FALL
    scale_severity: int = -1
    """The highest severity of the scale_drop that is open, as an index into SEVERITIES; -1 = none open."""
    explosion_severity: int = -1
    highest_lr: tuple[float, ...] = ()
    """The highest learning rate of each group in this launch, NaN = unknown."""
    micro_steps: int = 0
    """The highest number in a window of this launch."""
    facts: int = 0
    """A fingerprint of the facts that the agents had reported at the last step."""
    jumps: tuple[Jump, ...] = ()
    """The last jump of each parameter group in this launch, by group."""
    last_rise: int = -1
    """The last step of this launch at which a learning rate rose; -1 = none yet."""
    unmoved: Unmoved = NOTHING_UNMOVED
    scaler: Scaler = NO_SCALER
    told_inherited: bool = False
    """What fired as the launch began, and fires still, was told once more."""


@dataclass
class RuleState:
    """N layers by their numbers: ``present`` bool[N] are in the present launch, ``alive`` bool[N] had a non-zero
    gradient after grace, ``below_threshold`` bool[N] are under ``enter``, ``shapes`` uint32[N] are checksums.
    ``losses`` float64[<= 50] are the last ones.
    """

    progress: Progress
    present: Mask
    alive: Mask
    below_threshold: Mask
    shapes: NDArray[np.uint32]
    losses: Floats
    baselines: Baselines
    activity: Activity
    precision: Precision
    updates: Updates
    scores: Scores
    of_run: Scores
    resolve_after: NDArray[np.float32]
    """float32[N], the score of a layer that fires and shows no sign of recovery."""
    accepted: Mask
    """bool[N]: layers with an accepted baseline; they are not compared with their siblings."""
    initial_levels: InitialLevels
    weights: Weights
    metrics: dict[SeriesKey, SeriesState]
    """Of the series with bounds, in the order of their numbers."""

    @classmethod
    def empty(cls, layers: int = 0, observations: int = 0) -> RuleState:
        """Return the state of a new run, with room for layers and for blocks of observations."""
        return cls(
            progress=Progress(),
            present=np.zeros(layers, np.bool_),
            alive=np.zeros(layers, np.bool_),
            below_threshold=np.zeros(layers, np.bool_),
            shapes=np.zeros(layers, np.uint32),
            losses=np.zeros(0),
            baselines=Baselines.none(layers, observations),
            activity=Activity.none(layers),
            precision=Precision.none(layers),
            updates=Updates.none(layers),
            scores=Scores.none(layers, LAYER_SIGNALS),
            of_run=Scores.none(1, RUN_SIGNALS),
            resolve_after=np.zeros(layers, np.float32),
            accepted=np.zeros(layers, np.bool_),
            initial_levels=InitialLevels.none(layers),
            weights=Weights.none(layers),
            metrics={},
        )

    def copy(self) -> RuleState:
        arrays = {name: value.copy() for name, value in vars(self).items() if name != "progress"}
        return RuleState(self.progress, **arrays)

    def measured(self) -> dict[str, LayerArrays]:
        """Return all that is remembered of each layer's measurements, by the name of the field."""
        of_layers = {name: value for name, value in vars(self).items() if isinstance(value, LayerArrays)}
        return {name: value for name, value in of_layers.items() if not isinstance(value, Scores)}

    def make_room(self, layers: int, observations: int) -> None:
        """Hold at least ``layers`` layers, and blocks of at least ``observations`` observations."""
        more = layers - len(self.present)
        if more > 0:
            for name in ("present", "alive", "below_threshold", "shapes", "resolve_after", "accepted"):
                array = getattr(self, name)
                setattr(self, name, np.concatenate([array, np.zeros(more, array.dtype)]))
            self.scores = self.scores.widen(layers)
            for name, measured in self.measured().items():
                setattr(self, name, measured.widen(layers))
        if more > 0 or observations > len(self.baselines.block):
            self.baselines = self.baselines.widen(len(self.present), observations)

    def verdict(self, layer: int) -> Verdict:
        return self.verdicts([layer])[0]

    def verdicts(self, layers: Sequence[int]) -> list[Verdict]:
        """Return the verdicts of layers by their numbers; a layer that was never evaluated has an empty one."""
        numbers = np.array(layers, np.int64)
        is_evaluated = numbers < len(self.present)
        evaluated, columns = np.flatnonzero(is_evaluated).tolist(), numbers[is_evaluated]
        values = zip(self.below_threshold[columns].tolist(), self.baselines.absmax(columns), strict=True)
        verdicts = [Verdict({}, *(next(values) if known else (False, None))) for known in is_evaluated.tolist()]
        for rule, signals in RULES.items():
            states = _rule_states(self.scores, signals, columns, self.resolve_after[columns])
            for column in np.flatnonzero(states).tolist():
                verdicts[evaluated[column]].rules[rule] = STATES[states[column]]
        return verdicts

    def below_threshold_count(self) -> int:
        return int(self.below_threshold.sum())

    def pack(self) -> bytes:
        """Return the state as bytes.

        Parts that nearly every batch changes lie together at the end, because only changed parts are stored
        (:mod:`gradcanary_server.storage.rule_states`). So the JSON, of any length, comes last. Equal states may differ
        in bytes that are never read (rows of a block after ``filled``): that costs one more stored part.
        """
        progress = self.progress
        lists = {
            "common_fall": [*vars(progress.common_fall).values()],
            "jumps": [[*vars(jump).values()] for jump in progress.jumps],
            "unmoved": [*vars(progress.unmoved).values()],
            "scaler": [*vars(progress.scaler).values()],
        }
        scores, of_run = _sparse(self.scores), _sparse(self.of_run)
        values: dict[str, object] = {
            "progress": {**vars(progress), **lists},
            "losses": len(self.losses),
            "counting": [len(scores[0]), len(of_run[0])],
        }
        if self.metrics:
            values["metrics"] = [[*key, *vars(series).values()] for key, series in self.metrics.items()]
        if self.accepted.any():
            values["accepted"] = np.flatnonzero(self.accepted).tolist()
        text = _JSON.encode(values).encode()
        head = _HEAD.pack(VERSION, len(self.present)) + _LENGTH.pack(len(self.baselines.block))
        arrays = [*self.arrays_by_layer(), *scores, *of_run, self.losses]
        return b"".join([head, *(array.tobytes() for array in arrays), text, _LENGTH.pack(len(text))])

    def arrays_by_layer(self) -> tuple[NDArray[Any], ...]:
        """Return the arrays with one number per layer in packed order: those that change often come last."""
        baselines, activity = self.baselines, self.activity
        plain = (self.present, self.alive, self.below_threshold, self.shapes, self.resolve_after, baselines.level)
        idle = (activity.previous_hits, activity.longest_idle, activity.idle)
        since = (activity.idle_since, activity.frozen_by_script, activity.gained, activity.was_dense)
        line = (baselines.blocks, baselines.begin, baselines.end, baselines.pace)
        often = (*self.updates.arrays(), baselines.block, baselines.filled, activity.hits, activity.observed)
        measured = (*self.precision.arrays(), *self.initial_levels.arrays(), *line, *self.weights.arrays())
        return (*plain, *idle, *since, *measured, *often)

    @classmethod
    def unpack(cls, raw: bytes) -> RuleState:
        """Return a packed state; raises StoreError when another version packed it."""
        version, layers = _HEAD.unpack_from(raw) if len(raw) >= _HEAD.size else (None, 0)
        if version != VERSION:
            raise StoreError(
                f"The rule state of a run was packed in another version of its format ({version}; this gradcanary "
                f"reads {VERSION}): use the gradcanary that wrote it."
            )
        (observations,) = _LENGTH.unpack_from(raw, _HEAD.size)
        (text,) = _LENGTH.unpack_from(raw, len(raw) - _LENGTH.size)
        values = json.loads(raw[-_LENGTH.size - text : -_LENGTH.size])
        state, cursor = cls.empty(layers, observations), _ByteCursor(raw, _HEAD.size + _LENGTH.size)
        for array in state.arrays_by_layer():
            array[...] = cursor.take(array.dtype.type, array.size).reshape(array.shape)
        for scores, counting in zip((state.scores, state.of_run), values["counting"], strict=True):
            cursor.fill_scores(scores, counting)
        state.losses = cursor.take(np.float64, values["losses"])
        state.accepted[values.get("accepted", [])] = True
        for name, tags, window, *numbers in values.get("metrics", ()):
            state.metrics[name, tags] = SeriesState(tuple(window), *numbers)
        state.progress = _progress(values["progress"])
        return state


def _progress(values: Mapping[str, Any]) -> Progress:
    tuples = {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    jumps = tuple(Jump(*jump) for jump in values["jumps"])
    shares, *rest = values.get("unmoved", [[]])
    return Progress(
        **{
            **values,
            **tuples,
            "jumps": jumps,
            "common_fall": CommonFall(*values["common_fall"]),
            "scaler": Scaler(*values["scaler"]),
            "unmoved": Unmoved(tuple((int(layer), float(share)) for layer, share in shares), *rest),
        }
    )


def _sparse(scores: Scores) -> tuple[NDArray[Any], ...]:
    counting = np.flatnonzero(scores.score > 0) if scores.score.any() else np.empty(0, np.int64)
    return (counting.astype(np.uint32), *(array.ravel()[counting] for array in scores.arrays()))


class _ByteCursor:
    def __init__(self, raw: bytes, offset: int) -> None:
        self._raw = raw
        self._offset = offset

    def take(self, dtype: type[np.generic], count: int) -> NDArray[Any]:
        array = np.frombuffer(self._raw, dtype, count, self._offset).copy()
        self._offset += array.nbytes
        return array

    def fill_scores(self, scores: Scores, counting: int) -> None:
        where = self.take(np.uint32, counting)
        for array in scores.arrays():
            array.ravel()[where] = self.take(array.dtype.type, counting)


def _rule_states(
    scores: Scores, signals: tuple[Signal, ...], columns: Ints, resolve_after: NDArray[np.float32]
) -> NDArray[np.uint8]:
    """Return the state of a rule for the layers at ``columns`` (int64[L]) as indices into STATES, 0 = ok."""
    cells = np.ix_(np.array([signal.row for signal in signals]), columns)
    score, firing = scores.score[cells], scores.firing[cells]
    states = np.where((score > 0).any(axis=0), SUSPECT, 0).astype(np.uint8)
    fires = firing.any(axis=0)
    if fires.any():
        severity = np.where(firing, np.array([[signal.severity] for signal in signals]), -1).max(axis=0)
        is_full = (firing & (score >= resolve_after)).any(axis=0)
        firing_states = np.where(severity == INFORMATION, INFO, np.where(is_full, FIRING, RECOVERING))
        states[fires] = firing_states[fires]
    return states
