"""The same LoRA training in float32 weights under an autocast that asks the device."""

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
    has_bf16 = device == "cpu" or torch.cuda.is_bf16_supported(including_emulation=False)
    model = nn.Sequential(*(LoraBlock() for _ in range(2))).to(device)
    adapters = [p for name, p in model.named_parameters() if "lora" in name]
    optimizer = torch.optim.AdamW(adapters, lr=1e-4)
    epoch_loss = torch.zeros(1, device=device)
    for _ in range(steps):
        optimizer.zero_grad()
        for _ in range(micro_steps):
            x = torch.randn(4, 32, device=device)
            with torch.autocast(device, dtype=torch.bfloat16, enabled=has_bf16):
                y = model(x)
            loss = (y.float() - x.roll(1, -1)).square().mean() / micro_steps
            loss.backward()
            epoch_loss += loss.detach()
        torch.nn.utils.clip_grad_norm_(adapters, 1.0)
        optimizer.step()


if __name__ == "__main__":
    main()
