"""Evaluation of a stored batch: rules, rule state, incidents, sparkline, and the rank of a non-finite gradient.

Each function runs inside the ingest transaction, which holds the row of the run.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import ColumnElement, Connection, select

from gradcanary_server.errors import RequestError
from gradcanary_server.incidents import liveness, repository, service
from gradcanary_server.incidents.rule_versions import RuleVersions
from gradcanary_server.ingest import sessions
from gradcanary_server.rules import signals
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.evaluator import evaluate
from gradcanary_server.rules.layer_config import compile_rules
from gradcanary_server.rules.state import RuleState
from gradcanary_server.rules.types import NONFINITE, Launch, LayerFacts, Samples, Transition
from gradcanary_server.storage import runs
from gradcanary_server.storage.database import Database, Record
from gradcanary_server.storage.rule_states import RuleStateStore, StoredState
from gradcanary_server.storage.schema import HeldRun, batch, session
from gradcanary_server.tsdb import sparkline
from gradcanary_server.tsdb.batch import NO_PHASE, Columns
from gradcanary_server.tsdb.log import BatchLog, LoggedBatch
from gradcanary_server.validation import LIMITS

RULE = "nonfinite"
"""The rule whose incidents name a rank: a replicated gradient is non-finite on all ranks after a reduction."""

Values = Mapping[str, object]
"""Columns of a row, by name."""


class LogEntry(NamedTuple):
    """A batch in the log; ``sha256`` is that of the body as it came, ``body`` is compressed."""

    seq: int
    sha256: bytes
    body: bytes


@dataclass(frozen=True)
class BatchContext:
    """A batch in the ingest transaction, with its rows as they were before it."""

    connection: Connection
    now: float
    run: HeldRun
    session: Record
    launch: Launch
    batch: LoggedBatch
    entry: LogEntry

    @property
    def columns(self) -> Columns:
        return self.batch.columns

    @property
    def last_step(self) -> int | None:
        return int(self.columns.steps[-1]) if len(self.columns.steps) else None


@dataclass(frozen=True)
class Evaluation:
    """The rule state before and after a batch; not ``is_current`` if a newer launch of the run was evaluated."""

    before: StoredState
    state: RuleState
    changes: tuple[Transition, ...]
    is_current: bool


class Evaluator:
    """Applies the rules of this collector to batches."""

    def __init__(self, database: Database, rules: Rules, log: BatchLog, cache_bytes: int) -> None:
        self._rules = rules
        self._log = log
        self._states = RuleStateStore(cache_bytes)
        self.rule_versions = RuleVersions(database, rules, self._states)

    def evaluate(self, context: BatchContext) -> Evaluation | None:
        """Return the rule state after a batch; None if its session is not the primary one of its launch."""
        if not context.session.is_primary:
            return None
        self.rule_versions.revise(context.connection, context.run, context.now)
        samples = to_samples(context.columns, compile_rules(context.launch, self._rules).groups)
        before = self._states.read(context.connection, context.run)
        state, changes = evaluate(before.state, context.launch, samples, self._rules)
        is_current = state.progress.launch == context.launch.number
        return Evaluation(before, state, changes if is_current else (), is_current)

    def record(self, context: BatchContext, evaluation: Evaluation | None) -> Values:
        """Store the changed incidents and the rule state; return the changed columns of the run."""
        if evaluation is None:
            if not context.session.is_sharded:
                self._attribute_claims(context)
            return {}
        values: dict[str, object] = {**_step_times(context), **_sparkline(context)}
        values["below_threshold"] = evaluation.state.below_threshold_count()
        if evaluation.is_current:
            self._record_incidents(context, evaluation.changes)
            before, state = evaluation.before, evaluation.state
            values["state_token"] = self._states.write(context.connection, context.run.run_id, before, state)
            facts = self._measured_facts(context, state)
            values |= {} if facts == context.run.facts else {"facts": facts}
            if context.last_step is not None:
                values["step"] = context.last_step
        self._attribute_ranks(context, evaluation.changes)
        return values

    def _measured_facts(self, context: BatchContext, state: RuleState) -> str:
        """Return the facts of the run: what was measured of its weights overrules what was forecast."""
        facts, layers = context.run.facts, context.launch.layers
        if not runs.has_forecast(facts):
            return facts
        firing = state.scores.firing
        moved = [layer.name for layer in layers if state.precision.has_moved[layer.number]]
        still = [layer.name for layer in layers if firing[[signals.FROZEN, signals.STOPPED], layer.number].any()]
        return runs.overrule_forecasts(facts, moved, still)

    def _record_incidents(self, context: BatchContext, changes: tuple[Transition, ...]) -> None:
        launch = context.launch
        has_others = launch.has_older or launch.newer  # the run may have ended on an incident of theirs
        max_step = context.last_step if has_others else None
        key = context.connection, context.run.run_id
        service.record_transitions(*key, launch.number, changes, context.now, self._rules.pace.reopen_s, max_step)
        if context.run.ended is not None:
            # A late batch must not reopen an ended run.
            sessions.close_incidents(*key, context.run.ended, context.now)

    def _attribute_ranks(self, context: BatchContext, changes: tuple[Transition, ...]) -> None:
        """Store the ranks of non-finite gradients: the batches of these ranks may have come before."""
        reduced = _nonfinite(context.batch)
        if not reduced:
            return
        _attribute_rank(context, 0, context.batch, reduced)
        fired = [change.since_step for change in changes if change.rule == RULE and change.kind == "fired"]
        others = (session.c.rank > 0) & session.c.is_sharded.is_(False)
        for rank, piece in _batches_between(context, self._log, others, min([*fired, *reduced]), max(reduced)):
            _attribute_rank(context, rank, piece, reduced)

    def _attribute_claims(self, context: BatchContext) -> None:
        """Store the rank of what another rank than the first had, where the first one's steps came before."""
        own = _own_nonfinite(context.batch)
        if own:
            of_first = _batches_between(context, self._log, session.c.is_primary, min(own), max(own))
            reduced = {step: layers for _, piece in of_first for step, layers in _nonfinite(piece).items()}
            _attribute_rank(context, context.session.rank, context.batch, reduced)


def read_launch(connection: Connection, run: HeldRun, row: Record, layers: tuple[LayerFacts, ...]) -> Launch:
    """Return the launch of a session for the rules; raises RequestError 409 without its first step."""
    launch, newer, configuration = runs.configured_launch(connection, row.run_id, row.launch_no)
    if launch.first_step is None:
        raise RequestError(409, "unknown_layer_set", "No hello told the first step of this launch.", "first_step")
    return Launch(
        number=launch.launch_no,
        first_step=launch.first_step,
        late=launch.late,
        absmax_below=launch.absmax_below,
        norm_below=launch.norm_below,
        layers=layers,
        newer=newer,
        has_older=bool(launch.has_older),
        facts=runs.parse_facts(run.facts),
        optimizers=configuration.optimizer_kinds(),
        metrics=configuration.metrics,
        collapse_below=launch.collapse_below,
    )


def to_samples(columns: Columns, groups: int) -> Samples:
    """Return the columns of a batch that the rules read; ``groups`` is the number of parameter groups of the launch."""
    loss_steps, loss = _untagged(columns, "loss")
    return Samples(
        steps=columns.steps,
        every=columns.every,
        phase=columns.phases.get("absmax", np.full(len(columns.steps), NO_PHASE, np.uint8)),
        state=columns.state,
        values=columns.values,
        skipped=columns.skipped,
        clipped=columns.clipped,
        micro_steps=columns.micro_steps,
        lr=_learning_rates(columns, groups),
        accumulators=columns.accumulators,
        loss_steps=loss_steps,
        loss=loss,
        scales=_at_steps(columns, "scaler_scale"),
        skipped_totals=_at_steps(columns, "skipped_total"),
        metrics=columns.metrics,
    )


def _learning_rates(columns: Columns, groups: int) -> NDArray[np.float32]:
    if len(columns.steps) * groups > LIMITS.max_points:
        raise RequestError(413, "too_large", f"{len(columns.steps)} steps of {groups} parameter groups are too many.")
    rates = np.full((len(columns.steps), groups), np.nan, np.float32)
    for name in {metric.name for metric in columns.metrics}:
        number = name.removeprefix("lr")
        if name.startswith("lr") and number.isascii() and number.isdigit() and int(number) < groups:
            steps, values = _untagged(columns, name)
            if np.array_equal(columns.steps, steps):
                rates[:, int(number)] = values
                continue
            _, rows, points = np.intersect1d(columns.steps, steps, assume_unique=True, return_indices=True)
            rates[rows, int(number)] = values[points]
    return rates


def _at_steps(columns: Columns, name: str) -> NDArray[np.float64] | None:
    """Return a metric at the sampled steps, NaN where it is unknown, None if it was never logged."""
    steps, values = _untagged(columns, name)
    if not len(steps):
        return None
    found = np.full(len(columns.steps), np.nan)
    _, rows, points = np.intersect1d(columns.steps, steps, assume_unique=True, return_indices=True)
    found[rows] = values[points]
    return found


def _untagged(columns: Columns, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return the rising steps and the values of a metric; for a step that was logged twice the last value."""
    series = [metric for metric in columns.metrics if metric.name == name and metric.tags == "{}"]
    if not series:
        return np.empty(0, np.int64), np.empty(0, np.float64)
    if len(series) == 1 and (np.diff(series[0].steps) > 0).all():
        return series[0].steps, series[0].values
    steps = np.concatenate([metric.steps for metric in series])
    values = np.concatenate([metric.values for metric in series])
    unique, last = np.unique(steps[::-1], return_index=True)
    return unique, values[::-1][last]


def _step_times(context: BatchContext) -> Values:
    """Return the columns of the run with the seconds per step, if the batch measured some."""
    series = [metric for metric in context.columns.metrics if (metric.name, metric.tags) == liveness.STEP_TIMES]
    times_s = [seconds for metric in series for seconds in metric.values.tolist() if math.isfinite(seconds)]
    if not times_s:
        return {}
    return liveness.StepTimes(context.run.mean_step_s, context.run.longest_step_s).add(times_s)._asdict()


def _sparkline(context: BatchContext) -> Values:
    absmax = context.columns.values.get("absmax")
    if absmax is None:
        return {}
    line = sparkline.Sparkline.unpack(context.run.sparkline)
    return {"sparkline": line.add(context.columns.steps, sparkline.levels(absmax)).pack()}


def _attribute_rank(
    context: BatchContext, rank: int, piece: LoggedBatch, reduced: Mapping[int, frozenset[int]]
) -> None:
    """Store the rank of the members of the last non-finite incident that were non-finite on it before a reduction.

    After a reduction a NaN of one rank of a replicated model is on all. So ranks above 0 send only their own non-finite
    gradients. They measure these only after a first one: so a later step counts, too, if the reduced gradient (by step
    in ``reduced``) is not finite again while the member fires. Of several ranks the lowest counts, in any order of
    arrival.
    """
    own = _own_nonfinite(piece)
    case = repository.latest_incident(context.connection, context.run.run_id, RULE) if own else None
    if case is None or case.incident.launch_no != context.launch.number:
        return
    for layer, member in case.members.items():
        steps = {step for step in own if layer in own[step] and layer in reduced.get(step, ())}
        until = math.inf if member.until_step is None else member.until_step
        is_first = layer in own.get(member.since_step, ())
        is_own = is_first or any(member.since_step < step <= until for step in steps)
        if layer is not None and is_own and (member.rank is None or rank < member.rank):
            case.members[layer] = replace(member, rank=rank)
            case.touched.add(layer)
    if case.touched:
        repository.save_incident(context.connection, context.run.run_id, case)


def _batches_between(
    context: BatchContext, log: BatchLog, sessions_of: ColumnElement[bool], first: int, last: int
) -> list[tuple[int, LoggedBatch]]:
    """Return the batches in the log of some sessions with steps from ``first`` to ``last``, with their ranks."""
    run_id = context.run.run_id
    joined = (session.c.run_id == batch.c.run_id) & (session.c.session == batch.c.session)
    query = (
        select(batch.c.session, batch.c.seq, batch.c.launch_no, session.c.rank, session.c.layer_sets)
        .join(session, joined)
        .where(batch.c.run_id == run_id, batch.c.launch_no == context.launch.number)
        .where(batch.c.seq >= session.c.sealed_seq, sessions_of)
        .where(batch.c.first_step <= last, batch.c.last_step >= first)
    )
    rows = context.connection.execute(query).all()
    return [(row.rank, log.read(context.connection, run_id, row, row.layer_sets)) for row in rows]


def _nonfinite(piece: LoggedBatch) -> dict[int, frozenset[int]]:
    """Return, by step, the layers whose gradients were not finite."""
    is_nonfinite = piece.columns.state == NONFINITE
    rows = np.flatnonzero(is_nonfinite.any(axis=1)).tolist()
    return {int(piece.columns.steps[row]): frozenset(piece.numbers[is_nonfinite[row]].tolist()) for row in rows}


def _own_nonfinite(piece: LoggedBatch) -> dict[int, frozenset[int]]:
    """Return, by step, the layers whose gradients were not finite before a reduction."""
    by_step: dict[int, frozenset[int]] = {}
    for row, step in enumerate(piece.columns.steps.tolist()):
        layers = sorted(piece.columns.own.get(step, ()))
        if layers:
            is_nonfinite = piece.columns.state[row, layers] == NONFINITE
            by_step[step] = frozenset(piece.numbers[layers][is_nonfinite].tolist())
    return by_step
