"""fp16_without_scaler and clip_before_unscale: what float16 needs, a scaled loss and gradients unscaled in time."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradcanary.check.autocast import FLOAT16, autocast_of, dtype_of, has_no_gradient
from gradcanary.check.findings import Found, Rule
from gradcanary.check.flow import Event, Guard
from gradcanary.check.kinds import OPTIMIZER
from gradcanary.check.program import Program
from gradcanary.check.scopes import last_name
from gradcanary.check.steps import CLIPS, PLAIN, SCALED, Backward, OptimizerStep, TrainingStep

SCALES_ELSEWHERE = re.compile(
    r"scaler|loss_?scal|scal(e|ing)_?(loss|factor)|grad_?scal|scaled_?loss|accelerator|fabric|deepspeed|lightning"
    r"|manual_backward|optim_?wrapper|colossal|apex",
    re.IGNORECASE,
)
"""A name of this kind anywhere in the file: the loss may be scaled where the file does not show it."""

_WHY_UNSCALED = (
    "In float16, gradients under 3e-8 become zero, and those under 6e-5 lose bits. Without a scaled loss the small "
    "ones vanish, and their parameters stop learning while the loss may still fall."
)
_FIX_SCALER = (
    "Scale the loss, or take dtype=torch.bfloat16, which needs no scaling:\n"
    'scaler = torch.amp.GradScaler("cuda")   # once, before the loop\n'
    "scaler.scale({loss}).backward()\n"
    "scaler.step({optimizer})\n"
    "scaler.update()"
)
_FIX_WEIGHTS = (
    "Keep float32 weights: leave out the cast, and run the forward pass under torch.autocast, with a GradScaler or in "
    "bfloat16. A GradScaler cannot unscale gradients of float16 weights."
)
_WHY_CLIP = (
    "The gradients are still multiplied by the scale (65536 at first), so the limit is that much smaller than written "
    "here: nearly every step is clipped, and how far depends on the scale."
)
_FIX_CLIP = (
    "Unscale before the clip; scaler.step() does not unscale a second time:\n{scaler}.unscale_({optimizer})\n{clip}"
)


def find_fp16_without_scaler(program: Program) -> Iterator[Found]:
    """Yield float16 autocast blocks, and casts of weights to float16, of losses that nothing in the file scales."""
    if any(SCALES_ELSEWHERE.search(word) for word in program.words):
        return
    reported = set()
    for step in program.steps:
        plain = [backward for backward in step.backwards if backward.how == PLAIN]
        if not step.is_complete or len(plain) != len(step.backwards):
            continue
        for backward in plain:
            autocast = _float16_autocast(backward, step, program)
            if autocast is not None and autocast not in reported:
                reported.add(autocast)
                names = {"loss": _text(backward.loss), "optimizer": _text(step.optimizer_steps[0].optimizer)}
                fix = _FIX_SCALER.format(**names)
                yield Found(autocast, "float16 autocast without a GradScaler", _WHY_UNSCALED, fix)
        yield from _float16_weights(step, program)


def _float16_autocast(backward: Backward, step: TrainingStep, program: Program) -> ast.Call | None:
    """Return the float16 autocast that the loss of a backward pass comes from, if the loss is not scaled by hand."""
    makers = step.makers(backward.loss, backward.event)
    if backward.loss is None or any(_scales(each.node) for each in (*makers, backward.event)):
        return None
    for event in (*makers, backward.event):
        if event is not backward.event and has_no_gradient(event, program):
            continue
        if not any(isinstance(node, ast.Call) for node in ast.walk(event.node)):
            continue
        autocast = autocast_of(event, program)
        if autocast is not None and not autocast.is_off and autocast.dtype == FLOAT16:
            return autocast.node
    return None


def _scales(node: ast.AST) -> bool:
    """Return True if the node multiplies with a number from 2 on, or with something that is called a scale."""
    for each in ast.walk(node):
        if isinstance(each, ast.BinOp) and isinstance(each.op, (ast.Mult, ast.LShift)):
            sides = (each.left, each.right)
            if any(isinstance(side, ast.Constant) and _is_from_two(side.value) for side in sides):
                return True
        if isinstance(each, (ast.Name, ast.Attribute)):
            name = each.id if isinstance(each, ast.Name) else each.attr
            if "scal" in name.lower():
                return True
    return isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Mult)


def _is_from_two(value: object) -> bool:
    return isinstance(value, (int, float)) and value >= 2


def _float16_weights(step: TrainingStep, program: Program) -> Iterator[Found]:
    """Yield casts of a whole model to float16 whose parameters an optimizer of this step holds."""
    kept = {"float", "float32", "requires_grad", "requires_grad_", "autocast"}
    if any(isinstance(node, ast.Attribute) and node.attr in kept for node in program.nodes):
        return  # some of it may be float32, or frozen
    for each in step.optimizer_steps:
        for made in program.scopes.values(each.optimizer, each.event.scope).found if each.optimizer else ():
            model = _whole_model(made.node)
            cast = None if model is None else _cast_to_float16(model, program)
            if cast is not None:
                yield Found(cast, "the weights are float16, and nothing scales the loss", _WHY_UNSCALED, _FIX_WEIGHTS)


def _whole_model(made: ast.expr) -> ast.expr | None:
    """Return ``model`` of ``SGD(model.parameters(), ...)``."""
    first = made.args[0] if isinstance(made, ast.Call) and made.args else None
    if isinstance(first, ast.Call) and isinstance(first.func, ast.Attribute) and first.func.attr == "parameters":
        return first.func.value
    return None


def _cast_to_float16(model: ast.expr, program: Program) -> ast.Call | None:
    """Return the call that makes a model float16, if every value of it is."""
    values = program.scopes.values(model)
    made = [each.node for each in values.found]
    if not values.is_complete or not made:
        return None
    casts = [cast for each in made if (cast := _cast_in_chain(each, program))]
    if len(casts) == len(made):
        return casts[0]
    own = [event.call for event in program.events() if event.receiver is not None and _is_same(event.receiver, model)]
    return next((call for call in own if call is not None and _is_cast(call, program)), None)


def _cast_in_chain(node: ast.expr, program: Program) -> ast.Call | None:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if _is_cast(node, program):
            return node
        node = node.func.value
    return None


def _is_cast(call: ast.Call, program: Program) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "half":
        return not call.args
    given = [*call.args, *(each.value for each in call.keywords)]
    scope = program.scopes.scope(call)
    return call.func.attr == "to" and any(dtype_of(each, scope, program) == FLOAT16 for each in given)


def _is_same(one: ast.expr, other: ast.expr) -> bool:
    return ast.dump(one) == ast.dump(other)


def find_clip_before_unscale(program: Program) -> Iterator[Found]:
    """Yield clips between the backward pass of a scaled loss and the scaler's step, where no unscale_ stands before."""
    reported = set()
    for step in program.steps:
        if not step.is_complete:
            continue
        for clip in step.clips:
            scaled = _scaled_step_of(clip, step, program)
            if scaled is not None and clip.node not in reported:
                reported.add(clip.node)
                names = {"scaler": _text(scaled.scaler), "optimizer": _text(scaled.optimizer), "clip": _text(clip.node)}
                fix = _FIX_CLIP.format(**names)
                yield Found(clip.node, "gradients are clipped before they are unscaled", _WHY_CLIP, fix)


def _text(node: ast.AST | None) -> str:
    return "" if node is None else ast.unparse(node)


def _scaled_step_of(clip: Event, step: TrainingStep, program: Program) -> OptimizerStep | None:
    """Return the step that a scaler makes after the clip, if the clip certainly meets scaled gradients."""
    before, after = set(step.before(clip)), set(step.after(clip))
    scaled = [each for each in step.backwards if each.event in before and each.how == SCALED]
    steps = [each for each in step.optimizer_steps if each.event in after and each.scaler is not None]
    others = [each for each in step.backwards if each.event in before and each.how != SCALED]
    if not scaled or not steps or others or any(_may_unscale(each, steps[0], program) for each in before):
        return None
    if not all(_happens_with(clip, each.event) for each in (scaled[-1], steps[0])):
        return None
    scaler = steps[0].scaler
    if scaler is None or _is_disabled(scaler, steps[0].event, program):
        return None
    is_known = program.is_kind(steps[0].optimizer, steps[0].event.scope, OPTIMIZER)
    return steps[0] if is_known else None


def _may_unscale(event: Event, step: OptimizerStep, program: Program) -> bool:
    """Return True for ``unscale_``, and for a call of something unknown that is given the scaler or the optimizer."""
    if event.call is None:
        return False
    name = last_name(event.call.func)
    if "unscale" in name or name in ("step", "update", "zero_grad", "scale"):
        return "unscale" in name
    if program.scopes.function(event.call.func, event.scope) or (program.full_name(event.call.func) or "") in CLIPS:
        return False
    held = {_text(step.scaler), _text(step.optimizer)}
    return any(_text(each) in held for each in (*event.call.args, *(given.value for given in event.call.keywords)))


def _happens_with(clip: Event, other: Event) -> bool:
    """Return True if there are passes with both: no condition of the clip may be the opposite of one of the other."""
    theirs = [each for each in other.guards if all(each.node is not ours.node for ours in clip.guards)]
    names = {name for each in theirs for name in _names(each)} | {"scaler", "use_amp", "amp", "fp16"}
    return not any(
        names & _names(ours) and not any(_is_same_guard(ours, each) for each in other.guards) for ours in clip.guards
    )


def _names(guard: Guard) -> set[str]:
    nodes = ast.walk(guard.test) if guard.test is not None else ()
    found = {each.id for each in nodes if isinstance(each, ast.Name)}
    nodes = ast.walk(guard.test) if guard.test is not None else ()
    return found | {each.attr for each in nodes if isinstance(each, ast.Attribute)}


def _is_same_guard(one: Guard, other: Guard) -> bool:
    if one.test is None or other.test is None:
        return one.node is other.node
    return one.holds == other.holds and _is_same(one.test, other.test)


def _is_disabled(scaler: ast.expr, event: Event, program: Program) -> bool:
    """Return True for ``GradScaler(enabled=False)``."""
    values = program.scopes.values(scaler, event.scope)
    switches = [each.value for made in values.found if isinstance(made.node, ast.Call) for each in made.node.keywords]
    return any(isinstance(each, ast.Constant) and each.value is False for each in switches)


FP16_WITHOUT_SCALER = Rule(
    "fp16_without_scaler",
    "critical",
    "grad_scaler",
    "float16 autocast, or float16 weights, and no GradScaler: small gradients become zero",
    find_fp16_without_scaler,
)
CLIP_BEFORE_UNSCALE = Rule(
    "clip_before_unscale",
    "warning",
    "clipping",
    "gradients are clipped while they are still multiplied by the GradScaler's scale",
    find_clip_before_unscale,
)
