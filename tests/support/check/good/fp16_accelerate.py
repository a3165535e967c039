"""Accelerate makes the GradScaler, unscales before it clips, and divides the loss."""

import torch
from accelerate import Accelerator
from torch import nn

accelerator = Accelerator(
    mixed_precision="fp16" if torch.cuda.is_available() else "no",
    gradient_accumulation_steps=4,
)
model = nn.Linear(16, 1)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)

for _ in range(8):
    x = torch.randn(8, 16, device=accelerator.device)
    with accelerator.accumulate(model):
        with accelerator.autocast():
            loss = model(x).square().mean()
        accelerator.backward(loss)
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
