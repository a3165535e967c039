"""Keys that are read: torch's own, one of the loop's own, and one of an optimizer that is made here."""

import torch
from torch import nn


class Float32SGD(torch.optim.Optimizer):
    def __init__(self, params, lr, accumulator_dtype=torch.float32):
        super().__init__(params, {"lr": lr, "accumulator_dtype": accumulator_dtype})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * p.grad.to(group["accumulator_dtype"]))


model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW([{"params": model.parameters(), "lr_scale": 0.5}], lr=1e-3)
own = Float32SGD(model.parameters(), lr=1e-3)
own.param_groups[0]["accumulator_dtype"] = torch.float64

for _ in range(5):
    for group in optimizer.param_groups:
        group["lr"] = 1e-3 * group["lr_scale"]
        group["weight_decay"] = 0.01
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    own.step()
    optimizer.zero_grad()
