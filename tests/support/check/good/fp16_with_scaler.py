"""float16 under autocast with a GradScaler, and an evaluation in float16, which needs none."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device)


def evaluate():
    with torch.no_grad(), torch.autocast(device, dtype=torch.float16):
        return model(torch.randn(8, 16, device=device)).mean()


for _ in range(5):
    x = torch.randn(8, 16, device=device)
    with torch.autocast(device, dtype=torch.float16):
        loss = model(x).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
evaluate()
