"""no_sync_missing: DistributedDataParallel averages gradients over the ranks in micro-steps that no step follows.

The result is right, the time is lost. FSDP is left out: there ``no_sync()`` keeps unsharded gradients, which takes the
memory that FSDP was chosen to save.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gradcanary.check.findings import Found, Rule
from gradcanary.check.program import Program
from gradcanary.check.rules.accumulation import accumulation_of
from gradcanary.check.scopes import last_name
from gradcanary.check.steps import FRAMEWORK, TrainingStep

_SWITCHES = frozenset({"no_sync", "require_backward_grad_sync", "no_backward_sync", "accumulate"})
_DDP = "DistributedDataParallel"

_WHY = (
    "DistributedDataParallel averages the gradients of all ranks in every backward pass; only the last one before the "
    "optimizer's step needs it. The result is the same, and the time for the other ones is lost."
)
_FIX = (
    "Run the other micro-steps, forward and backward, in model.no_sync():\n"
    "with contextlib.nullcontext() if is_last_micro_step else model.no_sync():"
)


def find_no_sync_missing(program: Program) -> Iterator[Found]:
    """Yield backward passes that accumulate, in a file that wraps its model in DDP and never switches averages off."""
    if not _wraps_in_ddp(program) or any(word in _SWITCHES for word in program.words):
        return
    reported: set[ast.AST] = set()
    for step in program.steps:
        for backward in step.backwards:
            node = backward.event.node
            if backward.how != FRAMEWORK and node not in reported and _accumulates(step, backward.event.loops):
                reported.add(node)
                yield Found(node, "each micro-step averages gradients over all ranks: no_sync() is missing", _WHY, _FIX)


def _wraps_in_ddp(program: Program) -> bool:
    calls = (node.func for node in program.nodes if isinstance(node, ast.Call))
    return any((program.full_name(call) or last_name(call)).rpartition(".")[2] == _DDP for call in calls)


def _accumulates(step: TrainingStep, loops: tuple[ast.AST, ...]) -> bool:
    """Return True if several backward passes certainly make one step: ``% K``, or a loop inside that has no step."""
    if accumulation_of(step) is not None:
        return True
    inner = loops if step.loop is None else loops[loops.index(step.loop) + 1 :]
    return bool(inner) and step.loop is not None


NO_SYNC_MISSING = Rule(
    "no_sync_missing",
    "information",
    "",
    "DDP averages gradients in micro-steps that no step follows",
    find_no_sync_missing,
)
