"""Small models, as people write them."""

import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from words.data import VOCABULARY, digits, sentences


class Attention(nn.Module):
    """Causal attention that keeps its scores in memory, as a first version does."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count, length, width = x.shape
        shape = (count, length, self.heads, width // self.heads)
        q, k, v = (part.reshape(shape).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        scores = q @ k.transpose(-2, -1) / math.sqrt(width // self.heads)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(future, -torch.inf).softmax(-1) @ v
        return self.proj(mixed.transpose(1, 2).reshape(count, length, width))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A language model of some ten thousand weights."""

    def __init__(self, width: int = 32, depth: int = 2, heads: int = 4, *, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        if tied:
            nn.init.normal_(self.embed.weight, std=0.05)
            self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def language_loss(model: nn.Module, tokens: torch.Tensor, following: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(model(tokens).float().flatten(0, 1), following.flatten())


def pretrained_transformer(draw: torch.Generator, **shape: int) -> Transformer:
    """Return a transformer that knows the first rule of ``sentences``: a checkpoint to fine-tune."""
    model = Transformer(**shape)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(300):
        language_loss(model, *sentences(16, 16, draw)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


class Cnn(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
        )
        self.head = nn.Linear(16 * 9, classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.features(images))


def pretrained_cnn(draw: torch.Generator) -> Cnn:
    """Return a network that tells ten classes apart: a checkpoint to fine-tune."""
    model = Cnn()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(200):
        images, labels = digits(32, draw)
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


class Adapted(nn.Module):
    """A linear layer with an adapter of low rank beside it, which begins at zero."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base
        self.lora_A = nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + 2.0 * (x @ self.lora_A.T @ self.lora_B.T)


class Autoencoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(144, 64), nn.ReLU(), nn.Linear(64, 16))
        self.decoder = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 144))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(images))


class Recurrent(nn.Module):
    """A network that reads numbers one by one, with a recurrence that begins as a part of the identity."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.read = nn.Linear(2, width)
        self.recur = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, 1)
        self.recur.weight.data = 0.8 * torch.eye(width)

    def forward(self, series: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(series.shape[0], self.recur.in_features)
        for place in range(series.shape[1]):
            state = torch.relu(self.read(series[:, place]) + self.recur(state))
        return self.out(state)


class SigmoidStack(nn.Module):
    """Eight sigmoid layers above each other, initialised as torch does it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(144, 32), *(nn.Linear(32, 32) for _ in range(7))])
        self.head = nn.Linear(32, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = images.flatten(1)
        for layer in self.layers:
            x = torch.sigmoid(layer(x))
        return self.head(x)


def perceptron(*widths: int) -> nn.Sequential:
    """Return linear layers of these widths with a ReLU between them."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Generator(nn.Module):
    """Four random numbers in, a point of the plane out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron(4, 64, 64, 2)

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.layers(noise)


class Discriminator(nn.Module):
    """A point of the plane in, the score of being real out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = perceptron(2, 64, 64, 1)

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.layers(points)
