"""Taking one sample of a set of layers, on the training thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import torch
from torch import Tensor, nn

from gradcanary.guard import Failed
from gradcanary.model import distributed
from gradcanary.model.layers import dtype_name
from gradcanary.model.parameters import References
from gradcanary.stats.accumulation import accumulator, low_bits, whose_turn
from gradcanary.stats.kernels import are_finite, bounds_of, measure, readable
from gradcanary.stats.samples import MEASURED, NO_GRADIENT, NOT_TRAINABLE, PARTIAL, Kind, Part, Sample, Wishes

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
    wishes: Wishes,
    observed: Collection[int] = (),
    owned: Sequence[bool] | None = None,
    sends_only_nonfinite: bool = False,
    is_partial: bool = False,
    failed: Failed,
) -> Sample:
    """Return the sample of a window of some layers, given by their numbers and parameters.

    ``fired`` counts the accumulations per layer in this window, None where no hook saw any (gradients made by hand);
    ``earlier`` those of the unsampled windows before it. ``observed`` are layers, by position, whose gradients are
    summed elsewhere: they come by :func:`add_buffer`. ``owned`` tells which layers this process speaks for, None = all:
    one that ``sends_only_nonfinite`` only tells whether all are finite, and of a window that ``is_partial`` nothing is
    told.
    """
    states, gradients = _seen(references, fired, earlier, observed, owned)
    dtypes = [dtype_name(gradients[place].dtype) if place in gradients else None for place in range(len(layers))]
    parts: list[Part] = []
    if is_partial:
        states = bytearray(PARTIAL if state == MEASURED else state for state in states)
    elif sends_only_nonfinite:
        parts += [Part(Kind.FINITE, finite) for finite in are_finite(gradients.values(), failed)]
    if sends_only_nonfinite or is_partial:
        gradients = {}
    parts += _measured(layers, gradients, number, wishes, failed)
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
    wishes: Wishes,
    failed: Failed,
) -> None:
    """Put a gradient that was summed in another tensor into its layer's place.

    Of a parameter that is sharded the sum has to be so as well: of whole sums each process would send all.
    """
    buffer = distributed.local_tensor(buffer)
    part = None if parameter is None or not distributed.is_dtensor(parameter) else distributed.local_tensor(parameter)
    if readable(buffer) and (part is None or part.shape == buffer.shape):
        sample.states[position] = MEASURED
        sample.dtypes[position] = dtype_name(buffer.dtype)
        sample.parts += _measured(sample.layers, {position: buffer}, number, wishes, failed)


def not_sampled(layers: Sequence[int], references: References) -> Sample:
    """Return what is known of layers whose optimizer had no step: nothing."""
    parameters = (reference() for reference in references)
    states = bytearray(_idle(parameter, 1) for parameter in parameters)
    return Sample(layers, "accumulated", states, [None] * len(layers), [], is_joint=False)


def _seen(
    references: References,
    fired: Sequence[int] | None,
    earlier: Sequence[int],
    observed: Collection[int],
    owned: Sequence[bool] | None,
) -> tuple[bytearray, dict[int, Tensor]]:
    """Return the state of each layer before anything is measured, and the gradients that can be, by position."""
    states = bytearray([NO_GRADIENT]) * len(references)
    gradients: dict[int, Tensor] = {}
    for place, parameter in enumerate(reference() for reference in references):
        gradient = None if parameter is None else accumulator(parameter)
        is_here = gradient is not None if fired is None else fired[place] > 0
        if place in observed:
            states[place] = PARTIAL
        elif not is_here:
            states[place] = _idle(parameter, earlier[place])
        elif owned is not None and not owned[place]:
            continue  # its elements are elsewhere
        elif gradient is None or not readable(gradient := distributed.local_tensor(gradient)):
            states[place] = PARTIAL
        else:
            states[place] = MEASURED
            gradients[place] = gradient
    return states, gradients


def _measured(
    layers: Sequence[int], gradients: dict[int, Tensor], number: int, wishes: Wishes, failed: Failed
) -> list[Part]:
    zeros, nonfinite, wide = (
        _wished(layers, gradients, each) for each in (wishes.zeros, wishes.nonfinite, wishes.wide)
    )
    if number % ZEROS_EACH == 0:
        zeros = gradients.keys()
    return measure(gradients, zeros, nonfinite, wide, failed)


def _wished(layers: Sequence[int], gradients: Mapping[int, Tensor], wished: Collection[int]) -> Collection[int]:
    """Return the positions of the layers that are wished for and have a gradient."""
    return {place for place in gradients if layers[place] in wished} if wished else ()


def _sums(gradients: Mapping[int, Tensor], fired: Sequence[int] | None, number: int) -> dict[int, Tensor]:
    """Return the float32 gradients that several micro-steps were added up in, of the layers whose turn it is."""
    turn = whose_turn(number, len(fired)) if fired is not None and max(fired, default=0) > 1 else ()
    added_up = {place: gradients[place] for place in turn if place in gradients and fired and fired[place] > 1}
    return {place: gradient for place, gradient in added_up.items() if gradient.dtype is torch.float32}


def _idle(parameter: nn.Parameter | None, earlier: int) -> int:
    if parameter is not None and not parameter.requires_grad:
        return NOT_TRAINABLE
    return PARTIAL if earlier else NO_GRADIENT


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
            if gradient is not None and readable(gradient):
                self._before[position] = _is_nonfinite(gradient)

    def combine(self) -> list[Part]:
        """Return what was found, in one part per device."""
        devices: dict[torch.device, list[int]] = {}
        for position, found in self._found.items():
            devices.setdefault(found.device, []).append(position)
        return [Part(Kind.OWN, torch.stack([self._found[at] for at in some]), some) for some in devices.values()]


def _is_nonfinite(gradient: Tensor) -> Tensor:
    least, greatest = bounds_of(gradient)
    return ~(least.isfinite() & greatest.isfinite())
