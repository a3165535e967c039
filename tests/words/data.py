"""Small synthetic data sets. All draw from a generator, so that a job is the same each time."""

import math

import torch

VOCABULARY = 32


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def digits(
    count: int, draw: torch.Generator, *, classes: int = 10, seed: int = 7, noise: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images of 12 x 12 pixels, a noisy template for each class, and their labels."""
    templates = torch.randn(classes, 1, 12, 12, generator=seeded(seed))
    labels = torch.randint(classes, (count,), generator=draw)
    images = templates[labels] + noise * torch.randn(count, 1, 12, 12, generator=draw)
    return images, labels


def sentences(
    count: int, length: int, draw: torch.Generator, *, factor: int = 5, offset: int = 3
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens and the tokens that follow them: nine of ten follow a rule, the tenth is random."""
    tokens = torch.empty(count, length + 1, dtype=torch.long)
    tokens[:, 0] = torch.randint(VOCABULARY, (count,), generator=draw)
    strays = torch.randint(VOCABULARY, (count, length), generator=draw)
    follows = torch.rand(count, length, generator=draw) < 0.9
    for place in range(length):
        rule = (factor * tokens[:, place] + offset) % VOCABULARY
        tokens[:, place + 1] = torch.where(follows[:, place], rule, strays[:, place])
    return tokens[:, :-1], tokens[:, 1:]


def ring(count: int, draw: torch.Generator) -> torch.Tensor:
    """Return points of a plane, from eight spots on a circle."""
    angles = torch.randint(8, (count,), generator=draw) * (math.pi / 4)
    return torch.stack([angles.cos(), angles.sin()], dim=1) + 0.05 * torch.randn(count, 2, generator=draw)


def curves(count: int, draw: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Return points of eight numbers, and a smooth function of each."""
    points = torch.randn(count, 8, generator=draw)
    values = torch.sin(points[:, :1]) + 0.5 * points[:, 1:2] * points[:, 2:3] + 0.3 * points[:, 3:4]
    return points, values
