"""Modules for Lightning, and its Trainer on them: its own file, because importing Lightning takes seconds."""

import random
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from torch import nn

from gradcanary.lightning import GradientMonitor
from support.agent.micro_gradients import BATCHES, EPOCHS, K, MicroGradients

__all__ = ["GradientMonitor"]

MAX_NORM = 0.53


class Module(pl.LightningModule):
    def __init__(self, optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW) -> None:
        super().__init__()
        torch.manual_seed(0)
        random.seed(0)
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
        self.kind = optimizer
        self.losses: list[float] = []
        self.micro = MicroGradients(self)

    def loss_of(self, batch: torch.Tensor) -> torch.Tensor:
        loss = self.net(batch).square().mean()
        self.losses.append(float(loss.detach()))
        return loss

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.loss_of(batch)

    def configure_optimizers(self) -> Any:
        optimizer = self.kind(self.parameters(), lr=1e-2)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def train_dataloader(self) -> torch.utils.data.DataLoader:
        drawn = torch.Generator().manual_seed(1)
        batches = [torch.randn(4, 8, generator=drawn) * size for size in range(1, BATCHES + 1)]
        return torch.utils.data.DataLoader(batches, batch_size=None)


def trainer_of(folder: Path, *callbacks: pl.Callback, **settings: Any) -> pl.Trainer:
    told = {
        "accelerator": "cpu",
        "devices": 1,
        "max_epochs": EPOCHS,
        "accumulate_grad_batches": K,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
        **settings,
    }
    return pl.Trainer(callbacks=[*callbacks], **told)


class Manual(Module):
    """Steps by hand: Lightning gives the optimizer a closure all the same, which does nothing."""

    automatic_optimization = False

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        optimizer = self.optimizers()
        self.manual_backward(self.loss_of(batch) / K)
        if batch_idx % K == K - 1 or batch_idx == BATCHES - 1:
            self.clip_gradients(optimizer, MAX_NORM, "norm")
            optimizer.step()
            self.lr_schedulers().step()
            optimizer.zero_grad()


class Pair(Module):
    """Two optimizers of one backward pass; Lightning wraps each in an optimizer that is no other."""

    automatic_optimization = False

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(self.loss_of(batch))
        for optimizer in self.optimizers():
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.Adam(layer.parameters(), lr=1e-2) for layer in (self.net[0], self.net[2])]


class Routed(Module):
    """Has a head that only the first micro-step of a window goes through, in the first two of them."""

    def __init__(self) -> None:
        super().__init__()
        self.other = nn.Linear(4, 4)

    def loss_of(self, batch: torch.Tensor) -> torch.Tensor:
        self.losses.append(0.0)
        x = self.net(batch)
        return (self.other(x) if len(self.losses) in (1, 5) else x).square().mean()


class Failing(Module):
    """Has no more data."""

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        if batch_idx == 5:
            raise RuntimeError("no more data")
        return super().training_step(batch, batch_idx)


class Norms(pl.Callback):
    """Reads the norms as Lightning offers them, right before a step."""

    def __init__(self) -> None:
        self.read: list[dict[str, float | None]] = []

    def on_before_optimizer_step(self, trainer: object, pl_module: Module, optimizer: object) -> None:
        gradients = {name: parameter.grad for name, parameter in pl_module.named_parameters()}
        self.read.append({name: None if each is None else float(each.norm()) for name, each in gradients.items()})
