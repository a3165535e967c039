"""Each reading of truth says what it is meant to of arrays made by hand, and nothing of a healthy layer."""

from dataclasses import replace

import numpy as np
import pytest

from detection.truths import TRUTHS, Read

STEPS, SINCE = 400, 150
NAMES = ["sick", "well"]


def healthy() -> Read:
    """Return two layers with gradients around 0.01 that move by a thousandth each step."""
    absmax = 0.01 * 10 ** (0.1 * np.sin(np.arange(STEPS)))[:, None] * np.ones(2)
    weights = np.ones((STEPS, 2))
    return Read(
        names=NAMES,
        is_matrix=np.ones(2, bool),
        sizes=np.array([16, 16]),
        absmax=absmax,
        mean=absmax / 3,
        norm=absmax * 2,
        zeros=np.zeros((STEPS, 2)),
        moved=1e-3 * weights,
        weights=weights,
        left=np.full((STEPS, 2), np.nan),
        loss=np.linspace(1, 0.1, STEPS),
        proof=np.full(2, np.nan),
    )


def changed(plane: str, value: float, since: int = SINCE) -> Read:
    """Return healthy layers, of which the first has another number in one plane from a step on."""
    read = healthy()
    numbers = getattr(read, plane).copy()
    numbers[since:, 0] = value
    return replace(read, **{plane: numbers})


def sliding() -> Read:
    """Return layers of which the first loses 2 % of its gradient each step."""
    read = healthy()
    absmax = read.absmax.copy()
    absmax[SINCE:, 0] *= 0.98 ** np.arange(STEPS - SINCE)
    return replace(read, absmax=absmax)


def told(name: str, read: Read) -> dict[str, int]:
    return TRUTHS[name](read, SINCE)


@pytest.mark.parametrize(
    ("name", "read", "step"),
    [
        ("stood", changed("moved", 0.0), SINCE),
        ("crept", changed("moved", 0.9e-6), SINCE),
        ("crept", changed("moved", 0.0), SINCE),
        ("kept", changed("left", 0.01, since=1), 1),
        ("zeroed", changed("absmax", 0.0, since=0), 0),
        ("never", changed("absmax", np.nan, since=0), 0),
        ("flushed", replace(healthy(), proof=np.array([0.3, 0.2])), 0),
        ("slid", sliding(), SINCE),
    ],
)
def test_a_truth_names_the_layer_and_the_step(name: str, read: Read, step: int) -> None:
    assert told(name, read) == {"sick": step}


@pytest.mark.parametrize("name", ["stood", "crept", "kept", "zeroed", "flushed", "slid"])
def test_no_truth_names_a_healthy_layer(name: str) -> None:
    assert told(name, healthy()) == {}


@pytest.mark.parametrize(
    ("name", "read"),
    [
        ("crept", changed("moved", 1.1e-6)),
        ("zeroed", changed("absmax", np.nan, since=0)),
        ("kept", changed("left", 0.0)),
        ("slid", changed("absmax", 1e-6, since=STEPS - 50)),
        ("slid", changed("absmax", 2e-3)),
    ],
)
def test_what_only_looks_like_it_is_not_named(name: str, read: Read) -> None:
    """A step of over a millionth; no gradient where a zero is meant; one that was cleared to zero; a fall at once."""
    assert told(name, read) == {}


@pytest.mark.parametrize("name", ["stood", "crept"])
def test_weights_without_a_gradient_may_stand_still(name: str) -> None:
    read = changed("moved", 0.0)
    absmax = read.absmax.copy()
    absmax[SINCE::2, 0] = np.nan
    assert told(name, replace(read, absmax=absmax)) == {}


def test_a_layer_that_moves_again_does_not_stand_still() -> None:
    read = changed("moved", 0.0)
    read.moved[-1, 0] = 1e-3
    assert told("stood", read) == {}
