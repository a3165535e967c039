"""Modules of torch in a file: classes that derive from nn.Module, and calls that make layers with parameters."""

from __future__ import annotations

import ast
import re

from gradcanary.check.program import Program
from gradcanary.check.scopes import last_name

_LAYERS = re.compile(
    r"torch\.nn\.(modules\.\w+\.)?(Lazy)?(Linear|Bilinear|Conv(Transpose)?\dd|Embedding(Bag)?|LSTM(Cell)?|GRU(Cell)?|RNN(Cell)?|"
    r"Transformer\w*|MultiheadAttention|LayerNorm|GroupNorm|RMSNorm|PReLU|Parameter)"
)
"""What has parameters by default. Batch norms are left out: with ``affine=False`` they have none."""

_CONTAINERS = ("torch.nn.Sequential", "torch.nn.ModuleList", "torch.nn.ModuleDict")
_SAME = frozenset({"to", "cuda", "cpu", "train", "float", "double", "half", "bfloat16", "apply"})
"""Methods that return the module itself."""

BASES = frozenset({"Module", "LightningModule", "PreTrainedModel"})


def is_layer(node: ast.AST, program: Program) -> bool:
    """Return True for a call that makes a layer of torch which has parameters."""
    return isinstance(node, ast.Call) and _LAYERS.fullmatch(program.full_name(node.func) or "") is not None


def module_classes(program: Program) -> list[ast.ClassDef]:
    """Return the classes of the file that derive from nn.Module, through each other also."""
    classes = [node for node in program.nodes if isinstance(node, ast.ClassDef)]
    found: dict[str, ast.ClassDef] = {}
    for _ in range(3):  # a base may stand below its child in the walk
        for node in classes:
            if any(last_name(base) in BASES or last_name(base) in found for base in node.bases):
                found[node.name] = node
    return list(found.values())


def makes_parameters(node: ast.AST | None, program: Program) -> bool:
    """Return True for a call that certainly makes a module with parameters, moved or cast afterwards or not."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SAME:
        node = node.func.value
    if not isinstance(node, ast.Call):
        return False
    if is_layer(node, program):
        return True
    if program.full_name(node.func) in _CONTAINERS:
        return any(is_layer(each, program) for argument in node.args for each in ast.walk(argument))
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    own = (each for each in module_classes(program) if each.name == name)
    return any(is_layer(inner, program) for each in own for inner in ast.walk(each))
