"""Taking one sample of a set of layers, on the training thread."""

from __future__ import annotations

from collections.abc import Container, Sequence

import torch
from torch import Tensor, nn

from gradcanary.layers import Layers, dtype_name
from gradcanary.records import MEASURED, NO_GRADIENT, NOT_TRAINABLE, PARTIAL, Sample, Wishes
from gradcanary.statistics import measure, readable

ZEROS_EACH = 16
"""Zero fractions of all layers are counted in each 16th sample: they cost as much as everything else together."""


def take_sample(
    layers: Layers,
    fired: Sequence[int] | None,
    earlier: Sequence[int],
    consumed: Container[int],
    *,
    phase: str,
    scale: Tensor | None,
    number: int,
    wishes: Wishes,
) -> Sample:
    """Return the sample of a window.

    ``fired`` counts the accumulations per layer in this window, None where no hook saw any (gradients made by hand);
    ``earlier`` those of the unsampled windows before it; ``consumed`` are optimizers whose step came before the sample,
    so that their layers may hold something else by now.
    """
    states = bytearray([NO_GRADIENT]) * len(layers)
    dtypes: list[str | None] = [None] * len(layers)
    gradients: dict[int, Tensor] = {}
    for layer, parameter in enumerate(layers.parameters()):
        gradient = None if parameter is None else parameter.grad
        is_here = gradient is not None if fired is None else fired[layer] > 0
        if not is_here:
            states[layer] = _idle(parameter, earlier[layer])
        elif gradient is None or not readable(gradient) or layers.optimizers[layer] in consumed:
            states[layer] = PARTIAL
        else:
            states[layer] = MEASURED
            gradients[layer] = gradient
            dtypes[layer] = dtype_name(gradient.dtype)
    zeros = list(gradients) if number % ZEROS_EACH == 0 else [i for i in wishes.zeros if i in gradients]
    measured = measure(gradients, zeros, [i for i in wishes.nonfinite if i in gradients])
    return Sample(phase, states, tuple(dtypes), measured, scale)


def is_capturing() -> bool:
    """Say whether a CUDA graph is being recorded: our kernels must not become part of it."""
    is_used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # untyped in torch
    return is_used and torch.cuda.is_current_stream_capturing()


def _idle(parameter: nn.Parameter | None, earlier: int) -> int:
    if parameter is not None and not parameter.requires_grad:
        return NOT_TRAINABLE
    return PARTIAL if earlier else NO_GRADIENT
