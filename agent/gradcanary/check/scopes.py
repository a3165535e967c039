"""Names of a file: scopes, what is bound to a name or to an attribute of ``self``, and full names of what is imported.

``Scopes.values`` follows a name back to the expressions that it may hold, over assignments, conditional expressions,
parameters and the calls of this file that fill them. It never guesses: ``is_complete`` is False where a value comes
from elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef
ScopeNode: TypeAlias = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
PAIRED_CALLS = frozenset({"prepare", "setup", "setup_optimizers", "prepare_optimizer", "prepare_scheduler"})
"""Of an Accelerator or Fabric: ``a, b = accelerator.prepare(a, b)`` returns its arguments, wrapped, in their order."""

MOST_VALUES = 64
"""A name that may hold more is not followed."""


@dataclass(eq=False)
class Scope:
    """A module, class, function or lambda, and what it binds; a value of None is one that the file does not hold."""

    node: ScopeNode
    parent: Scope | None
    bindings: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    outer: set[str] = field(default_factory=set)

    @property
    def owner(self) -> Scope | None:
        """Return the innermost class around this function, the class itself included."""
        scope: Scope | None = self
        while scope is not None and not isinstance(scope.node, ast.ClassDef):
            scope = scope.parent
        return scope

    def bind(self, name: str, value: ast.expr | None) -> None:
        self.bindings.setdefault(name, []).append(value)


@dataclass(frozen=True)
class Value:
    """An expression, and the scope in which its names are looked up."""

    node: ast.expr
    scope: Scope


@dataclass
class Values:
    """What a name may hold; ``is_complete`` if the file holds all of it."""

    found: list[Value] = field(default_factory=list)
    is_complete: bool = True


class Scopes:
    """The scopes of a file."""

    def __init__(self, tree: ast.Module) -> None:
        self.module = Scope(tree, None)
        self.imports: dict[str, str | None] = {}
        self.of: dict[ast.AST, Scope] = {}
        self.calls: dict[str, list[tuple[ast.Call, Scope]]] = {}
        self.parents: dict[ast.AST, ast.AST] = {}
        self._bind_all(tree)

    def scope(self, node: ast.AST) -> Scope:
        """Return the scope in which a node stands; that of a function is the one around it."""
        return self.of.get(node, self.module)

    def inside(self, node: ScopeNode) -> Scope:
        """Return the scope that a module, class, function or lambda opens."""
        return self._opened[node]

    def full_name(self, node: ast.AST) -> str | None:
        """Return ``torch.nn.utils.clip_grad_norm_`` of an imported name and its attributes, under any alias."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        root = self.imports.get(node.id) if self._is_import(node) else None
        return ".".join([root, *reversed(parts)]) if root else None

    def function(self, callee: ast.AST, scope: Scope) -> Function | None:
        """Return the function of this file that a name, or ``self.name``, is certainly bound to."""
        if isinstance(callee, ast.Name):
            found = self._binder(callee.id, scope)
            if found is None or found.bindings.get(callee.id):
                return None
            return found.functions.get(callee.id)
        owner = scope.owner
        if owner is not None and is_self(callee) and isinstance(callee, ast.Attribute):
            is_replaced = callee.attr in owner.bindings or f"self.{callee.attr}" in owner.bindings
            return None if is_replaced else owner.functions.get(callee.attr)
        return None

    def values(self, node: ast.expr, scope: Scope | None = None) -> Values:
        """Return the expressions that an expression may be: itself, unless it is a name, ``self.x`` or a condition."""
        values = Values()
        self._follow(node, scope or self.scope(node), values, set())
        return values

    def single(self, node: ast.expr, scope: Scope | None = None) -> ast.expr | None:
        """Return the one expression that a name certainly holds, else None."""
        values = self.values(node, scope)
        return values.found[0].node if values.is_complete and len(values.found) == 1 else None

    def arguments(self, name: str, scope: Scope) -> list[tuple[ast.expr, Scope]]:
        """Return what the calls of this file give for a parameter of the function that opens a scope."""
        function = scope.node
        if not isinstance(function, FUNCTIONS) or name not in _parameters(function):
            return []
        calls = [each for each in self.calls.get(function.name, []) if self.function(each[0].func, each[1]) is function]
        given = [(argument(call, function, name), around) for call, around in calls]
        return [(each, around) for each, around in given if each is not None]

    def _is_import(self, name: ast.Name) -> bool:
        scope: Scope | None = self.scope(name)
        while scope is not None:
            if name.id in scope.bindings or name.id in scope.functions:
                return False
            scope = scope.parent
        return True

    def _binder(self, name: str, scope: Scope) -> Scope | None:
        """Return the scope that binds a name as seen from another one."""
        found: Scope | None = scope
        is_first = True
        while found is not None:
            is_visible = is_first or not isinstance(found.node, ast.ClassDef)
            if is_visible and name not in found.outer and (name in found.bindings or name in found.functions):
                return found
            found = found.parent
            is_first = False
        return None

    def _follow(self, node: ast.expr, scope: Scope, values: Values, seen: set[tuple[int, str]]) -> None:
        if len(values.found) >= MOST_VALUES:
            values.is_complete = False
        elif isinstance(node, ast.IfExp):
            self._follow(node.body, scope, values, seen)
            self._follow(node.orelse, scope, values, seen)
        elif isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or):
            for each in node.values:
                self._follow(each, scope, values, seen)
        elif isinstance(node, ast.NamedExpr):
            self._follow(node.value, scope, values, seen)
        elif isinstance(node, ast.Call) and (given := _paired(node, 1)) and given[0] is not None:
            self._follow(given[0], scope, values, seen)
        elif isinstance(node, ast.Name):
            self._follow_name(node, scope, values, seen)
        elif is_self(node) and isinstance(node, ast.Attribute) and scope.owner is not None:
            self._follow_binding(scope.owner, f"self.{node.attr}", values, seen)
        else:
            values.found.append(Value(node, scope))

    def _follow_name(self, node: ast.Name, scope: Scope, values: Values, seen: set[tuple[int, str]]) -> None:
        binder = self._binder(node.id, scope)
        if binder is None and node.id in self.imports:
            values.found.append(Value(node, scope))
        elif binder is None or node.id in binder.functions:
            values.is_complete = False
        else:
            self._follow_binding(binder, node.id, values, seen)

    def _follow_binding(self, binder: Scope, name: str, values: Values, seen: set[tuple[int, str]]) -> None:
        if (id(binder), name) in seen:
            return
        seen.add((id(binder), name))
        bound = binder.bindings.get(name, [])
        if not bound:
            values.is_complete = False
        for each in bound:
            if each is not None:
                self._follow(each, self.of.get(each, binder), values, seen)
            elif isinstance(binder.node, FUNCTIONS) and name in _parameters(binder.node):
                self._follow_parameter(binder, name, values, seen)
            else:
                values.is_complete = False

    def _follow_parameter(self, binder: Scope, name: str, values: Values, seen: set[tuple[int, str]]) -> None:
        """Follow a parameter to what the calls of this file give; other files may call with something else."""
        values.is_complete = False
        for given, scope in self.arguments(name, binder):
            self._follow(given, scope, values, seen)

    # Binding, in one pass over the tree.

    def _bind_all(self, tree: ast.Module) -> None:
        self._opened: dict[ast.AST, Scope] = {tree: self.module}
        waiting: list[tuple[ast.AST, Scope]] = [(tree, self.module)]
        while waiting:
            node, scope = waiting.pop()
            self.of[node] = scope
            inner = self._enter(node, scope)
            self._bind(node, scope)
            for child in reversed(list(ast.iter_child_nodes(node))):  # so that the first one is the next
                self.parents[child] = node
                is_inside = inner is not None and not _is_evaluated_outside(node, child)
                waiting.append((child, inner if inner is not None and is_inside else scope))

    def _enter(self, node: ast.AST, scope: Scope) -> Scope | None:
        if isinstance(node, FUNCTIONS):
            inner = Scope(node, scope)
            if node.name in scope.functions:
                scope.bind(node.name, None)  # two definitions: which one is not certain
            scope.functions[node.name] = node
            for name in _parameters(node):
                inner.bind(name, None)
        elif isinstance(node, ast.ClassDef):
            inner = Scope(node, scope)
            scope.bind(node.name, None)
        elif isinstance(node, ast.Lambda):
            inner = Scope(node, scope)
            for name in _arguments(node.args):
                inner.bind(name, None)
        elif isinstance(node, ast.Module):
            return self.module
        else:
            return None
        self._opened[node] = inner
        return inner

    def _bind(self, node: ast.AST, scope: Scope) -> None:
        for target in _targets(node):
            value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)) else None
            self._bind_target(target, value, scope)
        if isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            scope.bind(node.name, None)
        elif isinstance(node, ast.MatchMapping) and node.rest:
            scope.bind(node.rest, None)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            scope.outer.update(node.names)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            self._bind_imports(node)
        elif isinstance(node, ast.Call) and last_name(node.func):
            self.calls.setdefault(last_name(node.func), []).append((node, scope))

    def _bind_imports(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                self._bind_import(alias.asname or alias.name, f"{'.' * node.level}{node.module or ''}.{alias.name}")
            else:
                root = alias.name.partition(".")[0]
                self._bind_import(alias.asname or root, alias.name if alias.asname else root)

    def _bind_import(self, name: str, full: str) -> None:
        """One name imported from two places (of which one may be missing) is followed to neither."""
        known = self.imports.setdefault(name, full)
        if known != full:
            self.imports[name] = None

    def _bind_target(self, target: ast.expr, value: ast.expr | None, scope: Scope) -> None:
        if isinstance(target, ast.Name):
            self._bind_in(scope, target.id, value)
        elif is_self(target) and isinstance(target, ast.Attribute) and scope.owner is not None:
            scope.owner.bind(f"self.{target.attr}", value)
        elif isinstance(target, ast.Starred):
            self._bind_target(target.value, None, scope)
        elif isinstance(target, (ast.Tuple, ast.List)):
            values = _paired(value, len(target.elts))
            for each, one in zip(target.elts, values or [None] * len(target.elts), strict=True):
                self._bind_target(each, None if isinstance(each, ast.Starred) else one, scope)

    def _bind_in(self, scope: Scope, name: str, value: ast.expr | None) -> None:
        """Bind a name where ``global`` or ``nonlocal`` puts it."""
        if name in scope.outer:
            around = scope.parent
            while around is not None and around.parent is not None and name not in around.bindings:
                around = around.parent
            (around or self.module).bind(name, value)
        scope.bind(name, value)


def is_self(node: ast.AST) -> bool:
    """Return True for ``self.x`` itself, not for ``self.x.y``."""
    return isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"


def last_name(node: ast.AST) -> str:
    """Return ``step`` for ``self.optimizer.step`` and for ``step``; empty for another expression."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def argument(call: ast.Call, function: Function, name: str) -> ast.expr | None:
    """Return what a call gives for a parameter: the argument, else the default, else None."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
    is_method = bool(names) and names[0] in ("self", "cls") and isinstance(call.func, ast.Attribute)
    defaults = dict(zip(reversed(names), reversed(function.args.defaults), strict=False))
    defaults.update(
        (each.arg, value)
        for each, value in zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
        if value is not None
    )
    if any(isinstance(each, ast.Starred) for each in call.args):
        return None
    position = names.index(name) - is_method if name in names else -1
    if 0 <= position < len(call.args):
        return call.args[position]
    return None if any(keyword.arg is None for keyword in call.keywords) else defaults.get(name)


def keyword(call: ast.Call, name: str, position: int | None = None) -> ast.expr | None:
    """Return an argument of a call by its name or its position, None if it is not given."""
    for each in call.keywords:
        if each.arg == name:
            return each.value
    if position is not None and position < len(call.args):
        return None if any(isinstance(each, ast.Starred) for each in call.args) else call.args[position]
    return None


def statement_of(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.AST:
    """Return the innermost statement around a node."""
    while not isinstance(node, ast.stmt) and node in parents:
        node = parents[node]
    return node


def _parameters(function: Function) -> list[str]:
    return _arguments(function.args)


def _arguments(arguments: ast.arguments) -> list[str]:
    plain = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [each.arg for each in (*plain, arguments.vararg, arguments.kwarg) if each is not None]


def _is_evaluated_outside(node: ast.AST, child: ast.AST) -> bool:
    """Return True for what a definition evaluates around itself: decorators, bases and annotations of the result."""
    if isinstance(node, FUNCTIONS):
        return child in node.decorator_list or child is node.returns
    return isinstance(node, ast.ClassDef) and (child in node.decorator_list or child in node.bases)


def _targets(node: ast.AST) -> Sequence[ast.expr]:
    """Return what a node assigns to."""
    if isinstance(node, ast.Assign):
        return node.targets
    if isinstance(node, ast.AnnAssign):
        return [node.target] if node.value is not None else []
    if isinstance(node, ast.withitem):
        return [node.optional_vars] if node.optional_vars is not None else []
    if isinstance(node, (ast.NamedExpr, ast.AugAssign, ast.For, ast.AsyncFor, ast.comprehension)):
        return [node.target]
    return []


def _paired(value: ast.expr | None, count: int) -> Sequence[ast.expr | None] | None:
    """Return the values of a tuple of targets, where each target has its own."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr in PAIRED_CALLS:
        elements = value.args
    elif isinstance(value, (ast.Tuple, ast.List)):
        elements = value.elts
    else:
        return None
    is_plain = len(elements) == count and not any(isinstance(each, ast.Starred) for each in elements)
    return elements if is_plain else None
