"""What float32 accumulators take: ``fp32_accumulators()`` for all parameters, for the LoRA ones, and not at all.

    python tests/benchmarks/accumulator_memory.py

A stack of 96 linear layers of width 1,024 with a LoRA of rank 64 on each, in bfloat16, trained by AdamW with 8
micro-steps: all of it, and the LoRA alone. Each line is a process of its own. Accumulators are the bytes of ``.grad``
at the end of a window, the peak is that of all memory over what torch takes when it is imported: on CUDA as torch
counts it, on a CPU the largest resident set. Exit status 1 where a target is missed.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import ratios

ratios.need("torch")

import torch
from torch import Tensor, nn

WIDTH, LAYERS, RANK, BATCH, MICRO_STEPS, WINDOWS = 1024, 96, 64, 8, 8, 3
WAYS = [("all", None), ("all", "all"), ("all", "lora"), ("lora", None), ("lora", "lora")]
"""What is trained, and whose gradients are summed in float32."""

MOST_ACCUMULATORS, MOST_PEAK = 2.0, 1.27
"""4 bytes in place of 2. Of all that AdamW keeps of a bfloat16 parameter 10 in place of 8, and one tensor twice."""

Memory = dict[str, float]


class Adapted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, bias=False, dtype=torch.bfloat16)
        self.lora_A = nn.Linear(WIDTH, RANK, bias=False, dtype=torch.bfloat16)
        self.lora_B = nn.Linear(RANK, WIDTH, bias=False, dtype=torch.bfloat16)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.tanh(self.base(inputs) + self.lora_B(self.lora_A(inputs)))


def train(trained: str, helped: str | None) -> Memory:
    """Return bytes of this process, which must have done nothing else."""
    import gradcanary

    device = "cuda" if torch.cuda.is_available() else "cpu"
    before = resident("VmRSS")
    torch.manual_seed(0)
    model = nn.Sequential(*[Adapted() for _ in range(LAYERS)]).to(device)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained == "all" or "lora_" in name)
    chosen = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(chosen, lr=1e-4, foreach=False)
    if helped is not None:
        gradcanary.fp32_accumulators(optimizer, None if helped == "all" else helped)
    for _ in range(WINDOWS):
        for _ in range(MICRO_STEPS):
            model(torch.randn(BATCH, WIDTH, device=device, dtype=torch.bfloat16)).float().square().mean().backward()
        accumulators = sum(parameter.grad.nbytes for parameter in chosen)
        optimizer.step()
        optimizer.zero_grad()
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else resident("VmHWM") - before
    return {"elements": sum(map(torch.numel, chosen)), "accumulators": accumulators, "peak": peak}


def resident(which: str) -> int:
    """Return the present (``VmRSS``) or largest (``VmHWM``) resident set of this process in bytes."""
    found = re.search(rf"^{which}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit("the system does not tell the resident set of a process")
    return int(found[1]) * 1024


def measured(trained: str, helped: str | None) -> Memory:
    """Train in another process, in which what is freed goes back to the system: so the resident set is what is used."""
    command = [sys.executable, __file__, trained, helped or ""]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    found: Memory = json.loads(said.splitlines()[-1])
    return found


def main() -> int:
    """Measure all ways."""
    print(f"torch {torch.__version__}, {'CUDA' if torch.cuda.is_available() else 'CPU'}\n")
    print("| trained | in float32 | accumulators | ratio | peak | ratio |\n|---|---|---|---|---|---|", flush=True)
    of_none: dict[str, Memory] = {}
    worst = {"accumulators": 0.0, "peak": 0.0}
    for trained, helped in WAYS:
        found = measured(trained, helped)
        none = of_none.setdefault(trained, found)
        times = {key: found[key] / none[key] for key in worst}
        worst = {key: max(worst[key], times[key]) for key in worst}
        cells = " | ".join(f"{found[key] / 2**20:.1f} MiB | {times[key]:.3f}" for key in worst)
        print(f"| {trained}: {found['elements'] / 1e6:.1f}M | {helped or 'none'} | {cells} |", flush=True)
    print()
    are_met = [
        ratios.judged("accumulators, times none", worst["accumulators"], MOST_ACCUMULATORS),
        ratios.judged("peak, times none", worst["peak"], MOST_PEAK),
    ]
    return int(not all(are_met))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        print(json.dumps(train(sys.argv[1], sys.argv[2] or None)))
    else:
        raise SystemExit(main())
