"""What a session says of numbers that it cannot have, or has differently than a reader would think."""

import torch

from gradcanary import wire
from gradcanary.weights import MAX_BYTES, bytes_of_copy

NO_CALLBACKS = wire.Fact(
    code="no_engine_callback",
    text="This version of torch has no callback at the end of backward: gradients are read at the optimizer step, "
    "after any clipping, so falls are not looked for.",
    layers=(),
)
NO_OPTIMIZER = wire.Fact(
    code="no_optimizer",
    text="There are backward passes, and no step of a torch.optim optimizer that holds the watched parameters. Where "
    "the loop updates them itself, an optimizer is what to give it: torch.optim.SGD(model.parameters(), lr).step() is "
    "p -= lr * p.grad; where copies of them are updated, give watch() that optimizer; where gradients are summed "
    "by hand, there is Watch.observe_accumulator().",
    layers=(),
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
COMPILED_STEP = wire.Fact(
    code="compiled_step",
    text="The optimizer steps inside a compiled graph, where nothing of it is seen: there are no learning rates and no "
    "clip factors, and a step that a GradScaler skipped counts as made.",
    layers=(),
)
COMPILED_STEPS = wire.Fact(
    code="compiled_steps",
    text="An optimizer steps inside a compiled graph, and which one cannot be told: nothing is measured. "
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
    "watch(every=) decides otherwise.",
    layers=(),
)
NO_SCALER = wire.Fact(
    code="fp16_without_scaler",
    text="Gradients are in float16, where what is under 6e-8 is zero, and no GradScaler was found that steps this "
    "optimizer: small gradients are lost unless the loop scales its loss itself. torch.amp.GradScaler does that; "
    "bfloat16 and float32 do not need it.",
    layers=(),
)


def of_layers(layer_set: wire.LayerSet) -> tuple[wire.Fact, ...]:
    """Return what there is to say of the layers themselves."""
    large = tuple(
        layer.name
        for layer in layer_set.layers
        if bytes_of_copy(layer.local_numel, getattr(torch, layer.param_dtype)) > MAX_BYTES
    )
    if not large:
        return ()
    text = (
        "Update ratio and weight norm are not measured of these layers: that takes a copy of the layer, and "
        f"theirs would need more than {MAX_BYTES / 2**20:.0f} MiB."
    )
    return (wire.Fact("no_update_ratio", text, large),)
