"""``fp32_accumulators()``: the gradients of bfloat16 and float16 parameters add up in float32.

How it works, for each parameter that was chosen:

1. A hook that torch calls after each accumulation makes a ``.grad`` of low precision float32: after the first
   micro-step, where that is exact. torch adds the next ones to it, in float32.
2. A hook before the optimizer's step (after each evaluation of a closure) rounds ``.grad``, once, to the dtype of the
   parameter. Nothing has to be undone after the step, so nothing is left where it raises.

The storage of ``.grad`` is exchanged, not the tensor: references to the tensor stay valid.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial, wraps
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from gradcanary.guard import Guard
from gradcanary.hooks import backward, graphs
from gradcanary.hooks.graphs import is_capturing
from gradcanary.hooks.parameter_hook import POST_ACCUMULATE, ParameterHook
from gradcanary.model.declared_dtypes import has_master, is_summed, register, unregister
from gradcanary.model.distributed import is_dtensor
from gradcanary.model.layers import discover, dtype_name, named_parameters
from gradcanary.model.parameters import Location, ParameterRef, live_objects, locations
from gradcanary.model.training_loop import unwrapped
from gradcanary.settings import DEFAULT_URL, Settings
from gradcanary.stats.kernels import LOW_PRECISION
from gradcanary.wording import count

Parameters = Sequence[nn.Parameter]

HAS_GRAD_DTYPE = hasattr(torch.Tensor, "grad_dtype")
"""Since torch 2.10. Older versions raise where ``torch.compile`` compiles while such a gradient exists, and torch 2.1
also removes the hooks of ``step``."""

INSTEAD = {
    "DistributedDataParallel": "it takes gradients in the parameters' dtype only: keep these parameters in float32 and "
    "train under torch.autocast (of PEFT: autocast_adapter_dtype=True)",
    "FullyShardedDataParallel": "give it float32 parameters and MixedPrecision(param_dtype=torch.bfloat16, "
    "reduce_dtype=torch.float32)",
    "DTensor": "give fully_shard() float32 parameters and MixedPrecisionPolicy(param_dtype=torch.bfloat16, "
    "reduce_dtype=torch.float32)",
}
"""By the wrapper or tensor class that sums gradients itself: the way to sum them in float32 there."""

_NAME = "fp32_accumulators"
_WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")
_ALL_NAMES = Settings(DEFAULT_URL, None, None, "auto", None, None, None, None, None)

_orphans: list[Fp32Accumulators] = []
"""Accumulators whose optimizer is gone."""


def fp32_accumulators(optimizer: torch.optim.Optimizer, params: str | None = None) -> Fp32Accumulators:
    """Sum the gradients of an optimizer's bfloat16 and float16 parameters in float32, from now on until it is closed.

    ``params`` chooses among them: None takes all, "lora" those with ``lora_`` in their name. Any other text is a
    regular expression that is searched in names as ``watch()`` gives them. Parameters that the optimizer gets later are
    not included. ``.grad`` is a float32 tensor while micro-steps add up, also for clipping and unscaling. Before the
    step it is rounded once, to the parameter's dtype. It takes 4 bytes per element instead of 2.

    Returns a context manager with ``close()``; an exception in its block passes. Raises TypeError on an object that is
    not an optimizer. Raises ValueError on an optimizer without such parameters, on parameters that DDP or FSDP reduces,
    on a second call for the same ones, and on torch before 2.10.
    """
    inner = optimizer_in(optimizer, _NAME)
    if not HAS_GRAD_DTYPE:
        raise ValueError(
            f"fp32_accumulators() needs torch 2.10 or newer, this is {torch.__version__}: keep the parameters in "
            "float32 and train under torch.autocast, whose gradients are float32"
        )
    chosen = chosen_parameters(inner, params, _NAME)
    if (owner := reducer_of(chosen)) is not None:
        raise ValueError(f"fp32_accumulators(): the parameters belong to a {owner}; {INSTEAD[owner]}")
    for orphan in tuple(_orphans):
        orphan.close()
    if any(map(is_summed, chosen)):
        raise ValueError("fp32_accumulators(): these gradients are summed in float32 already; close() that one first")
    held = locations([inner])
    accumulators = Fp32Accumulators([UpcastParameter(parameter, held.get(id(parameter))) for parameter in chosen])
    accumulators.attach(inner)
    return accumulators


class Fp32Accumulators(AbstractContextManager["Fp32Accumulators"]):
    """The handle of :func:`fp32_accumulators`. It keeps neither the parameters nor the optimizer alive."""

    def __init__(self, summed: Sequence[UpcastParameter]) -> None:
        self._summed = summed
        self._handle: Any = None
        self._guard = Guard()
        self._is_checked = self._has_summed = False
        self._is_looked_at = True
        self._stop_finalizer: Callable[[], object] = lambda: None
        self._hook = self._guard.wrap("summing in float32", self._on_accumulated)
        self._listener = self._guard.wrap("summing what was moved", self._backward_called)

    def attach(self, optimizer: torch.optim.Optimizer) -> None:
        """Begin. After the end of the optimizer the next backward pass, or the next of these objects, closes this one:
        the float32 gradients fit no other optimizer."""
        self._guard.wrap("keeping out of torch.compile", graphs.keep_out)()
        for each in self._summed:
            each.begin(self._hook)
        for parameter in self._parameters():
            self._has_summed = self._has_summed or parameter.grad is not None
            upcast_grad(parameter)
        self._handle = optimizer.register_step_pre_hook(self._step_begins)
        backward.subscribe(self._listener)
        # The garbage collector may run this in any thread, within a pass, or while a CUDA graph is recorded.
        ends = weakref.finalize(optimizer, _orphans.append, self)
        ends.atexit, self._stop_finalizer = False, ends.detach

    def close(self) -> None:
        """End, and leave no hook; the present sum stays in ``.grad``, in the parameter's dtype. Idempotent."""
        if self._handle is None:
            return
        self._handle.remove()
        self._handle = None
        if self in _orphans:
            _orphans.remove(self)
        backward.unsubscribe(self._listener)
        self._guard.wrap("looking for parameters", self._find_lost)()
        for each in self._summed:
            self._guard.wrap("leaving a gradient as it was", each.end)()
        self._stop_finalizer()
        self._summed = ()

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _stack: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return Fp32Accumulators, ((),)  # a copy is closed: its parameters would be copies too

    def _parameters(self) -> Parameters:
        return [parameter for each in self._summed if (parameter := each()) is not None]

    def _find_lost(self) -> None:
        """Find the parameters of an optimizer that is gone among all live tensors."""
        if lost := [each for each in self._summed if each.is_lost()]:
            tensors = list(live_objects(Tensor))
            for each in lost:
                each.find(tensors)

    def _reattach(self) -> None:
        for each in self._summed:
            each.attach(self._hook)

    def _backward_called(self, _tensors: object) -> None:
        """Hook parameters again before the first pass after a step: swapped tensors have lost their hooks."""
        if self in _orphans and not is_capturing():
            self.close()
        if not self._is_looked_at:
            self._is_looked_at = True
            self._reattach()

    def _on_accumulated(self, parameter: nn.Parameter) -> None:
        if graphs.is_backward_traced():
            return
        if not self._is_checked:
            self._is_checked = True
            if (owner := reducer_of(self._parameters())) is not None:
                self._guard.print_once(
                    f"fp32_accumulators() ends: its parameters are in a {owner} now; {INSTEAD[owner]}"
                )
                self.close()
                return
        self._has_summed = True
        upcast_grad(parameter)

    def _step_begins(self, optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 -- as torch has it: None, or other arguments
        closure = closure_of(args, kwargs)
        self._guard.wrap("summing what is not frozen any more", self._reattach)()
        self._is_looked_at = False
        if not callable(closure):
            self._guard.wrap("handing gradients over", self._hand_over)(optimizer)
            return None
        return with_closure(self._around(closure, optimizer), args, kwargs)

    def _around(self, closure: Callable[..., Any], optimizer: torch.optim.Optimizer) -> Callable[..., Any]:
        """Return the closure for the step: the sum is complete once the closure has run."""

        @wraps(closure)
        def evaluated(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 -- as the script wrote it
            loss = closure(*args, **kwargs)
            self._guard.wrap("handing gradients over", self._hand_over)(optimizer)
            return loss

        return evaluated

    def _hand_over(self, optimizer: torch.optim.Optimizer) -> None:
        parameters = self._parameters()
        if not self._has_summed and any(parameter.grad is not None for parameter in parameters):
            self._guard.print_once(
                "fp32_accumulators() sees no gradient being summed: gradients of compiled autograd and those made "
                "by hand do not pass it"
            )
        if any(parameter.dtype is torch.float16 for parameter in parameters):
            _unscale(optimizer)
        for parameter in parameters:
            if not has_master(parameter):  # which takes the float32 sum
                round_grad(parameter, parameter.dtype)


def closure_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:  # noqa: ANN401 -- what the script gave
    """Return the closure in the arguments of a step, with the optimizer as the first of them; None without one."""
    return kwargs.get("closure", args[1] if len(args) > 1 else None)


def with_closure(closure: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:  # noqa: ANN401 -- as torch has it
    """Return the arguments of a step with another closure."""
    if "closure" in kwargs:
        return args, {**kwargs, "closure": closure}
    return (args[0], closure, *args[2:]), kwargs


def optimizer_in(optimizer: torch.optim.Optimizer, caller: str) -> torch.optim.Optimizer:
    """Return the optimizer that a caller was given, or that is inside a wrapper. Raises TypeError on anything else."""
    inner = unwrapped(optimizer)
    if not isinstance(inner, torch.optim.Optimizer):
        raise TypeError(f"{caller}({type(optimizer).__name__}): it takes a torch.optim.Optimizer")
    return inner


def chosen_parameters(optimizer: torch.optim.Optimizer, params: str | None, caller: str) -> Parameters:
    """Return the bfloat16 and float16 parameters that ``params`` chooses, as in :func:`fp32_accumulators`."""
    if params is not None and not isinstance(params, str):
        raise TypeError(f"{caller}(params=) is a {type(params).__name__}: it must be None or a text")
    if params == "":
        raise ValueError(f"{caller}(params=''): it must be a regular expression that is not empty")
    return _low_precision_of(optimizer, caller) if params is None else _parameters_named(optimizer, params, caller)


def _low_precision_of(optimizer: torch.optim.Optimizer, caller: str) -> Parameters:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    low = [parameter for parameter in parameters if parameter.dtype in LOW_PRECISION]
    if not low:
        kinds = ", ".join(sorted({dtype_name(parameter.dtype) for parameter in parameters})) or "nothing"
        raise ValueError(f"{caller}(optimizer): it holds {kinds}, and neither bfloat16 nor float16")
    return low


def _parameters_named(optimizer: torch.optim.Optimizer, params: str, caller: str) -> Parameters:
    try:
        expression = re.compile("lora_" if params == "lora" else params)
    except re.error as error:
        raise ValueError(f"{caller}(params={params!r}): it must be a regular expression ({error})") from error
    low = {id(parameter) for parameter in _low_precision_of(optimizer, caller)}
    layers = discover([optimizer], None, _ALL_NAMES, Guard().catch)
    found = [
        (layer.name, reference()) for layer, reference in zip(layers.layer_set.layers, layers.references, strict=True)
    ]
    named = [(name, parameter) for name, parameter in found if expression.search(name) and parameter is not None]
    chosen = [parameter for _, parameter in named if id(parameter) in low]
    if not chosen:
        what = f"{count(len(named), 'parameter')}, none of them bfloat16 or float16" if named else "no parameter"
        others = ", ".join([name for name, parameter in found if id(parameter) in low][:3])
        raise ValueError(f"{caller}(params={params!r}) matches {what}; there are, for example, {others}")
    return chosen


def reducer_of(parameters: Parameters) -> str | None:
    """Return the wrapper or tensor class that sums the gradients of one of them itself."""
    if any(is_dtensor(parameter) for parameter in parameters):
        return "DTensor"
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    ids = {id(parameter) for parameter in parameters}
    for module in live_objects(nn.Module):
        kind = next((each.__name__ for each in type(module).__mro__ if each.__name__ in _WRAPPERS), None)
        if kind is not None and any(id(each) in ids for _, each, _ in named_parameters(module)):
            return kind
    return None


def _unscale(optimizer: torch.optim.Optimizer) -> None:
    """Divide by the loss scale in float32, which a GradScaler leaves to the fused kernel of an optimizer.

    The scaled sum may be too large for float16 although the gradient is not.
    """
    scale = getattr(optimizer, "grad_scale", None)
    if scale is None:
        return
    for gradient in _gradients(optimizer):
        gradient.div_(scale.to(gradient.device))
    optimizer.grad_scale = None  # type: ignore[attr-defined]  # as the scaler does after it has unscaled


def _gradients(optimizer: torch.optim.Optimizer) -> Iterable[Tensor]:
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


class UpcastParameter:
    """A parameter whose gradients are summed in float32. Called, it returns the parameter, None after the
    optimizer's end."""

    def __init__(self, parameter: nn.Parameter, held: Location | None) -> None:
        self._reference: Callable[[], nn.Parameter | None] = ParameterRef(parameter, held, None)
        self._id, self._dtype = id(parameter), parameter.dtype
        self._allowed: torch.dtype | None = parameter.grad_dtype
        self._hook: ParameterHook | None = None

    def __call__(self) -> nn.Parameter | None:
        return self._reference()

    def begin(self, call: Callable[[Tensor], None]) -> None:
        """Allow any dtype for its gradient, and call ``call`` after each accumulation."""
        register(self._id, self)
        self.attach(call)

    def attach(self, call: Callable[[Tensor], None]) -> None:
        """Hook the parameter once it is trainable, and again after a swap; torch takes no hook on a frozen one."""
        parameter = self._reference()
        if parameter is None:
            return
        if self._hook is None and parameter.requires_grad:
            parameter.grad_dtype = None  # any
            self._hook = ParameterHook(self, parameter, POST_ACCUMULATE, call)
        elif self._hook is None or self._hook.reattach():
            parameter.grad_dtype = None

    def end(self) -> None:
        """Remove the hook, and leave the gradient in the dtype that it may have without it."""
        parameter = self._reference()
        unregister(self._id, self)
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        if parameter is not None:
            is_other = self._allowed is self._dtype is not parameter.dtype  # None means that any dtype is allowed
            allowed = parameter.dtype if is_other else self._allowed
            round_grad(parameter, allowed or parameter.dtype)
            parameter.grad_dtype = allowed

    def is_lost(self) -> bool:
        """Return True if the hook remains, but no reference finds its parameter."""
        return self._hook is not None and self._reference() is None

    def find(self, tensors: Iterable[Tensor]) -> None:
        """Find the hooked parameter among tensors, and keep it until the end."""
        for tensor in tensors:
            if id(tensor) == self._id and self._hook is not None and self._hook.is_registered_on(tensor):
                self._reference = partial(_itself, tensor)


def _itself(tensor: Any) -> Any:  # noqa: ANN401 -- an optimizer takes any leaf for a parameter
    return tensor


def upcast_grad(parameter: nn.Parameter) -> None:
    """Convert a gradient to float32; one that is part of a graph stays as it is."""
    gradient = parameter.grad
    if gradient is not None and gradient.dtype in LOW_PRECISION and not gradient.requires_grad:
        gradient.data = gradient.data.float()


def round_grad(parameter: nn.Parameter, dtype: torch.dtype) -> None:
    """Round a gradient to the dtype of the parameter. One at a time, so that memory holds one copy at most."""
    gradient = parameter.grad
    if gradient is None or gradient.dtype is not torch.float32 or dtype not in LOW_PRECISION or gradient.requires_grad:
        return
    # A sparse sum has one addend for each use of a row until it is coalesced.
    total = gradient.data.coalesce() if gradient.layout is torch.sparse_coo else gradient.data
    rounded = total.to(dtype)
    if dtype is torch.float16 and gradient.layout is torch.strided:
        # The GradScaler has checked the sum for infinities: values too large for float16 must not become new ones.
        largest = torch.finfo(dtype).max
        rounded = torch.where(total.isfinite(), rounded.clamp(-largest, largest), rounded)
    gradient.data = rounded
