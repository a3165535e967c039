"""The arithmetic of a loss: may it be divided by the number of micro-steps before its backward pass?"""

from __future__ import annotations

import ast

from gradcanary.check.flow import Event
from gradcanary.check.program import Program
from gradcanary.check.scopes import FUNCTIONS, Scope, keyword, last_name
from gradcanary.check.steps import Backward, TrainingStep

_SCALING_METHODS = frozenset({"div", "div_", "divide", "true_divide", "mul", "mul_", "multiply", "sum", "sub", "lerp"})
_KEPT_METHODS = frozenset(
    {"mean", "float", "double", "to", "squeeze", "view", "reshape", "cuda", "contiguous", "clone"}
)


def may_be_divided(backward: Backward, count: ast.expr, step: TrainingStep, program: Program) -> bool:
    """Return False only if the file shows the whole arithmetic of the loss, and nothing divides or multiplies it."""
    reader = _Reader(backward.event, count, step, program)
    return backward.loss is None or reader.is_scaled(backward.loss, backward.event.scope, frozenset())


class _Reader:
    """Follows a loss back through assignments and helpers; what it does not understand counts as divided."""

    def __init__(self, at: Event, count: ast.expr, step: TrainingStep, program: Program) -> None:
        self._count = ast.dump(count)
        self._step, self._program = step, program
        self._before = list(step.before(at))

    def is_scaled(self, node: ast.expr, scope: Scope, seen: frozenset[tuple[Scope, str]]) -> bool:
        if isinstance(node, ast.BinOp):
            if not isinstance(node.op, (ast.Add, ast.Sub)):
                return True
            return self.is_scaled(node.left, scope, seen) and self.is_scaled(node.right, scope, seen)
        if isinstance(node, ast.IfExp):
            return self.is_scaled(node.body, scope, seen) or self.is_scaled(node.orelse, scope, seen)
        if isinstance(node, ast.Call):
            return self._is_call_scaled(node, scope, seen)
        if isinstance(node, ast.Name):
            return self._is_name_scaled(node.id, scope, seen)
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            return self.is_scaled(node.value, scope, seen)  # outputs.loss, outputs[0]
        return True

    def _is_call_scaled(self, call: ast.Call, scope: Scope, seen: frozenset[tuple[Scope, str]]) -> bool:
        name = last_name(call.func)
        given = [*call.args, *(each.value for each in call.keywords)]
        if name in _SCALING_METHODS or any(ast.dump(each) == self._count for each in given):
            return True
        reduction = keyword(call, "reduction")
        if reduction is not None and not (isinstance(reduction, ast.Constant) and reduction.value == "mean"):
            return True
        helper = self._program.scopes.function(call.func, scope)
        if helper is not None:
            return self._is_result_scaled(helper, seen)
        if name in _KEPT_METHODS and isinstance(call.func, ast.Attribute):
            return self.is_scaled(call.func.value, scope, seen)
        return self._is_criterion_unknown(call, scope)

    def _is_criterion_unknown(self, call: ast.Call, scope: Scope) -> bool:
        """Return True unless the callee is torch's with its mean, or a variable that is called with tensors."""
        full = self._program.full_name(call.func)
        if full is not None:
            return not full.startswith("torch.nn.functional.")
        for made in self._program.scopes.values(call.func, scope).found:
            if isinstance(made.node, ast.Call) and keyword(made.node, "reduction") is not None:
                return True
            if isinstance(made.node, ast.Call) and any(ast.dump(each) == self._count for each in ast.walk(made.node)):
                return True
        return isinstance(call.func, ast.Call)

    def _is_name_scaled(self, name: str, scope: Scope, seen: frozenset[tuple[Scope, str]]) -> bool:
        if (scope, name) in seen:
            return False
        seen |= {(scope, name)}
        made = [each for each in self._before if each.scope is scope and name in _targets(each.node)]
        given = self._program.scopes.arguments(name, scope)
        if not made:
            return not given or any(self.is_scaled(each, around, seen) for each, around in given)
        return any(self._is_assignment_scaled(each, seen) for each in made)

    def _is_assignment_scaled(self, event: Event, seen: frozenset[tuple[Scope, str]]) -> bool:
        node = event.node
        if isinstance(node, ast.AugAssign):
            return not isinstance(node.op, (ast.Add, ast.Sub))
        value = getattr(node, "value", None)
        return value is None or self.is_scaled(value, event.scope, seen)

    def _is_result_scaled(self, helper: ast.AST, seen: frozenset[tuple[Scope, str]]) -> bool:
        if not isinstance(helper, FUNCTIONS) or (self._program.scopes.inside(helper), "") in seen:
            return True
        scope = self._program.scopes.inside(helper)
        seen |= {(scope, "")}
        returned = [each.value for each in ast.walk(helper) if isinstance(each, ast.Return) and each.value is not None]
        parts = [part for each in returned for part in (each.elts if isinstance(each, ast.Tuple) else [each])]
        tensors = [part for part in parts if not isinstance(part, (ast.Constant, ast.Dict))]
        return not tensors or any(self.is_scaled(part, scope, seen) for part in tensors)


def _targets(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Assign):
        return {each.id for target in node.targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    if isinstance(node, (ast.AnnAssign, ast.AugAssign)) and isinstance(node.target, ast.Name):
        return {node.target.id}
    return set()
