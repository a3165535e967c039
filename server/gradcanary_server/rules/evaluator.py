"""Evaluation of the rules: state and samples in, state and transitions out.

However a stream is cut into batches, the state and the transitions are the same, also if batches come twice. Steps are
evaluated in order, one by one, or many at once where nothing can fire or resolve. A step or loss is evaluated only if
it is later than the last one, and a launch only if no newer one was evaluated. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from gradcanary_server.rules import baselines, resets, signals, transitions, warmup
from gradcanary_server.rules.config import Rules
from gradcanary_server.rules.detectors import metric
from gradcanary_server.rules.detectors.collapse import CollapseDetector
from gradcanary_server.rules.detectors.explosion import ExplosionDetector
from gradcanary_server.rules.detectors.in_vain import InVainDetector
from gradcanary_server.rules.detectors.loss_scale import LossScaleDetector
from gradcanary_server.rules.detectors.no_update import NoUpdateDetector
from gradcanary_server.rules.detectors.nonfinite import NonfiniteDetector
from gradcanary_server.rules.detectors.precision import PrecisionDetector, StaticFindings
from gradcanary_server.rules.detectors.scale_drop import ScaleDropDetector
from gradcanary_server.rules.detectors.vanished import ActivityTracker, VanishedDetector
from gradcanary_server.rules.layer_config import compile_rules
from gradcanary_server.rules.signals import Vote
from gradcanary_server.rules.state import RuleState
from gradcanary_server.rules.steps import Context, Detector, Loss, Losses, Sample, SampleBatch, Span, Step, first_true
from gradcanary_server.rules.transitions import FiringSet, StepEvidence
from gradcanary_server.rules.types import Launch, Mask, Samples, Transition, replaced

TELL_AFTER_STEPS, TELL_AFTER_SAMPLES = 20, 5
"""Of a launch: then what fired before it, and fires still, is told again. As many as decide that anything fires."""


def evaluate(
    state: RuleState, launch: Launch, samples: Samples, rules: Rules
) -> tuple[RuleState, tuple[Transition, ...]]:
    """Return the state after these samples of a launch, and their transitions in the order of steps.

    The loss of a step comes before the step. A loss that comes after it is too late: it would depend on how the stream
    was cut.
    """
    if state.progress.launch in launch.newer:
        return state, ()
    evaluator = Evaluator(state.copy(), launch, samples, rules)
    transitions_of_run = tuple(evaluator.run())
    return evaluator.state, transitions_of_run


class Evaluator:
    """Evaluates the steps and losses of one batch; ``state`` changes with each of them."""

    def __init__(self, state: RuleState, launch: Launch, samples: Samples, rules: Rules) -> None:
        config = compile_rules(launch, rules)
        self.state = state
        self._removed = resets.apply_layer_set(state, launch, config)
        last = state.progress.last_step
        batch = SampleBatch.of(samples, len(launch.layers))
        losses = Losses.of(samples, max(last, state.progress.last_loss_step))
        self.context = context = Context(state, launch, rules, config, batch, losses, samples)
        self.begin = int(np.searchsorted(batch.steps, last, side="right"))
        self._static = StaticFindings(context)
        if self.begin < len(batch.steps):
            self._static.learn(samples.accumulators)
        self._nonfinite, self._scale_drop = NonfiniteDetector(context), ScaleDropDetector(context)
        # The order counts: a layer that explodes sets no baseline, one that collapsed has not vanished.
        self.detectors: tuple[Detector, ...] = (
            self._static,
            self._nonfinite,
            LossScaleDetector(context),
            ActivityTracker(context),
            ExplosionDetector(context),
            self._scale_drop,
            CollapseDetector(context),
            VanishedDetector(context),
            PrecisionDetector(context),
            InVainDetector(context),
            NoUpdateDetector(context),
        )
        eventful = [detector.eventful for detector in self.detectors if detector.eventful is not None]
        self._eventful: Mask = np.logical_or.reduce(eventful)
        self._nothing = np.zeros(len(launch.layers), np.bool_), np.full(len(launch.layers), np.nan)
        self._block_lengths = baselines.block_lengths(config.observations, batch.every)
        self._firing: FiringSet | None = None
        self._tells_at = launch.first_step + max(TELL_AFTER_STEPS, TELL_AFTER_SAMPLES * batch.every) - 1

    def run(self) -> Iterator[Transition]:
        """Evaluate all steps and losses; yield the transitions."""
        yield from self._removed
        batch, losses, row, next_loss = self.context.batch, self.context.losses, self.begin, 0
        while row < len(batch.steps):
            span = self.find_span(row)
            end = row + 1 if span is None else span.end
            step_losses = losses.between(next_loss, losses.count_until(int(batch.steps[end - 1])))
            if span is None:
                yield from self._evaluate_losses(step_losses)
                yield from self.observe(batch.at(row))
            else:
                self._skip_losses(step_losses)
                self.skip(span)
            row, next_loss = end, next_loss + len(step_losses)
        if next_loss < len(losses):
            yield from self._evaluate_losses(losses.between(next_loss, len(losses)))
        context = self.context
        yield from metric.evaluate_metrics(self.state.metrics, context.launch, context.samples.metrics, context.rules)

    def find_span(self, row: int) -> Span | None:
        """Return the steps from a row on that every detector may skip, None if there are none."""
        if self._eventful[row] or self._is_active() or self._tells_inherited(int(self.context.batch.steps[row])):
            return None
        span = self._longest_span(row)
        for detector in self.detectors:
            if not span:
                return None
            span.shorten(detector.quiet_rows(span))
        if span:
            span.free_arrays()
        return span or None

    def skip(self, span: Span) -> None:
        """Add the steps of a span to the state."""
        context, rows = self.context, slice(span.begin, span.end)
        steps, lr = context.batch.steps[rows], context.batch.lr[rows]
        self.state.progress = warmup.skip(self.state.progress, steps, lr, context.launch, context.rules.grace)
        for detector in self.detectors:
            detector.skip(span)

    def observe(self, sample: Sample) -> Iterator[Transition]:
        """Evaluate one step; yield its transitions."""
        before = self._firing_set()
        self.state.progress = warmup.advance(self.state.progress, sample, self.context.launch, self.context.rules.grace)
        step = Step(sample, self._nothing)
        for detector in self.detectors:
            if (detector.sees_skipped or not sample.skipped) and _apply(detector.observe(step)):
                step.has_changed = True
        evidence = _evidence(step, self.context.config.columns)
        if step.has_changed:
            yield from self._transitions(before, evidence)
        if self._tells_inherited(sample.step) and not sample.skipped:
            self.state.progress = replace(self.state.progress, told_inherited=True)
            full = float(self.context.rules.collapse.resolve_after_steps)
            yield from transitions.still_firing(self.state, evidence, full, is_comparable=sample.is_comparable)

    def _tells_inherited(self, step: int) -> bool:
        """Return True at the step at which a launch tells what it has inherited, and later ones until it has."""
        return self.context.launch.has_older and step >= self._tells_at and not self.state.progress.told_inherited

    def _evaluate_losses(self, losses: Losses) -> Iterator[Transition]:
        """Evaluate losses, one by one only if one could fire or resolve something."""
        if self._nonfinite.losses_are_quiet(losses):
            self._skip_losses(losses)
            return
        for index in range(len(losses)):
            yield from self.observe_loss(losses.at(index))

    def _skip_losses(self, losses: Losses) -> None:
        """Add losses to the state with which nothing fires or resolves."""
        if len(losses):
            self._scale_drop.add_losses(losses.values)
            self.state.progress = replaced(self.state.progress, last_loss_step=int(losses.steps[-1]))

    def observe_loss(self, loss: Loss) -> Iterator[Transition]:
        """Evaluate one loss; yield its transitions."""
        before = self._firing_set()
        self.state.progress = replace(self.state.progress, last_loss_step=loss.step)
        if not loss.skipped:  # A skipped window feeds only nonfinite.
            self._scale_drop.add_losses(np.array([loss.value]))
        if _apply(self._nonfinite.observe_loss(loss)):
            yield from self._transitions(before, StepEvidence(loss.step))

    def _is_active(self) -> bool:
        state = self.state
        is_counted = state.scores.score.any() or state.of_run.score.any()
        return (bool(is_counted) or self._static.is_due) and any(detector.is_active() for detector in self.detectors)

    def _longest_span(self, row: int) -> Span | None:
        """Return the steps from a row on that are alike: of one phase, in grace or after it, closing no block."""
        batch = self.context.batch
        end = row + first_true(self._eventful[row:])
        end = row + first_true(batch.is_comparable[row:end] != batch.is_comparable[row])
        launch, grace = self.context.launch, self.context.rules.grace
        _, is_over = warmup.find_grace_end(self.state.progress, batch.steps[row:end], batch.lr[row:end], launch, grace)
        end = row + first_true(is_over != is_over[0])
        if launch.has_older and not self.state.progress.told_inherited:
            end = max(row + 1, min(end, int(np.searchsorted(batch.steps, self._tells_at))))
        if is_over[0] and batch.is_comparable[row]:
            at, is_measured = self.context.config.at, batch.is_measured[row:end]
            end = row + baselines.rows_before_close(self.state.baselines, at, is_measured, self._block_lengths)
        return Span(self.context, row, end, grace_over=bool(is_over[0])) if end > row else None

    def _firing_set(self) -> FiringSet:
        self._firing = self._firing or transitions.find_firing(self.state)
        return self._firing

    def _transitions(self, before: FiringSet, evidence: StepEvidence) -> Iterator[Transition]:
        self._firing = transitions.find_firing(self.state)
        return transitions.diff_firing(before, self._firing, self.state, evidence)


def _apply(votes: Iterable[Vote]) -> bool:
    """Apply each vote before the next one is made; return True if anything fires or resolves."""
    has_changed = False
    for vote in votes:
        has_changed |= signals.apply_vote(vote)
    return has_changed


def _evidence(step: Step, columns: np.ndarray) -> StepEvidence:
    sample, fall = step.sample, float(step.common_fall)
    return StepEvidence(
        step=sample.step,
        every=sample.every,
        columns=columns,
        absmax=sample.absmax,
        siblings=step.siblings,
        common_fall=None if np.isnan(fall) else fall,
        own_fall=float(step.own_fall) if step.is_own_fall else None,
        values={} if sample.skipped else sample.values,
    )
