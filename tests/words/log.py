"""What a job records about itself, with plain torch and nothing of the product.

The truth of a job is checked with these numbers. A watched run records nothing, so that the product sees the job alone.
"""

import json
from pathlib import Path

import torch
from torch import nn


class Log:
    """Records the loss, the gradient norms and the weights of each step, and writes them as JSON."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.losses: list[float] = []
        self.norms: dict[str, list[float | None]] = {}
        self.notes: dict[str, list[float]] = {}
        self.first: dict[str, torch.Tensor] = {}
        self.last: dict[str, torch.Tensor] = {}

    def step(self, loss: torch.Tensor, **models: nn.Module) -> None:
        """Record one step, after ``optimizer.step()`` and before ``zero_grad()``."""
        if self.path is None:
            return
        self.losses.append(loss.item())
        for name, parameter in named(models):
            norm = None if parameter.grad is None else parameter.grad.float().norm().item()
            self.norms.setdefault(name, []).append(norm)
            self.first.setdefault(name, parameter.detach().clone())
            self.last[name] = parameter.detach()

    def note(self, key: str, value: float) -> None:
        """Record one more number of this step."""
        if self.path is not None:
            self.notes.setdefault(key, []).append(float(value))

    def write(self) -> None:
        """Write the record: also after an exception, which is the truth of some jobs."""
        if self.path is None:
            return
        weights = {
            name: {
                "norm_first": before.float().norm().item(),
                "norm_last": self.last[name].float().norm().item(),
                "moved": (before != self.last[name]).float().mean().item(),
                "dtype": str(before.dtype),
            }
            for name, before in self.first.items()
            if before.shape == self.last[name].shape
        }
        record = {"losses": self.losses, "norms": self.norms, "notes": self.notes, "weights": weights}
        self.path.write_text(json.dumps(record))


def named(models: dict[str, nn.Module]) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters of all models; with the model's name in front where there are several."""
    return [
        (name if len(models) == 1 else f"{prefix}.{name}", parameter)
        for prefix, model in models.items()
        for name, parameter in model.named_parameters()
    ]
