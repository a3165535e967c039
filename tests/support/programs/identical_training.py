"""A training that uses what could give an agent away, and ends with a digest of everything it left behind.

Run as a script: ``identical_training.py MODE URL STEPS`` with the modes bare, watched, spooled, in which all of it is
written to a file and thinned there, and sabotaged, in which the agent draws one random number.
"""

import hashlib
import random
import sys

import torch
from torch import nn

MICRO_STEPS, WIDTH = 8, 32


class Lora(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(WIDTH, WIDTH).requires_grad_(requires_grad=False)
        self.lora_A = nn.Linear(WIDTH, 4, bias=False)
        self.lora_B = nn.Linear(4, WIDTH, bias=False)
        nn.init.zeros_(self.lora_B.weight)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.base(x) + self.lora_B(self.lora_A(self.dropout(x))))


def train(steps: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(Lora(), Lora(), Lora())
    trainable = [each for each in model.parameters() if each.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-3)
    for _ in range(steps):
        for _ in range(MICRO_STEPS):
            x = torch.randn(8, WIDTH)
            with torch.autocast("cpu", torch.bfloat16):
                loss = (model(x) - x.roll(1, 1)).square().mean() / MICRO_STEPS
            loss.backward()
        torch.nn.utils.clip_grad_norm_(trainable, 0.01)
        optimizer.step()
        optimizer.zero_grad()
    return model, optimizer


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return a hash of parameters, optimizer state and both random generators."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode() + tensor.numpy().tobytes())
    for key, state in sorted(optimizer.state_dict()["state"].items()):
        for name, tensor in sorted(state.items()):
            found.update(f"{key}{name}".encode() + tensor.numpy().tobytes())
    found.update(torch.get_rng_state().numpy().tobytes() + repr(random.getstate()).encode())
    return found.hexdigest()


def sabotage() -> None:
    """Let the agent draw one random number per sample."""
    from gradcanary.stats.sampler import Sampler

    honest = Sampler.take

    def drawing(*args: object, **kwargs: object) -> object:
        torch.rand(1)
        return honest(*args, **kwargs)

    Sampler.take = drawing


def spool() -> None:
    """Let the agent write to its file as often as it can, and let the file be small."""
    from gradcanary.export import sender, spool

    sender.FLUSH_S, spool.LIMIT_BYTES = 0.02, 20_000


def main(mode: str, url: str, steps: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random.seed(0)
    if mode == "bare":
        print(digest(*train(int(steps))))
        return
    import gradcanary

    if mode == "sabotaged":
        sabotage()
    elif mode == "spooled":
        spool()
    with gradcanary.watch(run=f"identical-{mode}", url=url):
        found = digest(*train(int(steps)))
    print(found)


if __name__ == "__main__":
    main(*sys.argv[1:])
