"""The clip sees gradients that are still multiplied by the loss scale, 65,536 at first: it cuts all of them."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 1).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(device)

for _ in range(5):
    x = torch.randn(8, 16, device=device)
    with torch.autocast(device, dtype=torch.float16):
        loss = model(x).square().mean()
    optimizer.zero_grad(set_to_none=True)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # <- clip_before_unscale
    scaler.step(optimizer)
    scaler.update()
