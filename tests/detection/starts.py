"""Healthy: how trainings begin, resume and are paused, and how they change on purpose."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from detection.case import control
from detection.job import Job
from detection.models import WIDTH, Adapted, Net, Reader, chain, next_word, regression, sentences, teacher


@control()
def warm_up() -> Job:
    """A learning rate that rises for 300 steps from almost nothing."""
    model = Reader()
    optimizer = AdamW(model.parameters(), lr=3e-3)
    schedule = LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 300))

    def advance(_step: int) -> None:
        optimizer.step()
        schedule.step()

    return Job(model, optimizer, next_word(model, sentences()), 500, advance=advance)


@control()
def lora_start() -> Job:
    """Adapters whose lora_B begins at zero, so that lora_A has no gradient at first."""
    model = chain(*(Adapted() for _ in range(6)))
    learned = [each for each in model.parameters() if each.requires_grad]
    return Job(model, AdamW(learned, lr=1e-4), regression(model, teacher()), 400)


@control()
def zero_initialised_gates() -> Job:
    """Blocks behind a gate that begins at zero (ReZero): at first only the gates have a gradient."""
    model, draw = Net(6), teacher()
    model.gates = nn.Parameter(torch.zeros(6))

    def loss(_step: int) -> Tensor:
        x, y = draw()
        x = model.input(x)
        for gate, block in zip(model.gates, model.blocks, strict=True):
            x = x + gate * (block(x) - x)
        return nn.functional.mse_loss(model.head(x), y)

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 400)


@control()
def cosine_to_zero() -> Job:
    """A cosine schedule down to a learning rate of zero, and a while at it."""
    model = Reader()
    optimizer = AdamW(model.parameters(), lr=3e-3)
    schedule = CosineAnnealingLR(optimizer, 350)

    def advance(step: int) -> None:
        optimizer.step()
        if step < 350:
            schedule.step()

    return Job(model, optimizer, next_word(model, sentences()), 420, advance=advance)


@control()
def resume() -> Iterator[Job]:
    """Killed at step 300, resumed from the checkpoint of step 250 with a fresh optimizer and a warm-up."""
    model = Reader()
    loss = next_word(model, sentences())
    kept: dict[str, Tensor] = {}

    def happens(step: int) -> None:
        if step == 250:
            kept.update({name: each.clone() for name, each in model.state_dict().items()})

    yield Job(model, AdamW(model.parameters(), lr=1e-3), loss, 300, happens)
    model.load_state_dict(kept)
    optimizer = AdamW(model.parameters(), lr=1e-3)

    def warm(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 1e-3 * min(1.0, (step - 249) / 50)

    yield Job(model, optimizer, loss, 250, warm, first_step=250)


@control()
def evaluation_pauses() -> Job:
    """Each 50 steps an evaluation of ten batches, in evaluation mode and without gradients."""
    model, draw = Reader(), sentences()
    loss = next_word(model, draw)

    def happens(step: int) -> None:
        if step % 50 == 49:
            model.eval()
            with torch.no_grad():
                for _ in range(10):
                    loss(step)
            model.train()

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 350, happens)


@control()
def stage_freeze() -> Job:
    """The first half is frozen for the second stage, at step 200, by requires_grad_(False)."""
    model = Net(6)

    def happens(step: int) -> None:
        if step == 200:
            for part in (model.input, *list(model.blocks)[:3]):
                part.requires_grad_(requires_grad=False)

    return Job(model, AdamW(model.parameters(), lr=1e-3), regression(model, teacher()), 400, happens)


@control()
def gradual_unfreezing() -> Job:
    """Only the head learns at first; a further block is unfrozen each 60 steps, from the top."""
    model = Net(4)
    for part in (model.input, model.blocks):
        part.requires_grad_(requires_grad=False)
    ahead = [*model.blocks, model.input]

    def happens(step: int) -> None:
        if step % 60 == 59 and ahead:
            ahead.pop(-2 if len(ahead) > 1 else 0).requires_grad_(requires_grad=True)

    return Job(model, AdamW(model.parameters(), lr=1e-3), regression(model, teacher()), 450, happens)


@control()
def batch_size_change() -> Job:
    """Batches of 8 become batches of 256 at step 200: gradients are less noisy, and smaller."""
    model = Net()
    wanted = nn.Linear(WIDTH, 4).requires_grad_(requires_grad=False)

    def loss(step: int) -> Tensor:
        x = torch.randn(256 if step >= 200 else 8, WIDTH)
        return nn.functional.mse_loss(model(x), wanted(x) + 0.3 * torch.randn(len(x), 4))

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 400)


def rescaled(steps: int, at: int, depth: int) -> Job:
    """Train, and from a step on with a thousandth of the loss."""
    model = Net(depth)
    plain = regression(model, teacher())

    def loss(step: int) -> Tensor:
        return plain(step) * (1e-3 if step >= at else 1.0)

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, steps)


@control()
def rescaled_loss() -> Job:
    """The loss is divided by 1,000 from step 200 on, which does not change AdamW's steps."""
    return rescaled(400, 200, 4)


@control(every=10)
def rescaled_loss_every_10() -> Job:
    """The loss is divided by 1,000 from step 700 on; each tenth step is sampled."""
    return rescaled(1200, 700, 2)


@control(every=100)
def rescaled_loss_every_100() -> Job:
    """The loss is divided by 1,000 from step 2,000 on; each hundredth step is sampled."""
    return rescaled(4000, 2000, 1)


@control(every="auto")
def rescaled_loss_auto() -> Job:
    """The loss is divided by 1,000 from step 1,500 on, with every="auto"."""
    return rescaled(4000, 1500, 2)


@control()
def steps_of_the_learning_rate() -> Job:
    """SGD with momentum; the learning rate is divided by ten at steps 150 and 300."""
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)

    def happens(step: int) -> None:
        if step in (150, 300):
            optimizer.param_groups[0]["lr"] /= 10

    return Job(model, optimizer, regression(model, teacher()), 450, happens)
