"""Healthy: jobs whose gradients are small, rare, or uneven by their nature."""

import math

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from detection.case import control
from detection.job import Job
from detection.models import (
    EXAMPLES,
    WIDTH,
    Block,
    Net,
    Reader,
    Stood,
    chain,
    next_word,
    regression,
    sentences,
    teacher,
)


@control()
def tiny_mean_reduced_gradients() -> Job:
    """A mean over 10,000 outputs, most of which are always right: all gradients are under 1e-5."""
    model, draw = Net(), teacher()

    def loss(_step: int) -> Tensor:
        x, y = draw()
        return (model(x) - y).square().sum() / (EXAMPLES * 50_000)

    return Job(model, AdamW(model.parameters(), lr=1e-3, eps=1e-15), loss, 400)


@control()
def numbers_as_they_come() -> Job:
    """Prices from years, rooms and square metres, not scaled: gradients are over 1e4 from the first step on."""
    model = nn.Sequential(nn.Linear(6, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    unit, worth = torch.tensor([2000.0, 5, 120, 3, 40, 900]), 30 * torch.randn(6)

    def loss(_step: int) -> Tensor:
        x = torch.rand(EXAMPLES, 6)
        price = 300 + (x - 0.5) @ worth + 10 * torch.randn(EXAMPLES)
        return nn.functional.mse_loss(model((0.5 + x) * unit)[:, 0], price)

    return Job(model, Adam(model.parameters(), lr=1e-3), loss, 600)


@control()
def mathematically_zero_gradients() -> Job:
    """Biases of keys, which a softmax cancels: their gradients are only rounding errors."""
    model = Reader()
    return Job(model, AdamW(model.parameters(), lr=1e-3), next_word(model, sentences()), 400)


@control()
def rare_embedding_rows() -> Job:
    """A language with rare words, and an embedding of the language itself, used by one batch in forty."""
    model, draw = Reader(400), sentences(400)
    model.dialect = nn.Embedding(4, WIDTH)
    chance = torch.Generator().manual_seed(1)

    def loss(_step: int) -> Tensor:
        text = draw()
        x = model.words(text[:, :-1])
        if torch.rand(1, generator=chance) < 1 / 40:
            x = x + model.dialect(text[:, :1] % 4)
        for block in model.blocks:
            x = block(x)
        return nn.functional.cross_entropy(model.head(model.norm(x)).flatten(0, 1), text[:, 1:].flatten())

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 600)


@control()
def an_idle_expert() -> Job:
    """Six experts, one for each example, chosen by its first number: the last one is used in one step of twenty."""
    model = Net(1)
    model.experts = nn.ModuleList(Block() for _ in range(6))
    borders = torch.tensor([-0.8, -0.2, 0.3, 0.9, 2.95])
    draw = teacher()

    def loss(_step: int) -> Tensor:
        x, y = draw()
        chosen, hidden = torch.bucketize(x[:, 0].contiguous(), borders), model.features(x)
        out = torch.zeros_like(hidden)
        for number, expert in enumerate(model.experts):
            if (mine := chosen == number).any():
                out[mine] = expert(hidden[mine])
        return nn.functional.mse_loss(model.head(out), y)

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 700)


@control()
def an_expert_out_of_fashion() -> Job:
    """A learned router of four experts, without a loss for balance: it uses some of them less and less."""
    model = Net(1)
    model.experts = nn.ModuleList(Block() for _ in range(4))
    model.router = nn.Linear(WIDTH, 4)
    draw = teacher()

    def loss(_step: int) -> Tensor:
        x, y = draw()
        hidden = model.features(x)
        share, chosen = torch.softmax(model.router(hidden), 1).max(1)
        out = torch.zeros_like(hidden)
        for number, expert in enumerate(model.experts):
            if (mine := chosen == number).any():
                out[mine] = share[mine, None] * expert(hidden[mine])
        return nn.functional.mse_loss(model.head(out), y)

    return Job(model, AdamW(model.parameters(), lr=3e-3), loss, 600)


@control()
def two_tasks() -> Job:
    """Two heads on one trunk: each twelfth step is the second task's."""
    model, first, second = Net(), teacher(), teacher()
    model.other = nn.Linear(WIDTH, 4)

    def loss(step: int) -> Tensor:
        x, y = second() if step % 12 == 11 else first()
        head = model.other if step % 12 == 11 else model.head
        return nn.functional.mse_loss(head(model.features(x)), y)

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 500)


@control()
def layers_dropped_at_random() -> Job:
    """Stochastic depth: each block is left out of half of the steps."""
    model, draw = Net(6), teacher()

    def loss(_step: int) -> Tensor:
        x, y = draw()
        x = model.input(x)
        for block in model.blocks:
            if torch.rand(()) < 0.5:
                x = block(x)
        return nn.functional.mse_loss(model.head(x), y)

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 400)


@control()
def one_step_dips() -> Job:
    """Each fortieth batch is padding only: its mask makes every gradient zero."""
    model, draw = Reader(), sentences()

    def loss(step: int) -> Tensor:
        text = draw()
        each = nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten(), reduction="none")
        return each.mean() * (0.0 if step % 40 == 39 else 1.0)

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 500)


@control()
def one_step_spikes() -> Job:
    """Each seventieth batch has a broken example, a thousand times too large, and gradients are clipped."""
    model, draw = Net(), teacher()
    optimizer = AdamW(model.parameters(), lr=1e-3)

    def loss(step: int) -> Tensor:
        x, y = draw()
        if step % 70 == 69:
            y[0] *= 1000
        return nn.functional.mse_loss(model(x), y)

    def advance(_step: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return Job(model, optimizer, loss, 500, advance=advance)


@control()
def around_the_threshold() -> Job:
    """A small loss, and examples of changing difficulty: all gradients vary around 1e-4, by a decade each way."""
    model, draw = Net(), teacher()

    def loss(step: int) -> Tensor:
        x, y = draw()
        return nn.functional.mse_loss(model(x), y) * 10 ** (-2.5 + math.sin(step / 25))

    return Job(model, AdamW(model.parameters(), lr=1e-3, eps=1e-12), loss, 600)


@control()
def a_branch_around_the_threshold() -> Job:
    """A side branch whose input grows and shrinks: only its gradients vary, from 1e-3 to 3e-5."""
    model, draw = Net(), teacher()
    model.side = nn.Linear(WIDTH, WIDTH)

    def loss(step: int) -> Tensor:
        x, y = draw()
        volume = 10 ** (-2.2 + 0.7 * math.sin(step / 30))
        return nn.functional.mse_loss(model.head(model.features(x) + volume * model.side(x)), y)

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 600)


@control()
def dropout_and_norms() -> Job:
    """Layer norms and half of everything dropped."""
    model = chain(*(nn.Sequential(Block(), nn.LayerNorm(WIDTH), nn.Dropout(0.5)) for _ in range(4)))
    return Job(model, AdamW(model.parameters(), lr=1e-3, weight_decay=0.1), regression(model, teacher()), 400)


@control()
def generator_against_discriminator() -> Job:
    """Two nets with an optimizer each, in turns; the discriminator's backward pass leaves the generator alone."""
    model = nn.ModuleDict(
        {"maker": nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, WIDTH)), "judge": Net(1, 1)}
    )
    maker, judge = (Adam(model[name].parameters(), lr=1e-3, betas=(0.5, 0.9)) for name in ("maker", "judge"))
    mean = nn.functional.binary_cross_entropy_with_logits
    real, fake = torch.ones(EXAMPLES, 1), torch.zeros(EXAMPLES, 1)

    def happens(_step: int) -> None:
        made = model["maker"](torch.randn(EXAMPLES, 4)).detach()
        x = torch.randn(EXAMPLES, WIDTH).abs()
        (mean(model["judge"](x), real) + mean(model["judge"](made), fake)).backward()
        judge.step()
        judge.zero_grad()

    def loss(_step: int) -> Tensor:
        return mean(model["judge"](model["maker"](torch.randn(EXAMPLES, 4))), real)

    def advance(_step: int) -> None:
        maker.step()
        judge.zero_grad()

    return Job(model, maker, loss, 400, happens, advance=advance)


@control(
    truth="stands",
    also=("frozen",),
    why="Nine tenths of the blocks' weights are the same bfloat16 numbers 100 steps later: the head alone learns.",
)
def sums_of_eight_in_bfloat16() -> Job:
    """A usual mixed fine-tune: bfloat16 weights, eight micro-steps, a learning rate at which the head moves."""
    model, draw = Net(3).bfloat16(), teacher()

    def loss(_step: int) -> Tensor:
        x, y = draw()
        return nn.functional.mse_loss(model(x.bfloat16()), y.bfloat16())

    stood = Stood(model, since=50)
    optimizer = SGD(model.parameters(), lr=0.05)
    return Job(model, optimizer, loss, 150, stood.happens, micro_steps=8, proof=stood.proof)
