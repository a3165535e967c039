"""optimizer_too_early: a model gets other parameters after its optimizer was made.

Moves and casts are not among them: ``module.to()``, ``.cuda()`` and ``.half()`` keep the parameter objects, unless
``torch.__future__.set_overwrite_module_params_on_conversion(True)``. On XLA they do not, and Adagrad makes its state
with the optimizer, on the device of that time.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradcanary.check.findings import Found, Rule
from gradcanary.check.flow import Event
from gradcanary.check.kinds import OPTIMIZER
from gradcanary.check.modules import makes_parameters
from gradcanary.check.program import Program
from gradcanary.check.scopes import keyword, last_name

_WRAPPERS = {
    "get_peft_model": "get_peft_model() adds adapters",
    "inject_adapter_in_model": "inject_adapter_in_model() adds adapters",
    "FullyShardedDataParallel": "FSDP replaces the parameters by shards",
    "fully_shard": "fully_shard() replaces the parameters by shards",
    "weight_norm": "weight_norm() replaces the weight by two parameters",
}
_ROOTS = ("peft.", "torch.")
_METHODS = {
    "add_adapter": "add_adapter() adds parameters",
    "resize_token_embeddings": "resize_token_embeddings() makes a new embedding",
    "to_empty": "to_empty() makes new parameters",
}
_MOVES = ("to", "cuda")

_WHY = (
    "An optimizer holds the parameters that it was given when it was made. What the model got afterwards has "
    "gradients, and no step moves it; the loss may fall through the other parameters."
)
_FIX = "Make the optimizer after this line, or give it the new parameters with add_param_group()."
_WHY_MOVED = "Adagrad makes its state with the optimizer, on the device of that time: its first step is an error."
_WHY_XLA = "A move to XLA makes new parameter objects, other than on a GPU: the optimizer steps those left on the CPU."
_FIX_MOVED = "Move the model first, then make the optimizer."


def find_optimizer_too_early(program: Program) -> Iterator[Found]:
    """Yield changes of a model between the making of its optimizer and a step of it."""
    for node in program.functions:
        events = [event for event in program.flow(node).events if not event.helpers]
        for position, event in enumerate(events):
            optimizer, call = _made_optimizer(event, program)
            if optimizer and call:
                later = [each for each in events[position + 1 :] if not each.excludes(event)]
                yield from _find_changes(optimizer, call, later, program)


def _made_optimizer(event: Event, program: Program) -> tuple[str, ast.Call | None]:
    """Return the target and the call of ``optimizer = AdamW(model.parameters())``."""
    node = event.node
    if not isinstance(node, ast.Assign) or len(node.targets) != 1 or not isinstance(node.value, ast.Call):
        return "", None
    is_made = program.full_name(node.value.func) and program.is_kind(node.value, event.scope, OPTIMIZER)
    return (ast.unparse(node.targets[0]), node.value) if is_made else ("", None)


def _find_changes(optimizer: str, call: ast.Call, later: list[Event], program: Program) -> Iterator[Found]:
    models = {ast.unparse(each) for each in _models(call)}
    for position, event in enumerate(later):
        rest = later[position + 1 :]
        if _is_made_again(event, optimizer):
            return
        for model in models:
            found = _change(event, model, program) or _move(event, model, call, program)
            if found and _is_used(optimizer, rest) and not _is_mended(optimizer, rest):
                yield found


def _models(call: ast.Call) -> Iterator[ast.expr]:
    """Yield ``model`` of ``model.parameters()`` in the arguments."""
    for node in ast.walk(call):
        callee = node.func if isinstance(node, ast.Call) else None
        if isinstance(callee, ast.Attribute) and callee.attr in ("parameters", "named_parameters"):
            yield callee.value


def _is_made_again(event: Event, optimizer: str) -> bool:
    node = event.node
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(ast.unparse(each) == optimizer for target in targets for each in _flat(target))


def _flat(target: ast.expr) -> list[ast.expr]:
    return target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]


def _change(event: Event, model: str, program: Program) -> Found | None:
    """Return a finding if the event gives the model other parameters."""
    node, call = event.node, event.call
    if isinstance(node, ast.Assign) and len(node.targets) == 1:
        target = ast.unparse(node.targets[0])
        if target.startswith((f"{model}.", f"{model}[")) and makes_parameters(node.value, program):
            return Found(node, f"{target} is replaced after the optimizer of {model} was made", _WHY, _FIX)
    if call is None:
        return None
    name, full = last_name(call.func), program.full_name(call.func) or ""
    text = ""
    if full.startswith(_ROOTS) and full.rpartition(".")[2] in _WRAPPERS and call.args:
        is_model = ast.unparse(call.args[0]) == model or ast.unparse(call.args[0]).startswith(f"{model}.")
        text = _WRAPPERS[full.rpartition(".")[2]] if is_model else ""
    elif event.receiver is not None and ast.unparse(event.receiver) == model:
        text = _METHODS.get(name, "")
        assign = keyword(call, "assign", 2)
        if name == "load_state_dict" and isinstance(assign, ast.Constant) and assign.value is True:
            text = "load_state_dict(assign=True) replaces the parameters"
    return Found(node, f"{text} after the optimizer was made", _WHY, _FIX) if text else None


def _move(event: Event, model: str, made: ast.Call, program: Program) -> Found | None:
    if (
        event.call is None
        or event.method not in _MOVES
        or event.receiver is None
        or ast.unparse(event.receiver) != model
    ):
        return None
    if _goes_to_xla(event, program):
        return Found(event.node, "the model goes to XLA after its optimizer was made", _WHY_XLA, _FIX_MOVED)
    if program.full_name(made.func) == "torch.optim.Adagrad" and _names_device(event):
        return Found(event.node, "the model is moved after its Adagrad was made", _WHY_MOVED, _FIX_MOVED)
    return None


def _goes_to_xla(event: Event, program: Program) -> bool:
    for given in event.call.args if event.call else ():
        made = program.scopes.single(given, event.scope)
        if isinstance(made, ast.Call) and (program.full_name(made.func) or "").startswith("torch_xla."):
            return True
    return False


def _names_device(event: Event) -> bool:
    given = ast.unparse(event.call) if event.call else ""
    return event.method == "cuda" or "cuda" in given or "device" in given


def _is_used(optimizer: str, later: list[Event]) -> bool:
    """Return True if the optimizer steps afterwards, or is given to something; an attribute may be used anywhere."""
    if "." in optimizer:
        return True
    for event in later:
        is_step = event.method == "step" and event.receiver is not None and ast.unparse(event.receiver) == optimizer
        given = [*event.call.args, *(each.value for each in event.call.keywords)] if event.call else []
        if is_step or any(ast.unparse(each) == optimizer for each in given):
            return True
    return False


def _is_mended(optimizer: str, later: list[Event]) -> bool:
    """Return True if parameters are added to the optimizer, or it is made again before it steps."""
    for event in later:
        if event.receiver is not None and ast.unparse(event.receiver) == optimizer:
            if event.method == "step":
                return False
            if event.method == "add_param_group":
                return True
        if _is_made_again(event, optimizer) and not _is_prepared(event):
            return True
    return False


def _is_prepared(event: Event) -> bool:
    """Return True for ``model, optimizer = accelerator.prepare(model, optimizer)``."""
    return isinstance(event.node, ast.Assign) and "prepare" in ast.unparse(event.node.value)


OPTIMIZER_TOO_EARLY = Rule(
    "optimizer_too_early",
    "critical",
    "",
    "a model gets other parameters after its optimizer was made",
    find_optimizer_too_early,
)
