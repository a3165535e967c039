"""One rank of a training under DistributedDataParallel, and what a float64 twin of all ranks has as its gradients.

Run as a script: ``data_parallel.py RANK PORT OUT URL...`` with a URL per kind; the first rank writes norms by kind,
step and name to OUT.
"""

import contextlib
import json
import os
import sys
from pathlib import Path

import torch
from torch import distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.utils._python_dispatch import TorchDispatchMode

KINDS = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "synced-views": {"gradient_as_bucket_view": True},
    "synced-static-views": {"static_graph": True, "gradient_as_bucket_view": True},
    "static": {"static_graph": True},
    "static-views": {"static_graph": True, "gradient_as_bucket_view": True},
    "unused": {"find_unused_parameters": True},
    "synced-compressed": {},
    "nan": {},
    "nan-views": {"gradient_as_bucket_view": True},
    "nan-synced": {},
    "nan-synced-late": {},
    "nan-first": {},
    "nan-each": {},
    "nan-told": {},
}
RANKS, STEPS, SICK = 2, 4, 2
NAN_LOSS = ("nan-synced", "nan-synced-late", "nan", "nan-views", "nan-first", "nan-told")


class Model(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)
        if kind == "unused":
            self.unused = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)))


class Called(TorchDispatchMode):
    """Counts the operations that torch is asked for."""

    count = 0

    def __torch_dispatch__(self, func: object, _types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        self.count += 1
        return func(*args, **(kwargs or {}))


def micro_steps(kind: str) -> int:
    return 1 if kind.startswith("static") else 3  # torch refuses no_sync() in the first pass of a static graph


def sick(kind: str) -> tuple[int, int, int]:
    """Return the rank, step and micro-step of the NaN."""
    return int(kind != "nan-first"), SICK, int(kind == "nan-synced-late")


def inputs(step: int, micro_step: int, rank: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(100 * step + 10 * micro_step + rank)
    return torch.randn(8, 16, generator=generator)


def reference(model: nn.Module, kind: str, step: int) -> dict[str, float]:
    """Return the norms of the mean over ranks of their sums over micro-steps, in float64, without any communication."""
    twin = Model(kind).double()
    twin.load_state_dict(model.state_dict())
    for rank in range(RANKS):
        for micro_step in range(micro_steps(kind)):
            loss = twin(inputs(step, micro_step, rank).double()).square().mean()
            (loss / RANKS).backward()
    return {name: float(each.grad.norm()) for name, each in twin.named_parameters() if each.grad is not None}


def train(rank: int, kind: str, url: str | None) -> tuple[nn.Module, list[dict[str, float]], int]:
    """Return the model, what the reference says of each step, and how many operations the steps took."""
    torch.manual_seed(0)
    model = Model(kind)
    wrapped = nn.parallel.DistributedDataParallel(model, **KINDS[kind])
    if kind == "synced-compressed":
        wrapped.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    read, count, called = [], micro_steps(kind), Called()
    if kind == "nan-each":
        # Of each rank in another layer, and nothing flows from one to the other.
        part = model.first if rank == 0 else model.last
        part.bias.register_hook(lambda gradient: gradient * (float("nan") if len(read) == SICK + 1 else 1.0))
    with contextlib.ExitStack() as stack:
        if url is not None:
            import gradcanary

            stack.enter_context(gradcanary.watch(wrapped, optimizer, url=url, run=f"ranks-{kind}"))
        for step in range(STEPS):
            read.append(reference(model, kind, step))
            for micro_step in range(count):
                is_last = micro_step == count - 1
                is_synced = is_last or "synced" in kind
                with contextlib.nullcontext() if is_synced else wrapped.no_sync():
                    loss = wrapped(inputs(step, micro_step, rank)).square().mean()
                    if kind in NAN_LOSS and (rank, step, micro_step) == sick(kind):
                        loss = loss * float("nan")
                    loss.backward()
            if all(bool(each.grad.isfinite().all()) for each in model.parameters() if each.grad is not None):
                with called:
                    optimizer.step()
            optimizer.zero_grad()
    return model, read, called.count


def main(rank: str, port: str, out: str, *urls: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, GRADCANARY_LAUNCH="one")
    distributed.init_process_group("gloo", rank=int(rank), world_size=RANKS)
    found = {}
    for kind, url in zip(KINDS, urls, strict=True):
        bare, _, own = train(int(rank), kind, None)
        model, found[kind], called = train(int(rank), kind, url)
        assert (called > own) == (rank == "0"), "weights are copied and measured where they are sent"
        assert all(map(torch.equal, model.state_dict().values(), bare.state_dict().values())), kind
    if rank == "0":
        Path(out).write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
