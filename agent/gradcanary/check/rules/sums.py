"""low_precision_sum: a sum over steps in a bfloat16 or float16 tensor.

bfloat16 has 8 significant bits: a sum that is 256 times what is added stays as it is, in float16 one of 2,048 times.
The numbers come from torch.finfo(dtype).eps, 2^-7 and 2^-10: half of it is rounded away.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradcanary.check.findings import Found, Rule
from gradcanary.check.flow import Event
from gradcanary.check.program import Program
from gradcanary.check.scopes import Scope, last_name

_ZEROS = frozenset({"zeros", "zeros_like", "new_zeros", "full", "full_like", "new_full", "tensor", "new_tensor"})
_LOW = {
    "torch.bfloat16": "bfloat16",
    "torch.float16": "float16",
    "torch.half": "float16",
}
_STANDS_STILL = {"bfloat16": "256", "float16": "2,048"}
_CASTS = {"bfloat16": "bfloat16", "half": "float16"}

_FIX = "Make the sum in torch.float32: add_() and += cast what is added."


def find_low_precision_sum(program: Program) -> Iterator[Found]:
    """Yield additions in loops to tensors that were made as zeros of low precision outside of the loop."""
    for event in program.events():
        buffer = _added_to(event)
        if buffer is None:
            continue
        for made in _made(buffer, event, program):
            dtype = _low_dtype(made, program)
            if dtype and _outlives(made, buffer, event, program):
                yield Found(event.node, f"a sum over steps in {dtype}", _why(dtype), _FIX)
                break


def _why(dtype: str) -> str:
    return (
        f"A {dtype} sum stands still once it is {_STANDS_STILL[dtype]} times what is added, and every addition before "
        "is rounded. A mean of losses comes out too small."
    )


def _added_to(event: Event) -> ast.expr | None:
    """Return ``total`` of ``total += x``, ``total = total + x`` and ``total.add_(x)``."""
    node = event.node
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return node.target
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.BinOp):
        target, value = node.targets[0], node.value
        sides = [ast.unparse(value.left), ast.unparse(value.right)]
        return target if isinstance(value.op, ast.Add) and ast.unparse(target) in sides else None
    return event.receiver if event.method == "add_" else None


def _made(buffer: ast.expr, event: Event, program: Program) -> list[ast.expr]:
    """Return the expressions that the buffer was made by, also where it is an element of a list or a dictionary."""
    if isinstance(buffer, ast.Subscript):
        return [each for whole in _values(buffer.value, event.scope, program) for each in _elements(whole)]
    for loop in reversed(event.loops):
        if isinstance(loop, ast.For) and isinstance(buffer, ast.Name):
            source = _iterated(loop.target, loop.iter, buffer.id)
            if source is not None:
                return [each for whole in _values(source, event.scope, program) for each in _elements(whole)]
    return _values(buffer, event.scope, program)


def _values(node: ast.expr, scope: Scope, program: Program) -> list[ast.expr]:
    return [each.node for each in program.scopes.values(node, scope).found]


def _iterated(target: ast.expr, source: ast.expr, name: str) -> ast.expr | None:
    """Return what a loop takes the values of a name from: ``sums`` of ``for buffer, p in zip(sums, parameters)``."""
    if isinstance(target, ast.Name):
        return source if target.id == name else None
    if not isinstance(target, ast.Tuple) or not isinstance(source, ast.Call):
        return None
    callee, taken = last_name(source.func), source.args
    if callee == "enumerate" and len(target.elts) == 2 and taken:
        return _iterated(target.elts[1], taken[0], name)
    if callee == "zip" and len(taken) == len(target.elts):
        found = (_iterated(each, one, name) for each, one in zip(target.elts, taken, strict=True))
        return next((each for each in found if each is not None), None)
    if callee in ("items", "named_parameters") and isinstance(source.func, ast.Attribute) and len(target.elts) == 2:
        return _iterated(target.elts[1], source.func.value, name)
    return None


def _elements(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return [node.elt]
    if isinstance(node, ast.DictComp):
        return [node.value]
    if isinstance(node, ast.Call) and node.args and last_name(node.func) in ("list", "dict", "tuple"):
        return _elements(node.args[0])
    return list(node.elts) if isinstance(node, (ast.List, ast.Tuple)) else [node]


def _low_dtype(made: ast.expr, program: Program) -> str:
    """Return bfloat16 or float16 for zeros of that dtype, else an empty text."""
    if not isinstance(made, ast.Call):
        return ""
    if isinstance(made.func, ast.Attribute) and not program.full_name(made.func):
        inner = made.func.value
        if made.func.attr in _CASTS and not made.args and _is_zeros(inner):
            return _CASTS[made.func.attr]
        if made.func.attr == "to" and _is_zeros(inner):
            return _dtype_among(made, program)
        if made.func.attr in ("to", "cuda"):
            return _low_dtype(inner, program)
    return _dtype_among(made, program) if _is_zeros(made) else ""


def _is_zeros(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in _ZEROS


def _dtype_among(call: ast.Call, program: Program) -> str:
    given = (*call.args, *(each.value for each in call.keywords))
    made = (program.scopes.single(each) for each in given if not isinstance(each, ast.Starred))
    return next((_LOW[name] for node in made if node and (name := program.full_name(node) or "") in _LOW), "")


def _outlives(made: ast.expr, buffer: ast.expr, event: Event, program: Program) -> bool:
    """Return True if the sum goes on over passes of a loop, or over calls of a method."""
    parents = program.scopes.parents
    around: set[ast.AST] = set()
    node: ast.AST | None = made
    while node is not None:
        around.add(node)
        node = parents.get(node)
    gathering = [loop for loop in event.loops if not _takes_elements(loop, buffer)]
    if gathering:
        return gathering[-1] not in around
    is_attribute = isinstance(buffer, ast.Attribute)
    return is_attribute and event.scope.node not in around and bool(program.steps)


def _takes_elements(loop: ast.AST, buffer: ast.expr) -> bool:
    """Return True for the loop that runs over the buffers themselves, or over the places of one."""
    if not isinstance(loop, ast.For):
        return False
    if isinstance(buffer, ast.Subscript):
        targets = {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}
        return any(isinstance(each, ast.Name) and each.id in targets for each in ast.walk(buffer.slice))
    return isinstance(buffer, ast.Name) and _iterated(loop.target, loop.iter, buffer.id) is not None


LOW_PRECISION_SUM = Rule(
    "low_precision_sum", "warning", "swamping", "a sum over steps in bfloat16 or float16", find_low_precision_sum
)
