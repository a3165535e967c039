"""A summary of a session's training and measurements, which ``gradcanary run`` and ``attach`` print.

The command line describes a summary where there may be no torch: what needs it is imported where a summary is made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gradcanary import wording

if TYPE_CHECKING:
    from gradcanary import wire
    from gradcanary.export.batches import StepRow
    from gradcanary.export.sender import Sender
    from gradcanary.tracking.recorder import Recorder

MAX_NAMES = 1000


def summarize(recorder: Recorder, sender: Sender | None) -> dict[str, Any]:
    """Return a summary of the layers and of the latest window.

    ``layers`` is None until an optimizer has stepped, ``k`` and ``low`` until a whole window was seen.
    """
    return {**_trained(recorder), **_measured(recorder, sender)}


def _trained(recorder: Recorder) -> dict[str, Any]:
    from gradcanary.model.training_loop import framework_of

    first_step, layers = recorder.first_step, recorder.layers
    if first_step is None or layers is None:
        return {"layers": None}
    every = layers.layer_set.layers
    kinds = [layer.param_dtype for layer in every]
    return {
        "layers": len(every),
        "dtypes": {kind: kinds.count(kind) for kind in sorted(set(kinds))},
        "optimizer": first_step.optimizer,
        "framework": framework_of(layers.framework, first_step.loop),
        "step": recorder.clock.step,
        "step_source": first_step.source,
    }


def _measured(recorder: Recorder, sender: Sender | None) -> dict[str, Any]:
    row, first_step = None if sender is None else sender.latest, recorder.first_step
    if row is None or first_step is None or recorder.layers is None or row.step <= first_step.number:
        return {"k": None, "low": None}
    return {"k": row.micro_steps, "low": _low(row), "accumulators": _accumulators(row)}


def _low(row: StepRow) -> list[str]:
    """Return the layers whose gradients are below the rules' limit."""
    from gradcanary.export.reader import LOW

    column = row.columns.get("absmax")
    if column is None:
        return []
    every = row.layer_set.layers
    positions = range(len(every)) if column.layers is None else column.layers
    low = [position for position, value in zip(positions, column.values, strict=True) if value < LOW]
    return [every[position].name for position in low[:MAX_NAMES]]


def _accumulators(row: StepRow) -> dict[str, int]:
    stored = [each[1] for each in row.accumulators if each is not None and each[1] is not None]
    return {kind: stored.count(kind) for kind in sorted(set(stored))}


def describe_in_one_line(summary: Mapping[str, Any]) -> str:
    """Return the optimizer, the layers and the accumulation in one line."""
    layers = f"{wording.count(summary['layers'], 'parameter')} ({count_kinds(summary['dtypes'])})"
    return f"{summary['optimizer']}, {layers}, {describe_micro_steps(summary)}"


def describe_incidents(incidents: Sequence[wire.Brief]) -> str:
    """Return the incidents of warning and above that are open as a training ends; empty without any."""
    found = [f"{each.rule} ({each.severity}, #{each.id})" for each in incidents if each.severity != "information"]
    return f"{wording.count(len(found), 'incident')} open at the end, {', '.join(found)}" if found else ""


def describe_micro_steps(summary: Mapping[str, Any]) -> str:
    micro_steps = wording.count(summary["k"], "micro-step")
    return f"K = {micro_steps} per step, summed in {count_kinds(summary['accumulators']) or 'nothing yet'}"


def count_kinds(kinds: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {kind}" for kind, count in kinds.items())
