"""The small models that the cases train."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

WIDTH = 16
EXAMPLES = 32

Draw = Callable[[], tuple[Tensor, Tensor]]


class Block(nn.Module):
    """A residual block of two maps."""

    def __init__(self, width: int = WIDTH, activation: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.3 * self.down(self.activation(self.up(x)))


class Net(nn.Module):
    """An input map, blocks, a head."""

    def __init__(self, depth: int = 4, outputs: int = 4, activation: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        self.input = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(activation=activation) for _ in range(depth))
        self.head = nn.Linear(WIDTH, outputs)

    def features(self, x: Tensor) -> Tensor:
        x = self.input(x)
        for block in self.blocks:
            x = block(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class Gated(nn.Module):
    """A residual block whose value passes a sigmoid gate."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sigmoid(self.gate(x)) * torch.tanh(self.value(x))


class Adapted(nn.Module):
    """A frozen map with a low-rank correction, in a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(requires_grad=False)
        self.lora_A = nn.Linear(WIDTH, 4, bias=False)
        self.lora_B = nn.Linear(4, WIDTH, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x: Tensor) -> Tensor:
        return x + 0.5 * torch.tanh(self.base(x) + self.lora_B(self.lora_A(x)))


class Attention(nn.Module):
    """Self-attention over [examples, words, width]; ``scale`` is what the logits are multiplied by."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.scale = WIDTH**-0.5

    def forward(self, x: Tensor) -> Tensor:
        weights = torch.softmax(self.q(x) @ self.k(x).transpose(1, 2) * self.scale, dim=-1)
        return x + self.o(weights @ self.v(x))


class Reader(nn.Module):
    """Words into two rounds of attention, and the next word out."""

    def __init__(self, words: int = 40) -> None:
        super().__init__()
        self.words = nn.Embedding(words, WIDTH)
        self.blocks = nn.ModuleList(Attention() for _ in range(2))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, words)

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Stood:
    """Measures the share of the weights of each layer that are, in the end, what they were at a step."""

    def __init__(self, model: nn.Module, since: int) -> None:
        self.model, self.since = model, since
        self.before: list[Tensor] = []

    def happens(self, step: int) -> None:
        if step == self.since:
            self.before = [each.detach().clone() for each in self.model.parameters()]

    def proof(self) -> dict[str, float]:
        pairs = zip(self.model.named_parameters(), self.before, strict=True)
        return {name: float((each == old).double().mean()) for (name, each), old in pairs}


def chain(*blocks: nn.Module) -> nn.Sequential:
    """Return blocks in a row, and a head."""
    return nn.Sequential(*blocks, nn.Linear(WIDTH, 4))


def teacher(outputs: int = 4, noise: float = 0.3, scale: float = 1.0, examples: int = EXAMPLES) -> Draw:
    """Return what draws batches of a fixed random task: inputs [examples, width] and noisy targets."""
    wanted = nn.Sequential(nn.Linear(WIDTH, 32), nn.Tanh(), nn.Linear(32, outputs)).requires_grad_(requires_grad=False)

    def draw() -> tuple[Tensor, Tensor]:
        x = torch.randn(examples, WIDTH)
        return scale * x, wanted(x) + noise * torch.randn(examples, outputs)

    return draw


def regression(model: nn.Module, draw: Draw) -> Callable[[int], Tensor]:
    """Return the mean squared error of a batch, as a function of the step."""

    def loss(_step: int) -> Tensor:
        x, y = draw()
        return nn.functional.mse_loss(model(x), y)

    return loss


def sentences(words: int = 40, length: int = 8) -> Callable[[], Tensor]:
    """Return what draws texts [examples, length + 1] of a language: some words are rare, each asks for a next one."""
    often = 1.0 / torch.arange(1, words + 1) ** 1.5
    follows = torch.randperm(words)

    def draw() -> Tensor:
        text = torch.multinomial(often, EXAMPLES * (length + 1), replacement=True).view(EXAMPLES, length + 1)
        is_next = torch.rand(EXAMPLES, length) < 0.7
        text[:, 1:] = torch.where(is_next, follows[text[:, :-1]], text[:, 1:])
        return text

    return draw


def next_word(model: nn.Module, draw: Callable[[], Tensor]) -> Callable[[int], Tensor]:
    """Return the cross-entropy of the next word."""

    def loss(_step: int) -> Tensor:
        text = draw()
        return nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())

    return loss
