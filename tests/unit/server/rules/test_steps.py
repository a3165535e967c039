"""Whom a common fall is told of: not of layers that are exactly zero now, and not of those that were not seen."""

from types import SimpleNamespace

import numpy as np

from gradcanary_server.rules.detectors import collapse
from gradcanary_server.rules.steps import Falls

LAYERS = 400
FELL = np.arange(LAYERS) / 100
"""Decades: the 5th percentile of all is that of layer 19, of the last 200 that of layer 200 + 9."""


def asked(fell, zero, seen):
    alive = zero_counts = np.ones(LAYERS, np.bool_)
    sample = SimpleNamespace(is_measured=seen, zero=zero)
    falls = Falls(sample, np.zeros(LAYERS), fell, alive, zero_counts)
    config = SimpleNamespace(enter_level=np.full(LAYERS, -4.0))
    return collapse.find_common_fall(falls, config), *collapse.common_fall_reaches(falls, config, (2.05, 9.0))


def test_common_fall_uses_the_observed_layers_of_each_step():
    nothing = np.zeros((3, LAYERS), np.bool_)
    zero, seen = nothing.copy(), ~nothing
    zero[1, :200], seen[2, :200] = True, False
    fell = np.where(zero, np.inf, np.where(seen, FELL, np.nan))
    found, (is_far, is_farther), is_known = asked(fell, zero, seen)
    assert found.tolist() == [0.19, 2.09, 2.09]
    assert (is_far.tolist(), is_farther.any(), is_known.all()) == ([False, True, True], False, True)


def test_common_fall_is_the_same_for_a_step_and_for_several():
    nothing = np.zeros((2, LAYERS), np.bool_)
    fell = np.stack([FELL, 2 * FELL])
    found, (is_far, _), is_known = asked(fell, nothing, ~nothing)
    assert found.tolist() == [0.19, 0.38]
    assert (is_far.tolist(), is_known.tolist()) == ([False, False], [True, True])
    alone, (far, _), known = asked(fell[1], nothing[1], ~nothing[1])
    assert (float(alone), bool(far), bool(known)) == (0.38, False, True)
    near = asked(fell / 10, nothing, ~nothing)
    assert (near[1][0].tolist(), near[2].tolist()) == ([False, False], [True, True]), "nothing fell as far"
