"""One rank of a training under DistributedDataParallel, and what a float64 twin of all ranks has as its gradients.

Run as a script: ``data_parallel.py RANK PORT OUT URL...`` with a URL per kind; the first rank writes norms by kind,
step and name to OUT.
"""

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

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
    "nan-kept": {},
    "nan-told": {},
}
RANKS, STEPS, SICK, AGAIN = 2, 6, 2, 4
"""A rank measures its own gradients after a first NaN was reduced, so one that comes back is what names it."""

PER_LOSS = ("data", "detach", "clone")
"""What torch does as the agent keeps a loss: fewer operations than there are layers."""

WAIT_S = 30.0
NAN_LOSS = ("nan-synced", "nan-synced-late", "nan", "nan-views", "nan-first", "nan-kept", "nan-told")


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


def sick(kind: str) -> tuple[int, int]:
    """Return the rank and the micro-step of the NaN."""
    return int(kind != "nan-first"), int(kind == "nan-synced-late")


def wait_until_measured(watch: Any) -> None:
    """Wait until the sender's thread has read the first NaN, as steps of a real training take longer than these."""
    deadline = time.monotonic() + WAIT_S
    while not watch._session.recorder.clock.request.local:
        assert time.monotonic() < deadline
        time.sleep(0.01)


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


def train(rank: int, kind: str, url: str | None) -> tuple[nn.Module, list[dict[str, float]], int, int]:
    """Return the model, what the reference says of each step, and how many operations took the steps and, after the
    first one, those passes that another one of their window follows."""
    torch.manual_seed(0)
    model = Model(kind)
    wrapped = nn.parallel.DistributedDataParallel(model, **KINDS[kind])
    if kind == "synced-compressed":
        wrapped.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    read, count, called, passes = [], micro_steps(kind), Called(), Called()
    if kind == "nan-each":
        # Of each rank in another layer, and nothing flows from one to the other.
        part = model.first if rank == 0 else model.last
        part.bias.register_hook(lambda gradient: gradient * (float("nan") if len(read) - 1 in (SICK, AGAIN) else 1.0))
    watch = None
    with contextlib.ExitStack() as stack:
        if url is not None:
            import gradcanary

            watch = stack.enter_context(gradcanary.watch(wrapped, optimizer, url=url, run=f"ranks-{kind}"))
        for step in range(STEPS):
            read.append(reference(model, kind, step))
            for micro_step in range(count):
                is_last = micro_step == count - 1
                is_synced = is_last or "synced" in kind
                with contextlib.nullcontext() if is_synced else wrapped.no_sync():
                    loss = wrapped(inputs(step, micro_step, rank)).square().mean()
                    if kind in NAN_LOSS and step in (SICK, AGAIN) and (rank, micro_step) == sick(kind):
                        loss = loss * float("nan")
                    with passes if step and not is_last else contextlib.nullcontext():
                        loss.backward()
                if watch is not None and kind.startswith("nan") and step == SICK + 1:
                    wait_until_measured(watch)
            gradients = [each.grad for each in model.parameters() if each.grad is not None]
            if kind == "nan-kept" or all(bool(each.isfinite().all()) for each in gradients):
                with called:
                    optimizer.step()
            optimizer.zero_grad()
    return model, read, called.count, passes.count


def are_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def main(rank: str, port: str, out: str, *urls: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, GRADCANARY_LAUNCH="one")
    distributed.init_process_group("gloo", rank=int(rank), world_size=RANKS)
    found = {}
    for kind, url in zip(KINDS, urls, strict=True):
        bare, _, own, own_passes = train(int(rank), kind, None)
        model, found[kind], called, passes = train(int(rank), kind, url)
        assert (called > own) == (rank == "0"), "weights are copied and measured where they are sent"
        most = len(PER_LOSS) * (STEPS - 1) * (micro_steps(kind) - 1)
        assert (passes - own_passes <= most) != kind.startswith("nan"), "of a healthy run only the loss is copied"
        assert all(map(are_same, model.state_dict().values(), bare.state_dict().values())), kind
    if rank == "0":
        Path(out).write_text(json.dumps(found))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
