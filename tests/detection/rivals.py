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
    looked = range(CHECK_EACH, len(read.loss), CHECK_EACH)
    return next((step for step in looked if _is_ill(read, step)), None)


def _is_ill(read: Read, step: int) -> bool:
    there = ~np.isnan(read.norm[step])  # a layer without a gradient is none of its trainable ones
    norms = read.norm[step, there & read.is_matrix]
    if not np.isfinite(read.loss[step]) or read.loss[step] >= 1e3 or np.isinf(norms).any():
        return True
    if np.average(read.zeros[step, there], weights=read.sizes[there]) >= 0.7:
        return True
    first, last = norms[0], norms[-1]
    return bool((first < 1e-3 * last and first < 1e-4) or first > 70 * last)


def _first(bad: np.ndarray) -> int | None:
    return int(bad.argmax()) if bad.any() else None


RIVALS: dict[str, Callable[[Read], int | None]] = {
    "absmax < 1e-4": bare_threshold,
    "SageMaker": sagemaker,
    "AutoTrainer": autotrainer,
}
