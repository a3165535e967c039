"""float16 under autocast, and no GradScaler: gradients under 6e-8 are zero."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for _ in range(5):
    x = torch.randn(8, 16, device=device)
    with torch.autocast(device, dtype=torch.float16):  # <- fp16_without_scaler
        loss = model(x).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
