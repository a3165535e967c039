"""The samples of one optimizer's layers, taken on the training thread."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import add, and_

import torch
from torch import Tensor, nn

from gradcanary import wire
from gradcanary.guard import Failed
from gradcanary.hooks.graphs import is_capturing
from gradcanary.model import distributed
from gradcanary.model.distributed import Rank, is_dtensor
from gradcanary.model.layers import Layers, dtype_name
from gradcanary.model.parameters import References
from gradcanary.stats import accumulation, weight_rows, weights
from gradcanary.stats.accumulation import Fp32Reference, accumulator, float16_counts, layers_of_sample, low_bits
from gradcanary.stats.kernels import are_finite, is_measurable, measure, min_max, norm_of, without_autocast
from gradcanary.stats.samples import MEASURED, NO_GRADIENT, NOT_TRAINABLE, PARTIAL, Kind, Part, Sample, SampleRequest
from gradcanary.stats.weight_rows import WeightRows
from gradcanary.stats.weights import (
    ForecastSchedule,
    Frozen,
    coarse_moments,
    copy_weights_of,
    forecasts,
    keeps_rounding,
    update_norms,
    weight_of,
)

ZEROS_EACH = 16
"""Zeros of all layers are counted in each 16th sample: they cost as much as everything else together."""


def not_sampled(layers: Sequence[int], references: References) -> Sample:
    """Return an empty sample of layers whose optimizer had no step."""
    states = bytearray(_idle_state(reference(), earlier=1) for reference in references)
    return Sample(layers, "accumulated", states, [None] * len(layers), [], is_joint=False)


def _idle_state(parameter: nn.Parameter | None, earlier: int) -> int:
    """Return the state of a layer without a gradient; it is PARTIAL if an ``earlier`` window had one."""
    if parameter is not None and not parameter.requires_grad:
        return NOT_TRAINABLE
    return PARTIAL if earlier else NO_GRADIENT


class Sampler:
    """Measures the layers of one optimizer, and returns the values. Layers go by position.

    ``layers`` are their numbers in the layer set, ``references`` lead to their parameters, and ``external`` are those
    whose gradients the script sums itself.
    """

    def __init__(
        self, layers: Sequence[int], references: References, rank: Rank, failed: Failed, sums: Fp32Reference
    ) -> None:
        self.layers = layers
        self.references = references
        self.external: set[int] = set()
        self.sums = sums
        self.frozen = Frozen()
        self.rows = WeightRows()
        self.forecast_schedule = ForecastSchedule()
        self._rank, self._failed = rank, failed
        self._all: Layers | None = None
        self._positions: dict[int, int] = {}
        self._earlier, self._counts = [0] * len(layers), [0] * len(layers)

    def follow(self, numbers: Sequence[int], layers: Layers) -> None:
        """Take the present numbers of the layers among those of all optimizers, and their present references."""
        self.layers, self.references = numbers, [layers.references[layer] for layer in numbers]
        self._all, self._positions = layers, {number: position for position, number in enumerate(numbers)}
        self.rows = WeightRows()

    def parameter(self, position: int) -> nn.Parameter | None:
        """Return a layer's parameter, None if the training has freed it."""
        return self.references[position]()

    def gradient(self, position: int) -> Tensor | None:
        """Return the tensor that a layer's gradients are summed in."""
        parameter = self.references[position]()
        return None if parameter is None else accumulator(parameter)

    def is_optimized(self, position: int) -> bool:
        """Return True if an optimizer holds the layer."""
        return self._all is not None and self._all.layer_set.layers[self.layers[position]].group is not None

    # -- samples -------------------------------------------------------------------------------------------------

    def forget_earlier(self) -> None:
        """After a sample, forget the layers of the windows before it."""
        self._earlier, self._counts = [0] * len(self.layers), [0] * len(self.layers)

    def remember_earlier(self, counts: list[int]) -> None:
        """Remember the layers of an unsampled window for the next sample."""
        if counts != self._counts:  # most are like the one before
            self._earlier = [*map(add, self._earlier, counts)]
            self._counts = counts

    @without_autocast
    def take(
        self,
        counts: Sequence[int] | None,
        phase: str,
        scale: Tensor | None,
        *,
        unknown: Collection[int],
        number: int,
        request: SampleRequest,
        is_partial: bool,
    ) -> Sample:
        """Return the sample of a window.

        ``counts`` are the accumulations of each layer, None if no hook saw any (gradients made by hand). ``unknown``
        layers may have had a gradient since the last sample. A process that sends only non-finite gradients checks if
        all are finite. A window that ``is_partial`` is not measured.
        """
        for position in unknown:
            self._earlier[position] = 1
        states, gradients = self._find_gradients(counts)
        dtypes = [dtype_name(gradients[at].dtype) if at in gradients else None for at in range(len(self.layers))]
        parts: list[Part] = []
        if is_partial:
            states = bytearray(PARTIAL if state == MEASURED else state for state in states)
        elif self._rank.sends_only_nonfinite:
            parts += [Part(Kind.FINITE, finite) for finite in are_finite(gradients.values(), self._failed)]
        if is_partial or self._rank.sends_only_nonfinite:
            gradients = {}
        parts += self._measure(gradients, number, request)
        if counts is not None and phase != "post_clip":
            chosen = {at: gradients[at] for at in layers_of_sample(number, len(counts)) if at in gradients}
            sums, some = _float32_sums(chosen, counts), _in_float16_or_32(chosen)
            parts += [Part(Kind.LOW_BITS, bits, positions) for positions, bits in low_bits(sums, self._failed)]
            parts += [Part(Kind.FLOAT16, found, positions) for positions, found in float16_counts(some, self._failed)]
        sample = Sample(self.layers, phase, states, dtypes, parts)
        sample.set_scale(scale)
        return sample

    def _find_gradients(self, counts: Sequence[int] | None) -> tuple[bytearray, dict[int, Tensor]]:
        """Return the state of each layer before the measurement, and the measurable gradients."""
        states = bytearray([NO_GRADIENT]) * len(self.references)
        gradients: dict[int, Tensor] = {}
        owned = self._rank.owned(self.layers)
        for position, parameter in enumerate(reference() for reference in self.references):
            gradient = None if parameter is None else accumulator(parameter)
            has_gradient = gradient is not None if counts is None else counts[position] > 0
            if position in self.external:
                states[position] = PARTIAL
            elif not has_gradient:
                states[position] = _idle_state(parameter, self._earlier[position])
            elif owned is not None and not owned[position]:
                continue  # another process has its elements
            else:
                states[position] = PARTIAL
                if gradient is not None and type(gradient) is not Tensor:  # usually a plain one: no call is needed
                    gradient = distributed.local_tensor(gradient)
                if gradient is not None and is_measurable(gradient):
                    states[position] = MEASURED
                    gradients[position] = gradient
        return states, gradients

    def _measure(self, gradients: dict[int, Tensor], number: int, request: SampleRequest) -> list[Part]:
        zeros: Collection[int]
        zeros, nonfinite, in_float64 = (
            {position for position in gradients if self.layers[position] in requested} if requested else ()
            for requested in (request.zeros, request.nonfinite, request.in_float64)
        )
        if number % ZEROS_EACH == 0:
            zeros = gradients.keys()
        return measure(gradients, zeros, nonfinite, in_float64, self._failed)

    @without_autocast
    def local_parts(self, local: LocalNonfinite) -> list[Part]:
        """Return the layers that this process made non-finite, and if all weights are finite."""
        references = () if self._all is None else self._all.references
        every = [weight for reference in references if (weight := weight_of(reference())) is not None]
        return local.combine() + [Part(Kind.WEIGHTS, each) for each in are_finite(every, self._failed)]

    @without_autocast
    def add_accumulation_errors(self, sample: Sample, counts: Sequence[int]) -> None:
        """Add the errors of low-precision sums."""
        sample.add(Kind.ACCUMULATION_ERROR, self.sums.errors(counts))

    @without_autocast
    def add_external(self, sample: Sample, position: int, tensor: Tensor, number: int, request: SampleRequest) -> None:
        """Add the values of a tensor of the script instead of a layer's gradient.

        For a sharded parameter the tensor must be a shard, too: each process would send the whole sum.
        """
        owned = self._rank.owned([self.layers[position]]) or [True]
        if not owned[0] or self._rank.sends_only_nonfinite or is_capturing():
            return
        tensor, parameter = distributed.local_tensor(tensor), self.parameter(position)
        shard = distributed.local_tensor(parameter) if parameter is not None and is_dtensor(parameter) else None
        if is_measurable(tensor) and (shard is None or shard.shape == tensor.shape):
            sample.states[position] = MEASURED
            sample.dtypes[position] = dtype_name(tensor.dtype)
            sample.parts += self._measure({position: tensor}, number, request)

    # -- around the step -----------------------------------------------------------------------------------------

    def probe_clip(
        self, position: int, counts: Sequence[int], request: SampleRequest, scale: Tensor | None
    ) -> list[Part]:
        """Return the present norm of one layer's gradient: of the requested layer, else of the given one."""
        if request.probe in self.layers and (requested := self.layers.index(request.probe)) not in self.external:
            position = requested
        gradient = self.gradient(position)
        if (
            gradient is None
            or not is_measurable(gradient := distributed.local_tensor(gradient))
            or not counts[position]
        ):
            return []
        layer = (self.layers[position],)
        norm = norm_of(gradient, in_float64=self.layers[position] in request.in_float64)
        scales = [] if scale is None else [Part(Kind.PROBE_SCALE, scale, layer)]
        return [Part(Kind.PROBE, norm, layer), *scales]

    @without_autocast
    def copy_weights(self, step: int) -> dict[int, Tensor]:
        """Return copies of the weights of a few layers before a step."""
        if self._rank.sends_only_nonfinite or is_capturing():
            return {}
        every, owned = len(self._all or ()), self._rank.owned(self.layers)
        turn = weights.layers_of_step(step, every)
        rows = weight_rows.layers_of_step(step, every)
        others = map(self._positions.get, dict.fromkeys([*rows, *turn] if rows else ()))  # all may be compared again
        positions = [at for at in others if at is not None and (owned is None or owned[at])]
        self.rows.copy(step, positions, self.references, self.gradient)
        return copy_weights_of(turn, self.layers, self.references, owned)

    @without_autocast
    def compare_weights(self, copies: Mapping[int, Tensor]) -> list[Part]:
        """Return the weight changes since the copies, those of few elements, and the changes that were undone."""
        norms = update_norms(copies, self.references)
        parts = [Part(Kind.UPDATE_NORMS, each, (position,)) for position, each in norms.items()]
        return parts + self.rows.compare(self.references)

    def find_frozen(self, step: int, interval: int, counts: Sequence[int]) -> dict[int, Tensor]:
        """Return the shares of unmoved weights after a step that is due."""
        if self._all is None or self._rank.sends_only_nonfinite or is_capturing():
            return {}
        owned = self._rank.owned(self.layers)
        moving = [count > 0 and self.is_optimized(position) for position, count in enumerate(counts)]
        if owned is not None:
            moving = [*map(and_, moving, owned)]
        return self.frozen.unchanged_fraction(step, interval, self.references, moving)

    def follow_sums(self, next_step: int, interval: int, first_step: int) -> None:
        """Have the next window's sums compared with sums in float32, if that is due.

        Under a data-parallel wrapper a sum is the mean of all processes at the end of a pass: its error is unknown.
        """
        if self._rank.sends_only_nonfinite or self._rank.measures_local_grads or self.external:
            return
        if accumulation.is_due(next_step, first_step) and next_step % interval == 0:
            self.sums.begin(self.references, next_step, interval)

    # -- forecasts -----------------------------------------------------------------------------------------------

    def is_forecast_due(self, optimizer: torch.optim.Optimizer) -> bool:
        """Count a step of the optimizer, and return True if it is time for its forecast."""
        return not (self._rank.sends_only_nonfinite or is_capturing()) and self.forecast_schedule.is_due(optimizer)

    def forecast_moments(self, optimizer: torch.optim.Optimizer) -> list[wire.Fact]:
        """Return facts about moments whose precision is too low."""
        known = () if self._all is None else self._all.layer_set.layers
        names = {id(each()): known[layer].name for layer, each in zip(self.layers, self.references, strict=True)}
        return coarse_moments(optimizer, names, len(known))

    def exempt_kept(self, optimizer: torch.optim.Optimizer) -> None:
        """Do not compare weights of which the optimizer keeps what rounding takes away."""
        found = enumerate(reference() for reference in self.references)
        self.frozen.optimizer = weakref.ref(optimizer)
        self.frozen.exempt = frozenset(at for at, each in found if each is not None and keeps_rounding(optimizer, each))

    def add_forecasts(self, optimizer: torch.optim.Optimizer, sample: Sample) -> None:
        """Add forecasts for weights of low precision, unless a learning rate rises."""
        if not self.forecast_schedule.is_settled:
            return
        sample.forecasts = forecasts(optimizer, self.references)
        sample.parts += [part for forecast in sample.forecasts for part in forecast.parts]


class LocalNonfinite:
    """Shows which layers this process made non-finite in a window; no value is read.

    Without ``no_sync`` each pass adds to the reduced sum of the passes before. A sum that was non-finite before a pass
    was not made so by it.
    """

    def __init__(self) -> None:
        self._found: dict[int, Tensor] = {}
        self._before: dict[int, Tensor] = {}

    def measure(self, position: int, gradient: Tensor) -> None:
        """Measure a gradient of this process alone, in a backward pass.

        A layer of an earlier pass is measured only if its sum after that pass is known.
        """
        found, before = self._found.get(position), self._before.pop(position, None)
        if found is None:
            self._found[position] = _is_nonfinite(gradient)
        elif before is not None:
            self._found[position] = found | (_is_nonfinite(gradient) & ~before)

    def remember(self, gradient_of: Callable[[int], Tensor | None]) -> None:
        """After a pass, measure the reduced sums that the next pass adds to."""
        for position in self._found:
            gradient = gradient_of(position)
            if gradient is not None and is_measurable(gradient):
                self._before[position] = _is_nonfinite(gradient)

    def combine(self) -> list[Part]:
        """Return one part per device."""
        devices: dict[torch.device, list[int]] = {}
        for position, found in self._found.items():
            devices.setdefault(found.device, []).append(position)
        return [
            Part(Kind.LOCAL_NONFINITE, torch.stack([self._found[at] for at in some]), some) for some in devices.values()
        ]


def _is_nonfinite(gradient: Tensor) -> Tensor:
    least, greatest = min_max(gradient)
    return ~(least.isfinite() & greatest.isfinite())


def _float32_sums(gradients: Mapping[int, Tensor], counts: Sequence[int]) -> dict[int, Tensor]:
    """Return the float32 sums of several micro-steps."""
    return {at: each for at, each in gradients.items() if counts[at] > 1 and each.dtype is torch.float32}


def _in_float16_or_32(gradients: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Return the gradients that may be computed in float16."""
    return {at: each for at, each in gradients.items() if each.dtype in (torch.float16, torch.float32)}
