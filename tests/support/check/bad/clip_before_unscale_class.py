"""Clipped by value, in a class, with the names of torch.cuda.amp, and unscaled too late."""

import torch
from torch import nn
from torch.cuda.amp import GradScaler, autocast
from torch.nn.utils import clip_grad_value_


class Trainer:
    def __init__(self):
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.model = nn.Linear(16, 1).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = GradScaler(enabled=self.device == "cuda")

    def step(self, x):
        with autocast(enabled=self.device == "cuda"):
            loss = self.model(x).pow(2).mean()
        self.scaler.scale(loss).backward()
        clip_grad_value_(self.model.parameters(), 0.5)  # <- clip_before_unscale
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


trainer = Trainer()
for _ in range(5):
    trainer.step(torch.randn(8, 16, device=trainer.device))
