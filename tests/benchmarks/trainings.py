"""The trainings that benchmarks watch: a GPT, and a LoRA of many small tensors. Imported, not run."""

import time

import torch
from torch import Tensor, nn
from torch.nn import functional

WIDTH, HEADS, VOCABULARY, BATCH, RANK = 256, 8, 512, 4, 8


class Gpt(nn.Module):
    """12 blocks of width 256, 4 sequences of 128: 148 tensors, 9.8M parameters."""

    length = 128

    def __init__(self) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(self.length, WIDTH))
        self.blocks = nn.TransformerEncoder(block, 12, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(self.length)
        return self.head(self.blocks(self.tokens(tokens) + self.positions, mask=mask, is_causal=True))


class Adapted(nn.Module):
    """A frozen linear layer with a LoRA beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(False)
        self.lora_A = nn.Linear(WIDTH, RANK, bias=False)
        self.lora_B = nn.Linear(RANK, WIDTH, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.base(inputs) + self.lora_B(self.lora_A(inputs))


class Attention(nn.Module):
    """Attention to something, all four projections adapted."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (Adapted() for _ in range(4))

    def forward(self, inputs: Tensor, context: Tensor) -> Tensor:
        query, key, value = (
            each.unflatten(-1, (HEADS, -1)).transpose(1, 2)
            for each in (self.to_q(inputs), self.to_k(context), self.to_v(context))
        )
        return self.to_out(functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class CrossBlock(nn.Module):
    """Attention to itself and to a text, as in the denoisers of images, and a frozen MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.attn1, self.attn2 = Attention(), Attention()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3)).requires_grad_(False)
        self.ff = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.ff.requires_grad_(False)

    def forward(self, inputs: Tensor, text: Tensor) -> Tensor:
        first, second, third = self.norms
        normed = first(inputs)
        inputs = inputs + self.attn1(normed, normed)
        inputs = inputs + self.attn2(second(inputs), text)
        return inputs + self.ff(third(inputs))


class Lora(nn.Module):
    """25 blocks of width 256, a LoRA of rank 8 on each of their 8 projections: 400 tensors, 0.8M parameters.

    A small base and 4 sequences of 64, so that a step is short: a true one makes what is watched cheaper, not dearer.
    """

    length = 64

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH).requires_grad_(False)
        self.register_buffer("text", torch.randn(BATCH, self.length, WIDTH))
        self.blocks = nn.ModuleList(CrossBlock() for _ in range(25))
        self.head = nn.Linear(WIDTH, VOCABULARY).requires_grad_(False)

    def forward(self, tokens: Tensor) -> Tensor:
        inputs = self.tokens(tokens)
        for block in self.blocks:
            inputs = block(inputs, self.text)
        return self.head(inputs)


class Loop:
    """A plain training loop."""

    def __init__(self, kind: type[nn.Module]) -> None:
        torch.manual_seed(0)
        self.model = kind()
        self.trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=1e-4)

    def step(self) -> None:
        """Make one optimizer step."""
        tokens = torch.randint(VOCABULARY, (BATCH, self.model.length + 1))
        self.optimizer.zero_grad()
        logits = self.model(tokens[:, :-1])
        functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()
        self.optimizer.step()

    def cpu_s(self, steps: int) -> float:
        """Return the seconds of CPU that this whole process takes for a step, the mean of some."""
        used = time.process_time()
        for _ in range(steps):
            self.step()
        return (time.process_time() - used) / steps
