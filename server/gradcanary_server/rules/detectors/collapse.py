"""Detector of layers that stopped learning, with one kind of vote for each evidence.

A bare ``absmax < 1e-4`` is wrong both ways: it fires on healthy jobs (lora_A is exactly 0 at a LoRA's start, key
biases stay at 1e-11 for ever) and misses a layer that fell from 10 to 1e-3. So a layer is compared with its own past
(*fall*), its siblings, or a configured threshold. Votes are of one step or of n steps; the last axis is layers. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gradcanary_server.rules import signals
from gradcanary_server.rules.baselines import block_lengths
from gradcanary_server.rules.layer_config import Family, LayerRules
from gradcanary_server.rules.signals import INFORMATION, Vote
from gradcanary_server.rules.steps import (
    Context,
    Detector,
    Falls,
    LayerPlanes,
    Span,
    Step,
    any_layer,
    find_handed_over,
    find_zero_counts,
    first_true,
)
from gradcanary_server.rules.types import Floats, Ints, Mask, Votes
from gradcanary_server.rules.warmup import late_join_steps

COMMON_QUANTILE = 0.05

WEIGHTS_SHARE = 0.5
"""Of the decades of a fall, by which weights fall that explain it: in a product of two, half of it is either's."""

FEW = 4
"""With this many layers or fewer, all but one are not nearly all."""

DENSE_SHARE = np.array(0.5)
"""Of the last observations. Experts and rare words have a gradient in fewer; a layer that dies has lost some before its
neighbours are found."""

FAMILY_DECADES = 1.0
"""Decades that the middle one of a family must be farther under the best but one than ``siblings_decades``, because one
of two proves less than a quarter of all. In healthy models it was 1.8 decades under it at most, and 4.3 to 5 where
plain layers lost their gradient with depth."""


STEADY, OTHERS = [signals.FALL, signals.SIBLINGS], [signals.THRESHOLD, signals.LATE, signals.STRAIGHT, signals.FOLLOWS]
"""Evidence with which a layer may fire for hours without any change, and the other kinds."""


class CollapseDetector(Detector):
    """Votes about layers that are low, after the common fall is known."""

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        launch = context.launch
        self._has_threshold = bool(launch.absmax_below or launch.norm_below or self.config.has_threshold)
        self._weight_norms = context.batch.values.get("weight_norm")
        self._block_lengths = block_lengths(self.config.observations, context.batch.every)
        self._late_join_steps = late_join_steps(context.rules.grace, context.batch.every)
        if self._has_threshold:
            self.eventful = any_layer(self._vote_by_threshold(context.batch))

    def is_active(self) -> bool:
        """Return True unless the only counts are full ones of STEADY evidence, as in most steps of a sick training."""
        scores = self.state.scores
        counts, firing = scores.score[STEADY], scores.firing[STEADY]
        is_full = firing & (counts == self.state.resolve_after)
        return bool(((counts > 0) & ~is_full).any() or scores.score[OTHERS].any())

    def quiet_rows(self, span: Span) -> int:
        """Return the first rows without a vote that would move a score; those of layers that fire are full."""
        low, firing = self.context.low[span.begin : span.end], self.state.scores.firing[:, self.config.columns]
        fires = firing[STEADY].any(axis=0)
        if not span.is_comparable or not (low.any() or fires.any()):
            return len(span)
        falls, steps = span.falls, span.samples.steps
        common_fall, may_vote = np.full((len(steps), 1), np.nan), np.zeros(len(steps), np.bool_)
        if span.is_watched:
            common_fall = self._by_layer(*find_common_falls(falls, self.config, self.context.own_loss))
            may_vote = any_layer(np.isinf(common_fall))  # ``zero_counts`` is exact only for single steps
        siblings = self._sibling_levels(falls.sample, grace_over=span.grace_over)
        may_vote |= any_layer(self._vote_by_fall(falls, common_fall) * ~firing[signals.FALL])
        may_vote |= any_layer(self._vote_by_siblings(falls, common_fall, siblings) * ~firing[signals.SIBLINGS])
        may_vote |= any_layer(self._vote_by_lateness(falls, steps))
        may_vote |= any_layer(fires & (falls.sample.absmax > self.config.exit))
        if firing[signals.FALL].any():
            may_vote |= any_layer(self._may_follow(falls, common_fall) & ~firing[signals.FALL])
        return first_true(may_vote)

    def skip(self, span: Span) -> None:
        rows = slice(span.begin, span.end)
        low, is_measured, at = self.context.low[rows], self.context.batch.is_measured[rows], self.config.at
        fires = self.state.scores.firing[signals.COLLAPSE][:, self.config.columns].any(axis=0)
        self.state.below_threshold[at] = _last_measured(low, is_measured, self.state.below_threshold[at]) & ~fires
        if self._weight_norms is not None:
            self.state.weights.observe(self.config.columns, self._weight_norms[rows])

    def observe(self, step: Step) -> Iterator[Vote]:
        sample, state, config = step.sample, self.state, self.config
        low = (sample.absmax < config.enter) & config.enabled
        if "weight_norm" in sample.values:
            state.weights.observe(config.columns, sample.values["weight_norm"][None])
        if self._has_threshold:
            yield self.vote(signals.THRESHOLD, step, self._vote_by_threshold(sample))
        # On healthy steps no layer is low, and no score can move.
        if sample.is_comparable and (low.any() or state.scores.score[signals.COLLAPSE].any()):
            yield from self._observe_evidence(step)
        # A layer that was not measured stays as it was: missing data decides nothing.
        state.below_threshold[config.columns] = np.where(sample.is_measured, low, state.below_threshold[config.columns])
        state.below_threshold[config.columns] &= ~state.scores.firing[signals.COLLAPSE][:, config.columns].any(axis=0)

    def _observe_evidence(self, step: Step) -> Iterator[Vote]:
        """Yield votes by evidence that low layers were higher before."""
        sample, state, columns = step.sample, self.state, self.config.columns
        siblings = step.siblings = self._sibling_levels(sample, grace_over=state.progress.grace_over)
        own_loss, common_fall = self.context.own_loss, self._by_layer(step.common_fall, step.own_fall)
        is_explained = state.progress.scale_severity == INFORMATION
        if is_explained and own_loss is None:
            return  # The loss explains why all gradients are small.
        # It does not explain those of another loss.
        judged = own_loss if is_explained and own_loss is not None else np.ones(len(columns), np.bool_)
        if sample.clipped and step.exploding.any():
            return  # One exploding layer makes the clip shrink all others.
        baseline = state.baselines.levels(columns)
        zero_counts = find_zero_counts(state.activity, self.config, state.scores.firing[:, columns])
        falls = Falls(sample, baseline, baseline - sample.level, state.alive[columns], zero_counts)
        # A layer that stays under ``exit`` never recovers: without this one bad step a month would add up.
        is_not_zero = sample.is_measured & ~sample.zero & judged
        is_judged = is_not_zero & ~np.isnan(falls.decades) & ~np.isnan(common_fall)
        votes = self._vote_by_fall(falls, common_fall) * judged
        straight = self._falls_straight(falls, votes)
        had_fallen = bool(state.scores.firing[signals.FALL].any())
        yield self.vote(signals.FALL, step, np.where(straight, np.minimum(votes, 0), votes), decays=is_judged)
        if not had_fallen and state.scores.firing[signals.FALL].any():
            least = self.config.vanished.observations
            state.activity.was_dense[columns] = state.activity.regular(columns, DENSE_SHARE, least)
        yield self.vote(signals.STRAIGHT, step, np.where(straight, votes, np.minimum(votes, 0)), decays=is_judged)
        follows = self._vote_by_following(falls, common_fall) * judged
        yield self.vote(signals.FOLLOWS, step, follows, decays=is_judged)
        votes = self._vote_by_siblings(falls, common_fall, siblings) * judged
        yield self.vote(signals.SIBLINGS, step, votes, decays=is_not_zero)
        yield self.vote(signals.LATE, step, self._vote_by_lateness(falls, np.array(sample.step)) * judged)

    def _by_layer(self, common_fall: Floats, own_fall: Floats) -> Floats:
        """Return the common fall that each layer is compared with, [..., L], or [..., 1] if it is the same for all."""
        own_loss = self.context.own_loss
        if own_loss is None:
            return np.asarray(common_fall)[..., None]
        return np.where(own_loss, np.asarray(own_fall)[..., None], np.asarray(common_fall)[..., None])

    def _vote_by_fall(self, falls: Falls, common_fall: Floats) -> Votes:
        """Vote +1 where a layer is low, far under its baseline, and fell farther than all together and most others.

        Exact zeros only count for layers in ``zero_counts``. If most of the others are a decade down themselves, a few
        lower ones are the end of a continuous range, not apart.
        """
        sample, decades, config = falls.sample, falls.decades, self.config
        is_low = (sample.absmax < config.enter) & (falls.zero_counts | ~sample.zero)
        with np.errstate(invalid="ignore"):  # infinite is not farther than infinite
            fell = is_low & (decades >= config.fall) & (decades - common_fall >= config.over_common)
        if fell.any():
            is_omitted = fell | sample.zero | (falls.baseline <= config.enter_level)
            median = _median(np.where(is_omitted, np.nan, decades))[..., None]
            with np.errstate(invalid="ignore"):
                fell &= (decades - median >= config.over_common) | np.isnan(median)
        if fell.ndim == 1:  # of several steps some may be left
            fell &= ~find_handed_over(self.state.activity, config, sample.every, fell & sample.zero)
        return self._votes(fell, sample, config.by_fall)

    def _falls_straight(self, falls: Falls, votes: Votes) -> Mask:
        """Return the layers that fell, vote by vote, in one straight line while no weights fell half as far.

        Weights that shrink are a fault, whatever the line is; an annealed factor in front of a loss is none. A layer
        whose line has been told stays so when it ends, unless it is gone altogether.
        """
        fell, columns = votes > 0, self.config.columns
        if not fell.any():
            return fell
        is_line = self.state.baselines.falls_straight(columns, falls.sample.level, self._block_lengths)
        is_line |= self.state.scores.firing[signals.STRAIGHT, columns] & ~falls.sample.zero
        is_line &= ~self.state.scores.firing[signals.FALL, columns]
        straight: Mask = fell & is_line & (self.state.weights.largest_fall(columns) < WEIGHTS_SHARE * falls.decades)
        return straight

    def _vote_by_following(self, falls: Falls, common_fall: Floats) -> Votes:
        """Vote +1 where a layer fell whose zeros are no fall of its own, beside layers that fell.

        It dies with its neighbours, and is exactly zero more and more often. An expert that a router gives up is, too,
        but it had no gradient most of the time before.
        """
        sample, state, config = falls.sample, self.state, self.config
        firing = state.scores.firing[:, config.columns]
        fell = self._may_follow(falls, common_fall) & ~firing[signals.FALL]
        fell &= ~falls.zero_counts & ~firing[signals.MISSED].any(axis=0)
        if fell.any() and firing[signals.FALL].any():
            return self._votes(fell & config.beside(firing[signals.FALL]), sample, config.by_fall)
        return self._votes(np.zeros_like(fell), sample, config.by_fall)

    def _may_follow(self, falls: Falls, common_fall: Floats) -> Mask:
        """Return the low layers that fell and were dense when the first one did."""
        with np.errstate(invalid="ignore"):  # infinite is not farther than infinite
            fell = (falls.decades >= self.config.fall) & (falls.decades - common_fall >= self.config.over_common)
        dense = self.state.activity.was_dense[self.config.columns]
        may_follow: Mask = fell & (falls.sample.absmax < self.config.enter) & dense
        return may_follow

    def _vote_by_siblings(self, falls: Falls, common_fall: Floats, siblings: Floats) -> Votes:
        """Vote +1 where a layer is low and far under the level of its ``siblings``, without a fall of its own.

        Its own fall is judged as such, once falls are detected. A layer that was always exactly zero is unused, not
        collapsed. A layer with an accepted baseline is compared with its own past only.
        """
        sample, config = falls.sample, self.config
        own = config.by_fall & (falls.decades >= config.fall) & ~np.isnan(common_fall)
        unused = sample.zero & (np.isnan(falls.decades) | ~falls.zero_counts)
        with np.errstate(divide="ignore", invalid="ignore"):
            under = np.log10(siblings) - sample.level >= config.siblings
        low = (sample.absmax < config.enter) & under & (siblings > 0)
        return self._votes(low & ~own & ~unused & ~self.state.accepted[config.columns], sample, config.by_siblings)

    def _vote_by_lateness(self, falls: Falls, steps: Ints) -> Votes:
        """Vote +1 where a layer is low just after a running job was joined, before it has a past to compare with."""
        launch, config = self.context.launch, self.config
        joined = (steps - launch.first_step < self._late_join_steps) & launch.late
        was_higher = falls.baseline > config.enter_level
        low = (falls.sample.absmax < config.enter) & ~was_higher & joined[..., None]
        return self._votes(low, falls.sample, config.enabled)

    def _vote_by_threshold(self, sample: LayerPlanes) -> Votes:
        """Vote by a configured threshold, without evidence or grace; recovery is at ``exit / enter`` times that."""
        config, launch, ratio = self.config, self.context.launch, self.config.exit / self.config.enter
        absmax_below = np.where(config.by_threshold, config.enter, np.float32(launch.absmax_below or 0.0))
        norm_below = np.maximum(config.norm_below, np.float32(launch.norm_below or 0.0))
        under = (sample.absmax < absmax_below) | (sample.norm < norm_below)
        over = (sample.absmax > absmax_below * ratio) & ~(sample.norm <= norm_below * ratio)
        # A rule that is switched off for a layer outranks the thresholds of the launch.
        has_threshold = config.enabled & sample.is_measured & ((absmax_below > 0) | (norm_below > 0))
        return ((under & has_threshold).astype(np.int8) - (over & has_threshold)).astype(np.int8)

    def _votes(self, bad: Mask, sample: LayerPlanes, counts: Mask) -> Votes:
        # Only a gradient over ``exit`` recovers a layer, not the end of its evidence.
        good = sample.absmax > self.config.exit
        return ((bad & counts).astype(np.int8) - (good & counts)).astype(np.int8)

    def _sibling_levels(self, sample: LayerPlanes, *, grace_over: bool) -> Floats:
        """Return the absmax that each low layer's siblings have, NaN if too few were measured or none is low.

        It is their upper quartile. Where most siblings are sick, that is sick, too, and it is the best but one: the
        best may be an odd one, as the first block is. Before the end of grace, gradients may still be on their way
        through a deep model.
        """
        levels, config = np.full(sample.absmax.shape, np.nan), self.config
        low = sample.absmax < config.enter
        for family in config.families:
            members = family.members
            if low[..., members].any():
                absmax = sample.absmax[..., members]
                level = _quartile(absmax, family.least)
                if grace_over:
                    best, is_sick = self._best_siblings(absmax, family)
                    level = np.where(is_sick, best, level)
                levels[..., members] = level
        return levels

    def _best_siblings(self, absmax: Floats, family: Family) -> tuple[Floats, Mask]:
        """Return the best absmax but one of a family, and True where it is healthy and half of them are far under it.

        Members without a gradient, such as experts that were not asked, do not count.
        """
        config, members = self.config, family.members
        ordered = np.sort(np.where(absmax > 0, absmax, np.nan), axis=-1)  # NaN last
        number = np.count_nonzero(absmax > 0, axis=-1)[..., None]
        best, middle = (
            np.take_along_axis(ordered, np.maximum(rank, 0), axis=-1) for rank in (number - 2, (number - 1) // 2)
        )
        is_far = np.log10(best) - np.log10(middle) >= config.siblings[members] + FAMILY_DECADES
        is_sick = is_far & (middle < config.enter[members]) & (best > config.exit[members])
        return best, is_sick & (number >= family.least)


def find_common_fall(falls: Falls, config: LayerRules) -> Floats:
    """Return the decades that (nearly) all layers fell at each step; NaN until half of the alive ones have a baseline.

    It is the 5th percentile of the falls (of few layers the smallest, else at least the second smallest) over layers
    that are alive, not zero now (few common factors make an exact zero) and have a baseline above ``enter`` (a lower
    one is noise, and would pin the percentile at 0). It is infinite if all of these are exactly zero: the factor is 0.
    It is NaN if there are no such layers. Exact zeros only count for layers in ``zero_counts``; others are zero now and
    then: a batch in which all rewards are the same, or no triplet is hard, has no gradient.
    """
    decades = falls.decades
    if not falls.alive.any():
        return np.full(decades.shape[:-1], np.nan)
    counted, rank, is_known = _counted_layers(falls, config)
    ordered = np.partition(np.where(counted, decades, np.inf), np.unique(rank), axis=-1)
    return np.where(is_known, np.take_along_axis(ordered, rank[..., None], axis=-1)[..., 0], np.nan)


def find_common_falls(falls: Falls, config: LayerRules, own_loss: Mask | None) -> tuple[Floats, Floats]:
    """Return the common falls of the layers whose loss is on record, and of those with a loss of their own."""
    if own_loss is None:
        common_fall = find_common_fall(falls, config)
        return common_fall, np.full_like(common_fall, np.nan)
    return find_common_fall(falls.of(~own_loss), config), find_common_fall(falls.of(own_loss), config)


def common_fall_reaches(falls: Falls, config: LayerRules, limits: tuple[float, ...]) -> tuple[list[Mask], Mask]:
    """Return the steps at which :func:`find_common_fall` reaches each of these limits, and those at which it is known.

    This needs no sorting.
    """
    decades = falls.decades
    counted, rank, is_known = _counted_layers(falls, config)
    if decades.size and decades.max() < min(limits):  # False if one is NaN. Nearly always no layer fell so far.
        return [np.asarray(np.count_nonzero(counted, axis=-1) <= rank)] * len(limits), is_known
    decades = np.where(counted, decades, np.inf)
    return [np.count_nonzero(decades < limit, axis=-1) <= rank for limit in limits], is_known


def _counted_layers(falls: Falls, config: LayerRules) -> tuple[Mask, Ints, Mask]:
    """Return the layers that a common fall counts, the rank of the layer that decides it, and where it is known."""
    sample, alive, baseline = falls.sample, falls.alive, falls.baseline
    eligible = alive & (baseline > config.enter_level)  # the same at all steps if all layers have been alive
    counted = eligible
    if sample.zero.any() or not sample.is_measured.all():
        eligible = eligible & sample.is_measured & (falls.zero_counts | ~sample.zero)
        counted = eligible & ~sample.zero
    steps = sample.is_measured.shape[:-1]
    if counted is eligible and counted.ndim == 1:  # nearly always
        number, living = int(np.count_nonzero(counted)), int(np.count_nonzero(alive))
        rank_of_all = max(1, int(COMMON_QUANTILE * (number - 1))) if number > FEW else 0
        known = int(np.count_nonzero(alive & ~np.isnan(baseline)))
        return counted, np.full(steps, rank_of_all), np.full(steps, 2 * known >= living > 0 and number > 0)
    number = np.count_nonzero(counted, axis=-1)
    rank = np.where(number > FEW, np.maximum(1, (COMMON_QUANTILE * (number - 1)).astype(np.int64)), 0)
    living = np.count_nonzero(alive, axis=-1)
    have_baselines = 2 * np.count_nonzero(alive & ~np.isnan(baseline), axis=-1) >= living
    # A factor of zero leaves no gradient to layers that are too new to have a baseline.
    is_factor = (number > 0) | ~(alive & np.isnan(baseline) & sample.is_measured & ~sample.zero).any(axis=-1)
    is_known = np.broadcast_to(have_baselines & (living > 0) & eligible.any(axis=-1) & is_factor, steps)
    return counted, np.broadcast_to(rank, steps), is_known


def _median(numbers: Floats) -> Floats:
    """Return the lower median over the last axis, NaN if all are NaN."""
    number = np.count_nonzero(~np.isnan(numbers), axis=-1)[..., None]
    rank = np.maximum((number - 1) // 2, 0)
    return np.take_along_axis(np.sort(numbers, axis=-1), rank, axis=-1)[..., 0]  # NaN last


def _quartile(absmax: Floats, least: int) -> Floats:
    is_measured = ~np.isnan(absmax)
    number = np.count_nonzero(is_measured, axis=-1)[..., None]
    # A value of a layer, not one between two: if three of four are low, low is usual.
    rank = np.maximum((0.75 * (number - 1)).astype(np.int64), 0)
    quartile = np.take_along_axis(np.sort(absmax, axis=-1), rank, axis=-1)  # NaN last
    return np.where(is_measured & (number >= least), quartile, np.nan)


def _last_measured(values: Mask, is_measured: Mask, before: Mask) -> Mask:
    """Return each layer's value, bool[n, L], of the last step at which it was measured, else ``before``."""
    last: Mask = values[-1]
    if not is_measured[-1].all():
        row = len(values) - 1 - np.argmax(is_measured[::-1], axis=0)
        last = np.where(is_measured.any(axis=0), np.take_along_axis(values, row[None], axis=0)[0], before)
    return last
