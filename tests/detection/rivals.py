"""What others would have said of the same gradients: their published rules, in our words, on our float64 readings.

Each returns the first step at which it raises, None if never. They know no layers to name and no messages to hold
back; that is not held against them.
"""

from collections.abc import Callable

import numpy as np
from detection.truths import Read

IN_A_ROW = 20
CHECK_EACH = 50


def bare_threshold(read: Read) -> int | None:
    """Any layer's absmax under 1e-4, twenty steps in a row: what people write first."""
    low = read.absmax < 1e-4
    runs = np.zeros(low.shape[1], np.int64)
    for step, row in enumerate(low):
        runs = np.where(row, runs + 1, 0)
        if (runs >= IN_A_ROW).any():
            return step
    return None


def sagemaker(read: Read) -> int | None:
    """SageMaker Debugger's VanishingGradient: the mean of |g| of any gradient under 1e-7.

    https://docs.aws.amazon.com/sagemaker/latest/dg/vanishing-gradient.html
    """
    return _first((read.mean < 1e-7).any(axis=1))


def autotrainer(read: Read) -> int | None:
    """AutoTrainer (Zhang et al., ICSE 2021, table of parameters and https://github.com/shiningrain/AUTOTRAINER).

    Of the weight matrices, without biases: vanishing where the norm of the first is under 1e-3 of the last one's and
    under 1e-4; exploding where it is over 70 times the last one's, or anything is not finite; dying ReLU where 70 % of
    all elements are zero. It looks after each few epochs: here each 50 steps, from step 50 on; its rules on accuracy
    and on the loss over epochs have nothing to read here, but that a loss over 1,000 is one.
    """
    there = read.is_matrix & ~np.isnan(read.norm).all(axis=0)
    norms = np.nan_to_num(read.norm[:, there])
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = norms[:, 0] / norms[:, -1]
    vanishing = (rate < 1e-3) & (norms[:, 0] < 1e-4)
    broken = np.isinf(norms).any(axis=1) | ~np.isfinite(read.loss) | (read.loss >= 1e3)
    dying = np.average(np.nan_to_num(read.zeros, nan=1.0), axis=1, weights=read.sizes) >= 0.7
    looked = np.arange(len(norms)) % CHECK_EACH == 0
    looked[0] = False
    return _first((vanishing | (rate > 70) | broken | dying) & looked)


def _first(bad: np.ndarray) -> int | None:
    return int(bad.argmax()) if bad.any() else None


RIVALS: dict[str, Callable[[Read], int | None]] = {
    "absmax < 1e-4": bare_threshold,
    "SageMaker": sagemaker,
    "AutoTrainer": autotrainer,
}
