"""A model of transformers loaded in bfloat16, and adapters cast to it."""

import torch
from torch import nn


def load(name):
    from transformers import AutoModel

    return AutoModel.from_pretrained(name, torch_dtype=torch.bfloat16, device_map="cuda")  # <- bf16_not_asked


def main():
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    adapter = nn.Linear(16, 1)
    adapter = adapter.to(device=device, dtype=torch.bfloat16)  # <- bf16_not_asked
    optimizer = torch.optim.SGD(adapter.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        adapter(torch.randn(8, 16).to(device, torch.bfloat16)).float().square().mean().backward()
        optimizer.step()


if __name__ == "__main__":
    main()
