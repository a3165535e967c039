"""Faults of which the gradient alone tells little: updates that do nothing, sums, scales and factors."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR

from detection.case import fault
from detection.falls import split
from detection.job import Job
from detection.models import EXAMPLES, WIDTH, Block, Draw, Net, chain, regression, teacher

LATE = 300
"""Observations: each parameter's update is measured once in up to 200 steps, and a single measurement proves little."""


def parameters_of(*parts: nn.Module) -> list[nn.Parameter]:
    return [each for part in parts for each in part.parameters()]


@fault("no_update", r"blocks\.[23]\..*", truth="stood", cause="rate_zero", within=LATE)
def a_group_at_rate_zero() -> Job:
    """The warm-up of one of two parameter groups has // instead of /: its rate always stays zero."""
    model = Net()
    optimizer = AdamW(split(model, parameters_of(model.blocks[2], model.blocks[3])), lr=1e-3)
    schedule = LambdaLR(optimizer, [lambda step: min(1.0, (step + 1) / 50), lambda step: min(1, (step + 1) // 10_000)])

    def advance(_step: int) -> None:
        optimizer.step()
        schedule.step()

    return Job(model, optimizer, regression(model, teacher()), 450, advance=advance)


@fault("no_update", r"blocks\.[12]\..*", truth="crept", cause="epsilon", within=LATE)
def epsilon_of_one_group() -> Job:
    """Adam's epsilon is 1 for two blocks, whose gradients are of 1e-4; the other groups have the usual one."""
    model, draw = Net(), teacher()
    others, chosen = split(model, parameters_of(model.blocks[1], model.blocks[2]))

    def loss(_step: int) -> Tensor:
        x, y = draw()
        return (model(x) - y).square().sum() / (EXAMPLES * 100)

    return Job(model, Adam([others, {**chosen, "eps": 1.0}], lr=1e-3), loss, 450)


@fault("no_update", ".*", truth="crept", cause="clip_limit", instead=("in_vain",), within=LATE)
def clipped_to_nothing() -> Job:
    """Gradients are clipped to a norm of 1e-5 under SGD: its steps are so short that no weight moves."""
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.05)

    def advance(_step: int) -> None:
        nn.utils.clip_grad_norm_(model.parameters(), 1e-5)
        optimizer.step()

    return Job(model, optimizer, regression(model, teacher()), 450, advance=advance)


@fault("no_update", r"blocks\.[01]\..*", since=250, truth="stood", cause="lost_update", within=LATE)
def a_stale_copy_comes_back() -> Job:
    """The evaluation of an average at step 250 keeps two blocks' weights; each later step restores them."""
    model = Net()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    kept: dict[str, Tensor] = {}

    def happens(step: int) -> None:
        if step == 250:
            state = model.state_dict()
            kept.update(
                {name: each.clone() for name, each in state.items() if name.startswith(("blocks.0", "blocks.1"))}
            )

    def advance(_step: int) -> None:
        optimizer.step()
        if kept:
            model.load_state_dict(kept, strict=False)

    return Job(model, optimizer, regression(model, teacher()), 650, happens, advance=advance)


@fault("never_cleared", r"encoder\..*", truth="kept", also=("explosion",))
def one_of_two_never_cleared() -> Job:
    """An encoder and a head have an optimizer each, and only that of the head clears its gradients."""
    model, draw = nn.ModuleDict({"encoder": Net(2, WIDTH), "head": Net(1)}), teacher()
    encoder, head = (AdamW(model[name].parameters(), lr=1e-3) for name in ("encoder", "head"))

    def loss(_step: int) -> Tensor:
        x, y = draw()
        return nn.functional.mse_loss(model["head"](model["encoder"](x)), y)

    def advance(_step: int) -> None:
        encoder.step()
        head.step()

    return Job(model, head, loss, 400, advance=advance)


# What no optimizer holds is cleared by none, either: that is true, too.
@fault("not_optimized", r"adapter\..*", truth="stood", also=("never_cleared",), is_told=True)
def an_adapter_in_no_optimizer() -> Job:
    """An adapter is added after the optimizer was made: it gets gradients, and nothing moves it."""
    model, draw = Net(), teacher()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    model.adapter = Block()

    def loss(_step: int) -> Tensor:
        x, y = draw()
        return nn.functional.mse_loss(model.head(model.adapter(model.features(x))), y)

    return Job(model, optimizer, loss, 400)


@fault("no_update", r"input\.weight", truth="stood", cause="cannot_move", instead=("frozen",), within=LATE)
def weights_too_large_to_move() -> Job:
    """A map in another unit has float32 weights of 20,000: a step of 1e-4 is under half their distance."""
    model, draw = Net(), teacher()
    unit = 2e4
    with torch.no_grad():
        weights = model.input.weight
        weights.copy_(unit * weights.sign() * (0.5 + 0.5 * torch.rand_like(weights)))

    def loss(_step: int) -> Tensor:
        x, y = draw()
        return 100 * nn.functional.mse_loss(model(x / (2 * unit)), y)

    return Job(model, Adam(model.parameters(), lr=1e-4), loss, 450)


def flushed_share(model: nn.Module, draw: Draw, error: Callable[..., Tensor], batches: int = 20) -> dict[str, float]:
    """Return by layer the share of its elements that float16 makes exactly zero and float32 does not."""
    names = [name for name, _ in model.named_parameters()]
    lost = dict.fromkeys(names, 0.0)
    for _ in range(batches):
        x, y = draw()
        half, full = (torch.autograd.grad(error(x, y, is_half=each), [*model.parameters()]) for each in (True, False))
        for name, low, exact in zip(names, half, full, strict=True):
            lost[name] += float(((low == 0) & (exact != 0)).double().mean()) / batches
    return lost


@fault("fp16_underflow", r"blocks\.\d\.(up\..*|down\.weight)", truth="flushed", also=("frozen",))
def float16_hidden_by_autocast() -> Job:
    """float32 weights, float16 autocast and no scaler: gradients of a loss of 1e-4 become zero."""
    model, draw = Net(), teacher()

    def error(x: Tensor, y: Tensor, *, is_half: bool) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16, enabled=is_half):
            answer = model(x)
        return 5e-5 * nn.functional.mse_loss(answer.float(), y)

    return Job(
        model,
        AdamW(model.parameters(), lr=1e-3),
        lambda _: error(*draw(), is_half=True),
        400,
        proof=lambda: flushed_share(model, draw, error),
    )


@fault("unused", r"blocks\..*", truth="zeroed", cause="multiplied_by_zero", is_told=True)
def blocks_multiplied_by_zero() -> Job:
    """A factor of all residual blocks, a number of the configuration, is 0: most parameters have a gradient of zero."""
    model, draw = Net(6), teacher()
    alpha = 0.0

    def loss(_step: int) -> Tensor:
        x, y = draw()
        x = model.input(x)
        for block in model.blocks:
            x = x + alpha * (block(x) - x)
        return nn.functional.mse_loss(model.head(x), y)

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 300)


# When the scale is far enough down, float16 makes every gradient zero: then these are true, too.
@fault(
    "nonfinite",
    ".*",
    since=150,
    truth="broke",
    instead=("loss_scale", "fp16_underflow"),
    also=("scale_drop", "vanished", "collapse"),
)
def a_scale_that_collapses() -> Job:
    """From step 150 on each third batch has a root of zero: the scaler halves its scale and skips the step."""
    model, draw = Net(), teacher()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0)

    def loss(step: int) -> Tensor:
        x, y = draw()
        with torch.autocast("cpu", dtype=torch.float16):
            answer = model(x)
        apart = (answer.float() - y).square().sum(1)
        if step >= 150 and step % 3 == 0:
            apart = torch.cat([apart, (answer[:1].float() - answer[:1].detach()).square().sum(1)])
        return (apart + (0 if step >= 150 and step % 3 == 0 else 1e-12)).sqrt().mean()

    def advance(_step: int) -> None:
        scaler.step(optimizer)
        scaler.update()

    return Job(model, optimizer, loss, 450, advance=advance, scaled=scaler.scale)


# "early" is multiplied by the small weights of "late", so it is low first, and "late" follows a hundred steps later.
@fault("collapse", r"side\.(early|late)\.(weight|bias)", since=200, truth="fell")
def one_collapse_after_another() -> Job:
    """A weight decay of 1.5 % a step shrinks the last map of a side branch: the two before it fall in turn."""
    model, draw = Net(), teacher()
    model.side = nn.ModuleDict({name: nn.Linear(WIDTH, WIDTH) for name in ("early", "late", "last")})
    with torch.no_grad():
        model.side["late"].weight.mul_(0.05)
    optimizer = AdamW(split(model, parameters_of(model.side["last"])), lr=1e-3, weight_decay=0.0)

    def loss(_step: int) -> Tensor:
        x, y = draw()
        hidden = torch.tanh(model.side["late"](torch.tanh(model.side["early"](x))))
        return nn.functional.mse_loss(model(x) + model.side["last"](hidden)[:, :4], y)

    def happens(step: int) -> None:
        if step == 200:
            optimizer.param_groups[1].update(lr=1e-6, weight_decay=0.015 * 1e6)

    return Job(model, optimizer, loss, 900, happens)


@fault("collapse", r"side\..*", since=150, truth="slid", cause="exponential_fall", severity="warning", within=600)
def a_leaf_annealed_for_ever() -> Job:
    """From step 150 on the weight of a second task, with its own inputs and maps, falls by 2 % each step."""
    model, first, second = Net(), teacher(), teacher()
    model.side = chain(nn.Linear(WIDTH, WIDTH), nn.Tanh())

    def loss(step: int) -> Tensor:
        weight = 0.98 ** max(0, step - 150)
        (x, y), (other, wanted) = first(), second()
        main = nn.functional.mse_loss(model(x), y)
        return main + weight * nn.functional.mse_loss(model.side(other), wanted)

    return Job(model, AdamW(model.parameters(), lr=1e-3, weight_decay=0.0), loss, 850)
