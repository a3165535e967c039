"""bfloat16 on whatever GPU there is: before Ampere it is emulated."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
model = nn.Linear(16, 1).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for _ in range(5):
    optimizer.zero_grad()
    with torch.autocast(device_type=device, dtype=torch.bfloat16):  # <- bf16_not_asked
        loss = model(torch.randn(8, 16, device=device)).square().mean()
    loss.backward()
    optimizer.step()
