"""What a variable is: an optimizer, a schedule, a GradScaler, an Accelerator, a Fabric.

The file decides where it shows how the object is made. Where it comes from elsewhere, its name does, if it is the usual
one.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from gradcanary.check.scopes import Scope, Scopes, last_name

OPTIMIZER = "optimizer"
SCHEDULER = "scheduler"
SCALER = "scaler"
ACCELERATOR = "accelerator"
FABRIC = "fabric"

_OPTIMIZER_CLASS = re.compile(
    r"Adam|SGD|Lion|Lamb|LAMB|LARS|Adagrad|RMS[Pp]rop|Rprop|Adafactor|Prodigy|Muon|Sophia|Shampoo|SOAP|LBFGS|Adadelta"
)
_SCHEDULE = re.compile(r"get_(\w+_)?schedule(r|_with_\w+)?")

_NAMES = (
    (SCALER, re.compile(r"(grad_?|loss_?|amp_?)?scaler")),
    (SCHEDULER, re.compile(r"(lr_?)?sched(uler)?s?|lr_sched(uler)?s?|scheduler_?\w{0,2}")),
    (OPTIMIZER, re.compile(r"opt(im|imi[sz]er)?s?|(opt|optim|optimi[sz]ers?)_?\w{1,2}|\w+_(opt|optim|optimi[sz]er)s?")),
    (ACCELERATOR, re.compile("accelerator")),
    (FABRIC, re.compile("fabric")),
)


@dataclass(frozen=True)
class Kind:
    """What an expression is.

    ``is_made_here``: the file shows how it is made, at least by one caller. ``is_certain``: it shows all of its values.
    """

    name: str
    is_made_here: bool
    is_certain: bool


def kind_of(node: ast.expr | None, scope: Scope, scopes: Scopes) -> Kind | None:
    """Return the kind of an expression, None where the evidence is missing or contradicts itself."""
    if node is None:
        return None
    values = scopes.values(node, scope)
    made = [each.node for each in values.found if not (isinstance(each.node, ast.Constant) and each.node.value is None)]
    found = {_made_by(each, scopes) for each in made}
    if len(found) == 1 and None not in found:
        return Kind(str(found.pop()), True, values.is_complete)
    if found - {None} or (values.is_complete and made and node not in made):
        return None
    name = last_name(node.value if isinstance(node, ast.Subscript) else node).lower().lstrip("_")
    return next((Kind(kind, False, False) for kind, pattern in _NAMES if pattern.fullmatch(name)), None)


def _made_by(node: ast.expr, scopes: Scopes) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    full = scopes.full_name(node.func) or ""
    return kind_of_class(full) if full else None


def kind_of_class(full_name: str) -> str | None:
    """Return the kind of what an imported class or function makes."""
    last = full_name.rpartition(".")[2]
    if last in ("GradScaler", "ShardedGradScaler"):
        return SCALER
    if full_name.startswith("torch.optim.lr_scheduler.") or _SCHEDULE.fullmatch(last):
        return SCHEDULER
    if last == "Accelerator":
        return ACCELERATOR
    if last == "Fabric":
        return FABRIC
    is_made_by_torch = full_name.startswith("torch.optim.") and last[:1].isupper()
    return OPTIMIZER if is_made_by_torch or _OPTIMIZER_CLASS.search(last) else None
