"""What a ``with`` block says about autocast: its dtype where that is certain, and whether it is on."""

from __future__ import annotations

import ast
from dataclasses import dataclass

from gradcanary.check.flow import Event
from gradcanary.check.program import Program
from gradcanary.check.scopes import Scope, keyword

FLOAT16 = "float16"
BFLOAT16 = "bfloat16"

_DTYPES = {"torch.float16": FLOAT16, "torch.half": FLOAT16, "torch.bfloat16": BFLOAT16, "torch.float32": "float32"}

_GENERAL = frozenset({"torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast"})
_OF_DEVICE = {
    "torch.cuda.amp.autocast": "cuda",
    "torch.cuda.amp.autocast_mode.autocast": "cuda",
    "torch.cpu.amp.autocast": "cpu",
    "torch.cpu.amp.autocast_mode.autocast": "cpu",
}

DEFAULT_DTYPES = {"cuda": FLOAT16, "cpu": BFLOAT16}
"""``torch.get_autocast_dtype`` of torch 2.13; other devices have defaults that differ by version."""

_SETTERS = frozenset({"set_autocast_dtype", "set_autocast_gpu_dtype", "set_autocast_cpu_dtype"})

_NO_GRADIENT = frozenset({"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad"})


@dataclass(frozen=True)
class Autocast:
    """An autocast block; ``dtype`` is None where it is not certain. ``is_off`` if the file says that it is never on."""

    node: ast.Call
    dtype: str | None
    is_off: bool


def autocast_of(event: Event, program: Program) -> Autocast | None:
    """Return the innermost autocast around an event that the file names, None if there is none."""
    for context in reversed(event.contexts):
        found = as_autocast(context, program)
        if found is not None:
            return found
    return None


def as_autocast(context: ast.expr, program: Program) -> Autocast | None:
    """Return the autocast that a ``with`` block enters, or may enter, where its expression is a name or a condition."""
    values = program.scopes.values(context)
    found = [made for each in values.found if (made := _made_by(each.node, each.scope, program))]
    if not found:
        return None
    dtypes = {each.dtype for each in found}
    dtype = dtypes.pop() if len(dtypes) == 1 and values.is_complete else None
    return Autocast(found[0].node, dtype, all(each.is_off for each in found))


def has_no_gradient(event: Event, program: Program) -> bool:
    """Return True if an event stands in ``no_grad`` or ``inference_mode``."""
    callees = (each.func if isinstance(each, ast.Call) else each for each in event.contexts)
    return any(program.full_name(each) in _NO_GRADIENT for each in callees)


def dtype_of(node: ast.expr | None, scope: Scope, program: Program) -> str | None:
    """Return float16, bfloat16 or float32 for an expression that is certainly that dtype of torch."""
    single = None if node is None else program.scopes.single(node, scope)
    return None if single is None else _DTYPES.get(program.full_name(single) or "")


def constant_of(node: ast.expr | None, scope: Scope, program: Program) -> object:
    """Return the value of an expression that is certainly a constant, else None."""
    single = None if node is None else program.scopes.single(node, scope)
    return single.value if isinstance(single, ast.Constant) else None


def _made_by(node: ast.expr, scope: Scope, program: Program) -> Autocast | None:
    if not isinstance(node, ast.Call):
        return None
    full = program.full_name(node.func) or ""
    if full in _GENERAL:
        device, position = constant_of(keyword(node, "device_type", 0), scope, program), 1
    elif full in _OF_DEVICE:
        device, position = _OF_DEVICE[full], 1
    else:
        return None
    given = keyword(node, "dtype", position)
    is_plain = not any(isinstance(each, ast.Starred) for each in node.args) and all(each.arg for each in node.keywords)
    if given is not None:
        dtype = dtype_of(given, scope, program)
    elif is_plain and not program.words & _SETTERS:
        dtype = DEFAULT_DTYPES.get(str(device).partition(":")[0])
    else:
        dtype = None
    switch = keyword(node, "enabled", 2 if full in _GENERAL else 0)
    return Autocast(node, dtype, constant_of(switch, scope, program) is False)
