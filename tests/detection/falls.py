"""Faults in which gradients become small: layers that collapse, whole runs whose gradients shrink, depth."""

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from detection.case import fault
from detection.job import Job
from detection.models import (
    Adapted,
    Attention,
    Block,
    Gated,
    Net,
    Reader,
    chain,
    next_word,
    regression,
    sentences,
    teacher,
)

Groups = list[dict[str, object]]


def split(model: nn.Module, chosen: list[nn.Parameter]) -> Groups:
    """Return two parameter groups: all others, and the chosen ones."""
    known = set(map(id, chosen))
    others = [each for each in model.parameters() if each.requires_grad and id(each) not in known]
    return [{"params": others}, {"params": chosen}]


def adapters(steps: int, since: int, decay: float) -> Job:
    """Fine-tune adapters; from a step on a weight decay per step eats lora_B of two blocks, meant for another group."""
    blocks = [Adapted() for _ in range(6)]
    model = chain(*blocks)
    optimizer = AdamW(split(model, [block.lora_B.weight for block in blocks[2:4]]), lr=1e-3, weight_decay=0.0)

    def happens(step: int) -> None:
        if step == since:
            optimizer.param_groups[1].update(lr=1e-6, weight_decay=decay * 1e6)

    return Job(model, optimizer, regression(model, teacher()), steps, happens)


@fault("collapse", r"[23]\.lora_A\.weight", since=250, truth="fell")
def adapters_decay_slowly() -> Job:
    """A weight decay of 2 % a step, meant for others, shrinks two blocks' lora_B from step 250 on."""
    return adapters(900, 250, 0.02)


@fault("collapse", r"[23]\.lora_A\.weight", since=1500, truth="fell", every=10)
def adapters_die_late_every_10() -> Job:
    """Two blocks' lora_B is halved each step from step 1,500 on; each tenth step is sampled."""
    return adapters(1900, 1500, 0.5)


@fault("collapse", r"[23]\.lora_A\.weight", since=1500, truth="fell", every="auto")
def adapters_die_late_auto() -> Job:
    """The same with every="auto": each step of the first 1,000 is sampled, then fewer."""
    return adapters(7500, 1500, 0.5)


@fault("collapse", r"[12]\.gate\.(weight|bias)", since=200, truth="fell")
def gates_saturate() -> Job:
    """One step with a learning rate of 100,000 for two gates' biases: their sigmoids are flat from then on."""
    blocks = [Gated() for _ in range(5)]
    model = chain(*blocks)
    optimizer = AdamW(split(model, [blocks[1].gate.bias, blocks[2].gate.bias]), lr=1e-3, weight_decay=0.0)

    def happens(step: int) -> None:
        optimizer.param_groups[1]["lr"] = 1e5 if step == 199 else 1e-3

    return Job(model, optimizer, regression(model, teacher()), 360, happens)


@fault("collapse", r"blocks\.1\.(q\.weight|q\.bias|k\.weight)", since=200, truth="fell", also=("explosion",))
def attention_saturates() -> Job:
    """Keys of one block are scaled by 1e5 from step 200 on: its softmax chooses one word and has no gradient."""
    model = Reader()
    late = model.blocks[1]
    assert isinstance(late, Attention)

    def happens(step: int) -> None:
        if step == 200:
            late.scale *= 1e5

    return Job(model, AdamW(model.parameters(), lr=1e-3), next_word(model, sentences()), 320, happens)


@fault("collapse", r"blocks\.2\.(up\.weight|up\.bias|down\.weight)", since=200, truth="gone", also=("vanished",))
def a_relu_block_dies() -> Job:
    """One step with a learning rate of 50 and weight decay for a block's biases: no unit of its ReLU fires again."""
    model = Net(5)
    block = model.blocks[2]
    assert isinstance(block, Block)
    nn.init.constant_(block.up.bias, 0.2)
    optimizer = SGD(split(model, [block.up.bias]), lr=0.05)

    def happens(step: int) -> None:
        # 1 - lr * weight_decay = -249: a bias of 0.2 becomes one of -50.
        optimizer.param_groups[1].update(
            {"lr": 50.0, "weight_decay": 5.0} if step == 199 else {"lr": 0.05, "weight_decay": 0.0}
        )

    return Job(model, optimizer, regression(model, teacher()), 340, happens)


@fault("scale_drop", since=200, truth="shrank", also=("vanished",))
def the_last_relu_dies() -> Job:
    """A ReLU at the output, and one step with a learning rate 3,000 times too large: zeros from then on."""
    model = Net(3, outputs=1)
    draw = teacher(outputs=1)

    def loss(_step: int) -> Tensor:
        x, y = draw()
        return nn.functional.mse_loss(torch.relu(model(x)), y.abs())

    nn.init.constant_(model.head.bias, 1.0)
    optimizer = SGD(split(model, [model.head.bias]), lr=0.02)

    def happens(step: int) -> None:
        optimizer.param_groups[1].update(
            {"lr": 60.0, "weight_decay": 5.0} if step == 199 else {"lr": 0.02, "weight_decay": 0.0}
        )

    return Job(model, optimizer, loss, 340, happens)


@fault("scale_drop", since=200, truth="shrank")
def the_loss_is_divided_twice() -> Job:
    """From step 200 on the backward pass gets a thousandth of the loss, and the log the loss as it was."""
    model = Net()
    plain = regression(model, teacher())
    last = [0.0]

    def loss(step: int) -> Tensor:
        whole = plain(step)
        last[0] = float(whole.detach())
        return whole * 1e-3 if step >= 200 else whole

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 340, logged=lambda: last[0])


@fault("collapse", truth="lags", layers=r"(\d|1[0-2])\.0\.(weight|bias)")
def depth_of_sigmoids() -> Job:
    """Sixteen plain sigmoid layers: the first ones have almost no gradient from the first step on."""
    rounds = [nn.Sequential(nn.Linear(16, 16), nn.Sigmoid()) for _ in range(16)]
    model = chain(*rounds)
    return Job(model, AdamW(model.parameters(), lr=1e-3), regression(model, teacher()), 300)


@fault("collapse", r"input\.weight", since=200, truth="fell", also=("scale_drop",))
def inputs_lose_their_scale() -> Job:
    """From step 200 on the inputs are divided by 255 twice: the first layer's weights get almost no gradient."""
    model = Net()
    plain = teacher()

    def loss(step: int) -> Tensor:
        x, y = plain()
        return nn.functional.mse_loss(model(x / 255**2 if step >= 200 else x), y)

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 340)
