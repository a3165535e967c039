"""bfloat16 where the user asked for it, or by the capability of the device; and on a CPU."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--precision", choices=["float32", "bf16"], default="float32")
args, _ = parser.parse_known_args()
dtype = torch.bfloat16 if args.precision == "bf16" else torch.float32
if torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 8:
    dtype = torch.bfloat16

model = nn.Linear(16, 1).to(dtype=dtype)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(8, 16, dtype=dtype)).float().square().mean().backward()
    optimizer.step()
