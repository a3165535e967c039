"""dead_key: a key of a parameter group that is about precision, and that no optimizer of torch reads."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradcanary.check.findings import Found, Rule
from gradcanary.check.program import Program
from gradcanary.check.scopes import Scope

_PRECISION = re.compile("dtype|precision|fp16|fp32|bf16")
_SUMS = re.compile("grad|accum|reduce")
_WRITERS = ("update", "setdefault")

_WHY = (
    "Optimizers of torch keep unknown keys of a group and never read them. Gradients are summed in the dtype of their "
    "parameter, so the run is the same bit for bit with the key and without it."
)
_FIX = "Remove the key. For float32 sums of bfloat16 parameters: gradcanary.fp32_accumulators(optimizer)."


def find_dead_key(program: Program) -> Iterator[Found]:
    """Yield the keys that are written into parameter groups and that nothing in the file reads."""
    read = set(_read_keys(program))
    for node, key, is_of_torch in _written_keys(program):
        is_about_sums = _SUMS.search(key) is not None
        if key not in read and _PRECISION.search(key) and (is_of_torch or is_about_sums):
            yield Found(node, f"no optimizer of torch reads the key {key!r} of a parameter group", _WHY, _FIX)


def _read_keys(program: Program) -> Iterator[str]:
    """Yield the texts that are looked up or compared: ``group["x"]``, ``group.get("x")``, ``"x" in group``."""
    for node in program.nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            yield from _texts([node.slice])
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("get", "pop"):
            yield from _texts(node.args[:1])
        elif isinstance(node, ast.Compare):
            yield from _texts([node.left])


def _written_keys(program: Program) -> Iterator[tuple[ast.AST, str, bool]]:
    """Yield keys with their nodes; True where the optimizer is certainly one of torch."""
    for node in program.nodes:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
            owner = _group_owner(node.value, program)
            if owner is not None and _may_be_of_torch(owner, program):
                yield from ((node, key, _is_of_torch(owner, program)) for key in _texts([node.slice]))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _WRITERS:
            owner = _group_owner(node.func.value, program)
            if owner is not None and _may_be_of_torch(owner, program):
                is_of_torch = _is_of_torch(owner, program)
                given = [(each, each.arg) for each in node.keywords if each.arg]
                yield from ((at, key, is_of_torch) for at, key in given)
                yield from ((each, key, is_of_torch) for each in node.args[:1] for key in _texts([each]))
        elif isinstance(node, ast.Dict) and "params" in _texts(node.keys) and _is_given_to_torch(node, program):
            yield from ((key, str(key.value), False) for key in node.keys if isinstance(key, ast.Constant))


def _texts(nodes: list[ast.expr | None] | list[ast.expr]) -> list[str]:
    """Return the texts among the nodes, and the keys of dictionaries among them."""
    flat = [key for node in nodes for key in (node.keys if isinstance(node, ast.Dict) else [node])]
    return [node.value for node in flat if isinstance(node, ast.Constant) and isinstance(node.value, str)]


def _group_owner(node: ast.expr, program: Program) -> ast.expr | None:
    """Return the optimizer of ``optimizer.param_groups[0]``, or of a variable that runs over its groups."""
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and _is_groups(node.value):
        return node.value.value
    if not isinstance(node, ast.Name):
        return None
    parent: ast.AST | None = node
    while parent is not None:
        if isinstance(parent, ast.For) and node.id in _names(parent.target):
            groups = (each for each in ast.walk(parent.iter) if _is_groups(each))
            return next((each.value for each in groups if isinstance(each, ast.Attribute)), None)
        parent = program.scopes.parents.get(parent)
    made = program.scopes.single(node)
    return None if made is None or made is node or isinstance(made, ast.Name) else _group_owner(made, program)


def _is_groups(node: ast.AST) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == "param_groups"


def _names(target: ast.expr) -> set[str]:
    return {node.id for node in ast.walk(target) if isinstance(node, ast.Name)}


def _makers(optimizer: ast.expr, program: Program) -> list[str]:
    """Return the full names of what makes the optimizer; empty texts for classes of this file."""
    scope: Scope = program.scopes.scope(optimizer)
    values = program.scopes.values(optimizer, scope).found
    return [program.full_name(each.node.func) or "" for each in values if isinstance(each.node, ast.Call)]


def _may_be_of_torch(optimizer: ast.expr, program: Program) -> bool:
    makers = _makers(optimizer, program)
    return not makers or any(maker.startswith("torch.optim.") or maker.endswith(".prepare") for maker in makers)


def _is_of_torch(optimizer: ast.expr, program: Program) -> bool:
    makers = _makers(optimizer, program)
    return bool(makers) and all(maker.startswith("torch.optim.") for maker in makers)


def _is_given_to_torch(node: ast.Dict, program: Program) -> bool:
    """Return False if the group is an argument of anything but a class of torch and ``add_param_group``."""
    parent: ast.AST | None = program.scopes.parents.get(node)
    while parent is not None and not isinstance(parent, (ast.Call, ast.stmt)):
        parent = program.scopes.parents.get(parent)
    if not isinstance(parent, ast.Call):
        return True
    if isinstance(parent.func, ast.Attribute) and parent.func.attr in ("add_param_group", "append"):
        return True
    return (program.full_name(parent.func) or "").startswith("torch.optim.")


DEAD_KEY = Rule(
    "dead_key", "warning", "accumulator_dtypes", "a key of a parameter group that no optimizer reads", find_dead_key
)
