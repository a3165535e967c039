"""bfloat16 where the GPU has it, else float32."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
bf16 = device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
model = nn.Linear(16, 1).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for _ in range(5):
    optimizer.zero_grad()
    with torch.autocast(device_type=device, dtype=torch.bfloat16, enabled=bf16):
        loss = model(torch.randn(8, 16, device=device)).square().mean()
    loss.backward()
    optimizer.step()
