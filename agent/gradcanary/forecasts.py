"""What can be said before it shows: weights too coarse for their learning rate, optimizer states too coarse to decay.

Looked at once, after an optimizer had fifty steps and its learning rate rises no more. Optimizers of Adam's kind change
a weight by about the learning rate; a weight w in bfloat16 lies 2^(e-7) from its neighbour, where 2^e <= |w| < 2^(e+1),
and stays where it is when it is changed by less than half of that. The same holds of a moment that decays by less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import le

import torch
from torch import Tensor

from gradcanary import wire
from gradcanary.frozen import ELEMENTS
from gradcanary.records import Kind, Part, number_of
from gradcanary.references import References
from gradcanary.statistics import spread
from gradcanary.weights import weight_of

AFTER, AT_LATEST = 50, 1000
"""Steps of an optimizer: while its learning rate still rises, the look is put off."""

MOST_LAYERS = 64
BITS = {torch.bfloat16: 8, torch.float16: 11}
"""Of a significand, with the one that is not stored."""

_SUBNORMAL = {torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}
_SHORT = {"bfloat16": "bf16", "float16": "fp16"}
_SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq", "exp_inf")
_MOMENTS = ("exp_avg", *_SECOND_MOMENTS)


@dataclass
class Forecast:
    """The share of elements, per layer by position, that a step of the learning rate cannot move; behind that rate."""

    dtype: str
    parts: list[Part]


class Outlook:
    """Knows when the time for an optimizer's forecast has come."""

    def __init__(self) -> None:
        self.is_over = False
        self._steps = 0
        self._rates: list[float] = []

    def is_due(self, optimizer: torch.optim.Optimizer) -> bool:
        """Count a step, and say whether there were enough. A rate in a tensor may rise without being seen to."""
        self._steps += 1
        before, now = self._rates, [group.get("lr", 0.0) for group in optimizer.param_groups]
        self._rates = [] if any(isinstance(rate, Tensor) for rate in now) else now
        is_settled = len(before) == len(self._rates) > 0 and all(map(le, self._rates, before))
        return self._steps > AT_LATEST or (self._steps > AFTER and is_settled)


def forecasts(optimizer: torch.optim.Optimizer, references: References) -> list[Forecast]:
    """Return a forecast for each group of an optimizer of Adam's kind that holds weights of low precision.

    Kernels only, nothing is read. Of 64 layers of a group at most.
    """
    places = {id(parameter): place for place, each in enumerate(references) if (parameter := each()) is not None}
    found = []
    for group in optimizer.param_groups:
        low = [p for p in group["params"] if p.dtype in BITS and id(p) in places and _goes_by_the_rate(optimizer, p)]
        for dtype in dict.fromkeys(parameter.dtype for parameter in low):
            rate = group["lr"].detach().clone() if isinstance(group["lr"], Tensor) else group["lr"]
            mine = [parameter for parameter in low if parameter.dtype is dtype]
            some = mine[:: -(-len(mine) // MOST_LAYERS)]
            stuck = [(places[id(p)], share) for p in some if (share := stuck_share(p, rate)) is not None]
            parts = [Part(Kind.RATE, rate), *(Part(Kind.STUCK, share, (place,)) for place, share in stuck)]
            found.append(Forecast(str(dtype).removeprefix("torch."), parts))
    return found


def stuck_share(parameter: Tensor, change: float | Tensor) -> Tensor | None:
    """Return the share of elements that stay as they are when they are changed by so much; None of none to look at."""
    weight = weight_of(parameter)
    part = None if weight is None else spread(weight, ELEMENTS)
    if weight is None or part is None:
        return None
    exponents = torch.frexp(part.to(torch.float32)).exponent  # of |w| = m * 2^e with m from 1/2 to 1
    distance = torch.exp2((exponents - BITS[weight.dtype]).to(torch.float32)).clamp_min(_SUBNORMAL[weight.dtype])
    return ((distance / 2 > change) & (part != 0)).mean(dtype=torch.float32)


def coarse_moments(optimizer: torch.optim.Optimizer, names: Mapping[int, str], every: int) -> list[wire.Fact]:
    """Return what is to be said of second moments that cannot decay; ``names`` of the layers by id of the parameter, of
    so many in all. A beta in a tensor is not read."""
    layers: dict[tuple[str, float], list[str]] = {}
    for group in optimizer.param_groups:
        decay = group["betas"][1] if "betas" in group else 0.999
        if isinstance(decay, Tensor):
            continue
        for parameter in (parameter for parameter in group["params"] if id(parameter) in names):
            for dtype in {moment.dtype for moment in _moments(optimizer, parameter)} & BITS.keys():
                if 1 - decay < 2.0 ** -(BITS[dtype] + 1):
                    layers.setdefault((str(dtype).removeprefix("torch."), decay), []).append(names[id(parameter)])
    return [_coarse(dtype, decay, some, every) for (dtype, decay), some in layers.items()]


def fact_of(forecast: Forecast, shares: Mapping[str, float], step: int) -> wire.Fact | None:
    """Return what is to be said of a forecast, by name of the layer, None where most weights can move; waits for the
    learning rate."""
    stuck = {name: share for name, share in shares.items() if share >= 0.5}
    if not stuck or not (rate := number_of(forecast.parts[0].value)) > 0:
        return None
    mean = sum(stuck.values()) / len(stuck)
    text = (
        f"Weights in {forecast.dtype}, and a learning rate of {rate:.2g} at step {step}: a step changes a weight by "
        f"about that, which is too little for {mean:.0%} of the elements of these layers to move at all. They need "
        "float32 master weights (autocast over float32 parameters, or the framework's switch) or an optimizer that "
        "rounds stochastically, however healthy their gradients look."
    )
    return wire.Fact(f"{_SHORT[forecast.dtype]}_weights_lr", text, tuple(stuck))


def _goes_by_the_rate(optimizer: torch.optim.Optimizer, parameter: Tensor) -> bool:
    """Say so of Adam and its kind, and not where a state of the weight's shape keeps what rounding takes away."""
    state = optimizer.state.get(parameter, {})
    others = (each for key, each in state.items() if key not in _MOMENTS and isinstance(each, Tensor))
    return bool(_moments(optimizer, parameter)) and not any(each.shape == parameter.shape for each in others)


def _moments(optimizer: torch.optim.Optimizer, parameter: Tensor) -> list[Tensor]:
    state = optimizer.state.get(parameter, {})
    return [state[key] for key in _SECOND_MOMENTS if isinstance(state.get(key), Tensor)]


def _coarse(dtype: str, decay: float, layers: Sequence[str], of: int) -> wire.Fact:
    text = (
        f"The optimizer keeps its second moments in {dtype}: what a step takes away of one at a beta of {decay:g} is "
        "less than half the distance to the next number. So they rise with large gradients and never come down again, "
        "and steps stay smaller than they should be. They belong in float32."
    )
    return wire.Fact(f"{_SHORT[dtype]}_moments", text, () if len(layers) == of else tuple(layers))
