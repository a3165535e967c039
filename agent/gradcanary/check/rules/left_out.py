"""not_optimized: a module whose output is in the loss, and whose parameters no optimizer of the file can have.

It is certain where the module is made in the file and its name is nowhere but in calls of it: what is never asked for
its parameters, and is never passed on, can be in no optimizer.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradcanary.check.autocast import has_no_gradient
from gradcanary.check.findings import Found, Rule
from gradcanary.check.modules import makes_parameters, module_classes
from gradcanary.check.program import Program
from gradcanary.check.scopes import is_self

_HARMLESS = frozenset({"to", "cuda", "train", "zero_grad", "state_dict", "load_state_dict", "double", "float", "apply"})
_CUTS = frozenset({"detach", "detach_", "item", "data", "argmax", "numpy"})
_WHOLE = frozenset(
    {"parameters", "named_parameters", "modules", "children", "named_modules", "named_children", "trainer"}
)

_WHY = (
    "Nothing in this file gives its parameters to an optimizer, and nothing freezes them. They get gradients, and stay "
    "as they were made."
)
_FIX = {
    "lightning": (
        "Return an optimizer of self.parameters() in configure_optimizers(), or freeze it: "
        "self.{name}.requires_grad_(False)."
    ),
    "torch": "Add {name}.parameters() to the optimizer, or freeze it: {name}.requires_grad_(False).",
}


def find_not_optimized(program: Program) -> Iterator[Found]:
    """Yield modules that a loss depends on and that are only ever called.

    A file that asks no module for its parameters may optimize an input of it, as adversarial examples do.
    """
    if not any(isinstance(node, ast.Attribute) and node.attr in _WHOLE for node in program.nodes):
        return
    used = _names_in_losses(program)
    for scope_node in program.functions:
        scope = program.scopes.inside(scope_node)
        for name, bound in scope.bindings.items():
            is_module = name in used and bound and all(_is_module(each, name, program) for each in bound)
            if is_module and all(_is_harmless(node, program) for node in _mentions(name, program)):
                yield _found(bound[0], name, program)
    yield from _find_in_lightning(program)


def _mentions(name: str, program: Program) -> Iterator[ast.Name]:
    return (node for node in program.nodes if isinstance(node, ast.Name) and node.id == name)


def _found(made: ast.expr | None, name: str, program: Program) -> Found:
    assert made is not None  # noqa: S101 -- for the types: _is_module
    fix = program.wording(_FIX).format(name=name)
    return Found(made, f"{name} is part of the loss, and its parameters are in no optimizer", _WHY, fix)


def _is_module(made: ast.expr | None, name: str, program: Program) -> bool:
    """Return True for a call that makes a module with parameters, and for the module itself, moved."""
    if isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr in _HARMLESS:
        inner = made.func.value
        if isinstance(inner, ast.Name) and inner.id == name:
            return True
    return makes_parameters(made, program)


def _is_harmless(node: ast.Name | ast.Attribute, program: Program) -> bool:
    """Return True if the module is bound, called or moved here; all else may give it to an optimizer or freeze it."""
    if isinstance(node.ctx, ast.Store):
        return True
    parent = program.scopes.parents.get(node)
    if isinstance(parent, ast.Call) and parent.func is node:
        return True
    return isinstance(parent, ast.Attribute) and parent.attr in _HARMLESS


def _names_in_losses(program: Program) -> set[str]:
    """Return the names of modules whose outputs reach a backward pass with their graph."""
    found: set[str] = set()
    for step in program.steps:
        if not step.is_complete:
            continue
        for backward in step.backwards:
            makers = step.makers(backward.loss, backward.event) if backward.loss is not None else ()
            for event in (*makers, backward.event):
                if not has_no_gradient(event, program):
                    found |= set(_called(event.node, program))
    return found


def _called(node: ast.AST, program: Program) -> Iterator[str]:
    """Yield the names that are called in an expression, without those whose result is cut off the graph."""
    for each in ast.walk(node):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Name) and not _is_cut(each, program):
            yield each.func.id


def _is_cut(call: ast.expr, program: Program) -> bool:
    node: ast.AST | None = call
    while node is not None and not isinstance(node, ast.stmt):
        parent = program.scopes.parents.get(node)
        if isinstance(parent, ast.Attribute) and parent.attr in _CUTS:
            return True
        node = parent
    return False


def _find_in_lightning(program: Program) -> Iterator[Found]:
    for node in module_classes(program):
        methods = {each.name: each for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))}
        chosen, step = methods.get("configure_optimizers"), methods.get("training_step")
        if chosen is None or step is None or _takes_all(chosen):
            continue
        own = [each for each in ast.walk(node) if is_self(each)]
        for name in dict.fromkeys(each.attr for each in own if isinstance(each, ast.Attribute)):
            bound = program.scopes.inside(node).bindings.get(f"self.{name}", [])
            uses = [each for each in own if isinstance(each, ast.Attribute) and each.attr == name]
            is_module = bound and all(makes_parameters(each, program) for each in bound)
            is_only_called = is_module and all(_is_harmless(each, program) for each in uses)
            if is_only_called and _is_trained(uses, step, program):
                yield _found(bound[0], name, program)


def _takes_all(chosen: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return True unless configure_optimizers() takes no more of ``self`` than its attributes, one by one."""
    for node in ast.walk(chosen):
        if isinstance(node, ast.Name) and node.id in ("super", "getattr", "vars"):
            return True
        if is_self(node) and isinstance(node, ast.Attribute) and node.attr in _WHOLE:
            return True
        if isinstance(node, ast.Call) and is_self(node.func):
            return True  # a method of its own
        if isinstance(node, ast.Call) and any(isinstance(each, ast.Name) and each.id == "self" for each in node.args):
            return True
    return False


def _is_trained(uses: list[ast.Attribute], step: ast.AST, program: Program) -> bool:
    inside = set(ast.walk(step))
    for node in uses:
        call = program.scopes.parents.get(node)
        if node in inside and isinstance(call, ast.Call) and not _is_cut(call, program):
            return not _is_without_gradient(call, program)
    return False


def _is_without_gradient(node: ast.AST, program: Program) -> bool:
    parent: ast.AST | None = node
    while parent is not None:
        if isinstance(parent, ast.With) and any("no_grad" in ast.unparse(each.context_expr) for each in parent.items):
            return True
        parent = program.scopes.parents.get(parent)
    return False


NOT_OPTIMIZED = Rule(
    "not_optimized",
    "warning",
    "",
    "a module is part of the loss, and its parameters are in no optimizer",
    find_not_optimized,
)
