"""Nine faults that are not of the setup: of the model, the data, the numbers, the memory, and settings that change."""

import torch
from torch.nn import functional

from words.data import curves, digits, seeded, sentences
from words.log import Log
from words.models import Autoencoder, Recurrent, SigmoidStack, Transformer, language_loss, perceptron
from words.types import Watch


def encoder_frozen(watch: Watch, log: Log) -> None:
    """An evaluation at step 250 freezes the encoder, and nothing thaws it again."""
    torch.manual_seed(41)
    draw = seeded(41)
    model = Autoencoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    watch(run="encoder_frozen")
    for step in range(450):
        if step == 250:
            model.encoder.requires_grad_(False)
        images, _ = digits(32, draw, noise=0.3)
        loss = functional.mse_loss(model(images), images.flatten(1))
        loss.backward()
        optimizer.step()
        log.step(loss, model=model)
        optimizer.zero_grad()


def exploding_rnn(watch: Watch, log: Log) -> None:
    """From step 200 on the series have 200 places instead of 60: the recurrence amplifies, and nothing clips."""
    torch.manual_seed(42)
    draw = seeded(42)
    model = Recurrent()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    watch(run="exploding_rnn")
    for step in range(400):
        series = torch.rand(32, 60 if step < 200 else 200, 2, generator=draw)
        loss = functional.mse_loss(model(series), 0.1 * series[:, :, :1].sum(1))
        loss.backward()
        optimizer.step()
        log.step(loss, model=model)
        optimizer.zero_grad()


def sigmoid_stack(watch: Watch, log: Log) -> None:
    """Eight sigmoid layers: each passes on a tenth of the gradient, and the first ones learn nothing."""
    torch.manual_seed(43)
    draw = seeded(43)
    model = SigmoidStack()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    watch(run="sigmoid_stack")
    for _ in range(400):
        images, labels = digits(32, draw)
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        log.step(loss, model=model)
        optimizer.zero_grad()


def masked_entropy(watch: Watch, log: Log) -> None:
    """From step 240 on one action is masked: its probability is 0, and the entropy takes the logarithm of it."""
    torch.manual_seed(44)
    draw = seeded(44)
    model = perceptron(12, 64, 64, 6)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    teacher = torch.randn(12, 5, generator=draw)
    watch(run="masked_entropy")
    for step in range(400):
        states = torch.randn(64, 12, generator=draw)
        actions = (states @ teacher).argmax(-1)
        scores = model(states)
        if step >= 240:
            scores = scores.masked_fill(torch.tensor([False] * 5 + [True]), -torch.inf)
        probabilities = scores.softmax(-1)
        entropy = -(probabilities * probabilities.log()).sum(-1).mean()
        loss = functional.cross_entropy(scores, actions) - 0.01 * entropy
        loss.backward()
        optimizer.step()
        log.step(loss, model=model)
        optimizer.zero_grad()


def bf16_accumulation(watch: Watch, log: Log) -> None:
    """Gradients of bfloat16 weights are added up over 512 micro-steps that point the same way."""
    torch.manual_seed(45)
    draw = seeded(45)
    model = perceptron(8, 32, 1).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    watch(run="bf16_accumulation")
    for _ in range(60):
        for _ in range(512):
            points, values = curves(4, draw)
            output = model(points.to(torch.bfloat16)).float()
            loss = functional.mse_loss(output, values + 5.0) / 512
            loss.backward()
        optimizer.step()
        log.step(loss * 512, model=model)
        optimizer.zero_grad()


def out_of_memory(watch: Watch, log: Log) -> None:
    """At step 180 one document is not cut to the context: its attention scores do not fit in any memory."""
    torch.manual_seed(46)
    draw = seeded(46)
    model = Transformer(width=16, heads=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    watch(run="out_of_memory")
    for step in range(400):
        tokens, following = sentences(16, 16, draw)
        if step == 180:
            tokens = tokens.flatten().repeat(9_000)[None]
            following = following.flatten().repeat(9_000)[None]
        loss = language_loss(model, tokens, following)
        loss.backward()
        optimizer.step()
        log.step(loss, model=model)
        optimizer.zero_grad()


def rate_of_a_group(watch: Watch, log: Log) -> None:
    """At step 350 the learning rate of the second block becomes 500 times what it was, and stays there."""
    torch.manual_seed(1)
    draw = seeded(1)
    model, groups = _two_groups()
    optimizer = torch.optim.AdamW(groups, lr=2e-4)
    watch(run="rate_of_a_group")
    for step in range(1100):
        if step == 350:
            optimizer.param_groups[1]["lr"] = 0.1
        loss = language_loss(model, *sentences(16, 16, draw))
        loss.backward()
        optimizer.step()
        log.step(loss, model=model)
        optimizer.zero_grad()


def rate_put_back(watch: Watch, log: Log) -> None:
    """At step 350 the learning rate of the decoder becomes 500 times what it was; at step 400 it is put back."""
    torch.manual_seed(47)
    draw = seeded(47)
    model = Autoencoder()
    groups = [{"params": model.encoder.parameters()}, {"params": model.decoder.parameters()}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    watch(run="rate_put_back")
    for step in range(900):
        optimizer.param_groups[1]["lr"] = 0.5 if 350 <= step < 400 else 1e-3
        images, _ = digits(32, draw, noise=0.3)
        loss = functional.mse_loss(model(images), images.flatten(1))
        loss.backward()
        optimizer.step()
        log.step(loss, model=model)
        optimizer.zero_grad()


def decay_of_a_group(watch: Watch, log: Log) -> None:
    """At step 350 the weight decay of the second block becomes 1,000 times what it was; its learning rate is right."""
    torch.manual_seed(48)
    draw = seeded(48)
    model, groups = _two_groups()
    optimizer = torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.2)
    watch(run="decay_of_a_group")
    for step in range(950):
        if step == 350:
            optimizer.param_groups[1]["weight_decay"] = 200.0
        loss = language_loss(model, *sentences(16, 16, draw))
        loss.backward()
        optimizer.step()
        log.step(loss, model=model)
        optimizer.zero_grad()


def _two_groups() -> tuple[Transformer, list[dict[str, object]]]:
    """Return a transformer and two parameter groups, the second one of its second block."""
    model = Transformer()
    others = [parameter for name, parameter in model.named_parameters() if not name.startswith("blocks.1")]
    return model, [{"params": others}, {"params": [*model.blocks[1].parameters()]}]
