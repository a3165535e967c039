"""backward_in_autocast: a backward pass inside autocast."""

from __future__ import annotations

from collections.abc import Iterator

from gradcanary.check.autocast import autocast_of
from gradcanary.check.findings import Found, Rule
from gradcanary.check.program import Program

WHY = (
    "Backward ops run in the dtype that autocast chose for their forward ops, inside the block or not, so PyTorch "
    "recommends to end the block after the loss. Inside, autocast casts custom backward code, too."
)
FIX = {
    "torch": "End the block after the loss: backward() has the indentation of 'with autocast'.",
    "accelerate": "End the block after the loss: accelerator.backward(loss) goes below 'with accelerator.autocast()'.",
}


def find_backward_in_autocast(program: Program) -> Iterator[Found]:
    """Yield backward passes whose innermost autocast block is not switched off."""
    if not program.words & {"backward", "manual_backward"}:
        return
    reported = set()
    for event in program.backward_events():
        autocast = autocast_of(event, program)
        if autocast is not None and not autocast.is_off and event.node not in reported:
            reported.add(event.node)
            yield Found(event.node, "the backward pass runs inside autocast", WHY, program.wording(FIX))


BACKWARD_IN_AUTOCAST = Rule(
    "backward_in_autocast",
    "information",
    "grad_scaler",
    "a backward pass inside autocast, which PyTorch does not recommend",
    find_backward_in_autocast,
)
