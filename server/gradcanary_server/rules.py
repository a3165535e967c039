"""The numbers of the rules: defaults with their reasons, and ``rules.yaml``, which may move them.

Rules are data. In the file, unknown keys, wrong types and impossible values are errors that name the line; of
``layers`` the first entry whose expression is found in a layer's name wins, and what it leaves out falls back to
``rules``, but an ``enter`` without an ``exit`` keeps their ratio. :mod:`gradcanary_server.rules_file` reads it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from gradcanary_server.pace import Pace

EVIDENCE = ("fall", "siblings")
"""What may show that a small gradient was larger before; "threshold" instead takes ``enter`` at its word."""


@dataclass(frozen=True)
class Collapse:
    """Layers that stopped learning. The defaults were tried on traces of short real jobs and were not delicate."""

    enabled: bool = True
    enter: float = 1e-4
    """absmax under which a layer is low."""
    exit: float = 3e-4
    """absmax over which a layer counts as recovered; between the two nothing is decided."""
    evidence: tuple[str, ...] = EVIDENCE
    fall_decades: float = 1.5
    """Decades under the layer's own baseline."""
    over_common_decades: float = 1.0
    """Decades more than (nearly) all layers fell: a rescaled loss shrinks all alike."""
    baseline_observations: int = 50
    """Consecutive observations whose median can become the baseline; at most 10 where every >= 10."""
    siblings_min: int = 4
    siblings_decades: float = 2.0
    """Decades under the upper quartile of the siblings."""
    fire_after_steps: int = 20
    resolve_after_steps: int = 100


@dataclass(frozen=True)
class ScaleDrop:
    """All gradients fell together."""

    enabled: bool = True
    common_decades: float = 1.5


@dataclass(frozen=True)
class Nonfinite:
    """NaN or infinity in a gradient or the loss."""

    enabled: bool = True
    skipped_in_row: int = 20
    """Steps that a GradScaler skipped in a row before they count: it skips some while it looks for its scale."""


@dataclass(frozen=True)
class Grace:
    """Steps of a launch in which falls are not looked for: ``steps``, and while lr rises at most ``max_steps``."""

    steps: int = 50
    max_steps: int = 1_000


@dataclass(frozen=True)
class LayerRule:
    """What holds for the layers in whose names ``match`` is found."""

    match: str
    collapse: Collapse


@dataclass(frozen=True)
class Rules:
    """All numbers that decide; immutable, so that equal rules give equal results."""

    version: int = 1
    collapse: Collapse = field(default_factory=Collapse)
    scale_drop: ScaleDrop = field(default_factory=ScaleDrop)
    nonfinite: Nonfinite = field(default_factory=Nonfinite)
    grace: Grace = field(default_factory=Grace)
    layers: tuple[LayerRule, ...] = ()
    pace: Pace = field(default_factory=Pace)

    def collapse_of(self, name: str) -> Collapse:
        """Return the collapse rule of a layer by its name."""
        found = (rule.collapse for rule in self.layers if re.search(rule.match, name))
        return next(found, self.collapse)
