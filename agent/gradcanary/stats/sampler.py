"""Taking one sample of a set of layers, on the training thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import add, and_

import torch
from torch import Tensor, nn

from gradcanary import wire
from gradcanary.guard import Failed, Guard
from gradcanary.hooks.graphs import is_capturing
from gradcanary.model import distributed
from gradcanary.model.distributed import Rank
from gradcanary.model.layers import Layers, dtype_name
from gradcanary.model.parameters import References
from gradcanary.stats import accumulation, weights
from gradcanary.stats.accumulation import Fp32Reference, accumulator, layers_of_sample, low_bits
from gradcanary.stats.kernels import are_finite, is_measurable, measure, min_max, norm_of, without_autocast
from gradcanary.stats.samples import MEASURED, NO_GRADIENT, NOT_TRAINABLE, PARTIAL, Kind, Part, Sample, SampleRequest
from gradcanary.stats.weights import (
    ForecastSchedule,
    Frozen,
    coarse_moments,
    copy_weights_of,
    forecasts,
    update_norms,
    weight_of,
)

ZEROS_EACH = 16
"""Zero fractions of all layers are counted in each 16th sample: they cost as much as everything else together."""


def take_sample(
    layers: Sequence[int],
    references: References,
    fired: Sequence[int] | None,
    earlier: Sequence[int],
    *,
    phase: str,
    scale: Tensor | None,
    number: int,
    request: SampleRequest,
    external: Collection[int] = (),
    owned: Sequence[bool] | None = None,
    sends_only_nonfinite: bool = False,
    is_partial: bool = False,
    failed: Failed,
) -> Sample:
    """Return the sample of a window of some layers, given by their numbers and parameters.

    ``fired`` counts the accumulations per layer in this window, None where no hook saw any (gradients made by hand);
    ``earlier`` those of the unsampled windows before it. ``external`` are layers, by position, whose gradients are
    summed elsewhere: they come by :func:`add_buffer`. ``owned`` tells which layers this process speaks for, None = all:
    one that ``sends_only_nonfinite`` only tells whether all are finite, and of a window that ``is_partial`` nothing is
    told.
    """
    states, gradients = _seen(references, fired, earlier, external, owned)
    dtypes = [
        dtype_name(gradients[position].dtype) if position in gradients else None for position in range(len(layers))
    ]
    parts: list[Part] = []
    if is_partial:
        states = bytearray(PARTIAL if state == MEASURED else state for state in states)
    elif sends_only_nonfinite:
        parts += [Part(Kind.FINITE, finite) for finite in are_finite(gradients.values(), failed)]
    if sends_only_nonfinite or is_partial:
        gradients = {}
    parts += _measured(layers, gradients, number, request, failed)
    sums = _sums(gradients, fired, number) if phase != "post_clip" else {}
    parts += [Part(Kind.LOW_BITS, counts, positions) for positions, counts in low_bits(sums, failed)]
    sample = Sample(layers, phase, states, dtypes, parts)
    sample.set_scale(scale)
    return sample


def add_buffer(
    sample: Sample,
    position: int,
    buffer: Tensor,
    parameter: nn.Parameter | None,
    *,
    number: int,
    request: SampleRequest,
    failed: Failed,
) -> None:
    """Put a gradient that was summed in another tensor into its layer's place.

    Of a parameter that is sharded the sum has to be so as well: of whole sums each process would send all.
    """
    buffer = distributed.local_tensor(buffer)
    part = None if parameter is None or not distributed.is_dtensor(parameter) else distributed.local_tensor(parameter)
    if is_measurable(buffer) and (part is None or part.shape == buffer.shape):
        sample.states[position] = MEASURED
        sample.dtypes[position] = dtype_name(buffer.dtype)
        sample.parts += _measured(sample.layers, {position: buffer}, number, request, failed)


def not_sampled(layers: Sequence[int], references: References) -> Sample:
    """Return what is known of layers whose optimizer had no step: nothing."""
    parameters = (reference() for reference in references)
    states = bytearray(_idle(parameter, 1) for parameter in parameters)
    return Sample(layers, "accumulated", states, [None] * len(layers), [], is_joint=False)


def _seen(
    references: References,
    fired: Sequence[int] | None,
    earlier: Sequence[int],
    external: Collection[int],
    owned: Sequence[bool] | None,
) -> tuple[bytearray, dict[int, Tensor]]:
    """Return the state of each layer before anything is measured, and the gradients that can be, by position."""
    states = bytearray([NO_GRADIENT]) * len(references)
    gradients: dict[int, Tensor] = {}
    for position, parameter in enumerate(reference() for reference in references):
        gradient = None if parameter is None else accumulator(parameter)
        is_here = gradient is not None if fired is None else fired[position] > 0
        if position in external:
            states[position] = PARTIAL
        elif not is_here:
            states[position] = _idle(parameter, earlier[position])
        elif owned is not None and not owned[position]:
            continue  # its elements are elsewhere
        elif gradient is None or not is_measurable(gradient := distributed.local_tensor(gradient)):
            states[position] = PARTIAL
        else:
            states[position] = MEASURED
            gradients[position] = gradient
    return states, gradients


def _measured(
    layers: Sequence[int], gradients: dict[int, Tensor], number: int, request: SampleRequest, failed: Failed
) -> list[Part]:
    zeros, nonfinite, in_float64 = (
        _requested(layers, gradients, each) for each in (request.zeros, request.nonfinite, request.in_float64)
    )
    if number % ZEROS_EACH == 0:
        zeros = gradients.keys()
    return measure(gradients, zeros, nonfinite, in_float64, failed)


def _requested(layers: Sequence[int], gradients: Mapping[int, Tensor], requested: Collection[int]) -> Collection[int]:
    """Return the positions of the layers that are requested for and have a gradient."""
    return {position for position in gradients if layers[position] in requested} if requested else ()


def _sums(gradients: Mapping[int, Tensor], fired: Sequence[int] | None, number: int) -> dict[int, Tensor]:
    """Return the float32 gradients that several micro-steps were added up in, of the layers whose turn it is."""
    turn = layers_of_sample(number, len(fired)) if fired is not None and max(fired, default=0) > 1 else ()
    added_up = {
        position: gradients[position] for position in turn if position in gradients and fired and fired[position] > 1
    }
    return {position: gradient for position, gradient in added_up.items() if gradient.dtype is torch.float32}


def _idle(parameter: nn.Parameter | None, earlier: int) -> int:
    if parameter is not None and not parameter.requires_grad:
        return NOT_TRAINABLE
    return PARTIAL if earlier else NO_GRADIENT


class Sampler:
    """Measures the layers of one optimizer, and returns what it found.

    ``layers`` are the numbers in the layer set of the parameters that ``references`` lead to; else they go by position.
    ``external`` are those whose gradients the script sums elsewhere.
    """

    def __init__(
        self, layers: Sequence[int], references: References, rank: Rank, guard: Guard, sums: Fp32Reference
    ) -> None:
        self.layers = layers
        self.references = references
        self.external: set[int] = set()
        self.sums = sums
        self.frozen = Frozen()
        self.forecast_schedule = ForecastSchedule()
        self._rank, self._failed = rank, guard.catch
        self._all: Layers | None = None
        self._earlier, self._counts = [0] * len(layers), [0] * len(layers)

    def follow(self, mine: Sequence[int], layers: Layers) -> None:
        """Take the numbers of its layers among others, and the ways to them that are known by now."""
        self.layers, self.references = mine, [layers.references[layer] for layer in mine]
        self._all = layers

    def parameter(self, position: int) -> nn.Parameter | None:
        """Return a layer's parameter, None when the training has let go of it."""
        return self.references[position]()

    def gradient(self, position: int) -> Tensor | None:
        """Return the tensor that a layer's gradients are summed in."""
        parameter = self.references[position]()
        return None if parameter is None else accumulator(parameter)

    # -- samples -------------------------------------------------------------------------------------------------

    def forget_earlier(self) -> None:
        """After a sample, forget which layers took part before it."""
        self._earlier, self._counts = [0] * len(self.layers), [0] * len(self.layers)

    def remember_earlier(self, counts: list[int]) -> None:
        """Remember for the next sample which layers took part in a window that was not sampled."""
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
        """Return a sample of a window in which the layers accumulated so often, None where no hook saw it.

        Layers that are ``unknown`` may have had a gradient since the last sample.
        """
        for position in unknown:
            self._earlier[position] = 1
        return take_sample(
            self.layers,
            self.references,
            counts,
            self._earlier,
            phase=phase,
            scale=scale,
            number=number,
            request=request,
            external=self.external,
            owned=self._rank.owned(self.layers),
            sends_only_nonfinite=self._rank.sends_only_nonfinite,
            is_partial=is_partial,
            failed=self._failed,
        )

    @without_autocast
    def local_parts(self, local: LocalNonfinite) -> list[Part]:
        """Return what this process made not finite by itself, and whether all weights are finite."""
        references = () if self._all is None else self._all.references
        every = [weight for reference in references if (weight := weight_of(reference())) is not None]
        return local.combine() + [Part(Kind.WEIGHTS, each) for each in are_finite(every, self._failed)]

    @without_autocast
    def add_accumulation_errors(self, sample: Sample, counts: Sequence[int]) -> None:
        """Add what sums of low precision lost."""
        sample.add(Kind.ACCUMULATION_ERROR, self.sums.errors(counts))

    @without_autocast
    def add_external(
        self, sample: Sample, position: int, tensor: Tensor, *, number: int, request: SampleRequest
    ) -> None:
        """Add what a tensor of the script holds now, in position of a layer's gradient."""
        rank = self._rank
        owned = rank.owned([self.layers[position]]) or [True]
        if owned[0] and not (rank.sends_only_nonfinite or is_capturing()):
            parameter = self.parameter(position)
            add_buffer(sample, position, tensor, parameter, number=number, request=request, failed=self._failed)

    # -- around the step -----------------------------------------------------------------------------------------

    def probe_clip(
        self, position: int, counts: Sequence[int], request: SampleRequest, scale: Tensor | None
    ) -> list[Part]:
        """Return the norm of one layer's gradient as it is now: of the requested layer, else of the given one."""
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

    def copy_weights(self, step: int) -> dict[int, Tensor]:
        """Return copies of what the step changes, of the layers whose turn it is."""
        if self._rank.sends_only_nonfinite or is_capturing():
            return {}
        turn = weights.layers_of_step(step, len(self._all or ()))
        return copy_weights_of(turn, self.layers, self.references, self._rank.owned(self.layers))

    def compare_weights(self, copies: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """Return how far the step moved them."""
        return update_norms(copies, self.references)

    def find_frozen(self, step: int, interval: int, counts: Sequence[int]) -> dict[int, Tensor]:
        """Return the share of weights that have not moved for a while, after a step that is due."""
        if self._all is None or self._rank.sends_only_nonfinite or is_capturing():
            return {}
        known, owned = self._all.layer_set.layers, self._rank.owned(self.layers)
        moving = [
            count > 0 and known[layer].group is not None for count, layer in zip(counts, self.layers, strict=True)
        ]
        if owned is not None:
            moving = [*map(and_, moving, owned)]
        return self.frozen.unchanged_fraction(step, interval, self.references, moving)

    def follow_sums(self, next_step: int, interval: int, first_step: int) -> None:
        """See to it that what the next window's sums lose can be measured, where that is its turn.

        After a data-parallel wrapper a sum is the mean of all processes by the end of a pass: its loss is not known.
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
        """Return what will go wrong with moments of low precision."""
        every = () if self._all is None else self._all.layer_set.layers
        names = {id(each()): every[layer].name for layer, each in zip(self.layers, self.references, strict=True)}
        return coarse_moments(optimizer, names, len(every))

    def add_forecasts(self, optimizer: torch.optim.Optimizer, sample: Sample) -> None:
        """Add what will go wrong with weights of low precision."""
        sample.forecasts = forecasts(optimizer, self.references)
        sample.parts += [part for forecast in sample.forecasts for part in forecast.parts]


class LocalNonfinite:
    """Whether this process made gradients of a window not finite, by position of the layer; nothing of it is read.

    Without ``no_sync`` each pass adds to what the last one left in all processes. What was not finite before a pass was
    not made in it.
    """

    def __init__(self) -> None:
        self._found: dict[int, Tensor] = {}
        self._before: dict[int, Tensor] = {}

    def measure(self, position: int, gradient: Tensor) -> None:
        """Measure a gradient of this process alone, in a backward pass.

        One that a former pass had, too, only where it is known what that left.
        """
        found, before = self._found.get(position), self._before.pop(position, None)
        if found is None:
            self._found[position] = _is_nonfinite(gradient)
        elif before is not None:
            self._found[position] = found | (_is_nonfinite(gradient) & ~before)

    def remember(self, gradient_of: Callable[[int], Tensor | None]) -> None:
        """After a pass, measure what it left to the next one, with the parts of other processes in it."""
        for position in self._found:
            gradient = gradient_of(position)
            if gradient is not None and is_measurable(gradient):
                self._before[position] = _is_nonfinite(gradient)

    def combine(self) -> list[Part]:
        """Return what was found, in one part per device."""
        devices: dict[torch.device, list[int]] = {}
        for position, found in self._found.items():
            devices.setdefault(found.device, []).append(position)
        return [
            Part(Kind.LOCAL_NONFINITE, torch.stack([self._found[at] for at in some]), some) for some in devices.values()
        ]


def _is_nonfinite(gradient: Tensor) -> Tensor:
    least, greatest = min_max(gradient)
    return ~(least.isfinite() & greatest.isfinite())
