"""What is attached to torch while a watch is open, and taken away again without a trace."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from gradcanary import tap
from gradcanary.guard import Guard
from gradcanary.layers import discover, living
from gradcanary.observer import Observer
from gradcanary.settings import Settings

Optimizer = torch.optim.Optimizer


class Hooks:
    """Finds the optimizers that a watch follows and leads what torch calls to its observer.

    The step hooks are global: they also fire for optimizers made earlier, for subclasses, and inside wrappers.
    """

    def __init__(self, observer: Observer, settings: Settings, guard: Guard) -> None:
        self.observer = observer
        self.settings = settings
        self.guard = guard
        self.before_first_step: Callable[[], None] | None = None
        self._model: Callable[[], nn.Module | None] = lambda: None
        self._takes_any = False
        self._optimizers: list[weakref.ref[Optimizer]] = []
        self._strangers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._groups: tuple[int, ...] = ()
        self._counters: list[Any] = []
        self._unhooked: list[int] = []
        self._steps: list[Any] = []
        self._listener = guard.wrap("capturing the loss", observer.backward_called)

    def attach(self, model: nn.Module | None, optimizer: Optimizer | None) -> None:
        """Begin. With a model its living optimizers are taken; with neither, each optimizer that steps from now on."""
        observer, wrap = self.observer, self.guard.wrap
        observer.main, observer.optimizers = self._main, self.optimizers
        self._takes_any = model is None and optimizer is None
        if model is not None:
            self._model = weakref.ref(model)
            if optimizer is not None and not self._shares(optimizer):
                self.guard.say("the optimizer has no parameter of the model: watch() was given two that do not belong")
        if optimizer is not None:
            self._optimizers.append(weakref.ref(optimizer))
        elif model is not None:
            self._optimizers += [weakref.ref(found) for found in living(Optimizer) if self._shares(found)]
        if not self._takes_any:
            self._follow()
        self._steps.append(register_optimizer_step_pre_hook(wrap("the step hook", self._step_begins)))
        self._steps.append(register_optimizer_step_post_hook(wrap("the step hook", self._step_ended)))
        tap.listen(self._listener)

    def detach(self) -> None:
        """Leave no hook and no replaced function behind."""
        tap.leave(self._listener)
        for handle in self._steps:
            handle.remove()
        self._uncount()

    def optimizers(self) -> Sequence[Optimizer]:
        """Return the optimizers followed, without those that the training has let go of."""
        return [optimizer for reference in self._optimizers if (optimizer := reference()) is not None]

    def follows(self, optimizer: Optimizer) -> bool:
        """Say whether the optimizer is one of this watch."""
        return any(reference() is optimizer for reference in self._optimizers)

    def watches(self, model: nn.Module) -> bool:
        """Say whether the model is the one that this watch was given."""
        return self._model() is model

    def _main(self) -> Optimizer | None:
        return max(self.optimizers(), key=_elements, default=None)

    def _step_begins(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self.follows(optimizer):
            if optimizer in self._strangers:
                return
            if not self._is_ours(optimizer):
                self._strangers.add(optimizer)
                return
            if self.before_first_step is not None:
                begin, self.before_first_step = self.before_first_step, None
                begin()
            self._optimizers.append(weakref.ref(optimizer))
            self._follow()
        elif self._sizes() != self._groups:
            self._follow()
        else:
            self._count_unfrozen()
        self.observer.step_begins(optimizer, has_closure=len(args) > 1 or "closure" in kwargs)

    def _step_ended(self, optimizer: Optimizer, _args: tuple[Any, ...], _kwargs: dict[str, Any]) -> None:
        if self.follows(optimizer):
            self.observer.step_ended(optimizer)

    def _is_ours(self, optimizer: Optimizer) -> bool:
        """Say whether an optimizer that nobody named belongs here: a wrapper hides the one that steps, for example."""
        return self._takes_any or self._shares(optimizer)

    def _shares(self, optimizer: Optimizer) -> bool:
        model = self._model()
        known = {id(parameter) for parameter in model.parameters()} if model is not None else set()
        known |= {id(parameter) for other in self.optimizers() for parameter in _parameters(other)}
        return any(id(parameter) in known for parameter in _parameters(optimizer))

    def _follow(self) -> None:
        layers = discover(self.optimizers(), self._model(), self.settings)
        if not len(layers):
            self.guard.say("no layer to watch: nothing is trainable, or include/exclude leave nothing")
        self._groups = self._sizes()
        self.observer.follow(layers)
        self._uncount()
        self._unhooked = list(range(len(layers)))
        self._count_unfrozen()

    def _sizes(self) -> tuple[int, ...]:
        return tuple(len(group["params"]) for optimizer in self.optimizers() for group in optimizer.param_groups)

    def _count_unfrozen(self) -> None:
        """Hook the layers that are trainable now: torch takes no hook on one that is frozen."""
        layers = self.observer.layers
        frozen = []
        for layer in self._unhooked if layers is not None else ():
            parameter = layers.references[layer]() if layers is not None else None
            if parameter is None or not (parameter.requires_grad and parameter.is_leaf):
                frozen.append(layer)
            else:
                counter = self.observer.counter(layer)
                self._counters.append(parameter.register_post_accumulate_grad_hook(counter))  # type: ignore[no-untyped-call]  # untyped in torch
        self._unhooked = frozen

    def _uncount(self) -> None:
        for handle in self._counters:
            handle.remove()
        self._counters = []


def _parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _elements(optimizer: Optimizer) -> int:
    return sum(parameter.numel() for parameter in _parameters(optimizer))
