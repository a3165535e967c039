"""Small real trainings on a CPU, each with a schedule of its learning rate, for ``gradcanary whatif`` to foresee.

Weights in bfloat16 that a falling rate leaves behind, LoRA pairs of which weight decay shrinks one half, and healthy
ones.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

import gradcanary

Schedule = Callable[[int], float]


def cut(lr: float, at: int, factor: float = 0.1) -> Schedule:
    """Return a rate that is multiplied once."""
    return lambda step: lr if step < at else lr * factor


def cosine(lr: float, last: float, steps: int) -> Schedule:
    """Return a rate that falls along half a cosine."""
    return lambda step: last + (lr - last) * (1 + math.cos(math.pi * min(step / steps, 1))) / 2


class Mlp(nn.Module):
    """A student of a fixed random map, with noise: its gradients never end."""

    def __init__(self, std: float | None = None, width: int = 32) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(16, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 8)
        )
        if std is not None:
            for each in self.body:
                if isinstance(each, nn.Linear):
                    nn.init.normal_(each.weight, std=std)
        self.register_buffer("target", torch.randn(16, 8) / 4)

    def loss(self) -> Tensor:
        """Return the loss of a new batch."""
        inputs = torch.randn(16, 16, dtype=self.target.dtype)
        wanted = inputs @ self.target + 0.3 * torch.randn(16, 8, dtype=self.target.dtype)
        return (self.body(inputs) - wanted).float().square().mean()


class Solvable(Mlp):
    """A student of another network of its kind, without noise: its gradients end where it has learned all."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = Mlp().body.requires_grad_(False)

    def loss(self) -> Tensor:
        """Return the loss of a new batch."""
        inputs = torch.randn(16, 16, dtype=self.target.dtype)
        return (self.body(inputs) - self.teacher(inputs)).float().square().mean()


class Transformer(nn.Module):
    """One block that predicts the next of some tokens, which go round."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.tokens = nn.Embedding(24, width)
        self.block = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.head = nn.Linear(width, 24)

    def loss(self) -> Tensor:
        """Return the loss of a new batch."""
        rows = (torch.randint(24, (8, 1)) + torch.arange(9) * torch.randint(1, 4, (8, 1))) % 24
        noisy = torch.where(torch.rand(8, 9) < 0.1, torch.randint(24, (8, 9)), rows)
        logits = self.head(self.block(self.tokens(noisy[:, :-1])))
        return functional.cross_entropy(logits.float().flatten(0, 1), noisy[:, 1:].flatten())


class Lora(nn.Module):
    """Four frozen maps with a LoRA beside each; the halves are two parameter groups."""

    def __init__(self, width: int = 32, rank: int = 4) -> None:
        super().__init__()
        self.bases = nn.ModuleList(nn.Linear(width, width, bias=False).requires_grad_(False) for _ in range(4))
        self.lora_A = nn.ModuleList(nn.Linear(width, rank, bias=False) for _ in range(4))
        self.lora_B = nn.ModuleList(nn.Linear(rank, width, bias=False) for _ in range(4))
        for down, up in zip(self.lora_A, self.lora_B, strict=True):
            nn.init.orthogonal_(down.weight)
            nn.init.normal_(up.weight, std=0.15)
        self.register_buffer("target", torch.randn(width, width) / width**0.5)

    def loss(self) -> Tensor:
        """Return the loss of a new batch."""
        inputs = torch.randn(16, 32, dtype=self.target.dtype)
        found = inputs
        for base, down, up in zip(self.bases, self.lora_A, self.lora_B, strict=True):
            found = found + 0.5 * torch.tanh(base(found) + up(down(found)))
        return (found - inputs @ self.target - 0.3 * torch.randn_like(inputs)).float().square().mean() / 32

    def groups(self, weight_decay: float) -> list[dict[str, object]]:
        """Return ``lora_A`` of all, and ``lora_B``, which decays."""
        return [
            {"params": list(self.lora_A.parameters()), "weight_decay": 0.0},
            {"params": list(self.lora_B.parameters()), "weight_decay": weight_decay},
        ]


@dataclass(frozen=True)
class Training:
    """``build`` makes the model; ``changes`` are the steps before which the rest is foretold."""

    name: str
    build: Callable[[], nn.Module]
    schedule: Schedule
    steps: int = 2_400
    changes: tuple[int, ...] = (800,)
    dtype: torch.dtype = torch.bfloat16
    weight_decay: float = 0.01
    is_lora: bool = False
    kind: type[torch.optim.Optimizer] = torch.optim.AdamW

    def run(self, url: str, seed: int = 0) -> None:
        """Train, watched."""
        torch.manual_seed(seed)
        model = self.build().to(self.dtype)
        groups = (
            model.groups(self.weight_decay)
            if self.is_lora
            else [{"params": [p for p in model.parameters() if p.requires_grad]}]
        )
        options = {} if self.is_lora or self.kind is torch.optim.SGD else {"weight_decay": self.weight_decay}
        optimizer = self.kind(groups, lr=self.schedule(0), **options)
        with gradcanary.watch(model, optimizer, url=url, run=self.name, every=1, environment=False) as watch:
            for step in range(self.steps):
                for group in optimizer.param_groups:
                    group["lr"] = self.schedule(step)
                optimizer.zero_grad()
                loss = model.loss()
                loss.backward()
                optimizer.step()
                if step % 10 == 0:
                    watch.log(loss=loss.item())


TRAININGS = (
    Training("mlp-cut-10", Mlp, cut(1e-3, 800)),
    Training("mlp-cut-100", Mlp, cut(1e-3, 800, 0.01)),
    Training("mlp-cosine", Mlp, cosine(1e-3, 1e-6, 2_400), changes=(600, 1_000)),
    Training("mlp-normal-cosine", lambda: Mlp(0.15), cosine(2e-3, 1e-6, 2_400), changes=(600, 1_000)),
    Training("transformer-cut-10", Transformer, cut(1e-3, 800)),
    Training("transformer-cosine", Transformer, cosine(1e-3, 1e-6, 2_400), changes=(600, 1_000)),
    Training("lora-bf16-cosine", Lora, cosine(1e-3, 1e-6, 2_400), changes=(600, 1_000), is_lora=True),
    Training("lora-decay-cut", Lora, cut(1e-6, 800, 0.5), dtype=torch.float32, weight_decay=1_500, is_lora=True),
    Training("lora-decay-rise", Lora, cut(1e-6, 800, 2.0), dtype=torch.float32, weight_decay=1_000, is_lora=True),
    Training("lora-decay-stop", Lora, cut(1e-6, 800, 0.01), dtype=torch.float32, weight_decay=1_500, is_lora=True),
    Training(
        "lora-decay-cosine",
        Lora,
        cosine(2e-6, 0, 2_400),
        changes=(600, 1_000),
        dtype=torch.float32,
        weight_decay=1_000,
        is_lora=True,
    ),
    Training("solvable-cut", Solvable, cut(1e-3, 800), dtype=torch.float32),
    Training("solvable-constant", Solvable, cut(1e-3, 800, 1.0), dtype=torch.float32),
    Training("solvable-rise", Solvable, cut(3e-4, 800, 3.0), dtype=torch.float32),
    Training("solvable-cosine", Solvable, cosine(1e-3, 1e-6, 2_400), changes=(600, 1_000), dtype=torch.float32),
    Training("solvable-sgd-cut", Solvable, cut(0.1, 800), dtype=torch.float32, kind=torch.optim.SGD),
    Training("solvable-sgd-halved", Solvable, cut(0.3, 800, 0.5), dtype=torch.float32, kind=torch.optim.SGD),
    Training("healthy-float32-cosine", Mlp, cosine(1e-3, 1e-6, 2_400), changes=(600, 1_000), dtype=torch.float32),
    Training("healthy-bf16-constant", Mlp, cut(3e-3, 800, 1.0)),
    Training("healthy-bf16-halved", Mlp, cut(4e-3, 800, 0.5)),
    Training("healthy-transformer", Transformer, cut(1e-3, 800), dtype=torch.float32),
    Training("healthy-lora", Lora, cut(1e-3, 800), dtype=torch.float32, is_lora=True),
)
