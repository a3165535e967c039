"""What would happen under another schedule of the learning rate: weights that stop moving, gradients that fall. Pure.

Weights of low precision: a step moves a weight if it is more than half of the distance to the next number, which goes
by the size of the weight. The layer's own measured share of unmoved weights gives how far a step reaches, in learning
rates, so the share at another rate follows. Gradients: where one falls as fast as weight decay shrinks a weight, as
that of a LoRA half whose other half decays, it goes on so with the sum of learning rates. Other falls end: foretold
from their trend they were false (docs/results/whatif.md), and are not.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gradcanary_server.ops.replay_source import ReplayChunk
from gradcanary_server.rules.detectors.no_update import BY_THE_RATE
from gradcanary_server.rules.detectors.precision import unmoved_span
from gradcanary_server.rules.types import MEASURED, Floats, Ints, LayerFacts

BITS = {"bfloat16": 8, "float16": 11}
"""Bits of a significand, with the implicit one, as in :mod:`gradcanary.stats.weights`."""

COMPARED = 2**16
"""Elements of a layer that are compared, at most, as in :mod:`gradcanary.stats.weights`."""

LEAST_WEIGHTS = 32
"""Elements of a layer that has shares worth the name."""

LEVELS = (0.5, 0.9)
"""Shares of unmoved weights: those of the rule frozen."""

REACH_PER_UPDATE = 1.8
"""The farthest of 50 steps beside the root mean square of one, of the trainings that set it; 1.7 to 2.5 in 8 of 10
layers of the others (tests/benchmarks/whatif.py).
"""

RATE_BAND = (2.3, 0.8)
"""The rate at which a layer passes a level, over the forecast: 0.9 to 2.2 in 8 of 10 (tests/benchmarks/whatif.py)."""

LAST_SHARES, LAST_UPDATES = 3, 5

BLOCK = 10
"""Samples in a median of a trend."""

TREND_BLOCKS = (20, 200)
"""Medians in a trend, at least and at most: more are thinned."""

LEAST_FALL = 0.1
"""Decades that a trend has fallen at least, and three times its spread."""

MAX_EXTENSION = 10.0
"""Falls as far as the measured one that are foretold: weights that also learn do not shrink for ever."""

DECAY_MATCH = 0.25
"""The difference of a slope from that of weight decay, at most, and so the range of the forecast."""

FIRST_SAMPLES, LEAST_JUMP, LEAST_RATE, FALLEN = 50, 0.2, 0.05, 0.9
"""Of a change of schedule: after a warm-up, a part of a rate of at least this share of the highest; and the share of
the highest rate that is a change without a jump."""

DECADES = math.log10(math.e)
"""Weight decay multiplies a weight by 1 - rate * decay in each step."""


@dataclass(frozen=True)
class Series:
    """Measurements of a layer now and then: ``steps`` int64[m], ``values`` float64[m]."""

    steps: Ints
    values: Floats

    def until(self, step: int) -> Series:
        """Return the measurements up to a step."""
        count = int(np.searchsorted(self.steps, step, side="right"))
        return Series(self.steps[:count], self.values[:count])


NOTHING = Series(np.empty(0, np.int64), np.empty(0))


@dataclass(frozen=True)
class History:
    """The last launch of a run: ``rates`` float64[n, groups] at ``steps`` int64[n], NaN = unknown; ``spans`` int64[n]
    are the steps over which weights are compared; ``levels`` float64[b, layers] are medians of log10 of absmax, of the
    samples until ``level_steps`` int64[b]. ``series`` are measurements by stat and number of the layer; ``decays`` are
    the decoupled weight decays of its groups, each with its first step.
    """

    layers: tuple[LayerFacts, ...]
    optimizers: tuple[str, ...]
    first_step: int
    steps: Ints
    spans: Ints
    rates: Floats
    level_steps: Ints
    levels: Floats
    series: Mapping[str, Mapping[int, Series]]
    decays: tuple[tuple[int, float], ...] = ()

    @property
    def last_step(self) -> int:
        return int(self.steps[-1])

    def of(self, stat: str, layer: LayerFacts) -> Series:
        return self.series[stat].get(layer.number, NOTHING)

    def rates_at(self, steps: Ints) -> Floats:
        """Return float64[n, groups] of the rates at steps: the last known ones."""
        rows = np.searchsorted(self.steps, steps, side="right") - 1
        return self.rates[np.maximum(rows, 0)]

    def highest_rates(self, layer: LayerFacts, steps: Ints) -> Floats:
        """Return the highest rate of a layer in the steps over which its weights were compared."""
        ends = np.searchsorted(self.steps, steps, side="right")
        spans = self.spans[np.maximum(ends - 1, 0)]
        begins = np.minimum(np.searchsorted(self.steps, steps - spans, side="right"), ends - 1)
        rates = self.rates[:, layer.group or 0]
        return np.array([rates[max(begin, 0) : end].max() for begin, end in zip(begins, ends, strict=True)])

    def progress(self, group: int, steps: Ints) -> Floats:
        """Return the sum of the learning rates of a group until steps."""
        gaps = np.diff(self.steps, prepend=self.first_step - 1)
        sums = np.cumsum(np.nan_to_num(self.rates[:, group]) * gaps)
        return np.interp(steps, self.steps, sums)


def read_history(chunks: Iterable[ReplayChunk]) -> History | None:
    """Return the last launch of a run, without its weight decays; None without samples."""
    recorder: _Recorder | None = None
    for chunk in chunks:
        if len(chunk.samples.steps) == 0:
            continue
        if recorder is None or recorder.launch != chunk.launch.number:
            recorder = _Recorder(chunk)
        recorder.add(chunk)
    return None if recorder is None else recorder.history()


_UNMEASURED = np.empty((0, 0), np.float32)

SPARSE = ("frozen_fraction", "update_ratio", "weight_norm")


class _Recorder:
    """Adds up the samples of a launch."""

    def __init__(self, chunk: ReplayChunk) -> None:
        self.launch = chunk.launch.number
        self._first_step = chunk.launch.first_step
        self._optimizers: tuple[str, ...] = ()
        self._layers: dict[int, LayerFacts] = {}
        self._rows: list[tuple[Ints, Ints, Floats]] = []
        self._points: dict[str, dict[int, list[tuple[int, float]]]] = {stat: {} for stat in SPARSE}
        self._numbers: Sequence[int] = ()
        self._rest: tuple[Ints, Floats] = (np.empty(0, np.int64), np.empty((0, 0)))
        self._levels: list[tuple[Ints, Sequence[int], Floats]] = []

    def add(self, chunk: ReplayChunk) -> None:
        samples, numbers = chunk.samples, [layer.number for layer in chunk.launch.layers]
        self._layers.update({layer.number: layer for layer in chunk.launch.layers})
        self._optimizers = chunk.launch.optimizers
        span = np.full(len(samples.steps), unmoved_span(samples.every))
        self._rows.append((samples.steps, span, samples.lr.astype(np.float64)))
        for stat in SPARSE:
            plane = samples.values.get(stat, _UNMEASURED)
            for row, column in np.argwhere(np.isfinite(plane)).tolist():
                point = int(samples.steps[row]), float(plane[row, column])
                self._points[stat].setdefault(numbers[column], []).append(point)
        absmax = samples.values.get("absmax")
        if absmax is not None:
            is_measured = (samples.state == MEASURED) & (absmax > 0)
            self._add_levels(samples.steps, numbers, np.where(is_measured, absmax, np.nan).astype(np.float64))

    def _add_levels(self, steps: Ints, numbers: Sequence[int], absmax: Floats) -> None:
        """Take medians of each ten samples; fewer, before other layers come, are left out."""
        if numbers != self._numbers:
            self._numbers, self._rest = numbers, (steps[:0], absmax[:0])
        steps, absmax = np.append(self._rest[0], steps), np.concatenate([self._rest[1], absmax])
        whole = len(steps) // BLOCK * BLOCK
        if whole:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # of a layer without a gradient in all ten
                medians = np.nanmedian(np.log10(absmax[:whole]).reshape(-1, BLOCK, len(numbers)), axis=1)
            self._levels.append((steps[BLOCK - 1 : whole : BLOCK], numbers, medians))
        self._rest = steps[whole:], absmax[whole:]

    def history(self) -> History:
        layers = tuple(self._layers[number] for number in sorted(self._layers))
        groups = max(rates.shape[1] for _, _, rates in self._rows)
        rates = np.concatenate([_widen(rates, groups) for _, _, rates in self._rows])
        known = np.where(np.isnan(rates), 0, np.arange(len(rates))[:, None])
        places = {layer.number: column for column, layer in enumerate(layers)}
        levels = np.full((sum(len(steps) for steps, _, _ in self._levels), len(layers)), np.nan)
        row = 0
        for steps, numbers, medians in self._levels:
            levels[row : row + len(steps), [places[number] for number in numbers]] = medians
            row += len(steps)
        return History(
            layers=layers,
            optimizers=self._optimizers,
            first_step=self._first_step,
            steps=np.concatenate([steps for steps, _, _ in self._rows]),
            spans=np.concatenate([spans for _, spans, _ in self._rows]),
            rates=np.take_along_axis(rates, np.maximum.accumulate(known, axis=0), axis=0),
            level_steps=np.concatenate([np.empty(0, np.int64), *(steps for steps, _, _ in self._levels)]),
            levels=levels,
            series={
                stat: {number: _series(points) for number, points in found.items()}
                for stat, found in self._points.items()
            },
        )


def _widen(rates: Floats, groups: int) -> Floats:
    return np.pad(rates, ((0, 0), (0, groups - rates.shape[1])), constant_values=math.nan)


def _series(points: Sequence[tuple[int, float]]) -> Series:
    return Series(np.array([step for step, _ in points], np.int64), np.array([value for _, value in points]))


def _share_table() -> tuple[Floats, Floats]:
    """Return log10 of x, and the share of normal weights that stand still at it, from all to none.

    ``x`` is how far a step reaches, times 2^bits, over the root mean square of the weights. A weight of m * 2^e, m from
    1 to 2, has half of a distance of 2^e / 2^bits; m is taken as even on its logarithm, as it is of many distributions.
    """
    logs = np.linspace(-5, 1.5, 651)
    mantissas = 2 ** ((np.arange(16) + 0.5) / 16)
    shares = [np.mean([math.erfc(10**log * each / math.sqrt(2)) for each in mantissas]) for log in logs.tolist()]
    return logs, np.array(shares)


_LOGS, _SHARES = _share_table()


def _unmoved_share(x: Floats) -> Floats:
    with np.errstate(divide="ignore"):
        return np.interp(np.log10(x), _LOGS, _SHARES)


def _reach_of_share(share: Floats) -> Floats:
    """Return the inverse of :func:`_unmoved_share`."""
    found: Floats = 10 ** np.interp(-share, -_SHARES, _LOGS)
    return found


@dataclass(frozen=True)
class WeightModel:
    """Low-precision weights of a layer: ``share`` of them unmoved when last measured, at ``rate``; ``scale`` is x of
    :func:`_share_table` at a learning rate of 1.
    """

    layer: LayerFacts
    share: float
    rate: float
    scale: float

    def shares(self, rates: Floats) -> Floats:
        """Return the shares of weights that stand still at these learning rates."""
        return _unmoved_share(self.scale * rates)

    def critical_rate(self, level: float) -> float:
        """Return the learning rate under which more than this share of the weights stand still."""
        return float(_reach_of_share(np.array([level]))[0] / self.scale)


def fit_weights(history: History, layer: LayerFacts, until: int) -> WeightModel | str:
    """Return the model of the weights of a layer from what was measured up to a step, or why there is none."""
    if layer.param_dtype not in BITS:
        return "not in bfloat16 or float16"
    group, numel = layer.group, math.prod(layer.shape)
    if group is None or group >= history.rates.shape[1]:
        return "in no optimizer"
    if group < len(history.optimizers) and history.optimizers[group] not in BY_THE_RATE:
        return f"steps of {history.optimizers[group]} do not go by the learning rate alone"
    if numel < LEAST_WEIGHTS:
        return f"fewer than {LEAST_WEIGHTS} weights"
    shares, norms = (history.of(stat, layer).until(until) for stat in ("frozen_fraction", "weight_norm"))
    rates = history.highest_rates(layer, shares.steps) if len(shares.steps) else np.empty(0)
    is_known = np.isfinite(rates) & (rates > 0)
    if not is_known.any() or not len(norms.steps):
        return "no share of unmoved weights was measured at a known rate"
    rates, measured = rates[is_known][-LAST_SHARES:], shares.values[is_known][-LAST_SHARES:]
    size = float(norms.values[-1]) / math.sqrt(numel)
    if size <= 0:
        return "all weights are zero"
    least = max(0.05, 1 / min(numel, COMPARED))
    scale = float(np.median(_reach_of_share(np.clip(measured, least, 1 - least / 2)) / rates))
    if np.median(measured) < least:
        update = update_scale(history, layer, until, numel)
        if update is None:
            return "no update was measured at a known rate"
        scale = max(scale, REACH_PER_UPDATE * update * 2 ** BITS[layer.param_dtype] / size)
    return WeightModel(layer, float(measured[-1]), float(rates[-1]), scale)


def update_scale(history: History, layer: LayerFacts, until: int, numel: int) -> float | None:
    """Return the root mean square of the change of weights in a step, over the learning rate; the median of a few."""
    ratios, norms = (history.of(stat, layer).until(until) for stat in ("update_ratio", "weight_norm"))
    steps, at, norms_at = np.intersect1d(ratios.steps, norms.steps, return_indices=True)
    rates = history.rates_at(steps)[:, layer.group or 0] if len(steps) else np.empty(0)
    is_known = np.isfinite(rates) & (rates > 0)
    if not is_known.any():
        return None
    moved = ratios.values[at] * norms.values[norms_at] / math.sqrt(numel)
    return float(np.median((moved[is_known] / rates[is_known])[-LAST_UPDATES:]))


@dataclass(frozen=True)
class Trend:
    """The fall of a layer's gradients by weight decay: log10 of absmax is ``level`` at the ``progress`` of the last
    sample, and falls by ``slope`` decades (over 0) for each unit of the sum of learning rates. ``fallen`` are the
    decades of the fall so far, ``spread`` those around the line.
    """

    layer: LayerFacts
    progress: float
    level: float
    slope: float
    fallen: float
    spread: float

    def crossings(self, threshold: float) -> tuple[float, float, float] | None:
        """Return the earliest, likely and latest sum of learning rates at which the gradient is at a threshold; None
        if that is too far from what was measured.
        """
        need = self.level - math.log10(threshold)
        if need > MAX_EXTENSION * self.fallen:
            return None
        bounds = ((need - self.spread, 1 + DECAY_MATCH), (need, 1), (need + self.spread, 1 - DECAY_MATCH))
        early, likely, late = (self.progress + max(far, 0.0) / (fast * self.slope) for far, fast in bounds)
        return early, likely, late


def fit_trend(history: History, column: int, until: int) -> Trend | str:
    """Return the trend of a layer's gradients up to a step, or why none is continued."""
    layer = history.layers[column]
    group = layer.group
    if group is None:
        return "in no optimizer"
    if group >= history.rates.shape[1] or np.isnan(history.rates[:, group]).all():
        return "no learning rate on record"
    is_before = (history.level_steps <= until) & ~np.isnan(history.levels[:, column])
    steps, levels = history.level_steps[is_before], history.levels[is_before, column]
    steps, levels = steps[len(steps) // 2 :], levels[len(levels) // 2 :]  # the later half: a training begins otherwise
    least, most = TREND_BLOCKS
    if len(steps) < least:
        return f"fewer than {2 * least * BLOCK} samples"
    thin = -(-len(steps) // most)
    steps, levels = steps[::-thin][::-1], levels[::-thin][::-1]
    progress = history.progress(group, steps)
    slope = -_slope(progress, levels)
    offsets = levels + slope * progress
    spread = 1.4826 * float(np.median(np.abs(offsets - np.median(offsets))))
    fallen = slope * float(progress[-1] - progress[0])
    if fallen < max(LEAST_FALL, 3 * spread):
        return "no fall"
    decays = [decay * DECADES for step, decay in history.decays if step <= until]
    nearest = min(decays, key=lambda each: abs(each - slope), default=0.0)
    if abs(nearest - slope) > DECAY_MATCH * nearest:
        return "a fall that no weight decay explains"
    return Trend(layer, float(progress[-1]), float(np.median(levels[-3:])), nearest, fallen, spread)


def _slope(x: Floats, y: Floats) -> float:
    """Return the median of the slopes between all pairs of points (Theil-Sen)."""
    rows, columns = np.triu_indices(len(x), 1)
    apart = x[columns] - x[rows]
    is_apart = apart > 0
    return float(np.median((y[columns] - y[rows])[is_apart] / apart[is_apart])) if is_apart.any() else 0.0


@dataclass(frozen=True)
class Steps:
    """The first step at which something happens: the ``earliest``, the ``likely`` and the ``latest``, None = never."""

    earliest: int | None
    likely: int | None
    latest: int | None


NEVER = Steps(None, None, None)


@dataclass(frozen=True)
class Plan:
    """Learning rates to come: float64[n, groups] at rising ``steps`` int64[n], from the first one on; ``progress`` are
    their sums, with those of before.
    """

    steps: Ints
    rates: Floats
    progress: Floats

    @classmethod
    def following(cls, history: History, steps: Ints, rates: Floats) -> Plan:
        """Return the plan of these rates after the steps of a history before the first of them."""
        before = np.array([history.progress(group, steps[:1] - 1)[0] for group in range(rates.shape[1])])
        gaps = np.diff(steps, prepend=steps[0] - 1)[:, None]
        return cls(steps, rates, before + np.cumsum(rates * gaps, axis=0))

    def first_below(self, rate: float, group: int) -> int | None:
        """Return the first step with a learning rate under this one."""
        return self._first(self.rates[:, group] < rate)

    def first_after(self, progress: float, group: int) -> int | None:
        """Return the first step with a sum of learning rates of this and more."""
        return self._first(self.progress[:, group] >= progress)

    def _first(self, is_so: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> int | None:
        return int(self.steps[np.argmax(is_so)]) if is_so.any() else None


def weight_steps(model: WeightModel, plan: Plan, level: float) -> Steps:
    """Return from which step on more than this share of a layer's weights stand still."""
    rate, group = model.critical_rate(level), model.layer.group or 0
    bounds = (RATE_BAND[0], 1.0, RATE_BAND[1])
    return Steps(*(plan.first_below(rate * bound, group) for bound in bounds))


def gradient_steps(trend: Trend, plan: Plan, threshold: float) -> Steps | None:
    """Return from which step on the gradients of a layer are under a threshold; None where nothing can be foretold."""
    crossings = trend.crossings(threshold)
    if crossings is None:
        return None
    return Steps(*(plan.first_after(progress, trend.layer.group or 0) for progress in crossings))


@dataclass(frozen=True)
class Outlook:
    """What would happen to a layer: ``kind`` weights or gradients, at a ``level`` (a share, or a threshold) under which
    or over which it ``is_past`` already. ``now`` is the last measured value, ``rate`` the learning rate under which
    weights stand still, None of gradients.
    """

    layer: LayerFacts
    kind: str
    level: float
    now: float
    steps: Steps
    is_past: bool
    rate: float | None = None


@dataclass(frozen=True)
class Answer:
    """The outlooks of a run under a plan, and the layers about which nothing can be foretold, by kind and reason."""

    outlooks: tuple[Outlook, ...]
    unknown: Mapping[str, Mapping[str, tuple[str, ...]]]


KINDS = ("weights", "gradients")


def foresee(history: History, plan: Plan, threshold: float, measured: Mapping[int, Plan] | None = None) -> Answer:
    """Return what would happen under a plan, from what was measured before its first step.

    ``measured`` are plans by layer of the steps at which weights were compared, where these are known.
    """
    until = int(plan.steps[0]) - 1
    outlooks: list[Outlook] = []
    unknown: dict[str, dict[str, list[str]]] = {kind: {} for kind in KINDS}
    for column, layer in enumerate(history.layers):
        model = fit_weights(history, layer, until)
        if isinstance(model, str):
            unknown["weights"].setdefault(model, []).append(layer.name)
        else:
            own = plan if measured is None else measured.get(layer.number)
            outlooks += [] if own is None else _weight_outlooks(model, own)
        trend = fit_trend(history, column, until)
        now = _last_level(history, column, until)
        found = None if isinstance(trend, str) else gradient_steps(trend, plan, threshold)
        if now is not None and now < math.log10(threshold):
            outlooks.append(Outlook(layer, "gradients", threshold, 10**now, NEVER, is_past=True))
        elif found is not None and now is not None:
            outlooks.append(Outlook(layer, "gradients", threshold, 10**now, found, is_past=False))
        else:
            reason = trend if isinstance(trend, str) else "a fall too short to go on so far"
            unknown["gradients"].setdefault(reason, []).append(layer.name)
    frozen = {kind: {reason: tuple(names) for reason, names in found.items()} for kind, found in unknown.items()}
    return Answer(tuple(outlooks), frozen)


def _weight_outlooks(model: WeightModel, plan: Plan) -> Iterator[Outlook]:
    first = plan.rates[:1, model.layer.group or 0]
    for level in LEVELS:
        rate = model.critical_rate(level)
        is_past = model.share > level and bool(model.shares(first)[0] > level)
        steps = NEVER if is_past else weight_steps(model, plan, level)
        yield Outlook(model.layer, "weights", level, model.share, steps, is_past, rate)


def _last_level(history: History, column: int, until: int) -> float | None:
    """Return the median of the last three levels of a layer up to a step, None if there are fewer."""
    levels = history.levels[history.level_steps <= until, column]
    known = levels[~np.isnan(levels)][-3:]
    return float(np.median(known)) if len(known) == 3 else None


@dataclass(frozen=True)
class Verdict:
    """A forecast beside what happened, at step ``happened``, None = it did not.

    ``word``: hit (within the range), off (outside of it), missed, false (foretold, and did not happen), quiet
    (neither), possible (only the early end of the range was foretold).
    """

    outlook: Outlook
    happened: int | None
    word: str

    @property
    def steps_away(self) -> int | None:
        """The steps from the likely one to the one that came; None where one of them is missing."""
        likely = self.outlook.steps.likely
        return None if likely is None or self.happened is None else likely - self.happened


def backtest(history: History, step: int, threshold: float) -> tuple[Answer, list[Verdict]]:
    """Hold what would have been foretold before a step, with the schedule that came, against what happened.

    Weights are compared at the steps at which they were measured, by the rates since the measurement before. Raises
    ValueError if there are no samples from that step on.
    """
    later = history.steps >= step
    if not later.any() or later.all():
        raise ValueError("there are samples on one side of it only")
    plan = Plan.following(history, history.steps[later], history.rates[later])
    measured = {}
    for layer in history.layers:
        steps = history.of("frozen_fraction", layer).steps
        steps = steps[steps >= step]
        if len(steps):
            rates = np.repeat(history.highest_rates(layer, steps)[:, None], history.rates.shape[1], axis=1)
            measured[layer.number] = Plan(steps, rates, rates)
    answer = foresee(history, plan, threshold, measured)
    silent = {name for names in answer.unknown["gradients"].values() for name in names}
    columns = {layer.number: column for column, layer in enumerate(history.layers)}
    outlooks = [each for each in answer.outlooks if not each.is_past]
    outlooks += [
        Outlook(layer, "gradients", threshold, math.nan, NEVER, is_past=False)
        for layer in history.layers
        if layer.name in silent
    ]
    return answer, [_judge(history, each, columns[each.layer.number], step) for each in outlooks]


def _judge(history: History, outlook: Outlook, column: int, step: int) -> Verdict:
    if outlook.kind == "weights":
        series, slack = history.of("frozen_fraction", outlook.layer), 0
        is_so = series.values > outlook.level
        steps = series.steps
    else:
        steps, slack = history.level_steps, 2 * BLOCK * int(np.median(np.diff(history.steps, prepend=0)))
        is_so = history.levels[:, column] < math.log10(outlook.level)
    is_so &= steps >= step
    lasting = is_so & np.append(is_so[1:], True)
    happened = int(steps[np.argmax(lasting)]) if lasting.any() else None
    return Verdict(outlook, happened, _word(outlook.steps, happened, slack))


def _word(foretold: Steps, happened: int | None, slack: int) -> str:
    if foretold.likely is None and foretold.earliest is not None:
        return "possible"
    if foretold.likely is None:
        return "quiet" if happened is None else "missed"
    if happened is None:
        return "false"
    earliest = foretold.likely if foretold.earliest is None else foretold.earliest
    latest = math.inf if foretold.latest is None else foretold.latest
    return "hit" if earliest - slack <= happened <= latest + slack else "off"


def find_change(history: History) -> int | None:
    """Return the step at which the learning rate left its course: its largest jump, else the first step under 0.9 of
    its maximum; None if there is none after the first 50 samples.
    """
    rates = np.nan_to_num(history.rates).max(axis=1) if history.rates.size else np.zeros(len(history.steps))
    rates, steps = rates[FIRST_SAMPLES:], history.steps[FIRST_SAMPLES:]
    if not len(rates) or rates.max() <= 0:
        return None
    larger = np.maximum(rates[:-1], rates[1:])
    jumps = np.where(larger >= LEAST_RATE * rates.max(), np.abs(np.diff(rates)) / np.maximum(larger, 1e-300), 0)
    if jumps.max(initial=0) > LEAST_JUMP:
        return int(steps[1 + np.argmax(jumps)])
    top = int(np.argmax(rates))
    is_under = rates[top:] < FALLEN * rates.max()
    return int(steps[top + np.argmax(is_under)]) if is_under.any() else None
