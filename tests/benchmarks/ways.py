"""Ways to keep weights and to sum gradients in bfloat16 and float32, and a small language model. Imported, not run."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path[:0] = [str(Path(__file__).parent.parent)]

import gradcanary
from words.data import VOCABULARY, seeded, sentences

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ALL, LORA = "all weights", "LoRA alone"
"""What is trained."""

WIDTH, RANK, BLOCKS = 64, 4, 2
EXAMPLES, LENGTH = 2, 8
"""Of a micro-batch: so small that a window of 2,048 takes seconds."""

PRETRAINING_STEPS = 400
OLD_RULE = {"factor": 5, "offset": 3}
NEW_RULE = {"factor": 7, "offset": 1}
"""Of the language in pretraining, and in fine-tuning (``words.data.sentences``)."""


def adamw(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Return the optimizer of nearly all ways."""
    return torch.optim.AdamW(parameters, lr=lr, foreach=False)


def stochastic_adamw(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """Return torchao's AdamW, which computes in float32 and rounds up or down at random, so that the mean is right."""
    from torchao.optim import _AdamW

    return _AdamW(parameters, lr=lr, weight_decay=0.01, bf16_stochastic_round=True)


@dataclass(frozen=True)
class Way:
    """A way to train; ``sums`` is what ``fp32_accumulators()`` is for: nothing (None), "all" or "lora"."""

    name: str
    sums: str | None = None
    masters: bool = False
    weights: torch.dtype = torch.bfloat16
    optimizer: Callable[[list[nn.Parameter], float], torch.optim.Optimizer] = adamw

    def begin(self, optimizer: torch.optim.Optimizer) -> ExitStack:
        """Begin what the way adds to an optimizer; closed, it ends."""
        added = ExitStack()
        if self.sums is not None:
            added.enter_context(gradcanary.fp32_accumulators(optimizer, None if self.sums == "all" else self.sums))
        if self.masters:
            added.enter_context(gradcanary.fp32_masters(optimizer))
        return added

    def forward(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass."""
        return torch.autocast(DEVICE, torch.bfloat16) if self.weights is torch.float32 else nullcontext()


PLAIN = Way("bf16 weights, bf16 sums")
WAYS = [
    PLAIN,
    Way("`fp32_accumulators(optimizer)`", sums="all"),
    Way("`fp32_accumulators(optimizer, 'lora')`", sums="lora"),
    Way("`fp32_masters(optimizer)`", masters=True),
    Way("both", sums="all", masters=True),
    Way("float32 weights, bf16 autocast", weights=torch.float32),
]
if find_spec("torchao") is not None:
    WAYS.append(Way("torchao's `_AdamW(bf16_stochastic_round=True)`", optimizer=stochastic_adamw))


def ways_for(trained: str) -> list[Way]:
    """Return the ways that differ: where the LoRA alone is trained, its sums are all sums."""
    return [way for way in WAYS if trained == ALL or way.sums != "lora"]


class Adapted(nn.Module):
    """A linear map with a LoRA beside it, inside a residual connection."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width, bias=False)
        self.lora_A = nn.Linear(width, rank, bias=False)
        self.lora_B = nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + torch.tanh(self.base(inputs) + self.lora_B(self.lora_A(inputs)))


def stack(layers: int, width: int, rank: int, dtype: torch.dtype, trained: str) -> nn.Sequential:
    """Return adapted layers in a row, made as ``dtype`` so that nothing else ever takes memory."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(DEVICE):
            model = nn.Sequential(*[Adapted(width, rank) for _ in range(layers)])
    finally:
        torch.set_default_dtype(default)
    freeze(model, trained)
    return model


def freeze(model: nn.Module, trained: str) -> None:
    """Freeze what is not trained."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(trained == ALL or "lora_" in name)


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class LanguageModel(nn.Module):
    """Foresees a token from the one before, which is all that the language asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.Sequential(*[Adapted(WIDTH, RANK) for _ in range(BLOCKS)])
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def loss(self, tokens: Tensor, following: Tensor) -> Tensor:
        scores = self.head(self.blocks(self.tokens(tokens)))
        return functional.cross_entropy(scores.flatten(0, 1).float(), following.flatten())


@lru_cache
def pretrained(seed: int) -> dict[str, Tensor]:
    """Return the weights of a model that knows the old rule, in float32; its LoRA is as it began."""
    torch.manual_seed(seed)
    model, draw = LanguageModel(), seeded(seed)
    optimizer = torch.optim.AdamW([each for name, each in model.named_parameters() if "lora_" not in name], lr=3e-3)
    for _ in range(PRETRAINING_STEPS):
        optimizer.zero_grad()
        model.loss(*sentences(32, LENGTH, draw, **OLD_RULE)).backward()
        optimizer.step()
    return model.state_dict()


def checkpoint(seed: int, dtype: torch.dtype, trained: str) -> LanguageModel:
    """Return the pretrained model to fine-tune; in all dtypes with the same weights, rounded to bfloat16 once."""
    model = LanguageModel()
    model.load_state_dict(pretrained(seed))
    model.to(torch.bfloat16).to(DEVICE, dtype)
    freeze(model, trained)
    return model


def batches(count: int, draw: torch.Generator, *, alike: bool) -> Iterator[tuple[Tensor, Tensor]]:
    """Return micro-batches of the new rule: as many different ones, or one as many times."""
    drawn = sentences(EXAMPLES if alike else count * EXAMPLES, LENGTH, draw, **NEW_RULE)
    tokens, following = (each.to(DEVICE).split(EXAMPLES) for each in drawn)
    for number in range(count):
        place = 0 if alike else number
        yield tokens[place], following[place]


class Training:
    """A fine-tuning in one of the ways."""

    def __init__(self, way: Way, trained: str, lr: float, seed: int) -> None:
        self.way = way
        self.model = checkpoint(seed, way.weights, trained)
        self.parameters = trainable(self.model)
        self.optimizer = way.optimizer(self.parameters, lr)
        self.draw = seeded(1000 + seed)

    def accumulate(self, micro_steps: int, *, alike: bool = False) -> None:
        """Sum the gradients of a window."""
        for tokens, following in batches(micro_steps, self.draw, alike=alike):
            with self.way.forward():
                loss = self.model.loss(tokens, following)
            (loss / micro_steps).backward()

    @torch.no_grad()
    def loss(self) -> float:
        """Return the loss of sentences that are not trained on."""
        tokens, following = sentences(256, LENGTH, seeded(999), **NEW_RULE)
        with self.way.forward():
            return self.model.loss(tokens.to(DEVICE), following.to(DEVICE)).item()


@contextmanager
def float64_sums(parameters: list[nn.Parameter]) -> Iterator[list[Tensor]]:
    """Sum each gradient that a backward pass brings, before it is added to ``.grad``, also in float64."""
    sums = [torch.zeros_like(each, dtype=torch.float64) for each in parameters]
    hooks = [each.register_hook(partial(_add, total)) for each, total in zip(parameters, sums, strict=True)]
    yield sums
    for hook in hooks:
        hook.remove()


def _add(total: Tensor, gradient: Tensor) -> None:
    total.add_(gradient)
