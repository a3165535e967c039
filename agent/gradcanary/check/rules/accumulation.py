"""loss_not_divided, scheduler_per_micro_step and never_cleared: what several backward passes for one step need."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gradcanary.check.findings import Found, Rule
from gradcanary.check.flow import Event
from gradcanary.check.kinds import OPTIMIZER, SCHEDULER
from gradcanary.check.program import Program
from gradcanary.check.rules.losses import may_be_divided
from gradcanary.check.scopes import FUNCTIONS, last_name
from gradcanary.check.steps import FRAMEWORK, OptimizerStep, Period, TrainingStep, clears_gradients

_WHY_SUM = (
    "Gradients add up over {count} backward passes, so each step gets {count} times the gradient of one batch. Limits "
    "of clipping and learning rates of SGD are as much too small or too large, and change with {count}."
)
_FIX_DIVIDE = {
    "torch": "Divide before backward():\nloss = loss / {count}",
    "accelerate": (
        "Divide before backward(), or let Accelerate do it: Accelerator(gradient_accumulation_steps={count}), "
        "'with accelerator.accumulate(model)' and accelerator.backward(loss):\n"
        "loss = loss / {count}"
    ),
    "lightning": (
        "Divide before backward(), or let Lightning do it, with automatic optimization:\n"
        "Trainer(accumulate_grad_batches={count})"
    ),
}
_WHY_SCHEDULE = (
    "The optimizer steps once in {count} passes, and the schedule in each: warm-up and decay are over {count} times "
    "sooner than a schedule that was counted in optimizer steps."
)
_FIX_SCHEDULE = "Step the schedule right after the optimizer, under the same condition:\n{step}\n{schedule}"
_WHY_CLEARED = (
    "backward() adds to the gradients that are there: each step takes the sum of all batches since the start."
)
_FIX_CLEAR = "Clear them after each step of the optimizer:\n{optimizer}.step()\n{optimizer}.zero_grad()"

_CLEARS_ELSEWHERE = re.compile(r"on_|.*(callback|hook|handler|zero|clear|reset|closure|update_params)")
_HARMLESS = re.compile(
    r"(print|len|isinstance|hasattr|id|type|str|next|iter|list|enumerate|zip|tqdm|info|debug|append)"
    r"|.*(eval|valid|test|save|log|print|sample|generat|checkpoint|plot|count|summary|num_param|lr).*"
)


def find_loss_not_divided(program: Program) -> Iterator[Found]:
    """Yield backward passes that add up to a step every ``% K`` passes, of losses that nothing divides."""
    for step in program.steps:
        period = accumulation_of(step)
        if period is None or _divides_elsewhere(period.count, step, program):
            continue
        for backward in step.backwards:
            if not may_be_divided(backward, period.count, step, program):
                count = ast.unparse(period.count)
                message = f"the loss is not divided by {count}, the number of micro-steps"
                fix = program.wording(_FIX_DIVIDE).format(count=count)
                yield Found(backward.event.node, message, _WHY_SUM.format(count=count), fix)


def accumulation_of(step: TrainingStep) -> Period | None:
    """Return the condition of the optimizer's step, if backward passes certainly add up between two steps.

    So every optimizer's step and all that clears gradients has a condition, and no backward pass has one.
    """
    if not step.is_complete or any(each.how == FRAMEWORK for each in step.backwards):
        return None
    periods = [step.period(each.event) for each in step.optimizer_steps]
    if not all(periods) or len({ast.dump(period.count) for period in periods if period}) != 1:
        return None
    if any(step.period(each.event) for each in step.backwards):
        return None
    if not step.clears or not all(step.period(event) for event in step.clears):
        return None
    return periods[0]


def _divides_elsewhere(count: ast.expr, step: TrainingStep, program: Program) -> bool:
    """Return True if the file divides something else by the count, such as gradients or the learning rate."""
    for node in program.nodes:
        if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Div):
            divisor = node.right if isinstance(node, ast.BinOp) else node.value
            dividend = node.left if isinstance(node, ast.BinOp) else node.target
            if _mentions(divisor, count) and not any(isinstance(each, ast.Call) for each in ast.walk(dividend)):
                return True
    return any(_hands_count_over(event, count, program) or _changes_gradients(event) for event in step.events)


def _hands_count_over(event: Event, count: ast.expr, program: Program) -> bool:
    """Return True for a call of something unknown with the count as an argument."""
    if event.call is None or isinstance(count, ast.Constant):
        return False
    callee = event.call.func
    if program.scopes.function(callee, event.scope) or _HARMLESS.fullmatch(last_name(callee)):
        return False
    given = (*event.call.args, *(each.value for each in event.call.keywords))
    return any(ast.dump(each) == ast.dump(count) for each in given)


def _changes_gradients(event: Event) -> bool:
    """Return True where gradients are divided or multiplied in place."""
    node = event.node
    if isinstance(node, ast.AugAssign):
        return "grad" in ast.unparse(node.target)
    return event.method in ("div_", "mul_", "_foreach_div_", "_foreach_mul_") and "grad" in ast.unparse(node)


def _mentions(node: ast.AST, other: ast.expr) -> bool:
    text = ast.dump(other)
    return any(ast.dump(each) == text for each in ast.walk(node))


def find_scheduler_per_micro_step(program: Program) -> Iterator[Found]:
    """Yield schedules that step in every pass of a loop whose optimizer steps every ``% K`` passes."""
    if program.words & {"Accelerator", "accelerator", "Fabric", "deepspeed"}:
        return  # a prepared schedule steps with its optimizer by itself
    for step in program.steps:
        period = accumulation_of(step)
        for event in step.events if period is not None else ():
            if not _is_schedule_step(event, program) or period is None or event.receiver is None:
                continue
            if step.period(event) or _conditions(event, step) or step.inner_loops(event):
                continue
            if _is_counted_in_passes(event, step, period, program):
                continue
            count = ast.unparse(period.count)
            texts = {"step": ast.unparse(step.optimizer_steps[0].event.node), "schedule": ast.unparse(event.node)}
            fix = _FIX_SCHEDULE.format(**texts)
            message = f"the schedule steps in each micro-step, the optimizer in one of {count}"
            yield Found(event.node, message, _WHY_SCHEDULE.format(count=count), fix)


def _is_schedule_step(event: Event, program: Program) -> bool:
    if event.method != "step" or event.call is None or event.call.args or event.call.keywords:
        return False
    kind = program.kind(event.receiver, event.scope)
    return kind is not None and kind.name == SCHEDULER and kind.is_made_here


def _conditions(event: Event, step: TrainingStep) -> bool:
    """Return True if a condition inside the step is around an event."""
    return any(step.holds(guard) for guard in event.guards)


def _is_counted_in_passes(event: Event, step: TrainingStep, period: Period, program: Program) -> bool:
    """Return True if the schedule's length is a number of passes: ``len(loader)`` or the loop's own, undivided."""
    if event.receiver is None:
        return True
    made = [each.node for each in program.scopes.values(event.receiver, event.scope).found]
    nodes = [node for each in made for node in ast.walk(each)]
    names = [node for node in nodes if isinstance(node, (ast.Name, ast.Attribute))]
    nodes += [node for each in names for value in program.scopes.values(each).found for node in ast.walk(value.node)]
    texts = {ast.dump(node) for node in nodes}
    bounds = _bounds(step) - {ast.dump(period.count)}
    has_length = any(isinstance(node, ast.Call) and last_name(node.func) == "len" for node in nodes)
    return (has_length or bool(bounds & texts)) and ast.dump(period.count) not in texts


def _bounds(step: TrainingStep) -> set[str]:
    """Return what the length of the loop is written with: ``max_steps`` of ``range(max_steps)``."""
    length = getattr(step.loop, "iter", None) or getattr(step.loop, "test", None)
    nodes = [] if length is None else ast.walk(length)
    return {ast.dump(each) for each in nodes if isinstance(each, (ast.Name, ast.Attribute, ast.Constant))}


def find_never_cleared(program: Program) -> Iterator[Found]:
    """Yield optimizer's steps of loops in which nothing clears gradients, where the file shows all of the loop."""
    if not program.steps or _has_alias_of_zero_grad(program):
        return
    clearing = {
        node.name
        for node in program.nodes
        if isinstance(node, FUNCTIONS) and any(clears_gradients(each) for each in ast.walk(node))
    }
    reported = set()
    for step in program.steps:
        if not _is_repeated(step) or not step.is_complete or step.clears or _may_clear(step, clearing, program):
            continue
        if any(each.how == FRAMEWORK for each in step.backwards):
            continue
        first = step.optimizer_steps[0]
        if first.optimizer is None or _is_made_in(step, first) or first.event.node in reported:
            continue
        if _is_known(first, program):
            reported.add(first.event.node)
            fix = _FIX_CLEAR.format(optimizer=ast.unparse(first.optimizer))
            yield Found(first.event.node, "gradients are never cleared in this loop", _WHY_CLEARED, fix)


def _has_alias_of_zero_grad(program: Program) -> bool:
    """Return True if zero_grad is mentioned without being called."""
    mentions = sum(isinstance(node, ast.Attribute) and node.attr == "zero_grad" for node in program.nodes)
    calls = sum(isinstance(node, ast.Call) and last_name(node.func) == "zero_grad" for node in program.nodes)
    return mentions > calls


def _is_repeated(step: TrainingStep) -> bool:
    """Return True for a loop that does not certainly end in its first pass."""
    body = getattr(step.loop, "body", ())
    return bool(body) and not any(isinstance(each, (ast.Break, ast.Return)) for each in body)


def _is_made_in(step: TrainingStep, made: OptimizerStep) -> bool:
    """Return True if each pass makes an optimizer of its own, so usually a model, too."""
    return bool(step.makers(made.optimizer, made.event))


def _is_known(step: OptimizerStep, program: Program) -> bool:
    """Return True if the file shows that the optimizer is one of torch or of a known library."""
    kind = program.kind(step.optimizer, step.event.scope)
    return kind is not None and kind.name == OPTIMIZER and kind.is_made_here


def _may_clear(step: TrainingStep, clearing: set[str], program: Program) -> bool:
    """Return True if the loop calls something that the file does not hold, and that could clear gradients."""
    held = _held_names(step)
    for event in step.events:
        if event.call is None:
            continue
        name = last_name(event.call.func)
        if name in clearing or _CLEARS_ELSEWHERE.match(name):
            return True
        if any(isinstance(each, ast.Lambda) for each in event.call.args):
            return True
        if program.scopes.function(event.call.func, event.scope) is not None or _HARMLESS.fullmatch(name):
            continue
        if (program.full_name(event.call.func) or "").startswith("torch."):
            continue
        given = (*event.call.args, *(each.value for each in event.call.keywords))
        is_handed = any(last_name(each) in held for each in given)
        if name != "step" and (is_handed or _is_inherited(event)):
            return True
    return False


def _is_inherited(event: Event) -> bool:
    """Return True for a method of ``self`` that the class does not hold, and for ``super()``."""
    owner, method = event.scope.owner, event.method
    if event.receiver is None or owner is None:
        return False
    if isinstance(event.receiver, ast.Call):
        return last_name(event.receiver.func) == "super"
    return last_name(event.receiver) == "self" and f"self.{method}" not in owner.bindings


def _held_names(step: TrainingStep) -> set[str]:
    """Return the names of the optimizers of a step, of models that it calls, and ``self``."""
    names = {last_name(each.optimizer) for each in step.optimizer_steps if each.optimizer is not None}
    names |= {last_name(event.call.func) for event in step.events if event.call}
    return (names | {"self", "model", "net", "optimizer"}) - {""}


LOSS_NOT_DIVIDED = Rule(
    "loss_not_divided",
    "warning",
    "clipping",
    "gradients of K micro-steps are summed, and the loss is not divided by K",
    find_loss_not_divided,
)
SCHEDULER_PER_MICRO_STEP = Rule(
    "scheduler_per_micro_step",
    "warning",
    "shrinking_schedule",
    "the schedule of the learning rate steps in each micro-step, not with the optimizer",
    find_scheduler_per_micro_step,
)
NEVER_CLEARED = Rule(
    "never_cleared",
    "critical",
    "",
    "a loop steps an optimizer and never clears its gradients",
    find_never_cleared,
)
