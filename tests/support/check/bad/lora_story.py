"""A LoRA training in bfloat16 that "sums in float32": a key that nothing reads, and 64 gradients added in bfloat16."""

import torch
from torch import nn


class LoraBlock(nn.Module):
    def __init__(self, width=32, rank=4):
        super().__init__()
        self.base = nn.Linear(width, width, bias=False).requires_grad_(False)
        self.lora_A = nn.Linear(width, rank, bias=False)
        self.lora_B = nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.lora_B.weight)

    def forward(self, x):
        return x + torch.tanh(self.base(x) + self.lora_B(self.lora_A(x)))


def main(micro_steps=64, steps=2):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Sequential(*(LoraBlock() for _ in range(2)))
    model.to(device, dtype=torch.bfloat16)  # <- bf16_not_asked
    adapters = [p for name, p in model.named_parameters() if "lora" in name]
    optimizer = torch.optim.AdamW(adapters, lr=1e-4)
    for group in optimizer.param_groups:
        group["grad_accumulator_dtype"] = torch.float32  # <- dead_key
    epoch_loss = torch.zeros(1, device=device, dtype=torch.bfloat16)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_steps):
            x = torch.randn(4, 32, device=device, dtype=torch.bfloat16)
            loss = (model(x) - x.roll(1, -1)).square().mean() / micro_steps
            loss.backward()
            epoch_loss += loss.detach()  # <- low_precision_sum
        torch.nn.utils.clip_grad_norm_(adapters, 1.0)
        optimizer.step()


if __name__ == "__main__":
    main()
