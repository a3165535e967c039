"""Measures the layers of one optimizer: their gradients, the clip, and how far a step moves them."""

from __future__ import annotations

from collections.abc import Sequence
from operator import add, and_
from typing import TYPE_CHECKING

from torch import Tensor, nn

from gradcanary import facts
from gradcanary.hooks import backward
from gradcanary.hooks.graphs import is_capturing
from gradcanary.model.distributed import is_dtensor, local_tensor
from gradcanary.model.parameters import References
from gradcanary.stats import accumulation
from gradcanary.stats.accumulation import Shadows, accumulator
from gradcanary.stats.kernels import are_finite, norm_of, readable, without_autocast
from gradcanary.stats.sampler import add_buffer, take_sample
from gradcanary.stats.samples import Kind, Part, Sample, of_kind
from gradcanary.stats.weights import (
    Frozen,
    Outlook,
    changes,
    coarse_moments,
    copies_of,
    forecasts,
    is_frozen_due,
    weight_of,
    whose_turn,
)
from gradcanary.tracking.device_clock import on_device_clock
from gradcanary.tracking.layer_hooks import HookSampler
from gradcanary.tracking.window import MODIFIED, GradientIdentity, Window

if TYPE_CHECKING:
    import torch

    from gradcanary.model.layers import Layers
    from gradcanary.tracking.recorder import Observer


class Gauge:
    """Puts into a window what its gradients and weights show; kernels only, nothing is read.

    ``layers`` are the numbers in the layer set of the parameters that ``references`` lead to; else they go by position.
    ``observed`` are those whose gradients the script sums elsewhere.
    """

    def __init__(self, observer: Observer, layers: Sequence[int], references: References) -> None:
        self.layers = layers
        self.references = references
        self.observed: set[int] = set()
        guard, meter = observer.guard, observer.meter
        self.shadows = Shadows(lambda where, hook: guard.wrap(where, meter.timed(hook)), guard.catch)
        self.hook_sampler = HookSampler(len(layers))
        self.frozen = Frozen()
        self.outlook = Outlook()
        self._of = observer
        self._earlier, self._counts = [0] * len(layers), [0] * len(layers)

    def follow(self, mine: Sequence[int], layers: Layers) -> None:
        """Take the numbers of its layers among others, and the ways to them that are known by now."""
        self.layers, self.references = mine, [layers.references[layer] for layer in mine]

    def parameter(self, position: int) -> nn.Parameter | None:
        """Return a layer's parameter, None when the training has let go of it."""
        return self.references[position]()

    def gradient(self, position: int) -> Tensor | None:
        """Return the tensor that a layer's gradients are summed in."""
        parameter = self.references[position]()
        return None if parameter is None else accumulator(parameter)

    def forget(self, window: Window, *, was_sampled: bool) -> None:
        """Let go of a window; of one that was not sampled, remember for the next sample which layers took part."""
        if was_sampled:
            self._earlier, self._counts = [0] * len(self.layers), [0] * len(self.layers)
            self.hook_sampler.sampled()
        elif window.counts != self._counts:  # most are like the one before
            self._earlier = [*map(add, self._earlier, window.counts)]
            self._counts = window.counts

    # -- samples -------------------------------------------------------------------------------------------------

    @on_device_clock
    @without_autocast
    def sample(self, window: Window, phase: str, scale: Tensor | None) -> None:
        """Take the window's sample now."""
        if is_capturing():
            return
        for position in self.hook_sampler.unknown:
            self._earlier[position] = 1  # it may have had a gradient meanwhile
        counts = window.counts if window.micro_steps and not window.unseen else None
        window.sample = take_sample(
            self.layers,
            self.references,
            counts,
            self._earlier,
            phase=phase,
            scale=scale,
            number=self._of.samples,
            wishes=self._of.wishes,
            observed=self.observed,
            owned=self._of.rank.owned(self.layers),
            sends_only_nonfinite=self._of.rank.sends_only_nonfinite,
            is_partial=self._of.is_joining,
            failed=self._of.guard.catch,
        )
        if window.local is not None and self._of.layers is not None and not self._of.is_joining:
            weights = [each for way in self._of.layers.references if (each := weight_of(way())) is not None]
            window.sample.parts += window.local.combine()
            window.sample.parts += [Part(Kind.WEIGHTS, each) for each in are_finite(weights, self._of.guard.catch)]
        if counts is not None and phase == "accumulated" and not self._of.rank.measures_local_grads:
            self._of.guard.wrap("measuring what sums lost", self._add_losses)(window.sample, counts)

    def _add_losses(self, sample: Sample, counts: Sequence[int]) -> None:
        sample.add(Kind.LOST, self.shadows.losses(counts))

    @without_autocast
    def read_buffer(self, window: Window, position: int, buffer: Tensor) -> None:
        """Put what a buffer holds now into the window's sample, in place of a gradient."""
        if window.sample is None:
            self.sample(window, "accumulated", window.loss_scale)
        rank, sample, parameter = self._of.rank, window.sample, self.parameter(position)
        owned = rank.owned([self.layers[position]]) or [True]
        if sample is not None and owned[0] and not (rank.sends_only_nonfinite or is_capturing()):
            of = self._of
            add_buffer(sample, position, buffer, parameter, number=of.samples, wishes=of.wishes, failed=of.guard.catch)

    # -- gradients before a reduction ----------------------------------------------------------------------------

    def measure_local(self, window: Window, position: int) -> None:
        """Measure the gradient of this process alone: after this hook a data-parallel wrapper takes it."""
        if window.local is None or not window.is_seen or is_capturing():
            return
        if not self._of.has_callbacks and window.counts[position] > 1:
            return  # nobody knows what was in it before
        gradient = self.gradient(position)
        if gradient is not None and readable(gradient):
            window.local.measure(position, gradient)

    def remember_local(self, window: Window) -> None:
        """At the end of a pass note what it left to the next one."""
        if window.local is not None and not is_capturing():
            window.local.remember(self.gradient)

    # -- around the step -----------------------------------------------------------------------------------------

    def is_fresh(self) -> bool:
        """Say whether it steps inside a backward pass, with gradients that nobody wrote to since torch made them."""
        if not self._of.has_callbacks or backward.current_pass() < 0:
            return False
        gradients = [self.gradient(position) for position in range(len(self.layers))]
        return all(each is None or each._version == 0 for each in gradients)  # noqa: SLF001 -- documented only by its name

    def look_for_clip(self, window: Window, identity: GradientIdentity, scale: Tensor | None) -> None:
        """Measure one layer again if gradients were written to since the sample."""
        if identity.layer is None or identity.layer in self.observed:
            return
        if self._of.rank.sends_only_nonfinite or is_capturing():
            return
        marked = self.gradient(identity.layer)
        if identity.change(marked) != MODIFIED and not (marked is not None and is_dtensor(marked)):
            return
        wished = self._of.wishes.probe
        position = self.layers.index(wished) if wished in self.layers else identity.layer
        if position in self.observed:
            position = identity.layer
        gradient = self.gradient(position)
        if gradient is not None and readable(gradient := local_tensor(gradient)) and window.counts[position]:
            is_wide = self.layers[position] in self._of.wishes.wide
            layer = (self.layers[position],)
            window.probe = [Part(Kind.PROBE, norm_of(gradient, is_wide=is_wide), layer)]
            window.probe += [] if scale is None else [Part(Kind.PROBE_SCALE, scale, layer)]

    @on_device_clock
    def copy_weights(self, window: Window, step: int | None) -> None:
        """Keep what the step changes, of the layers whose turn it is; None = the step is not sampled.

        A closure's forward and backward pass are over by then: a copy must not make their peak of memory higher.
        """
        window.copies = {}
        rank = self._of.rank
        if step is None or rank.sends_only_nonfinite or self._of.is_joining or is_capturing():
            return
        turn = whose_turn(step, len(self._of.layers or ()))
        window.copies = copies_of(turn, self.layers, self.references, rank.owned(self.layers))

    def step_ended(self, window: Window, step: int) -> None:
        """Look, each time behind a wall, at what the step did; in windows that are not sampled there is next to
        nothing to look at."""
        wrap = self._of.guard.wrap
        if window.copies is not None:
            wrap("measuring how far weights moved", self.compare_weights)(window)
        if window.sample is not None:
            wrap("comparing weights", self.look_for_frozen)(window, step)
        if self.shadows.are_on or (step + 1) % self._of.meter.every == 0:
            wrap("summing up in float32", self.shadow)(window, step + 1)

    def look_for_frozen(self, window: Window, step: int) -> None:
        """After a step, put the share of weights that have not moved for a while into the window's sample."""
        of = self._of
        if not is_frozen_due(step) or window.sample is None or of.layers is None or is_capturing():
            return
        if of.rank.sends_only_nonfinite:
            return
        known, owned = of.layers.layer_set.layers, of.rank.owned(self.layers)
        moving = [
            count > 0 and known[layer].group is not None
            for count, layer in zip(window.counts, self.layers, strict=True)
        ]
        if owned is not None:
            moving = [*map(and_, moving, owned)]
        window.sample.add(Kind.FROZEN, self.frozen.turn(step, of.meter.every, self.references, moving))

    def forecast(self, window: Window, optimizer: torch.optim.Optimizer) -> None:
        """After a step say once what will go wrong with weights or moments of low precision.

        Each of the three looks has a wall of its own: what one of them fails of does not hide what the others find.
        """
        of = self._of
        if self.outlook.is_over or of.layers is None or of.rank.sends_only_nonfinite or is_capturing():
            return
        if not self.outlook.is_due(optimizer) or window.sample is None:
            return
        self.outlook.is_over = True
        wrap = of.guard.wrap
        wrap("forecasting of moments", self._forecast_moments)(optimizer, of.layers)
        wrap("forecasting of weights", self._forecast_weights)(optimizer, window.sample)
        has_scale = window.loss_scale is not None or of_kind(window.sample.parts, Kind.SCALE) is not None
        if "float16" in window.sample.dtypes and not has_scale:
            of.tell(facts.NO_SCALER)

    def _forecast_moments(self, optimizer: torch.optim.Optimizer, layers: Layers) -> None:
        every = layers.layer_set.layers
        names = {id(each()): every[layer].name for layer, each in zip(self.layers, self.references, strict=True)}
        known = self._of.facts
        known += [fact for fact in coarse_moments(optimizer, names, len(every)) if fact not in known]

    def _forecast_weights(self, optimizer: torch.optim.Optimizer, sample: Sample) -> None:
        sample.forecasts = forecasts(optimizer, self.references)
        sample.parts += [part for forecast in sample.forecasts for part in forecast.parts]

    def shadow(self, window: Window, next_step: int) -> None:
        """After a step, see to it that what the next window's sums lose can be told, where that is its turn.

        Behind a data-parallel wrapper a sum is the mean of all processes by the end of a pass: nobody knows its loss.
        """
        self.shadows.end()
        rank, first_step = self._of.rank, self._of.first_step
        if (
            first_step is None
            or window.micro_steps < 2
            or rank.sends_only_nonfinite
            or rank.measures_local_grads
            or self.observed
        ):
            return
        interval = self._of.meter.every
        if accumulation.is_due(next_step, first_step.number) and next_step % interval == 0:
            self.shadows.begin(self.references, next_step, interval)

    @on_device_clock
    def compare_weights(self, window: Window) -> None:
        """Put how far the step moved them into the window's sample."""
        copies, window.copies = window.copies, None
        if copies and window.sample is not None:
            window.sample.add(Kind.MOVED, changes(copies, self.references))
