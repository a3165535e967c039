"""One rank of a training under FSDP2, and what a float64 twin of all ranks has as its gradients.

Run as a script: ``sharded.py RANK PORT OUT URL``; the first rank writes OUT: by kind, step and name the norm and the
largest magnitude of the gradient, the update ratio and the norm of the weights.
"""

import copy
import gc
import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

KINDS = ("synced", "unsynced", "clipped", "low", "copies", "summed", "moved", "offloaded", "offloaded-unsynced")
OFFLOADED = KINDS[-2:]
UNSYNCED = ("unsynced", "copies", "offloaded-unsynced")
RANKS, STEPS, MICRO_STEPS = 2, 4, 3


class Model(nn.Module):
    """Of its last layer the second rank has no element, and of the first one an uneven part."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 7), nn.Linear(7, 1)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


def inputs(step: int, micro_step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + 10 * micro_step + rank)
    return torch.randn(8, 16, generator=generator)


Read = dict[str, tuple[float, ...]]


def whole(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the weights of all ranks, in float64."""
    return {name: each.full_tensor().double() for name, each in model.state_dict().items()}


def moved(before: torch.Tensor, after: torch.Tensor) -> tuple[float, float]:
    """Return the update ratio, and the norm of the weights after the step."""
    return float((after - before).norm() / after.norm()), float(after.norm())


def reference(model: nn.Module, step: int) -> Read:
    """Return norm and absmax of the mean over ranks of their sums over micro-steps, in float64, of whole tensors."""
    twin = Model().double()
    twin.load_state_dict(whole(model))
    for rank in range(RANKS):
        for micro_step in range(MICRO_STEPS):
            (twin(inputs(step, micro_step, rank).double()).square().mean() / RANKS).backward()
    read = {name: each.grad for name, each in twin.named_parameters() if each.grad is not None}
    return {name: (float(grad.norm()), float(grad.abs().max())) for name, grad in read.items()}


def train(kind: str, rank: int, url: str | None) -> tuple[list[torch.Tensor], list[Read], int]:
    """Return the shards at the end, what the reference says, and how many collectives there were."""
    torch.manual_seed(0)
    model = Model()
    # Of copies each rank has all, as of a hybrid mesh that shards inside of a node of one process.
    sizes = (RANKS, 1) if kind == "copies" else (RANKS,)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("copies", "shards")[: len(sizes)])
    low = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = {"mp_policy": low} if kind == "low" else {}
    if kind in OFFLOADED:
        policy = {"offload_policy": CPUOffloadPolicy(pin_memory=False)}
    fully_shard(model.first, mesh=mesh, **policy)
    fully_shard(model, mesh=mesh, **policy)
    make = partial(torch.optim.AdamW, model.parameters(), lr=0.01)
    optimizer = None if kind == "moved" else make()
    watch = None
    if url is not None:
        import gradcanary

        watch = gradcanary.watch(model, optimizer, url=url, run=f"shards-{kind}")
    optimizer = make() if optimizer is None else optimizer
    read, before = [], collectives()
    summed = {name: torch.zeros_like(each) for name, each in model.named_parameters()} if kind == "summed" else {}
    tell(watch, summed, is_first=True)
    for step in range(STEPS):
        read.append(reference(model, step))
        if kind == "moved":  # but in the first step, gathered parameters stay in the shards' places
            model.set_reshard_after_backward(step == 0)
        for micro_step in range(MICRO_STEPS):
            if kind in UNSYNCED:
                model.set_requires_gradient_sync(micro_step == MICRO_STEPS - 1)
            loss = model(inputs(step, micro_step, rank)).square().mean()
            # Of each process an addend: its sum is not what is seen here.
            (DTensor.from_local(loss, mesh, [Partial()]) if summed else loss).backward()
            add_up(model, summed)
            assert not (kind in OFFLOADED and waits_for_copies(model)), "each gradient is copied while FSDP2 waits"
        tell(watch, summed)
        hand_over(model, summed)
        if kind == "clipped":
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        weights = whole(model)
        optimizer.step()
        after = whole(model)
        read[-1] = {name: (*values, *moved(weights[name], after[name])) for name, values in read[-1].items()}
        if kind == "moved":
            model.to("cpu")  # with gradients
        optimizer.zero_grad()
    if watch is not None:
        watch.close()
    model.cpu()
    return [copy.copy(each.to_local()) for each in model.parameters()], read, collectives() - before


def waits_for_copies(model: nn.Module) -> list[str]:
    """Return the sharded parameters whose gradients FSDP2 copies to the host without overlap.

    The condition is that of ``foreach_reduce`` in torch: the parameter has a post-accumulate hook.
    """
    return [name for name, each in model.named_parameters() if getattr(each, "_post_accumulate_grad_hooks", None)]


def add_up(model: nn.Module, summed: dict[str, torch.Tensor]) -> None:
    """Sum gradients in tensors of the script's own, each a DTensor like its parameter."""
    for name, total in summed.items():
        parameter = model.get_parameter(name)
        if parameter.grad is not None:
            total += parameter.grad
            parameter.grad = None


def hand_over(model: nn.Module, summed: dict[str, torch.Tensor]) -> None:
    for name, total in summed.items():
        if not name.startswith("unused"):
            model.get_parameter(name).grad = total.clone()
        total.zero_()


def tell(watch: object, summed: dict[str, torch.Tensor], *, is_first: bool = False) -> None:
    """Give the sums of layers that have one, and log a number that all ranks have alike.

    Before any call of log() was right, a DTensor of which each process has a part raises.
    """
    for name, total in summed.items() if watch is not None else ():
        if not name.startswith("unused"):
            watch.observe_accumulator(name, total)
    if watch is None or not summed:
        return
    mesh = summed["first.weight"].device_mesh
    for placement, size in ((Partial(), ()), (Shard(0), (1,))) if is_first else ():
        part = DTensor.from_local(torch.ones(size), mesh, [placement], shape=size, stride=(1,) * len(size))
        with pytest.raises(ValueError, match="full_tensor"):
            watch.log(part=part)
    watch.log(alike=DTensor.from_local(torch.tensor(3.0), mesh, [Replicate()]))


def train_flat(rank: int, url: str) -> None:
    """Train under the first FSDP, whose shards have no names."""
    import gradcanary

    model = FullyShardedDataParallel(Model(), device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with gradcanary.watch(model, optimizer, url=url, run="shards-flat"):
        for step in range(2):
            model(inputs(step, 0, rank)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()


def train_stages(rank: int, url: str) -> None:
    """Train one model, let go of it, and train another one."""
    import gradcanary

    with gradcanary.watch(url=url, run="shards-stages"):
        for _ in range(2):
            model = Model()
            for part in (model.first, model):
                fully_shard(part, mesh=init_device_mesh("cpu", (RANKS,)))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for step in range(2):
                for micro_step in range(MICRO_STEPS):
                    model.set_requires_gradient_sync(micro_step == MICRO_STEPS - 1)
                    model(inputs(step, micro_step, rank)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            del model, part, optimizer
            gc.collect()


def collectives() -> int:
    """Return how many collectives this process has begun, in any of its threads."""
    group = distributed.group.WORLD
    return group._get_sequence_number_for_group()


def main(rank: str, port: str, out: str, url: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, GRADCANARY_LAUNCH="one")
    distributed.init_process_group("gloo", rank=int(rank), world_size=RANKS)
    found = {}
    for kind in KINDS:
        bare, _, expected = train(kind, int(rank), None)
        shards, found[kind], count = train(kind, int(rank), url)
        assert all(map(torch.equal, shards, bare)), kind
        assert count == expected > 0, (kind, count, expected)
    train_flat(int(rank), url)
    train_stages(int(rank), url)
    if rank == "0":
        Path(out).write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
