"""The weights: their change in a step, the share that does not move, and forecasts of their precision.

Each sampled step measures a few layers, in turns. No value is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import le

import torch
from torch import Tensor

from gradcanary import wire
from gradcanary.model.declared_dtypes import has_master
from gradcanary.model.distributed import local_tensor
from gradcanary.model.parameters import References
from gradcanary.stats.kernels import LOW_PRECISION, norm_factors, strided_sample
from gradcanary.stats.samples import Forecast, Kind, Part, number_of
from gradcanary.wording import number, percent

PER_STEP = 2
"""Layers whose update is measured from many elements in a step (others: :mod:`gradcanary.stats.weight_rows`)."""

ELEMENTS = 2**16
"""Elements of a layer that are compared, at most."""

_MULTIPLIER = 0xA55A15D46DF9CE17
"""The best of 10,000 random multipliers: no slot waits longer than three rounds, if each step, each 10th, 100th or
1000th is sampled."""

FROZEN_EACH = wire.FROZEN_STEPS

FROZEN_PER_TURN = 8
"""Layers in a comparison."""

AFTER, AT_LATEST = 50, 1000
"""Steps of an optimizer before its forecast: at least 50, and up to 1,000 while its learning rate rises."""

MOST_LAYERS = 64
"""Layers of a group in a forecast, at most."""

BITS = {torch.bfloat16: 8, torch.float16: 11}
"""Bits of a significand, with the implicit one."""

_SUBNORMAL = {torch.bfloat16: 2.0**-133, torch.float16: 2.0**-24}
_SHORT = {"bfloat16": "bf16", "float16": "fp16"}
_SECOND_MOMENTS = ("exp_avg_sq", "max_exp_avg_sq", "exp_inf")
_MEMORIES = ("exp_avg", "momentum_buffer", "square_avg", "sum", "prev", *_SECOND_MOMENTS)
"""States of the weight's shape that are made of gradients."""
_COMPENSATIONS = ("compensation", "kahan", "shift")
"""Parts of the names of states that keep what rounding takes away."""


def layers_of_step(step: int, layers: int) -> list[int]:
    """Return the layers to measure in a step. All ranks get the same ones: only its number counts."""
    return round_robin(range(layers), slot_of(step, -(-layers // PER_STEP)), PER_STEP)


def copy_weights_of(
    turn: Iterable[int], layers: Sequence[int], references: References, owned: Sequence[bool] | None
) -> dict[int, Tensor]:
    """Return copies of elements of the layers of a turn, by position, if they are plain and trained.

    ``layers`` and ``references`` are the numbers and parameters by position. ``owned`` is True for each layer that this
    process sends, None for all. A sharded layer gives its shard.
    """
    copies: dict[int, Tensor] = {}
    for position in (layers.index(layer) for layer in turn if layer in layers):
        parameter = references[position]()
        if parameter is None or not parameter.requires_grad or not (owned is None or owned[position]):
            continue
        part = _part(weight_of(parameter))
        if part is not None:
            copies[position] = part.to(wide_dtype(part.dtype), copy=True)
    return copies


def update_norms(copies: Mapping[int, Tensor], references: References) -> dict[int, Tensor]:
    """Return four numbers per layer: two factors of the L2 norm of the change, and two of the norm of the weights.

    The copies are overwritten. One factor is the absmax, so that squares of small changes do not underflow. A layer
    that the step has moved to another device is left out. Both norms are scaled from the sample to all elements.
    """
    found = {}
    with torch.no_grad():
        for position, copy in copies.items():
            weight = weight_of(references[position]())
            part = _part(weight)
            if weight is not None and part is not None and (part.shape, part.device) == (copy.shape, copy.device):
                factors = torch.stack([*norm_factors(copy.sub_(part)), *norm_factors(copy.copy_(part))])
                factors[1::2] *= math.sqrt(weight.numel() * (1 + weight.is_complex()) / part.numel())
                found[position] = factors
    return found


def weight_of(parameter: Tensor | None) -> Tensor | None:
    """Return the local elements of a parameter if it is a plain dense tensor of floating-point numbers, else None.

    The storage is checked: reading one that was freed would read memory of other tensors.
    """
    weight = None if parameter is None else local_tensor(parameter).detach()
    if weight is None or type(weight) is not Tensor or weight.layout is not torch.strided:
        return None
    is_number = weight.is_complex() or (weight.is_floating_point() and weight.element_size() > 1)
    return weight if is_number and weight.numel() and weight.untyped_storage().nbytes() > 0 else None


def _part(weight: Tensor | None) -> Tensor | None:
    """Return the compared elements as a view of real numbers; None for a large layer with gaps in memory."""
    if weight is None:
        return None
    return strided_sample(torch.view_as_real(weight) if weight.is_complex() else weight, ELEMENTS)


def wide_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which weights are compared."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def round_robin(layers: Sequence[int], turn: int, most: int) -> list[int]:
    """Return up to ``most`` layers for a turn; successive turns go through all of them."""
    first = turn * most % max(len(layers), 1)
    return [*layers[first:], *layers[:first]][:most]


def slot_of(step: int, slots: int) -> int:
    """Return the slot of a step by multiplicative hashing (Knuth, TAOCP 3, 6.4).

    Unlike ``step // interval % slots`` it gives ranks with different intervals the same layers.
    """
    return (step * _MULTIPLIER) % 2**64 * slots >> 64


def is_frozen_due(step: int) -> bool:
    """Return True if weights are compared after this step. All ranks agree: only its number counts."""
    return step % FROZEN_EACH == 0


class Frozen:
    """Copies of elements of some layers, by position, from an earlier step."""

    def __init__(self) -> None:
        self.exempt: frozenset[int] = frozenset()
        """Positions of layers of which the optimizer keeps what rounding takes away."""
        self.optimizer: Callable[[], torch.optim.Optimizer | None] = lambda: None
        """The optimizer that may keep copies of weights in higher precision."""
        self._since = -1
        self._copies: dict[int, Tensor] = {}
        self._found: dict[int, Tensor] = {}

    def unchanged_fraction(
        self, step: int, interval: int, references: References, moving: Sequence[bool]
    ) -> dict[int, Tensor]:
        """After a step that is due, return the share of unmoved elements since the last turn, and copy other layers.

        ``interval`` is the number of steps between two samples. ``moving`` is True for each layer that this step moves
        and this process sends.
        """
        if step == self._since:
            return self._found  # another step of this optimizer in the same step of the main one
        span = max(FROZEN_EACH, interval)
        is_whole = step - self._since == span
        self._found = self._shares(references, moving) if is_whole else {}
        every = enumerate(references)
        low = [position for position, each in every if _is_low(each()) and position not in self.exempt]
        chosen = [position for position in round_robin(low, step // span, FROZEN_PER_TURN) if moving[position]]
        parts = {
            position: part for position in chosen if (part := _part(weight_of(references[position]()))) is not None
        }
        self._since, self._copies = step, {position: part.clone() for position, part in parts.items()}
        return self._found

    def _shares(self, references: References, moving: Sequence[bool]) -> dict[int, Tensor]:
        found = {}
        for position, before in self._copies.items():
            parameter = references[position]() if moving[position] and position not in self.exempt else None
            now = _part(weight_of(parameter))
            if parameter is None or now is None:
                continue
            if (now.shape, now.dtype, now.device) == (before.shape, before.dtype, before.device):
                share = (now == before).mean(dtype=torch.float32)
                found[position] = unless_copied(share, self.optimizer(), parameter)
        return found


def _is_low(parameter: Tensor | None) -> bool:
    if parameter is None or not parameter.requires_grad or parameter.dtype not in LOW_PRECISION:
        return False
    return not has_master(parameter)


class ForecastSchedule:
    """The time of an optimizer's only forecast."""

    def __init__(self) -> None:
        self.is_done = self.is_settled = False
        self._steps = 0
        self._rates: list[float] = []

    def is_due(self, optimizer: torch.optim.Optimizer) -> bool:
        """Count a step, and return True after enough steps. ``is_settled`` is False while a learning rate rises.

        One in a tensor is not read: it may rise, and is given time.
        """
        self._steps += 1
        before, now = self._rates, [group.get("lr", 0.0) for group in optimizer.param_groups]
        is_unread = any(isinstance(rate, Tensor) for rate in now)
        self._rates = [] if is_unread else now
        is_late = self._steps > AT_LATEST
        self.is_settled = len(before) == len(self._rates) > 0 and all(map(le, self._rates, before))
        self.is_settled = self.is_settled or (is_unread and is_late)
        return is_late or (self._steps > AFTER and self.is_settled)


def forecasts(optimizer: torch.optim.Optimizer, references: References) -> list[Forecast]:
    """Return a forecast for each group of an Adam-like optimizer with weights of low precision; no value is read."""
    found_at = enumerate(reference() for reference in references)
    positions = {id(parameter): position for position, parameter in found_at if parameter is not None}
    found = []
    for group in optimizer.param_groups:
        low = [p for p in group["params"] if p.dtype in BITS and id(p) in positions and _goes_by_the_rate(optimizer, p)]
        for dtype in dict.fromkeys(parameter.dtype for parameter in low):
            rate = group["lr"].detach().clone() if isinstance(group["lr"], Tensor) else group["lr"]
            same = [parameter for parameter in low if parameter.dtype is dtype]
            some = same[:: -(-len(same) // MOST_LAYERS)]
            shares = ((p, stuck_share(p, rate)) for p in some)
            stuck = [(positions[id(p)], unless_copied(each, optimizer, p)) for p, each in shares if each is not None]
            parts = [Part(Kind.LEARNING_RATE, rate), *(Part(Kind.STUCK, share, (at,)) for at, share in stuck)]
            found.append(Forecast(str(dtype).removeprefix("torch."), parts))
    return found


def stuck_share(parameter: Tensor, change: float | Tensor) -> Tensor | None:
    """Return the share of elements that a change of this size leaves as they are; None if none can be compared."""
    weight = weight_of(parameter)
    part = _part(weight)
    if weight is None or part is None:
        return None
    exponents = torch.frexp(part.to(torch.float32)).exponent  # of |w| = m * 2^e with m from 1/2 to 1
    distance = torch.exp2((exponents - BITS[weight.dtype]).to(torch.float32)).clamp_min(_SUBNORMAL[weight.dtype])
    return ((distance / 2 > change) & (part != 0)).mean(dtype=torch.float32)


def coarse_moments(optimizer: torch.optim.Optimizer, names: Mapping[int, str], every: int) -> list[wire.Fact]:
    """Return facts about second moments that cannot decay. A beta in a tensor is not read.

    ``names`` are those of the layers by id of the parameter, and ``every`` is the number of all layers.
    """
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
    """Return the fact of a forecast, None if most weights can move; waits for the learning rate.

    ``shares`` are those of the elements that cannot move, by name of the layer.
    """
    stuck = {name: share for name, share in shares.items() if share >= 0.5}
    if not stuck or not (rate := number_of(forecast.parts[0].value)) > 0:
        return None
    mean = sum(stuck.values()) / len(stuck)
    text = (
        f"At this learning rate ({number(rate)} at step {step:,}), {percent(mean)} of these {forecast.dtype} weights "
        "are too coarse to change, if a step changes weights by about the rate. Gradients can still look healthy. Use "
        "float32 master weights (autocast over float32 parameters, the framework's switch, or "
        "gradcanary.fp32_masters(optimizer)) or an optimizer that rounds stochastically."
    )
    return wire.Fact(f"{_SHORT[forecast.dtype]}_weights_lr", text, tuple(stuck))


def _goes_by_the_rate(optimizer: torch.optim.Optimizer, parameter: Tensor) -> bool:
    """Return True for Adam-like optimizers, unless they keep the rounding errors."""
    return bool(_moments(optimizer, parameter)) and not keeps_rounding(optimizer, parameter)


def keeps_rounding(optimizer: torch.optim.Optimizer, parameter: Tensor) -> bool:
    """Return True if the optimizer steps a float32 copy, or a state keeps the rounding errors, by its name."""
    names = (str(key).lower() for key in _states(optimizer, parameter))
    return has_master(parameter) or any(word in name for name in names for word in _COMPENSATIONS)


def unless_copied(share: Tensor, optimizer: torch.optim.Optimizer | None, parameter: Tensor) -> Tensor:
    """Return a share of unmoved weights, NaN if a state is the weight in higher precision; no value is read.

    Rounded or cut, such a copy is less than the distance of two numbers away from each weight.
    """
    weight = _part(weight_of(parameter))
    states = {} if optimizer is None else _states(optimizer, parameter)
    for state in states.values():
        part = _part(weight_of(state))
        if weight is None or part is None or part.shape != weight.shape or state.stride() != parameter.stride():
            continue
        if part.element_size() > weight.element_size() and part.device == weight.device:
            distance = torch.exp2(torch.frexp(weight.float()).exponent - BITS[weight.dtype])
            is_copy = ((part - weight).abs() <= distance.clamp_min(_SUBNORMAL[weight.dtype])).all()
            share = torch.where(is_copy, math.nan, share)
    return share


def _states(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[object, Tensor]:
    """Return the states of the weight's shape that are not made of gradients."""
    state = optimizer.state.get(parameter, {})
    others = {key: each for key, each in state.items() if key not in _MEMORIES and isinstance(each, Tensor)}
    return {key: each for key, each in others.items() if each.shape == parameter.shape}


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
