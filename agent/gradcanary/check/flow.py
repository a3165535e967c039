"""The order of what happens: calls and assignments of a function, with the helpers of the file put in place.

Each event knows the loops, conditions and ``with`` blocks around it, those around the call of its helper included.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from gradcanary.check.scopes import FUNCTIONS, Function, Scope, ScopeNode, Scopes, last_name

MOST_LEVELS = 4
"""Of helpers that call helpers: what is deeper is not followed."""

MOST_EVENTS = 20_000
"""Of one function with its helpers: helpers beyond it are not followed, and the flow is not complete."""

LOOPS = (ast.For, ast.AsyncFor, ast.While)


@dataclass(frozen=True)
class Guard:
    """A condition around an event; ``holds`` is False where the event happens if the test is false.

    ``node`` is the statement or expression that has the test: two guards of one node that differ exclude each other.
    ``test`` is None for a handler of exceptions and for a case of ``match``, which has the number ``arm``.
    """

    node: ast.AST
    test: ast.expr | None
    holds: bool
    scope: Scope
    arm: int = 0


@dataclass(frozen=True, eq=False)
class Event:
    """A call or an assignment as the program comes to it. ``helpers`` are the functions that it was reached through."""

    node: ast.AST
    scope: Scope
    guards: tuple[Guard, ...] = ()
    contexts: tuple[ast.expr, ...] = ()
    loops: tuple[ast.AST, ...] = ()
    helpers: tuple[ast.AST, ...] = ()

    @property
    def call(self) -> ast.Call | None:
        """Return the call, None for an assignment."""
        return self.node if isinstance(self.node, ast.Call) else None

    @property
    def method(self) -> str:
        """Return ``step`` of ``optimizer.step()``; empty where no method is called."""
        callee = self.call and self.call.func
        return callee.attr if isinstance(callee, ast.Attribute) else ""

    @property
    def receiver(self) -> ast.expr | None:
        """Return ``optimizer`` of ``optimizer.step()``."""
        callee = self.call and self.call.func
        return callee.value if isinstance(callee, ast.Attribute) else None

    def excludes(self, other: Event) -> bool:
        """Return True if the two stand in different arms of one condition, and never happen in one pass."""
        return any(
            ours.node is theirs.node and (ours.holds, ours.arm) != (theirs.holds, theirs.arm)
            for ours in self.guards
            for theirs in other.guards
        )


@dataclass(frozen=True)
class Flow:
    """The events of a function or of the module, in order; ``is_complete`` is False where some were left out."""

    events: tuple[Event, ...]
    is_complete: bool = True


def trace(node: ScopeNode, scopes: Scopes, most: int = MOST_EVENTS) -> Flow:
    """Return the events of a function or module: all of its own, and those of helpers up to ``most`` in all."""
    walker = _Walker(scopes, most)
    body = [ast.Expr(node.body)] if isinstance(node, ast.Lambda) else node.body
    walker.statements(body, Event(node, scopes.inside(node)))
    return Flow(tuple(walker.events), walker.is_complete)


class _Walker:
    """Collects events; ``at`` is an event without its node, which has what is around the next one."""

    def __init__(self, scopes: Scopes, most: int) -> None:
        self._scopes, self._most = scopes, most
        self.is_complete = True
        self.events: list[Event] = []

    def statements(self, body: Sequence[ast.stmt], at: Event) -> None:
        for statement in body:
            self._statement(statement, at)
            if isinstance(statement, ast.If) and _leaves(statement.body) and not statement.orelse:
                at = replace(at, guards=(*at.guards, Guard(statement, statement.test, False, at.scope)))

    def _statement(self, node: ast.stmt, at: Event) -> None:
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            return
        if isinstance(node, ast.If):
            self._expression(node.test, at)
            for body, holds in ((node.body, True), (node.orelse, False)):
                self.statements(body, replace(at, guards=(*at.guards, Guard(node, node.test, holds, at.scope))))
        elif isinstance(node, LOOPS):
            self._loop(node, at)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                self._expression(item.context_expr, at)
                at = replace(at, contexts=(*at.contexts, item.context_expr))
            self.statements(node.body, at)
        elif isinstance(node, ast.Try) or type(node).__name__ == "TryStar":
            self._try(node, at)
        elif isinstance(node, ast.Match):
            self._expression(node.subject, at)
            for arm, case in enumerate(node.cases):
                self.statements(case.body, replace(at, guards=(*at.guards, Guard(node, None, True, at.scope, arm))))
        else:
            self._simple(node, at)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, at: Event) -> None:
        inside = replace(at, loops=(*at.loops, node))
        if isinstance(node, ast.While):
            self._expression(node.test, inside)
        else:
            self._expression(node.iter, at)
        self.statements(node.body, inside)
        self.statements(node.orelse, at)

    def _try(self, node: Any, at: Event) -> None:  # noqa: ANN401 -- Try, or TryStar, which Python 3.10 lacks
        self.statements(node.body, at)
        for handler in node.handlers:
            self.statements(handler.body, replace(at, guards=(*at.guards, Guard(handler, None, True, at.scope))))
        self.statements(node.orelse, at)
        self.statements(node.finalbody, at)

    def _simple(self, node: ast.stmt, at: Event) -> None:
        for child in ast.iter_child_nodes(node):
            self._expression(child, at)
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)):
            self.events.append(replace(at, node=node))

    def _expression(self, node: ast.AST, at: Event) -> None:
        if isinstance(node, ast.Lambda):
            return
        if isinstance(node, ast.IfExp):
            self._expression(node.test, at)
            for arm, holds in ((node.body, True), (node.orelse, False)):
                self._expression(arm, replace(at, guards=(*at.guards, Guard(node, node.test, holds, at.scope))))
            return
        if isinstance(node, ast.BoolOp):
            self._expression(node.values[0], at)
            is_and = isinstance(node.op, ast.And)
            after = replace(at, guards=(*at.guards, Guard(node, node.values[0], is_and, at.scope)))
            for each in node.values[1:]:
                self._expression(each, after)
            return
        for child in ast.iter_child_nodes(node):
            self._expression(child, at)
        if isinstance(node, ast.Call):
            self.events.append(replace(at, node=node))
            self._enter(node, at)

    def _enter(self, call: ast.Call, at: Event) -> None:
        """Put the function that is called in place, and the closure that an optimizer's step is given."""
        given = [*call.args, *(each.value for each in call.keywords)] if last_name(call.func) == "step" else []
        for callee in (call.func, *given):
            function = self._scopes.function(callee, at.scope)
            if function is not None:
                self._inline(function, at)

    def _inline(self, function: Function, at: Event) -> None:
        if len(self.events) >= self._most:
            self.is_complete = False
        elif len(at.helpers) < MOST_LEVELS and function not in at.helpers:
            scope = self._scopes.inside(function)
            self.statements(function.body, replace(at, scope=scope, helpers=(*at.helpers, function)))


def _leaves(body: Sequence[ast.stmt]) -> bool:
    """Return True if the block ends the pass of its loop, or its function."""
    return bool(body) and isinstance(body[-1], (ast.Continue, ast.Break, ast.Return, ast.Raise))
