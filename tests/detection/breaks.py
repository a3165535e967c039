"""Faults in which something breaks: numbers that are none, explosions, branches that are cut off, precision."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from detection.case import fault
from detection.job import Job
from detection.models import EXAMPLES, WIDTH, Net, Reader, Stood, regression, sentences, teacher


@fault("nonfinite", ".*", since=200, truth="broke")
def log_of_zero() -> Job:
    """A cross-entropy written as log(softmax): at step 200 one example of a batch has probability 0."""
    model = Net()

    def loss(step: int) -> Tensor:
        x = torch.randn(EXAMPLES, WIDTH)
        y = x[:, :4].argmax(1)
        if step == 200:
            x[0] *= 1e4
            y[0] = model(x[:1]).argmin()
        picked = torch.softmax(model(x), dim=1)[torch.arange(EXAMPLES), y]
        return -torch.log(picked).mean()

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 220)


@fault("nonfinite", ".*", since=180, truth="broke")
def a_bad_example() -> Job:
    """One number of one batch, at step 180, is infinite."""
    model, draw = Net(), teacher()

    def loss(step: int) -> Tensor:
        x, y = draw()
        if step == 180:
            x[3, 2] = float("inf")
        return nn.functional.mse_loss(model(x), y)

    return Job(model, SGD(model.parameters(), lr=0.05), loss, 210)


# The bias of the last map cancels in the difference: it has no gradient before.
@fault("nonfinite", r"(input|blocks)\..*", since=150, truth="broke", also=("unused",))
def root_of_zero() -> Job:
    """Distances as a root of squares: at step 150 two examples are the same one. The loss stays finite for a step."""
    model = Net()
    model.head = nn.Identity()

    def loss(step: int) -> Tensor:
        x, other = torch.randn(2, EXAMPLES, WIDTH)
        if step == 150:
            other[5] = x[5]
        apart = (model.features(x) - model.features(other)).square().sum(1)
        return (torch.sqrt(apart) - (x - other).square().sum(1).sqrt()).square().mean()

    return Job(model, SGD(model.parameters(), lr=1e-3), loss, 151)


@fault("nonfinite", ".*", since=150, truth="broke")
def a_scaler_that_skips_for_ever() -> Job:
    """Targets in another unit overflow float16 from step 150 on: a GradScaler skips each step from then on."""
    model, draw = Net(), teacher()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def loss(step: int) -> Tensor:
        x, y = draw()
        return nn.functional.mse_loss(model(x), (y * 1e6 if step >= 150 else y).half().float())

    def advance(_step: int) -> None:
        scaler.step(optimizer)
        scaler.update()

    return Job(model, optimizer, loss, 210, advance=advance, scaled=scaler.scale)


@fault("nonfinite", ".*", since=200, truth="broke", also=("explosion",))
def learning_rate_spike() -> Job:
    """The learning rate of SGD is thirty times higher from step 200 on: soon no number is finite."""
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.05, momentum=0.9)

    def happens(step: int) -> None:
        if step == 200:
            optimizer.param_groups[0]["lr"] *= 30

    return Job(model, optimizer, regression(model, teacher()), 260, happens)


@fault("explosion", since=200, truth="blew")
def another_unit_under_clipping() -> Job:
    """Targets of one of two heads are 10,000 times larger from step 200 on; clipping keeps the steps small."""
    model, draw = Net(), teacher()
    model.other = nn.Linear(WIDTH, 4)
    optimizer = AdamW(model.parameters(), lr=1e-3)

    def loss(step: int) -> Tensor:
        x, y = draw()
        hidden = model.features(x)
        unit = 1e4 if step >= 200 else 1.0
        return nn.functional.mse_loss(model.head(hidden), y) + nn.functional.mse_loss(model.other(hidden), unit * y)

    def advance(_step: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return Job(model, optimizer, loss, 300, advance=advance)


@fault("explosion", ".*", since=200, truth="blew", also=("nonfinite",))
def recurrence_grows() -> Job:
    """A recurrent net: at step 200 its recurrent weights are restored five times too large."""
    model = nn.RNN(WIDTH, WIDTH, nonlinearity="relu", batch_first=True)
    draw = teacher(outputs=WIDTH)

    def loss(_step: int) -> Tensor:
        x, y = draw()
        return nn.functional.mse_loss(model(x[:, None].expand(-1, 8, -1))[0][:, -1], y)

    def happens(step: int) -> None:
        if step == 200:
            with torch.no_grad():
                model.weight_hh_l0 *= 5

    return Job(model, SGD(model.parameters(), lr=1e-4), loss, 260, happens)


@fault("vanished", r"(input|blocks\.[01])\..*", since=200, truth="gone")
def a_branch_is_detached() -> Job:
    """From step 200 on a flag detaches the features in the middle: layers before it learn no more."""
    model, draw = Net(), teacher()

    def loss(step: int) -> Tensor:
        x, y = draw()
        x = model.blocks[1](model.blocks[0](model.input(x)))
        if step >= 200:
            x = x.detach()
        return nn.functional.mse_loss(model.head(model.blocks[3](model.blocks[2](x))), y)

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 300)


@fault("vanished", r"(words|blocks)\..*", since=250, truth="gone")
def an_encoder_under_no_grad() -> Job:
    """After an evaluation at step 250 gradients of the encoder stay switched off."""
    model, draw = Reader(), sentences()
    is_learning = [True]

    def loss(_step: int) -> Tensor:
        text = draw()
        with torch.set_grad_enabled(is_learning[0]):
            x = model.words(text[:, :-1])
            for block in model.blocks:
                x = block(x)
        return nn.functional.cross_entropy(model.head(model.norm(x)).flatten(0, 1), text[:, 1:].flatten())

    def happens(step: int) -> None:
        is_learning[0] = step < 250

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 340, happens)


@fault("unused", r"extra\..*", truth="never")
def a_layer_never_called() -> Job:
    """A second head that forward() does not call."""
    model = Net()
    model.extra = nn.Linear(WIDTH, WIDTH)
    return Job(model, AdamW(model.parameters(), lr=1e-3), regression(model, teacher()), 200)


@fault("vanished", ".*", truth="never")
def born_dead() -> Job:
    """A ReLU at the output, and a bias of -100 before it: no layer ever has a gradient, and the loss stays."""
    model = Net(3)
    draw = teacher()
    nn.init.constant_(model.head.bias, -100.0)

    def loss(_step: int) -> Tensor:
        x, y = draw()
        return nn.functional.mse_loss(torch.relu(model(x)), y.abs())

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 200)


@fault("clip_before_unscale")
def clipped_before_unscaled() -> Job:
    """Gradients are clipped to a norm of 1 while they are still multiplied by 65,536."""
    model = Net()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu")

    def advance(_step: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

    return Job(model, optimizer, regression(model, teacher()), 200, advance=advance, scaled=scaler.scale)


def sum_error(model: nn.Module, loss: Callable[[int], Tensor], micro_steps: int) -> dict[str, float]:
    """Return by layer what the sum of so many gradients in ``.grad`` lacks of their sum in float64: |lost| / |sum|."""
    exact = [torch.zeros_like(each, dtype=torch.float64) for each in model.parameters()]
    sums = [torch.zeros_like(each) for each in model.parameters()]
    for _ in range(micro_steps):
        for whole, total, each in zip(exact, sums, torch.autograd.grad(loss(0), list(model.parameters())), strict=True):
            whole += each.double()
            total += each
    names = [name for name, _ in model.named_parameters()]
    return {
        name: float((whole - total.double()).norm() / whole.norm())
        for name, whole, total in zip(names, exact, sums, strict=True)
    }


@fault("accumulation_loss", ".*", truth="loses", also=("accumulator",))
def bfloat16_sums() -> Job:
    """512 similar micro-steps are added up in bfloat16."""
    model = Net(1).bfloat16()
    draw = teacher(noise=0.0)
    x, y = draw()

    def loss(_step: int) -> Tensor:
        return nn.functional.mse_loss(model((x + 0.02 * torch.randn_like(x)).bfloat16()), y.bfloat16() + 3)

    error = sum_error(model, loss, 512)
    return Job(model, SGD(model.parameters(), lr=1e-4), loss, 6, micro_steps=512, proof=lambda: error)


@fault("frozen", ".*", truth="stands", also=("accumulator", "second_moments", "in_vain"))
def bfloat16_weights_stand_still() -> Job:
    """Weights in bfloat16 and a learning rate of 1e-6: a step is lost when it is added."""
    model, draw = Net().bfloat16(), teacher()

    def loss(_step: int) -> Tensor:
        x, y = draw()
        return nn.functional.mse_loss(model(x.bfloat16()), y.bfloat16())

    stood = Stood(model, since=50)
    optimizer = AdamW(model.parameters(), lr=1e-6, weight_decay=0.0)
    return Job(model, optimizer, loss, 400, stood.happens, proof=stood.proof)


@fault("fp16_underflow", also=("collapse", "scale_drop", "frozen"))
def float16_without_a_scaler() -> Job:
    """Weights in float16 and no scaler. The loss is a mean over 16,000 times more from step 150 on: many zeros."""
    model, draw = Net().half(), teacher()
    optimizer = SGD(model.parameters(), lr=1e-3)

    def loss(step: int) -> Tensor:
        x, y = draw()
        return nn.functional.mse_loss(model(x.half()), y.half()) / (16384 if step >= 150 else 1)

    return Job(model, optimizer, loss, 300)
