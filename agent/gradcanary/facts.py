"""Facts about the session's own numbers: those that are missing, and those that need an explanation."""

from collections.abc import Iterable, Sequence

from gradcanary import wire, wording

NO_CALLBACKS = wire.Fact(
    code="no_engine_callback",
    text="This version of torch has no callback at the end of backward: gradients are read at the optimizer step, "
    "after any clipping, so falls are not looked for.",
    layers=(),
)
NO_STEP = wire.Fact(
    code="no_step",
    text="There are backward passes, and no optimizer step of the watched parameters: nothing is measured. A loop that "
    "updates its parameters itself calls gradcanary.watch(model) once and gradcanary.step() after each update. Where "
    "copies of the parameters are updated, watch(optimizer=) takes their optimizer.",
    layers=(),
)
STILL_NO_STEP = (
    "no step until the end: nothing was measured. A loop that updates its parameters itself calls "
    "gradcanary.watch(model) once and gradcanary.step() after each update"
)
SHARDED = wire.Fact(
    code="sharded",
    text="Each process holds a part of each gradient and sends what it measured of it; the collector puts them "
    "together. The dtype is that of the parts after they were reduced: a reduction in bfloat16 does not show in it.",
    layers=(),
)
FLAT = wire.Fact(
    code="flat_shards",
    text="FullyShardedDataParallel gives each process an unnamed part of its gradients: what is shown are parts of the "
    "first rank, smaller than the whole. Those of fully_shard (FSDP2) are put together.",
    layers=(),
)
PIPELINE = wire.Fact(
    code="pipeline",
    text="The model is cut into pipeline stages. Each rank sends the parameters of its own stage: those of a rank "
    "that is not watched are missing.",
    layers=(),
)
OTHER_LAYERS = wire.Fact(
    code="other_layers",
    text="Ranks of this launch train different parameters, as stages of a pipeline do. Each sends its own. A "
    "parameter with the name of another rank's has a prefix, as rank3. A step is shown when all these ranks have "
    "passed it. Loss, learning rates and logged numbers are those of rank 0.",
    layers=(),
)
COMPILED_STEP = wire.Fact(
    code="compiled_step",
    text="The optimizer steps inside a compiled graph, where nothing of it is seen: there are no learning rates and no "
    "clip factors, and a step that a GradScaler skipped counts as made.",
    layers=(),
)
COMPILED_STEPS = wire.Fact(
    code="compiled_steps",
    text="An optimizer steps inside a compiled graph, and which one is unknown: nothing is measured. "
    "watch(model, optimizer) follows one; an optimizer.step() outside of torch.compile is always seen.",
    layers=(),
)
RECORDED = wire.Fact(
    code="cuda_graph",
    text="A CUDA graph of the training is recorded. Nothing of the agent becomes part of it, so backward passes and "
    "steps that are replayed are not seen; steps that are not replayed are, with the gradients that they find.",
    layers=(),
)
SLOW_DEVICE = wire.Fact(
    code="slow_device",
    text="On this kind of device a value can only be read by waiting for it: each 100th step is sampled, and waits. "
    "watch(every=) sets another interval.",
    layers=(),
)
LAZY_DEVICE = wire.Fact(
    code="lazy_device",
    text="Parameters on an XLA device are not measured: a value read there would cut the graph that torch gathers, "
    "and so slow the training down.",
    layers=(),
)
LATE_GROUP = wire.Fact(
    code="late_process_group",
    text="The process group was made after this session had begun to report, so each process reports as if it trained "
    "alone. Call gradcanary.watch() after torch.distributed.init_process_group().",
    layers=(),
)
PRINTED = {
    "compiled_step",
    "compiled_steps",
    "cuda_graph",
    wire.FLOAT16_WITHOUT_SCALER,
    "late_process_group",
    "lazy_device",
    "no_step",
    "slow_device",
    "too_many_layers",
}
"""Codes of facts that are also printed on stderr: they name layers, gradients or steps that are missing."""

MOST_NAMES = 200
"""Names in the fact of frozen parameters: each hello and each answer about the run carries them."""

NO_SCALER = wire.Fact(
    code=wire.FLOAT16_WITHOUT_SCALER,
    text="Gradients are in float16, where what is under 6e-8 is zero, and no GradScaler was found that steps this "
    "optimizer: small gradients are lost unless the loop scales its loss itself. torch.amp.GradScaler does that; "
    "bfloat16 and float32 do not need it.",
    layers=(),
)


def merged(before: Iterable[wire.Fact], new: Sequence[wire.Fact]) -> tuple[wire.Fact, ...]:
    """Return the facts with new ones, each once; of some codes the last fact counts."""
    replaced = wire.REPLACED_FACTS.intersection(fact.code for fact in new)
    return tuple(dict.fromkeys((*(fact for fact in before if fact.code not in replaced), *new)))


def float16_gradients(names: Sequence[str], step: int) -> wire.Fact:
    """Return the fact that the values of gradients show that they are computed in float16."""
    text = (
        f"At step {step:,}, the gradients of {wording.count(len(names), 'parameter')} were float32 tensors of numbers "
        "computed in float16: each small element was a multiple of its smallest number."
    )
    return wire.Fact(wire.FLOAT16_GRADIENTS, text, tuple(names))


def float16_limit(names: Sequence[str], step: int) -> wire.Fact:
    """Return the fact that the smallest number of float16 cuts gradients off."""
    text = (
        f"At step {step:,}, a quarter or more of the gradients of {wording.count(len(names), 'parameter')} was zero, "
        "and most other elements were under 2^-20, where float16 has 4 bits or fewer: what is under 2^-25 becomes "
        "zero."
    )
    return wire.Fact(wire.FLOAT16_LIMIT, text, tuple(names))


def not_optimized(names: Sequence[str], step: int) -> wire.Fact:
    """Return the fact that parameters receive gradients and are in no optimizer."""
    count, them = (
        ("1 trainable parameter", "it") if len(names) == 1 else (f"{len(names):,} trainable parameters", "them")
    )
    text = f"At step {step:,}, {count} received gradients, and no optimizer held {them}."
    return wire.Fact("not_optimized", text, tuple(names))


def own_loss(names: Sequence[str]) -> wire.Fact:
    """Return the fact of the parameters of another optimizer, whose loss is not the one that is recorded."""
    its, theirs = ("its", "its") if len(names) == 1 else ("their", "theirs")
    text = (
        f"{wording.count(len(names), 'parameter', ('is', 'are'))} in another optimizer than the largest one, with "
        f"backward passes of {its} own: the loss that is recorded is not {theirs}."
    )
    return wire.Fact(wire.OWN_LOSS, text, tuple(names))


def never_cleared(names: Sequence[str], total: int, steps: int, step: int) -> wire.Fact:
    """Return the fact that no part of the loop cleared these gradients for ``steps`` steps, of ``total`` layers."""
    whose = "the gradients" if len(names) == total else f"the gradients of {wording.count(len(names), 'parameter')}"
    text = f"At step {step:,}, {whose} had not been cleared for {steps} steps: each step used the sum of all so far."
    return wire.Fact(wire.NEVER_CLEARED, text, () if len(names) == total else tuple(names))


def undone_updates(names: Sequence[str], step: int) -> wire.Fact:
    """Return the fact that updates of the optimizer are undone before its next step."""
    compared = wording.count(len(names), "parameter")
    text = (
        f"Until step {step:,}, several updates of {compared} were compared: the optimizer had changed the weights, and "
    )
    text += "when a later step began, they were back at their values of before."
    return wire.Fact(wire.UNDONE_UPDATES, text, tuple(names))


def frozen_parameters(names: Sequence[str], total: int, since: int | None) -> wire.Fact:
    """Return the fact that parameters of the model are no layers, as their requires_grad is False.

    ``since`` is the step at which that changed; the names are cut to MOST_NAMES.
    """
    beginning = "" if since is None else f"From step {since:,}, "
    verb = wording.agree(len(names), ("is", "are"))
    text = f"{beginning}{len(names):,} of {wording.count(total, 'parameter')} {verb} frozen"
    text += ": requires_grad is False." if names else "."
    if len(names) > MOST_NAMES:
        text += f" The first {MOST_NAMES} are listed."
    return wire.Fact(wire.FROZEN_PARAMETERS, text, tuple(names[:MOST_NAMES]))


def too_many_layers(found: int, most: int) -> wire.Fact:
    """Return the fact that a training has more layers than a session may have."""
    text = (
        f"This training has {found:,} parameters, and a run at most {most:,}: the first {most:,} are watched, the "
        f"other {found - most:,} are not. watch(include=) or watch(exclude=) chooses."
    )
    return wire.Fact("too_many_layers", text, ())
