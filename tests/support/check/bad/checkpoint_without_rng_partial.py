"""A checkpoint made with partial(), and the arguments that transformers passes on to it."""

import functools

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

remat = functools.partial(checkpoint, use_reentrant=False, preserve_rng_state=False)  # <- checkpoint_without_rng
block = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.2))
options = {"use_reentrant": False, "preserve_rng_state": False}  # <- checkpoint_without_rng

optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    remat(block, torch.randn(8, 16)).square().mean().backward()
    optimizer.step()


def fine_tune(name):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(name)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    return model
