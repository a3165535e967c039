"""Nine mistakes of the optimizer's setup, each as somebody made it."""

import torch
from torch import nn
from torch.nn import functional

from words.data import curves, digits, ring, seeded, sentences
from words.log import Log
from words.models import (
    Adapted,
    Cnn,
    Discriminator,
    Generator,
    Transformer,
    language_loss,
    perceptron,
    pretrained_cnn,
    pretrained_transformer,
)
from words.types import Watch


def lr_times_6000(watch: Watch, log: Log) -> None:
    """The second phase sets the learning rate to 9, where 9e-4 was meant."""
    torch.manual_seed(21)
    draw = seeded(21)
    model = Cnn()
    groups = [{"params": model.features.parameters()}, {"params": model.head.parameters()}]
    optimizer = torch.optim.AdamW(groups, lr=0.0015)
    watch(run="lr_times_6000")
    for step in range(400):
        if step == 200:
            for group in optimizer.param_groups:
                group["lr"] = 9.0
        images, labels = digits(32, draw)
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        log.step(loss, model=model)
        optimizer.zero_grad()


def weight_decay_1e5(watch: Watch, log: Log) -> None:
    """After 200 steps weight decay is switched on: 1e5, where 1e-5 was meant. The learning rate is right all along."""
    torch.manual_seed(22)
    draw = seeded(22)
    model = pretrained_transformer(draw)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.0)
    watch(run="weight_decay_1e5")
    for step in range(400):
        if step == 200:
            optimizer.param_groups[0]["weight_decay"] = 1e5
        loss = language_loss(model, *sentences(16, 16, draw))
        loss.backward()
        optimizer.step()
        log.step(loss, model=model)
        optimizer.zero_grad()


def lora_b_not_optimized(watch: Watch, log: Log) -> None:
    """The optimizer is given the parameters called lora_A. lora_B, which begins at zero, is in no optimizer."""
    torch.manual_seed(23)
    draw = seeded(23)
    model = pretrained_transformer(draw).requires_grad_(False)
    for block in model.blocks:
        block.attention.qkv = Adapted(block.attention.qkv)
        block.attention.proj = Adapted(block.attention.proj)
    adapters = [parameter for name, parameter in model.named_parameters() if name.endswith("lora_A")]
    optimizer = torch.optim.AdamW(adapters, lr=2e-3, weight_decay=0.0)
    watch(run="lora_b_not_optimized")
    for _ in range(300):
        loss = language_loss(model, *sentences(16, 16, draw, factor=7, offset=1))
        loss.backward()
        optimizer.step()
        log.step(loss, model=model)
        model.zero_grad()


def head_replaced(watch: Watch, log: Log) -> None:
    """The optimizer is made before the head is replaced, so it holds the old one."""
    torch.manual_seed(24)
    draw = seeded(24)
    model = pretrained_cnn(draw)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    model.head = nn.Linear(model.head.in_features, 5)
    watch(run="head_replaced")
    for _ in range(400):
        images, labels = digits(32, draw, classes=5, seed=11)
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        log.step(loss, model=model)
        model.zero_grad()


def gan_wrong_optimizer(watch: Watch, log: Log) -> None:
    """The generator's optimizer was copied from the line above: it holds the discriminator."""
    torch.manual_seed(25)
    draw = seeded(25)
    generator = Generator()
    discriminator = Discriminator()
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    optimizer_g = torch.optim.Adam(discriminator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    watch(run="gan_wrong_optimizer")
    for _ in range(400):
        fake = generator(torch.randn(64, 4, generator=draw))
        discriminator.zero_grad()
        real_loss = functional.softplus(-discriminator(ring(64, draw))).mean()
        loss_d = real_loss + functional.softplus(discriminator(fake.detach())).mean()
        loss_d.backward()
        optimizer_d.step()
        discriminator.zero_grad()
        generator.zero_grad()
        loss_g = functional.softplus(-discriminator(fake)).mean()
        loss_g.backward()
        optimizer_g.step()
        log.step(loss_g, generator=generator, discriminator=discriminator)
        log.note("loss_d", loss_d.item())


def momentum_09999999(watch: Watch, log: Log) -> None:
    """A momentum of 0.9999999, where 0.9 was meant: nothing ever brakes the weights."""
    torch.manual_seed(26)
    draw = seeded(26)
    model = perceptron(8, 64, 64, 64, 64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9999999)
    watch(run="momentum_09999999")
    for _ in range(400):
        points, values = curves(64, draw)
        loss = functional.mse_loss(model(points), values)
        loss.backward()
        optimizer.step()
        log.step(loss, model=model)
        optimizer.zero_grad()


def bf16_clip_1e9(watch: Watch, log: Log) -> None:
    """Gradients are clipped at 1e-9, where 1 was meant: no step is large enough to move a bfloat16 weight."""
    torch.manual_seed(27)
    draw = seeded(27)
    model = Transformer().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    watch(run="bf16_clip_1e9")
    for _ in range(400):
        loss = language_loss(model, *sentences(16, 16, draw))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1e-9)
        optimizer.step()
        log.step(loss, model=model)
        log.note("norm before clipping", norm)
        optimizer.zero_grad()


def bf16_small_lr(watch: Watch, log: Log) -> None:
    """bfloat16 weights are fine-tuned at a learning rate of 1e-7, too small to move them."""
    torch.manual_seed(28)
    draw = seeded(28)
    model = pretrained_transformer(draw).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-7)
    watch(run="bf16_small_lr")
    for _ in range(400):
        loss = language_loss(model, *sentences(16, 16, draw, factor=7, offset=1))
        loss.backward()
        optimizer.step()
        log.step(loss, model=model)
        optimizer.zero_grad()


def scheduler_per_batch(watch: Watch, log: Log) -> None:
    """A schedule of 120 epochs is stepped after each batch: torch raises an error at the 121st."""
    torch.manual_seed(29)
    draw = seeded(29)
    model = Cnn()
    epochs = 120
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=epochs)
    watch(run="scheduler_per_batch")
    for _ in range(epochs):
        for _ in range(40):
            images, labels = digits(32, draw)
            loss = functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            log.step(loss, model=model)
            optimizer.zero_grad()
            scheduler.step()
