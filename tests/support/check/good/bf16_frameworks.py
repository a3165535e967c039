"""Accelerate and transformers ask the device themselves, and end with an error where it has no bfloat16."""

import torch
from accelerate import Accelerator
from torch import nn
from transformers import TrainingArguments

accelerator = Accelerator(mixed_precision="bf16")
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
for _ in range(5):
    loss = model(torch.randn(8, 16, device=accelerator.device)).square().mean()
    accelerator.backward(loss)
    optimizer.step()
    optimizer.zero_grad()


def arguments():
    return TrainingArguments("out", bf16=True, gradient_accumulation_steps=4)
