"""The tensor that sums a layer's gradients, and the error of a sum of low precision.

The error comes from a second sum of the same gradients in float32, for a few layers at a time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from gradcanary.guard import Failed, reporting, reraise
from gradcanary.hooks.graphs import is_capturing
from gradcanary.hooks.parameter_hook import POST_ACCUMULATE, PRE_ACCUMULATE, ParameterHook
from gradcanary.model.parameters import References
from gradcanary.stats.kernels import LOW_PRECISION, is_measurable, norm_factors, strided_sample
from gradcanary.stats.weights import round_robin, weight_of

PER_SAMPLE = 4
"""Layers whose low bits are counted in a sample."""

OFTEN, RARELY = 3, 16
"""After three rounds through all layers, only each 16th sample counts low bits."""

ELEMENTS = 1024
"""Elements of a layer whose bits are counted, at most."""

_BELOW_BFLOAT16, _BELOW_FLOAT16 = 0xFFFF, 0x1FFF
_FULL_FLOAT16, _PER_SUBNORMAL = 2.0**-13, 2.0**24
_UNDER_BFLOAT16, _COARSE = 2.0**-18, 2.0**-20

EACH = 100
"""Steps from one window with float32 sums to the next."""

FIRST = 2
"""The first such window, counted from the first window of the watch: early, while the user still looks."""

PER_WINDOW = 8
"""Layers with a float32 sum in a window."""

MAX_BYTES = 2**26
"""The size of all float32 sums of a window: 64 MiB. A layer whose sum does not fit is left out."""


def accumulator(parameter: Tensor) -> Tensor | None:
    """Return the tensor that a parameter's gradients are summed in: Megatron's ``main_grad``, else ``.grad``."""
    main = getattr(parameter, "main_grad", None)
    return main if isinstance(main, Tensor) else parameter.grad


def low_bits(gradients: Mapping[int, Tensor], failed: Failed = reraise) -> list[tuple[list[int], Tensor]]:
    """Return one tensor [3, layers] per device for float32 gradients by layer; no value is read.

    The rows count elements that are evidence, that need more bits than bfloat16 has, and more than float16 has. A
    float32 sum of float16 gradients is a multiple of 2^-24: below 2^-13 it always fits into float16.
    """
    return _count_some(gradients, _low_bits, failed)


def float16_counts(gradients: Mapping[int, Tensor], failed: Failed = reraise) -> list[tuple[list[int], Tensor]]:
    """Return one tensor [4, layers] per device for float32 or float16 gradients by layer; no value is read.

    The rows count elements that are not zero and under 2^-18, that are under 2^-13 and no multiple of 2^-24, that are
    not zero, and that are not zero and under 2^-20. Gradients must carry their loss scale, as they were computed.
    """
    return _count_some(gradients, _float16_counts, failed)


def _count_some(
    gradients: Mapping[int, Tensor], count: Callable[[Tensor], Tensor], failed: Failed
) -> list[tuple[list[int], Tensor]]:
    parts = {
        layer: part for layer, gradient in gradients.items() if (part := strided_sample(gradient, ELEMENTS)) is not None
    }
    devices: dict[torch.device, list[int]] = {}
    for layer, part in parts.items():
        devices.setdefault(part.device, []).append(layer)
    found = []
    for layers in devices.values():
        with reporting(failed, "looking at low bits", parts[layers[0]]):
            found.append((layers, count(_rows([parts[layer] for layer in layers]))))
    return found


def layers_of_sample(number: int, layers: int) -> list[int]:
    """Return the positions of the layers whose low bits a sample of this number counts."""
    is_early = number < OFTEN * -(-layers // PER_SAMPLE)
    if not is_early and number % RARELY:
        return []
    return round_robin(range(layers), number if is_early else number // RARELY, PER_SAMPLE)


def _rows(parts: Sequence[Tensor]) -> Tensor:
    elements = torch.zeros(len(parts), ELEMENTS, dtype=torch.float32, device=parts[0].device)
    for row, part in zip(elements, parts, strict=True):
        row[: part.numel()].copy_(part)
    return elements


def _low_bits(elements: Tensor) -> Tensor:
    bits = elements.view(torch.int32)
    telling = (elements.abs() >= _FULL_FLOAT16) | (elements * _PER_SUBNORMAL).frac().ne(0)
    below = ((bits & mask).count_nonzero(dim=1) for mask in (_BELOW_BFLOAT16, _BELOW_FLOAT16))
    return torch.stack([telling.count_nonzero(dim=1), *below])


def _float16_counts(elements: Tensor) -> Tensor:
    sizes = elements.abs()
    is_nonzero = sizes > 0
    is_odd = (sizes < _FULL_FLOAT16) & (sizes * _PER_SUBNORMAL).frac().ne(0)
    flags = (is_nonzero & (sizes < _UNDER_BFLOAT16), is_odd, is_nonzero, is_nonzero & (sizes < _COARSE))
    return torch.stack([flag.count_nonzero(dim=1) for flag in flags])


def is_due(step: int, first: int) -> bool:
    """Return True if a window has float32 sums. All ranks agree: only its step counts."""
    return step - first == FIRST or (step > first and step % EACH == 0)


@dataclass
class _Sum:
    """A float32 sum, its number of gradients, and the state of the real sum after the last addition."""

    total: Tensor
    count: int = 1
    left: tuple[int, int] = (0, 0)


class Fp32Reference:
    """The float32 sums of a window, by position of the layer."""

    def __init__(self, wrap: Callable[[str, Callable[..., None]], Callable[..., None]], failed: Failed) -> None:
        self._wrap, self._failed = wrap, failed
        self._references: References = ()
        self._sums: dict[int, _Sum | None] = {}
        self._hooks: list[ParameterHook] = []

    def begin(self, references: References, step: int, interval: int) -> None:
        """Begin the float32 sums of a window, for some layers with sums of low precision, chosen by the step.

        ``interval`` is the number of steps between two samples.
        """
        self.end()
        self._references = references
        low = [position for position, reference in enumerate(references) if _is_low(reference())]
        free_bytes = MAX_BYTES
        for position in round_robin(low, step // max(EACH, interval), PER_WINDOW):
            parameter = references[position]()
            if parameter is not None and 4 * parameter.numel() <= free_bytes:
                free_bytes -= 4 * parameter.numel()
                self._follow(position, parameter)

    @property
    def are_on(self) -> bool:
        """True while a window has float32 sums."""
        return bool(self._references)

    def end(self) -> None:
        """Free the sums and remove the hooks."""
        for hook in self._hooks:
            hook.remove()
        self._references, self._hooks, self._sums = (), [], {}

    def errors(self, counts: Sequence[int]) -> dict[int, Tensor]:
        """Return six numbers per layer, by position: factors of the norms of difference, sum and float32 sum.

        A sum counts if it has several gradients, and if nothing else has written to it. No value is read.
        """
        found = {}
        for position, known in self._sums.items():
            stored = self._stored(position)
            if known is None or stored is None or not 1 < counts[position] == known.count:
                continue
            if known.left == _state(stored) and is_measurable(stored) and stored.dtype in LOW_PRECISION:
                with torch.no_grad(), reporting(self._failed, "measuring what a sum lost", stored):
                    found[position] = _norms(stored, known.total)
        return found

    def _follow(self, position: int, parameter: Tensor) -> None:
        self._sums[position] = None
        reference = self._references[position]
        for kind, call in ((PRE_ACCUMULATE, self.before_accumulate), (POST_ACCUMULATE, self.after_accumulate)):
            hook = self._wrap("summing up in float32", partial(call, position))
            self._hooks.append(ParameterHook(reference, parameter, kind, hook))

    def before_accumulate(self, position: int, gradient: Tensor) -> None:
        """Add a gradient, unless other code wrote to the real sum: a clip is not a rounding error."""
        if position not in self._sums or is_capturing():
            return  # the addition would become part of the CUDA graph; the count shows that it is missing
        known, stored = self._sums[position], self._stored(position)
        if gradient.layout is not torch.strided or (known is not None and known.left != _state(stored)):
            del self._sums[position]
            return
        with torch.no_grad():
            if known is None:
                total = gradient.to(torch.float32, copy=True)
                self._sums[position] = _Sum(total if stored is None else total.add_(stored))
            else:
                known.total.add_(gradient)
                known.count += 1

    def after_accumulate(self, position: int, parameter: Tensor) -> None:
        known = self._sums.get(position)
        if known is not None:
            known.left = _state(parameter.grad)

    def _stored(self, position: int) -> Tensor | None:
        parameter = self._references[position]()
        return None if parameter is None else parameter.grad


def error_of(factors: Sequence[float]) -> tuple[float, float] | None:
    """Return accumulation error and norm ratio, None if a sum is zero or non-finite."""
    lost, stored, exact = (factors[at] * factors[at + 1] for at in (0, 2, 4))
    return (lost / exact, stored / exact) if exact > 0 and math.isfinite(lost + stored + exact) else None


def _norms(stored: Tensor, exact: Tensor) -> Tensor:
    """Return the factors of three norms; one temporary tensor at a time."""
    lost = norm_factors(stored.float().sub_(exact))
    return torch.stack([*lost, *norm_factors(stored.float()), *norm_factors(exact.clone())])


def _state(gradient: Tensor | None) -> tuple[int, int]:
    """Return a value that changes when a gradient is replaced or written to; the gradient is not read."""
    return (0, -1) if gradient is None else (gradient.data_ptr(), gradient._version)  # noqa: SLF001 -- documented only by its name


def _is_low(parameter: Tensor | None) -> bool:
    """Return True if torch itself sums the gradients in low precision, in ``.grad``, where hooks see them."""
    if parameter is None or not parameter.requires_grad or hasattr(parameter, "main_grad"):
        return False
    weight = weight_of(parameter)
    is_plain = weight is not None and type(parameter.data) is Tensor
    return is_plain and getattr(parameter, "grad_dtype", parameter.dtype) in LOW_PRECISION
