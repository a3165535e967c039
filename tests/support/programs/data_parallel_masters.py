"""One rank of bfloat16 weights with ``fp32_masters()`` under DistributedDataParallel.

Run as a script: ``data_parallel_masters.py RANK PORT``. Each rank steps a float32 twin by the reduced gradients; exit
status 1 where its weights, rounded, are not those of the model bit for bit, on all ranks.
"""

import os
import sys

import torch
from torch import distributed, nn

import gradcanary

RANKS, STEPS, MICRO_STEPS = 2, 6, 3
KINDS: dict[str, dict[str, bool]] = {
    "plain": {},
    "views": {"gradient_as_bucket_view": True},
    "static": {"static_graph": True},
}


def train(kind: str, rank: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(torch.bfloat16)
    twin = [nn.Parameter(each.detach().float()) for each in model.parameters()]
    wrapped = nn.parallel.DistributedDataParallel(model, **KINDS[kind])
    optimizer, other = torch.optim.AdamW(wrapped.parameters(), lr=1e-5), torch.optim.AdamW(twin, lr=1e-5)
    gradcanary.fp32_masters(optimizer)
    generator = torch.Generator().manual_seed(rank)
    for _ in range(STEPS):
        for micro_step in range(1 if kind == "static" else MICRO_STEPS):
            wrapped.require_backward_grad_sync = kind == "static" or micro_step == MICRO_STEPS - 1
            inputs = torch.randn(8, 16, generator=generator).to(torch.bfloat16)
            wrapped(inputs).float().square().mean().backward()
        for each, true in zip(model.parameters(), twin, strict=True):
            true.grad = each.grad.float()
        for stepping in (optimizer, other):
            stepping.step()
        wrapped.zero_grad(set_to_none=kind != "views")
    for each, true in zip(model.parameters(), twin, strict=True):
        assert torch.equal(each.detach(), true.detach().to(torch.bfloat16)), f"{kind}: not the twin's"
        ranks = [torch.empty_like(each) for _ in range(RANKS)]
        distributed.all_gather(ranks, each.detach())
        assert torch.equal(*ranks), f"{kind}: the ranks differ"


def main() -> None:
    rank, port = int(sys.argv[1]), sys.argv[2]
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=port, RANK=str(rank), WORLD_SIZE=str(RANKS))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    for kind in KINDS:
        train(kind, rank)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
