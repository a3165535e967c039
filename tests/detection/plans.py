"""Healthy: trainings that move, starve or scale some of their layers on purpose."""

import math

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW
from torch.optim.lr_scheduler import LambdaLR

from detection.case import control
from detection.job import Job
from detection.models import (
    EXAMPLES,
    WIDTH,
    Adapted,
    Attention,
    Block,
    Net,
    Reader,
    chain,
    next_word,
    regression,
    sentences,
    teacher,
)


@control()
def domains_in_blocks() -> Job:
    """Three domains with an adapter and a head each come in blocks of 150 steps: as one's layers rest, others learn."""
    model, draws = Net(2), [teacher() for _ in range(3)]
    model.adapters = nn.ModuleList(Block() for _ in range(3))
    model.heads = nn.ModuleList(nn.Linear(WIDTH, 4) for _ in range(3))
    model.head = nn.Identity()

    def loss(step: int) -> Tensor:
        domain = step // 150 % 3
        x, y = draws[domain]()
        return nn.functional.mse_loss(model.heads[domain](model.adapters[domain](model.features(x))), y)

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 750)


@control()
def an_auxiliary_loss_annealed() -> Job:
    """A second head on the same features counts less and less, by a cosine from 1 to 1/50, and stays there."""
    model, first, second = Net(), teacher(), teacher()
    model.other = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 4))

    def loss(step: int) -> Tensor:
        weight = 0.02 + 0.49 * (1 + math.cos(math.pi * min(1.0, step / 400)))
        (x, y), (other, wanted) = first(), second()
        main = nn.functional.mse_loss(model(x), y)
        return main + weight * 0.5 * nn.functional.mse_loss(model.other(model.features(other)), wanted)

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 650)


@control()
def four_steps_to_one() -> Job:
    """An actor learns in each fifth step from a critic, which learns in the others: an optimizer and a loss each."""
    model = nn.ModuleDict({"actor": Net(1, 2), "critic": Net(2, 1)})
    actor, critic = (Adam(model[name].parameters(), lr=1e-3) for name in ("actor", "critic"))
    wanted = nn.Linear(WIDTH, 2).requires_grad_(requires_grad=False)

    def worth(state: Tensor, action: Tensor) -> Tensor:
        return model["critic"](torch.cat([state[:, :-2], action], 1))

    def loss(step: int) -> Tensor:
        state = torch.randn(EXAMPLES, WIDTH)
        state[:, -2:] = 0
        action = torch.tanh(model["actor"](state))
        if step % 5 == 4:
            return -worth(state, action).mean()
        tried = (action.detach() + 0.3 * torch.randn_like(action)).clamp(-1, 1)
        reward = 1 - (tried - torch.tanh(wanted(state))).square().sum(1, keepdim=True)
        return nn.functional.mse_loss(worth(state, tried), reward)

    def advance(step: int) -> None:
        (actor if step % 5 == 4 else critic).step()
        actor.zero_grad()
        critic.zero_grad()

    return Job(model, critic, loss, 700, advance=advance)


class Quantized(nn.Module):
    """A map whose weights and inputs are rounded to ``bits``, with a learned distance of two steps (LSQ)."""

    def __init__(self, bits: int = 4) -> None:
        super().__init__()
        self.map = nn.Linear(WIDTH, WIDTH)
        self.most = 2 ** (bits - 1) - 1
        self.weight_step = nn.Parameter(2 * self.map.weight.detach().abs().mean() / self.most**0.5)
        self.input_step = nn.Parameter(torch.tensor(2 / self.most**0.5))

    def rounded(self, x: Tensor, step: Tensor) -> Tensor:
        step = step.abs() + 1e-6
        grain = (x.numel() * self.most) ** -0.5
        step = step * grain + (step - step * grain).detach()
        inside = (x / step).clamp(-self.most - 1, self.most)
        return (inside + (inside.round() - inside).detach()) * step

    def forward(self, x: Tensor) -> Tensor:
        weight = self.rounded(self.map.weight, self.weight_step)
        return x + nn.functional.relu(nn.functional.linear(self.rounded(x, self.input_step), weight, self.map.bias))


@control()
def trained_for_four_bits() -> Job:
    """Quantisation-aware: weights and inputs are rounded to four bits, what is out of range has no gradient."""
    model = chain(*(Quantized() for _ in range(4)))
    return Job(model, AdamW(model.parameters(), lr=1e-3), regression(model, teacher()), 500)


@control()
def eight_sparse_experts() -> Job:
    """Two of eight experts for each example by a learned router with noise, and a loss for balance."""
    model, draw = Net(1), teacher()
    model.experts = nn.ModuleList(Block() for _ in range(8))
    model.router = nn.Linear(WIDTH, 8, bias=False)

    def loss(_step: int) -> Tensor:
        x, y = draw()
        hidden = model.features(x)
        chance = torch.softmax(model.router(hidden) + torch.randn(EXAMPLES, 8), 1)
        shares, chosen = chance.topk(2, dim=1)
        out = torch.zeros_like(hidden)
        for number, expert in enumerate(model.experts):
            share = torch.where(chosen == number, shares, 0).sum(1)
            if (mine := share > 0).any():
                out[mine] = out[mine] + share[mine, None] * expert(hidden[mine])
        asked = nn.functional.one_hot(chosen, 8).float().mean((0, 1))
        balance = 8 * (asked * chance.mean(0)).sum()
        return nn.functional.mse_loss(model.head(out), y) + 0.02 * balance

    return Job(model, AdamW(model.parameters(), lr=2e-3), loss, 600)


@control()
def clipped_ratios() -> Job:
    """PPO on a game of one move, fifteen steps a batch: clipped ratios, and a policy too far away, have no gradient."""
    model = nn.ModuleDict({"policy": Net(2, 4), "value": Net(1, 1)})
    best = nn.Linear(WIDTH, 4).requires_grad_(requires_grad=False)
    batch: dict[str, Tensor] = {}

    def happens(step: int) -> None:
        if step % 15 == 0:
            with torch.no_grad():
                state = torch.randn(EXAMPLES, WIDTH)
                moves = torch.distributions.Categorical(logits=model["policy"](state))
                move = moves.sample()
                reward = (move == best(state).argmax(1)).float()
                gain = reward - model["value"](state)[:, 0]
                batch.update(state=state, move=move, reward=reward, chance=moves.log_prob(move))
                batch["gain"] = (gain - gain.mean()) / (gain.std() + 1e-6)

    def loss(_step: int) -> Tensor:
        moves = torch.distributions.Categorical(logits=model["policy"](batch["state"]))
        ratio = (moves.log_prob(batch["move"]) - batch["chance"]).exp()
        value = nn.functional.mse_loss(model["value"](batch["state"])[:, 0], batch["reward"])
        if (batch["chance"] - moves.log_prob(batch["move"])).mean() > 0.05:  # "target_kl"
            return value
        gained = torch.min(ratio * batch["gain"], ratio.clamp(0.8, 1.2) * batch["gain"]).mean()
        return value - gained

    return Job(
        model, Adam(model.parameters(), lr=1e-3), loss, 600, happens, logged=lambda: 1 - float(batch["reward"].mean())
    )


@control()
def a_critics_last_bias() -> Job:
    """A reward model learns from pairs: in the difference the last biases cancel, so their gradients are zero."""
    model = Net(2, 1)
    worth = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1)).requires_grad_(requires_grad=False)

    def loss(_step: int) -> Tensor:
        pairs = torch.randn(2, EXAMPLES, WIDTH)
        is_first = worth(pairs[0]) > worth(pairs[1])
        better, worse = torch.where(is_first, pairs[0], pairs[1]), torch.where(is_first, pairs[1], pairs[0])
        return -nn.functional.logsigmoid(model(better) - model(worse)).mean()

    return Job(model, AdamW(model.parameters(), lr=1e-3), loss, 500)


@control()
def adapters_warm_up_for_long() -> Job:
    """Adapters whose lora_B begins at zero, and a rate that rises from 1e-7 to 1e-3 by a warm-up of 400 steps."""
    model = chain(*(Adapted() for _ in range(6)))
    learned = [each for each in model.parameters() if each.requires_grad]
    optimizer = AdamW(learned, lr=1e-3)
    schedule = LambdaLR(optimizer, lambda step: 1e-4 ** (1 - min(1.0, step / 400)))

    def advance(_step: int) -> None:
        optimizer.step()
        schedule.step()

    return Job(model, optimizer, regression(model, teacher()), 700, advance=advance)


@control()
def rates_by_depth() -> Job:
    """A fine-tune with rates of 0.65 to the power of the depth: the embedding's is 1,100 times less than the head's."""
    model, draw = Reader(), sentences()
    model.blocks = nn.ModuleList(Attention() for _ in range(15))
    parts = [model.words, *model.blocks, nn.ModuleList([model.norm, model.head])]
    groups = [
        {"params": list(part.parameters()), "lr": 2e-3 * 0.65 ** (16 - depth), "weight_decay": 0.01 * (depth > 0)}
        for depth, part in enumerate(parts)
    ]
    return Job(model, AdamW(groups), next_word(model, draw), 500)


@control()
def a_tail_at_a_tiny_rate() -> Job:
    """SGD with a cosine from 0.1 down to 1e-6 in 350 steps, and 300 steps at that."""
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)

    def happens(step: int) -> None:
        optimizer.param_groups[0]["lr"] = 1e-6 + 0.05 * (1 + math.cos(math.pi * min(1.0, step / 350)))

    return Job(model, optimizer, regression(model, teacher()), 650, happens)
