"""``fp32_masters()``: bfloat16 and float16 weights are stepped in float32, and rounded once.

How it works: before the optimizer's step, float32 copies of the weights take the parameters' places in its groups, with
the states in float32 and the gradients as float32. The stock step works on the copies. After it the parameters are back
in their places, and each is its copy, rounded to the nearest. A closure sees the parameters.

The model is never touched but by that rounding. So where a step raises, the model is as ever, and the optimizer is put
right before the next step, backward pass, or checkpoint.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial, wraps
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from gradcanary.fp32_sums import (
    INSTEAD,
    chosen_parameters,
    closure_of,
    optimizer_in,
    reducer_of,
    round_grad,
    with_closure,
)
from gradcanary.guard import Guard
from gradcanary.hooks import backward, graphs
from gradcanary.model.declared_dtypes import has_masters, register_masters, unregister_masters
from gradcanary.stats.kernels import LOW_PRECISION

Optimizer = torch.optim.Optimizer
States = Mapping[Any, Any]

KEY = "fp32_master"
"""In the state of a parameter, in ``optimizer.state_dict()``: its float32 copy."""

NAME = "fp32_masters"
_ENDS = (
    "fp32_masters() ends: its own code failed. The weights are what the last step left, and are stepped in their own "
    "dtype from now on"
)
_NO_COPIES = "fp32_masters(): the optimizer's checkpoint has no float32 copies, so they begin at the weights"
_ELSEWHERE = (
    "fp32_masters() ends: within its step the optimizer, or a hook of that step, wrote to the parameters themselves, "
    "not to those in its groups. They stay as they are, and are stepped in their own dtype from now on"
)
_TOO_LATE = (
    "fp32_masters(): the optimizer's state was loaded before this call, so torch has rounded it. Call fp32_masters() "
    "first, and load_state_dict() after it, to resume bit for bit"
)


def fp32_masters(optimizer: Optimizer, params: str | None = None) -> Fp32Masters:
    """Step an optimizer's bfloat16 and float16 parameters in float32, from now on until it is closed.

    Each of them gets a float32 copy. The step changes the copy, with float32 states and gradients; then the parameter
    is the copy, rounded once. What else writes to a weight is taken over. ``params`` chooses as in
    :func:`gradcanary.fp32_accumulators`; with both, the step gets the float32 sums as they are. A GradScaler needs both
    for float16 parameters: torch raises "Attempting to unscale FP16 gradients." otherwise. Parameters that the
    optimizer gets later are not included.

    ``optimizer.state_dict()`` has the copies and float32 states; ``load_state_dict()`` takes them back bit for bit.

    Returns a context manager with ``close()``; an exception in its block passes. Raises TypeError on an object that is
    not an optimizer. Raises ValueError on one without such parameters, on a second call for it, on ``differentiable``
    ones, and on parameters that FSDP shards.
    """
    inner = optimizer_in(optimizer, NAME)
    chosen = chosen_parameters(inner, params, NAME)
    if (owner := reducer_of(chosen)) in ("FullyShardedDataParallel", "DTensor"):
        raise ValueError(
            f"{NAME}(): the parameters belong to a {owner}, which keeps float32 ones itself: {INSTEAD[owner]}"
        )
    if any(group.get("differentiable") for group in inner.param_groups):
        raise ValueError(f"{NAME}(): a differentiable optimizer has to step the parameters themselves")
    if has_masters(inner):
        raise ValueError(f"{NAME}(): this optimizer has float32 copies already; close() that one first")
    masters = Fp32Masters({id(parameter): _copy_of(parameter) for parameter in chosen})
    masters.attach(inner)
    return masters


class Fp32Masters(AbstractContextManager["Fp32Masters"]):
    """The handle of :func:`fp32_masters`. It keeps neither the parameters nor the optimizer alive."""

    def __init__(self, masters: dict[int, nn.Parameter]) -> None:
        self._masters = masters
        self._replaced: dict[int, tuple[nn.Parameter, int]] = {}
        """During a step: the parameters, and their versions, by id of the copy that is in their place."""
        self._loaded: dict[int, States] = {}
        self._optimizer: Callable[[], Optimizer | None] = lambda: None
        self._handles: list[Any] = []
        self._has_ended = False
        self._guard = Guard()
        self._listener = self._guard.wrap("putting right a step that raised", self._backward_called)

    def attach(self, optimizer: Optimizer) -> None:
        """Begin."""
        self._guard.wrap("keeping out of torch.compile", graphs.keep_out)()
        self._optimizer = weakref.ref(optimizer)
        weakref.finalize(optimizer, self._masters.clear).atexit = False
        register_masters(optimizer, self._masters)
        for parameter in self._parameters(optimizer):
            state = optimizer.state.get(parameter, {})
            if state.pop(KEY, None) is not None:
                self._guard.print_once(_TOO_LATE)
            state.update(_cast(state, lambda each: each.float() if each.dtype in LOW_PRECISION else each))
        self._handles = [
            optimizer.register_step_pre_hook(self._step_begins),
            optimizer.register_step_post_hook(lambda each, _args, _kwargs: self._run(self._leave, each)),
            optimizer.register_state_dict_pre_hook(lambda each: self._run(self._repair, each)),
            optimizer.register_state_dict_post_hook(self._add_to),
            optimizer.register_load_state_dict_pre_hook(self._take_from),
            optimizer.register_load_state_dict_post_hook(lambda each: self._run(self._load, each)),
        ]
        # The script's own hooks after a step see the parameters, rounded, whenever they were registered.
        after_step = self._handles[1]
        after_step.hooks_dict_ref().move_to_end(after_step.id, last=False)

    def close(self) -> None:
        """End, and leave no hook: weights are the rounded copies, states have the dtype of their weight. Idempotent."""
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        backward.unsubscribe(self._listener)
        self._stop()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _stack: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Fp32Masters, ({},)  # a copy is closed: its parameters would be copies too

    def _stop(self) -> None:
        """Put weights and states back, and do nothing from now on; torch does not bear that a hook removes hooks."""
        self._has_ended = True
        if (optimizer := self._optimizer()) is not None:
            self._guard.wrap("ending float32 copies", self._end)(optimizer)
            unregister_masters(optimizer)
        self._masters.clear()

    def _stop_in_hook(self, optimizer: Optimizer) -> None:
        """Stop within a hook; the next backward pass removes the hooks. A float32 sum that is here already would fit no
        step of the parameters themselves."""
        parameters = list(self._parameters(optimizer))
        self._stop()
        for parameter in parameters:
            self._guard.wrap("rounding a gradient", round_grad)(parameter, parameter.dtype)
        backward.subscribe(self._listener)

    def _run(self, work: Callable[[Optimizer], None], optimizer: Optimizer) -> None:
        """Do a part of the work; if it fails, end: the optimizer then steps the parameters themselves."""
        try:
            work(optimizer)
        except Exception as error:  # noqa: BLE001 -- no error of the agent may reach the training loop
            self._guard.catch("stepping float32 copies", error)
            self._guard.print_once(_ENDS)
            self._stop_in_hook(optimizer)

    def _parameters(self, optimizer: Optimizer) -> Iterator[nn.Parameter]:
        return (each for group in optimizer.param_groups for each in group["params"] if id(each) in self._masters)

    def _step_begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 -- as torch has it: None, or other arguments
        self._run(self._repair, optimizer)
        closure = closure_of(args, kwargs)
        if not callable(closure):
            self._run(self._enter, optimizer)
            return None

        @wraps(closure)
        def evaluated(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- as the script wrote it
            self._run(self._leave, optimizer)
            loss = closure(*args, **kwargs)
            self._run(self._enter, optimizer)
            return loss

        return with_closure(evaluated, args, kwargs)

    @torch.no_grad()
    def _enter(self, optimizer: Optimizer) -> None:
        """Put the copies in the parameters' places, as far as these have a gradient."""
        if self._has_ended:
            return
        for params in (group["params"] for group in optimizer.param_groups):
            for position, parameter in enumerate(params):
                if id(parameter) not in self._masters or parameter.grad is None or parameter.dtype not in LOW_PRECISION:
                    continue
                master = self._masters[id(parameter)] = _following(self._masters[id(parameter)], parameter)
                master.grad = parameter.grad.detach().float()
                self._replaced[id(master)] = parameter, parameter._version  # noqa: SLF001 -- as below
                _move_state(optimizer, parameter, master)
                params[position] = master
        if self._replaced:
            backward.subscribe(self._listener)

    @torch.no_grad()
    def _leave(self, optimizer: Optimizer) -> None:
        """Put the parameters back, and round the copies to them. Also after a step that raised."""
        if not self._replaced:
            return
        backward.unsubscribe(self._listener)
        stepped: list[tuple[nn.Parameter, nn.Parameter]] = []
        is_elsewhere = False
        for params in (group["params"] for group in optimizer.param_groups):
            for position, master in enumerate(params):
                if id(master) in self._replaced:
                    parameter, version = self._replaced[id(master)]
                    params[position] = parameter
                    _move_state(optimizer, master, parameter)
                    stepped.append((parameter, master))
                    is_elsewhere = is_elsewhere or parameter._version != version  # noqa: SLF001 -- documented by torch
        self._replaced = {}
        if is_elsewhere:
            self._guard.print_once(_ELSEWHERE)
            self._stop_in_hook(optimizer)
            return
        for parameter, master in stepped:
            parameter.copy_(master)
            master.grad = None

    def _backward_called(self, _tensors: object) -> None:
        optimizer = self._optimizer()
        if self._has_ended or optimizer is None:
            self._replaced = {}
            self.close()
        else:
            self._run(self._repair, optimizer)

    @torch.no_grad()
    def _repair(self, optimizer: Optimizer) -> None:
        """Put right what a step that raised has left; a gradient that was cleared meanwhile is the copy's."""
        replaced = [(self._replaced[id(each)][0], each.grad) for each in _held(optimizer) if id(each) in self._replaced]
        self._leave(optimizer)
        for parameter, gradient in replaced:
            if gradient is None:
                parameter.grad = None
            elif parameter.grad is not None and gradient._version:  # noqa: SLF001 -- cleared in place
                parameter.grad.copy_(gradient)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _add_to(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any] | None:
        """Add the copies to a checkpoint. One that is the weight is left out where there is no other state: that would
        be half a state to an optimizer without copies."""
        try:
            states = dict(state_dict["state"])
            for key, parameter in _packed(optimizer, state_dict):
                if id(parameter) not in self._masters:
                    continue
                master = self._masters[id(parameter)] = _following(self._masters[id(parameter)], parameter)
                if states.get(key) or not torch.equal(master, parameter.float()):
                    states[key] = {**states.get(key, {}), KEY: master.detach()}
        except Exception as error:  # noqa: BLE001 -- as above
            self._guard.catch("saving float32 copies", error)
            return None
        return {**state_dict, "state": states}

    def _take_from(self, optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any] | None:
        """Take the copies out of a checkpoint, and keep the other states: torch rounds them as it loads."""
        self._run(self._repair, optimizer)
        try:
            states = dict(state_dict["state"])
            places = {key: id(parameter) for key, parameter in _packed(optimizer, state_dict)}
            kept = {key: place for key, place in places.items() if place in self._masters and key in states}
            self._loaded = {place: states[key] for key, place in kept.items()}
            for key in kept:
                states[key] = {name: each for name, each in states[key].items() if name != KEY}
                if not states[key]:
                    del states[key]
        except Exception as error:  # noqa: BLE001 -- as above
            self._guard.catch("loading float32 copies", error)
            return None
        return {**state_dict, "state": states}

    @torch.no_grad()
    def _load(self, optimizer: Optimizer) -> None:
        loaded, self._loaded = self._loaded, {}
        if loaded and not any(KEY in each for each in loaded.values()):
            self._guard.print_once(_NO_COPIES)
        for parameter in self._parameters(optimizer):
            saved = dict(loaded.get(id(parameter), {}))
            copy = saved.pop(KEY, None)
            is_whole = isinstance(copy, Tensor) and copy.shape == parameter.shape
            self._masters[id(parameter)] = _copy_of(copy.to(parameter.device) if is_whole else parameter)
            state = optimizer.state.get(parameter, {})
            unrounded = {key: each for key, each in saved.items() if key in state and key != "step"}
            state.update(_cast(unrounded, partial(_unrounded, device=parameter.device)))

    def _end(self, optimizer: Optimizer) -> None:
        self._leave(optimizer)
        for parameter in self._parameters(optimizer):
            state = optimizer.state.get(parameter, {})
            state.update(_cast(state, partial(_like, parameter=parameter)))


def _held(optimizer: Optimizer) -> list[nn.Parameter]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _copy_of(tensor: Tensor) -> nn.Parameter:
    return nn.Parameter(tensor.detach().to(torch.float32, copy=True))


def _following(master: nn.Parameter, parameter: nn.Parameter) -> nn.Parameter:
    """Return the copy, with each element that is not the parameter's any more taken over from it.

    Only on a CPU, where nothing waits for it, a value is read, which saves a pass over both.
    """
    if master.shape != parameter.shape:
        return _copy_of(parameter)
    if master.device != parameter.device:
        master = _copy_of(master.to(parameter.device))
    rounded = master.to(parameter.dtype)
    if parameter.device.type != "cpu" or not torch.equal(rounded, parameter):
        torch.where(rounded == parameter, master, parameter, out=master)
    return master


def _move_state(optimizer: Optimizer, source: nn.Parameter, target: nn.Parameter) -> None:
    if source in optimizer.state:
        optimizer.state[target] = optimizer.state[source]
        del optimizer.state[source]


def _packed(optimizer: Optimizer, state_dict: Mapping[str, Any]) -> Iterator[tuple[Any, nn.Parameter]]:
    """Yield the parameters with their keys in a checkpoint."""
    for group, packed in zip(optimizer.param_groups, state_dict["param_groups"], strict=False):
        yield from zip(packed["params"], group["params"], strict=False)


def _cast(value: Any, to: Callable[[Tensor], Tensor]) -> Any:  # noqa: ANN401 -- states are anything
    """Return a state with its tensors converted; ``step`` stays as torch has it."""
    if isinstance(value, Tensor):
        return to(value)
    if isinstance(value, dict):
        return {key: each if key == "step" else _cast(each, to) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_cast(each, to) for each in value])
    return value


def _unrounded(saved: Tensor, device: torch.device) -> Tensor:
    return saved.to(device, torch.float32 if saved.is_floating_point() else None)


def _like(state: Tensor, parameter: Tensor) -> Tensor:
    """Return a state in the dtype of its weight; a number, as NAdam's product, has its own."""
    is_like = state.dtype is torch.float32 and (state.dim() > 0 or parameter.dim() == 0)
    return state.to(parameter.dtype) if is_like else state
