"""What the float64 readings of a job say about it, in plain numpy and without gradcanary.

Each takes a :class:`Read` and the step of the fault, and returns of each layer that it is true of the first step from
which it is; "" stands for the whole run. ``proof`` [layers] is what a job measured itself, NaN = nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from detection.job import PLANES
from detection.truth import collapsed

STEADY = 0.95
BARELY = 1e-6
"""Of the weights, a step: a million steps would move them by their own size. A usual step moves a thousandth."""
FLUSHED = 0.25
"""Of all elements: what float16 without a scaler loses so that it matters."""


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
    moved: np.ndarray
    weights: np.ndarray
    left: np.ndarray
    loss: np.ndarray
    proof: np.ndarray

    @classmethod
    def of(cls, path: Path) -> "Read":
        """Read a file that a job wrote."""
        with np.load(path) as found:
            arrays = {name: found[name] for name in ("is_matrix", "sizes", *PLANES, "loss", "proof")}
            return cls([str(name) for name in found["names"]], **arrays)

    @property
    def has_gradient(self) -> np.ndarray:
        """Where a gradient is one: not missing, not exactly zero."""
        return ~np.isnan(self.absmax) & (self.absmax > 0)


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
    """In over a third of all steps under 1e-4, and two decades under the best layer of its kind."""
    kinds = ["".join(letter for letter in name if not letter.isdigit()) for name in read.names]
    found = {}
    for kind in {each for each in kinds if kinds.count(each) >= 4}:
        members = [layer for layer, each in enumerate(kinds) if each == kind]
        absmax = read.absmax[:, members]
        bad = (absmax < 1e-4) & (absmax < absmax.max(axis=1, keepdims=True) / 100)
        found.update({read.names[members[place]]: 0 for place in np.flatnonzero(bad.mean(axis=0) > 1 / 3)})
    return found


def loses(read: Read, _since: int) -> dict[str, int]:
    """A sum that lacks more than a twentieth of its sum in float64."""
    return {name: 0 for name, lost in zip(read.names, read.proof, strict=True) if lost > 0.05}


def stands(read: Read, _since: int) -> dict[str, int]:
    """Weights most of which hundreds of steps did not move."""
    return {name: 0 for name, share in zip(read.names, read.proof, strict=True) if share > 0.5}


def stood(read: Read, _since: int) -> dict[str, int]:
    """Weights that do not move at all from a step to the end, and have a gradient in nearly all of these steps."""
    return _unmoved(read, read.moved == 0)


def crept(read: Read, _since: int) -> dict[str, int]:
    """Weights that each step moves by under a millionth from a step to the end, though there is a gradient."""
    return _unmoved(read, read.moved <= BARELY * read.weights)


def kept(read: Read, _since: int) -> dict[str, int]:
    """``.grad`` is not empty when a step begins, from a step to the end."""
    return _last(read.left > 0, read.names)


def zeroed(read: Read, _since: int) -> dict[str, int]:
    """A gradient at each step, and exactly zero at all of them."""
    return {name: 0 for name, is_zero in zip(read.names, (read.absmax == 0).all(axis=0), strict=True) if is_zero}


def flushed(read: Read, _since: int) -> dict[str, int]:
    """Over a quarter of the elements exactly zero that float32 has a gradient for."""
    return {name: 0 for name, share in zip(read.names, read.proof, strict=True) if share > FLUSHED}


def slid(read: Read, since: int) -> dict[str, int]:
    """The log of the absmax falls in a straight line: two decades, and never 0.7 off for long."""
    found = {}
    for layer, name in enumerate(read.names):
        level = np.log10(np.maximum(read.absmax[since:, layer], 1e-30))
        steps = np.arange(len(level))
        slope, start = np.polyfit(steps, level, 1)
        off = np.abs(level - start - slope * steps)
        if -slope * len(level) > 2 and np.quantile(off, 0.95) < 0.7:
            found[name] = since
    return found


def _unmoved(read: Read, still: np.ndarray) -> dict[str, int]:
    """Return the layers that are still to the end, with a gradient in nearly all of that time, and from where on."""
    found = _last(still, read.names)
    place = {name: layer for layer, name in enumerate(read.names)}
    return {name: step for name, step in found.items() if read.has_gradient[step:, place[name]].mean() >= STEADY}


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
    each.__name__: each
    for each in (
        *(fell, gone, never, broke, blew, shrank, lags, loses, stands),
        *(stood, crept, kept, zeroed, flushed, slid),
    )
}
