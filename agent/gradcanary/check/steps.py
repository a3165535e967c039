"""Training steps: the innermost loop around a backward pass and the optimizer's step, and what happens in it.

Where the file has no such loop, the function that holds both is the step, unless another one of the file calls it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from gradcanary.check import kinds
from gradcanary.check.flow import Event, Flow, Guard
from gradcanary.check.kinds import kind_of
from gradcanary.check.scopes import Scope, ScopeNode, Scopes, is_self, last_name

PLAIN = "plain"
SCALED = "scaled"
FRAMEWORK = "framework"

CLIPS = frozenset(
    f"torch.nn.utils.{module}{name}"
    for module in ("", "clip_grad.")
    for name in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grads_with_norm_")
)


@dataclass(frozen=True)
class Backward:
    """A backward pass.

    ``how`` is plain (``loss.backward()``), scaled (``scaler.scale(loss).backward()``) or framework: an Accelerator,
    a Fabric or an engine does it, and what they do to the loss is theirs. ``loss`` is None where it is not certain.
    """

    event: Event
    how: str
    loss: ast.expr | None = None
    scaler: ast.expr | None = None


@dataclass(frozen=True)
class OptimizerStep:
    """An optimizer's step; ``scaler`` is the GradScaler that makes it, else None."""

    event: Event
    optimizer: ast.expr | None
    scaler: ast.expr | None = None


@dataclass(frozen=True)
class Period:
    """The condition of an event that happens every so many passes: ``count`` of ``if (i + 1) % count == 0``."""

    guard: Guard
    count: ast.expr


@dataclass(frozen=True)
class TrainingStep:
    """What happens in one pass of ``loop``, or of ``function`` where ``loop`` is None; in order, helpers in place.

    ``is_complete`` is False where the function was too long to follow.
    """

    function: ScopeNode
    loop: ast.AST | None
    events: tuple[Event, ...]
    is_complete: bool
    scopes: Scopes

    @cached_property
    def backwards(self) -> tuple[Backward, ...]:
        return tuple(found for event in self.events if (found := as_backward(event, self.scopes)))

    @cached_property
    def optimizer_steps(self) -> tuple[OptimizerStep, ...]:
        return tuple(found for event in self.events if (found := as_optimizer_step(event, self.scopes)))

    @cached_property
    def clips(self) -> tuple[Event, ...]:
        """Return calls of torch's functions that clip gradients."""
        return tuple(event for event in self.events if event.call and self.scopes.full_name(event.call.func) in CLIPS)

    @cached_property
    def clears(self) -> tuple[Event, ...]:
        """Return what clears gradients: ``zero_grad()``, ``p.grad = None``, ``p.grad.zero_()``, ``del p.grad``."""
        return tuple(event for event in self.events if clears_gradients(event.node))

    def inner_loops(self, event: Event) -> tuple[ast.AST, ...]:
        """Return the loops around an event that stand inside this step."""
        return event.loops if self.loop is None else event.loops[event.loops.index(self.loop) + 1 :]

    def period(self, event: Event) -> Period | None:
        """Return the condition by which an event happens every so many passes only, None if there is none."""
        found = (find_period(guard, self.scopes) for guard in event.guards if self.holds(guard))
        return next((period for period in found if period), None)

    def holds(self, guard: Guard) -> bool:
        """Return True for a condition inside the step, False for one that stands around its whole loop."""
        if self.loop is None or guard.scope is not self.scopes.scope(self.loop):
            return True
        node: ast.AST | None = guard.node
        while node is not None and node is not self.loop:
            node = self.scopes.parents.get(node)
        return node is not None

    def before(self, event: Event) -> Iterator[Event]:
        """Yield the events of a pass before one of them that can happen in the same pass."""
        for each in self.events:
            if each is event:
                return
            if not each.excludes(event):
                yield each

    def makers(self, node: ast.expr | None, at: Event) -> list[Event]:
        """Return the assignments of a pass before ``at`` that an expression is made of, also over other names."""
        makers: dict[tuple[Scope, str], list[Event]] = {}
        for event in self.before(at):
            for name in _assigned(event):
                makers.setdefault(name, []).append(event)
        found: dict[Event, None] = {}
        waiting = list(_references(node, at.scope)) if node is not None else []
        seen: set[tuple[Scope, str]] = set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            for given, scope in self.scopes.arguments(name[1], name[0]):
                waiting += _references(given, scope)
            for event in makers.get(name, []):
                if event not in found:
                    found[event] = None
                    waiting += _references(event.node, event.scope)
        return list(found)

    def after(self, event: Event) -> Iterator[Event]:
        """Yield the events of a pass after one of them that can happen in the same pass."""
        position = self.events.index(event)
        return (each for each in self.events[position + 1 :] if not each.excludes(event))


def _references(node: ast.AST, scope: Scope) -> set[tuple[Scope, str]]:
    """Return the names, and attributes of self, that a node mentions; those of self belong to the class."""
    found = set()
    for each in ast.walk(node):
        if isinstance(each, ast.Name):
            found.add((scope, each.id))
        elif is_self(each) and isinstance(each, ast.Attribute):
            found.add((scope.owner or scope, f"self.{each.attr}"))
    return found


def _assigned(event: Event) -> set[tuple[Scope, str]]:
    node = event.node
    if not isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return set()
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {name for target in targets for name in _references(target, event.scope)}


def find_steps(flows: Mapping[ScopeNode, Flow], scopes: Scopes) -> Iterator[TrainingStep]:
    """Yield the training steps of a file, each once."""
    called = {event.helpers[-1] for flow in flows.values() for event in flow.events if event.helpers}
    for node, flow in flows.items():
        backwards = [event for event in flow.events if as_backward(event, scopes)]
        steps = [event for event in flow.events if as_optimizer_step(event, scopes)]
        if not backwards or not steps:
            continue
        loops = dict.fromkeys(_innermost_common_loop(backward, steps) for backward in backwards)
        own = scopes.inside(node)
        for loop in loops:
            if loop is None:
                if node not in called:
                    yield TrainingStep(node, None, flow.events, flow.is_complete, scopes)
            elif scopes.scope(loop) is own:
                events = tuple(event for event in flow.events if loop in event.loops)
                yield TrainingStep(node, loop, events, flow.is_complete, scopes)


def _innermost_common_loop(backward: Event, steps: list[Event]) -> ast.AST | None:
    best: tuple[ast.AST, ...] = ()
    for step in steps:
        common = []
        for ours, theirs in zip(backward.loops, step.loops, strict=False):
            if ours is not theirs:
                break
            common.append(ours)
        if len(common) > len(best):
            best = tuple(common)
    return best[-1] if best else None


def as_backward(event: Event, scopes: Scopes) -> Backward | None:
    """Return the backward pass that an event is, else None."""
    call, receiver = event.call, event.receiver
    if call is None or receiver is None:
        return None
    if event.method == "manual_backward":
        return Backward(event, FRAMEWORK, call.args[0] if call.args else None)
    if event.method != "backward":
        return None
    if scopes.full_name(call.func) == "torch.autograd.backward":
        return Backward(event, PLAIN, call.args[0] if call.args else None)
    kind = kind_of(receiver, event.scope, scopes)
    if call.args or kind is not None or _is_scaled_by_apex(event):
        return Backward(event, FRAMEWORK, call.args[0] if call.args else None)
    made = scopes.single(receiver, event.scope) or receiver
    if isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr == "scale" and made.args:
        return Backward(event, SCALED, made.args[0], made.func.value)
    return Backward(event, PLAIN, receiver)


def _is_scaled_by_apex(event: Event) -> bool:
    return any(isinstance(each, ast.Call) and last_name(each.func) == "scale_loss" for each in event.contexts)


def as_optimizer_step(event: Event, scopes: Scopes) -> OptimizerStep | None:
    """Return the optimizer's step that an event is, else None."""
    call, receiver = event.call, event.receiver
    if call is None or receiver is None or event.method != "step":
        return None
    kind = kind_of(receiver, event.scope, scopes)
    if kind is None:
        return None
    if kind.name == kinds.SCALER and call.args:
        return OptimizerStep(event, call.args[0], receiver)
    return OptimizerStep(event, receiver) if kind.name == kinds.OPTIMIZER else None


def clears_gradients(node: ast.AST) -> bool:
    """Return True for a call that clears gradients, and for any statement that replaces one."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        name = node.func.attr
        return name == "zero_grad" or (name in ("zero_", "fill_", "_foreach_zero_") and _names_gradient(node))
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return any(isinstance(target, ast.Attribute) and target.attr == "grad" for target in targets)
    return isinstance(node, ast.Delete) and any(last_name(target) == "grad" for target in node.targets)


def _names_gradient(node: ast.AST) -> bool:
    return any("grad" in last_name(each) for each in ast.walk(node))


def find_period(guard: Guard, scopes: Scopes) -> Period | None:
    """Return the ``count`` of a condition that is true once in so many passes: ``i % count == 0`` and its like."""
    if guard.test is None:
        return None
    count = _count(guard.test, guard.holds, guard.scope, scopes)
    return None if count is None else Period(guard, count)


def _count(test: ast.expr, holds: bool, scope: Scope, scopes: Scopes) -> ast.expr | None:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _count(test.operand, not holds, scope, scopes)
    if isinstance(test, ast.BoolOp):
        found = (_count(each, holds, scope, scopes) for each in test.values)
        return next((count for count in found if count is not None), None)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        is_once = isinstance(test.ops[0], ast.Eq) if holds else isinstance(test.ops[0], (ast.NotEq, ast.Gt, ast.Lt))
        sides = (test.left, test.comparators[0])
        return next((count for each in sides if (count := _modulus(each)) is not None), None) if is_once else None
    if isinstance(test, (ast.Name, ast.Attribute)):
        made = scopes.single(test, scope)
        return None if made is None or made is test else _count(made, holds, scope, scopes)
    return None if holds else _modulus(test)


def _modulus(node: ast.expr) -> ast.expr | None:
    """Return ``count`` of ``i % count``, None for another expression, text, a count of one and one that is computed."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mod):
        return None
    if not isinstance(node.right, (ast.Name, ast.Attribute, ast.Subscript, ast.Constant)):
        return None
    if isinstance(node.left, ast.Constant) or (isinstance(node.right, ast.Constant) and node.right.value == 1):
        return None
    return node.right
