"""What the float64 readings of a job say about it, in plain numpy and without gradcanary.

Each takes a :class:`Read` and the step of the fault, and returns of each layer that it is true of the first step from
which it is; "" stands for the whole run. ``proof`` [layers] is what a job measured itself, NaN = nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detection.truth import collapsed

STEADY = 0.95


@dataclass(frozen=True)
class Read:
    """What one job read of its gradients: arrays float64 [steps, layers], NaN = none, infinite = not finite."""

    names: list[str]
    is_matrix: np.ndarray
    sizes: np.ndarray
    absmax: np.ndarray
    mean: np.ndarray
    norm: np.ndarray
    zeros: np.ndarray
    loss: np.ndarray
    proof: np.ndarray

    @classmethod
    def of(cls, path: Path) -> "Read":
        """Read a file that a job wrote."""
        with np.load(path) as found:
            arrays = {
                name: found[name] for name in ("is_matrix", "sizes", "absmax", "mean", "norm", "zeros", "loss", "proof")
            }
            return cls([str(name) for name in found["names"]], **arrays)


def fell(read: Read, _since: int) -> dict[str, int]:
    """Under 1e-4, 1.5 decades under what it was, and a decade more than the others: to the end."""
    had = ~np.isnan(read.absmax).all(axis=0)
    places = np.flatnonzero(had)
    # A step without a gradient is none that is low.
    absmax = np.where(np.isnan(read.absmax), np.inf, read.absmax)[:, had]
    return {read.names[places[layer]]: step for layer, step in collapsed(absmax).items()}


def gone(read: Read, since: int) -> dict[str, int]:
    """No gradient, or exact zeros, from a step to the end, and one in nearly all steps before."""
    idle = np.isnan(read.absmax) | (read.absmax == 0)
    steady = (~idle[:since]).mean(axis=0) >= STEADY
    return _last(idle & steady, read.names)


def never(read: Read, _since: int) -> dict[str, int]:
    """No gradient at any step."""
    idle = (np.isnan(read.absmax) | (read.absmax == 0)).all(axis=0)
    return {name: 0 for name, is_idle in zip(read.names, idle, strict=True) if is_idle}


def broke(read: Read, _since: int) -> dict[str, int]:
    """Not finite, at one step at least."""
    bad = np.isinf(read.absmax)
    return {read.names[layer]: int(bad[:, layer].argmax()) for layer in np.flatnonzero(bad.any(axis=0))}


def blew(read: Read, since: int) -> dict[str, int]:
    """A hundred times its median before the fault, in three steps."""
    before = np.nanmedian(read.absmax[since // 2 : since], axis=0)
    bad = read.absmax > 100 * before
    return {read.names[layer]: int(bad[:, layer].argmax()) for layer in np.flatnonzero(bad.sum(axis=0) >= 3)}


def shrank(read: Read, since: int) -> dict[str, int]:
    """All layers lost 1.5 decades together, or have no gradient but exact zeros."""
    before = np.nanmedian(read.absmax[since // 2 : since], axis=0)
    small = (read.absmax < before * 10**-1.5).all(axis=1)
    return _last(small[:, None], [""])


def lags(read: Read, _since: int) -> dict[str, int]:
    """In over a third of all steps under 1e-4, and two decades under the upper quartile of the layers of its kind."""
    kinds = ["".join(letter for letter in name if not letter.isdigit()) for name in read.names]
    found = {}
    for kind in {each for each in kinds if kinds.count(each) >= 4}:
        members = [layer for layer, each in enumerate(kinds) if each == kind]
        absmax = read.absmax[:, members]
        quartile = np.quantile(absmax, 0.75, axis=1, method="lower")
        bad = (absmax < 1e-4) & (absmax < quartile[:, None] / 100)
        found.update({read.names[members[place]]: 0 for place in np.flatnonzero(bad.mean(axis=0) > 1 / 3)})
    return found


def loses(read: Read, _since: int) -> dict[str, int]:
    """A sum that lacks more than a twentieth of its sum in float64."""
    return {name: 0 for name, lost in zip(read.names, read.proof, strict=True) if lost > 0.05}


def stands(read: Read, _since: int) -> dict[str, int]:
    """Weights most of which hundreds of steps did not move."""
    return {name: 0 for name, share in zip(read.names, read.proof, strict=True) if share > 0.5}


def _last(bad: np.ndarray, names: list[str]) -> dict[str, int]:
    """Return the layers that are bad at the end, and from where on without an exception."""
    found = {}
    for layer, name in enumerate(names):
        good = np.flatnonzero(~bad[:, layer])
        first = int(good[-1]) + 1 if len(good) else 0
        if first < len(bad):
            found[name] = first
    return found


TRUTHS: dict[str, Callable[[Read, int], dict[str, int]]] = {
    each.__name__: each for each in (fell, gone, never, broke, blew, shrank, lags, loses, stands)
}
