"""Healthy: jobs that have learnt what there is to learn, and steps that a scaler skips."""

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from detection.case import control
from detection.job import Job
from detection.models import EXAMPLES, WIDTH, Net, chain, regression, teacher


@control()
def converged() -> Job:
    """A linear task without noise: the loss falls to 1e-10, and all gradients with it."""
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4))
    wanted = nn.Linear(WIDTH, 4).requires_grad_(requires_grad=False)

    def loss(_step: int) -> Tensor:
        x = torch.randn(EXAMPLES, WIDTH)
        return nn.functional.mse_loss(model(x), wanted(x))

    return Job(model, SGD(model.parameters(), lr=0.1), loss, 1200)


@control()
def memorised() -> Job:
    """Sixty-four examples by heart: the loss falls to 1e-5, and all gradients with it."""
    model = Net(3)
    x, y = torch.randn(64, WIDTH), torch.randint(4, (64,))

    def loss(_step: int) -> Tensor:
        return nn.functional.cross_entropy(model(x), y)

    return Job(model, Adam(model.parameters(), lr=3e-3), loss, 900)


@control()
def margin_reached() -> Job:
    """A hinge loss: in the end each example reaches the margin, so the loss and every gradient are exactly zero."""
    model = Net(2)
    x = torch.randn(64, WIDTH)
    y = torch.sign(x[:, 0] + 0.5 * x[:, 1])

    def loss(_step: int) -> Tensor:
        return torch.relu(1 - y * model(x)[:, 0]).mean()

    return Job(model, AdamW(model.parameters(), lr=2e-3), loss, 500)


@control()
def distilled() -> Job:
    """Distillation from softened answers: the loss ends at their entropy, which varies by batch, gradients at zero."""
    model = nn.Sequential(nn.Linear(WIDTH, 24), nn.Linear(24, 6))
    wanted = nn.Linear(WIDTH, 6).requires_grad_(requires_grad=False)

    def loss(_step: int) -> Tensor:
        x = torch.randn(EXAMPLES, WIDTH)
        return 4 * nn.functional.cross_entropy(model(x) / 2, (wanted(x) / 2).softmax(1))

    return Job(model, SGD(model.parameters(), lr=0.3), loss, 1200)


@control()
def smoothed_labels() -> Job:
    """Ninety-six examples by heart, with smoothed labels: the loss ends at 0.4, and all gradients fall."""
    model = Net(2)
    x, y = torch.randn(96, WIDTH), torch.randint(4, (96,))

    def loss(_step: int) -> Tensor:
        return nn.functional.cross_entropy(model(x), y, label_smoothing=0.1)

    return Job(model, Adam(model.parameters(), lr=3e-3), loss, 1200)


@control()
def cosines() -> Job:
    """Embeddings learn the directions of others: the loss, a cosine, goes from 0 to -1."""
    model = nn.Sequential(nn.Linear(WIDTH, 24), nn.Linear(24, 12))
    wanted = nn.Linear(WIDTH, 12).requires_grad_(requires_grad=False)

    def loss(_step: int) -> Tensor:
        x = torch.randn(EXAMPLES, WIDTH)
        return -nn.functional.cosine_similarity(model(x), wanted(x)).mean()

    return Job(model, Adam(model.parameters(), lr=2e-3), loss, 900)


@control()
def contrasted() -> Job:
    """Contrastive loss on twenty-four pairs: the temperature limits how far the loss falls."""
    left, right = Net(1, 32), Net(1, 32)
    model = nn.ModuleDict({"left": left, "right": right})
    a, b = torch.randn(24, WIDTH), torch.randn(24, WIDTH)
    pairs = torch.arange(24)

    def loss(_step: int) -> Tensor:
        near = nn.functional.normalize(left(a)) @ nn.functional.normalize(right(b)).T / 0.3
        return nn.functional.cross_entropy(near, pairs)

    return Job(model, Adam(model.parameters(), lr=3e-3), loss, 1500)


@control(
    why="The loss is the sum of two: the other task's noise hides that this one's fell, and gradients cannot tell."
)
def a_task_learnt_early() -> Job:
    """Two tasks with an adapter each: the easy one is learnt to the last digit while the other continues."""
    model, hard = Net(3), teacher()
    model.easy = nn.Linear(WIDTH, 2)
    wanted = nn.Linear(WIDTH, 2).requires_grad_(requires_grad=False)

    def loss(_step: int) -> Tensor:
        x, y = hard()
        return nn.functional.mse_loss(model(x), y) + nn.functional.mse_loss(model.easy(x), wanted(x))

    return Job(model, SGD(model.parameters(), lr=0.1), loss, 900)


@control()
def skipped_scaler_steps() -> Job:
    """A GradScaler that begins far too high and tries a higher scale each 40 steps: it skips some, as it should."""
    model = Net()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=40, growth_factor=2.0**12)

    def advance(_step: int) -> None:
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return Job(model, optimizer, regression(model, teacher()), 400, advance=advance, scaled=scaler.scale)


@control()
def clipped_hard() -> Job:
    """Gradients are clipped to a norm of 1e-3 at each step, under AdamW."""
    model = chain(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())
    optimizer = AdamW(model.parameters(), lr=1e-3)

    def advance(_step: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()

    return Job(model, optimizer, regression(model, teacher()), 400, advance=advance)
