"""Five healthy trainings, each with something that looks like a fault from far away."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional

from words.data import curves, digits, ring, seeded, sentences
from words.log import Log
from words.models import (
    Cnn,
    Discriminator,
    Generator,
    Transformer,
    language_loss,
    pretrained_cnn,
    pretrained_transformer,
)
from words.types import Watch


def healthy_finetune(watch: Watch, log: Log) -> None:
    """A new head is trained on a frozen backbone."""
    torch.manual_seed(1)
    draw = seeded(1)
    model = pretrained_cnn(draw)
    model.features.requires_grad_(False)
    model.head = nn.Linear(model.head.in_features, 5)
    optimizer = torch.optim.SGD(model.head.parameters(), lr=0.001, momentum=0.9)
    watch(run="healthy_finetune")
    for _ in range(400):
        images, labels = digits(32, draw, classes=5, seed=11, noise=1.5)
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        log.step(loss, model=model)
        optimizer.zero_grad()


def healthy_gan(watch: Watch, log: Log) -> None:
    """Two models and two optimizers; the generator's optimizer steps after every second step of the discriminator's."""
    torch.manual_seed(2)
    draw = seeded(2)
    generator = Generator()
    discriminator = Discriminator()
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    watch(run="healthy_gan")
    for step in range(1, 801):
        noise = torch.randn(64, 4, generator=draw)
        fake = generator(noise)
        optimizer_d.zero_grad()
        real_loss = functional.softplus(-discriminator(ring(64, draw))).mean()
        loss_d = real_loss + functional.softplus(discriminator(fake.detach())).mean()
        loss_d.backward()
        optimizer_d.step()
        if step % 2:
            continue
        optimizer_g.zero_grad()
        loss_g = functional.softplus(-discriminator(fake)).mean()
        loss_g.backward()
        optimizer_g.step()
        log.step(loss_g, generator=generator, discriminator=discriminator)
        log.note("loss_d", loss_d.item())


def healthy_warmup(watch: Watch, log: Log) -> None:
    """Tied weights, four accumulation steps, clipping, and a warm-up from zero with tiny gradients in the blocks."""
    torch.manual_seed(3)
    draw = seeded(3)
    model = Transformer(tied=True)
    for block in model.blocks:  # each block begins as the identity, so nothing inside it has a gradient at first
        nn.init.zeros_(block.attention.proj.weight)
        nn.init.zeros_(block.down.weight)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def rate(step: int) -> float:
        return step / 150 if step < 150 else 0.5 * (1 + math.cos(math.pi * (step - 150) / 450))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    watch(model, optimizer, run="healthy_warmup")
    for _ in range(500):
        for _ in range(4):
            loss = language_loss(model, *sentences(8, 16, draw)) / 4
            loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        log.step(loss * 4, model=model)
        log.note("norm before clipping", norm)
        optimizer.zero_grad()


def healthy_converged(watch: Watch, log: Log) -> None:
    """A fit without noise: loss and gradients fall together to nearly nothing."""
    torch.manual_seed(4)
    draw = seeded(4)
    model = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1))
    points, values = curves(48, draw)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9975)
    watch(run="healthy_converged")
    for _ in range(1500):
        loss = functional.mse_loss(model(points), values)
        loss.backward()
        optimizer.step()
        scheduler.step()
        log.step(loss, model=model)
        optimizer.zero_grad()


def healthy_teacher(watch: Watch, log: Log) -> None:
    """A student under autocast learns from labels and from a teacher that is its own moving average."""
    torch.manual_seed(5)
    draw = seeded(5)
    student = Cnn()
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=1e-3)
    watch(run="healthy_teacher")
    for _ in range(400):
        images, labels = digits(32, draw)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = student(images)
            with torch.no_grad():
                targets = teacher(images).softmax(-1)
            loss = functional.cross_entropy(scores, labels) + 0.3 * functional.cross_entropy(scores, targets)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.01)
        log.step(loss, model=student)
        optimizer.zero_grad()


def healthy_cosine_end(watch: Watch, log: Log) -> None:
    """A job is resumed for the last 600 steps of a cosine over 100,000: its learning rate goes from 3e-7 to 0."""
    torch.manual_seed(6)
    draw = seeded(6)
    model = pretrained_transformer(draw)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def rate(step: int) -> float:
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (99_400 + step) / 100_000)))

    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    watch(run="healthy_cosine_end")
    for _ in range(700):  # and 100 steps more, with a learning rate of 0
        loss = language_loss(model, *sentences(16, 16, draw))
        loss.backward()
        optimizer.step()
        scheduler.step()
        log.step(loss, model=model)
        optimizer.zero_grad()
