"""The autocast of torch.cuda.amp is float16 without saying so; the loop is a method, the names are aliases."""

import torch
import torch.nn as nn
from torch.cuda import amp


class Trainer:
    def __init__(self):
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.net = nn.Linear(16, 1).to(self.device)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1)

    def train_step(self, x):
        self.opt.zero_grad()
        with amp.autocast(enabled=self.device.type == "cuda"):  # <- fp16_without_scaler
            loss = self.net(x).pow(2).mean()
        loss.backward()
        self.opt.step()
        return loss.item()


if __name__ == "__main__":
    trainer = Trainer()
    for _ in range(5):
        trainer.train_step(torch.randn(8, 16, device=trainer.device))
