"""What is true about a training, without gradcanary: float64 readings of ``.grad``, and the step a fall is real.

Written from the definition of a collapse, in plain numpy, and not from the server's fold.
"""

from collections.abc import Callable

import numpy as np
import torch

from gradcanary.demo.training import Fault, Job, Model, train

ENTER, FALL_DECADES, OVER_COMMON_DECADES = 1e-4, 1.5, 1.0
GRACE, BLOCK = 50, 50


def read_gradients(
    steps: int, fault: Fault | None = None, seed: int = 0, width: int = 128
) -> tuple[list[str], np.ndarray, float]:
    """Train as the demo does, without the agent; return layer names, absmax float64 [steps, layers], last loss."""
    job = Job.build(seed, width)
    names = [name for name, each in job.model.named_parameters() if each.requires_grad]
    rows: list[list[float]] = []
    loss = train(job, steps, fault, _reader(rows))
    return names, np.array(rows), loss


def _reader(rows: list[list[float]]) -> Callable[[int, Model], None]:
    def read(_step: int, model: Model) -> None:
        gradients = [each.grad for each in model.parameters() if each.requires_grad]
        rows.append([float(torch.zeros(1) if each is None else each.double().abs().max()) for each in gradients])

    return read


def meets_condition(absmax: np.ndarray) -> np.ndarray:
    """Return bool [steps, layers]: where a layer meets the condition of a collapse.

    The condition: absmax under 1e-4, 1.5 decades under the layer's baseline, and 1 decade more than the common fall.
    The baseline is the largest median over blocks of 50 steps after a grace of 50; common is the 5th percentile of
    the falls of all layers, at least the second smallest.
    """
    levels = np.log10(np.maximum(absmax, 1e-30))
    baseline = np.full(absmax.shape, np.nan)
    for end in range(GRACE + BLOCK, len(absmax) + 1, BLOCK):
        median = np.median(levels[end - BLOCK : end], axis=0)
        baseline[end - 1 :] = np.fmax(baseline[end - 1 :], median)
    fall = baseline - levels
    rank = max(1, int(0.05 * (absmax.shape[1] - 1)))
    common = np.sort(fall, axis=1)[:, rank]
    return (absmax < ENTER) & (fall >= FALL_DECADES) & (fall - common[:, None] >= OVER_COMMON_DECADES)


def collapsed(absmax: np.ndarray) -> dict[int, int]:
    """Return each collapsed layer and its true step: the first from which it meets the condition and stays."""
    bad = meets_condition(absmax)
    found = {}
    for layer in range(absmax.shape[1]):
        good = np.flatnonzero(~bad[:, layer])
        first = int(good[-1]) + 1 if len(good) else 0
        if first < len(absmax):
            found[layer] = first
    return found
