"""A training to attach to: threads, workers that load data, K = 2, and three of eight blocks that get no gradient.

Run as a script: ``joined_training.py FOLDER``. It goes on until ``FOLDER/stop`` holds the number of its last step, and
prints a digest then; ``FOLDER/look`` is answered by what hangs on torch and on the process, in ``FOLDER/seen``.
It rests in each step, in turns where hooks may be put on and where they must not: so the places in which it is found
are those of a training that computes all the time, for less CPU time. ``FOLDER/fast`` ends that.
"""

import gc
import hashlib
import json
import sys
import threading
import time
from pathlib import Path

import torch
from torch import nn
from torch.optim import optimizer as optimizers
from torch.utils.data import DataLoader, Dataset

WIDTH, BLOCKS, LOW = 16, 8, (2, 4, 5)
PLACES = ("loop", "forward", "backward", "step")
REST_S = 0.03

resting_in = ""


def rest(place: str) -> None:
    global resting_in
    if place == resting_in:
        resting_in = ""  # once in a step of several micro-steps
        time.sleep(REST_S)


class Rows(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 10**6

    def __getitem__(self, row: int) -> torch.Tensor:
        return torch.sin(torch.arange(WIDTH) * float(row % 97))


class Block(nn.Module):
    def __init__(self, gain: float) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.gain = gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.gain * torch.tanh(self.linear(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(1e-9 if number in LOW else 1.0) for number in range(BLOCKS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        rest("forward")
        x.register_hook(lambda _: rest("backward"))
        return x


def digest(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode() + tensor.numpy().tobytes())
    for state in optimizer.state_dict()["state"].values():
        for name, tensor in sorted(state.items()):
            found.update(name.encode() + tensor.numpy().tobytes())
    found.update(torch.get_rng_state().numpy().tobytes())
    return found.hexdigest()


def seen(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """Return what an agent could have left here. Modules stay: Python cannot take them back."""
    gc.collect()
    kinds = ("_backward_hooks", "_post_accumulate_grad_hooks")
    hooks = [list(each) for each in (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)]
    return {
        "step hooks": [*hooks, list(optimizer._optimizer_step_pre_hooks), list(optimizer._optimizer_step_post_hooks)],
        "hooks": [[repr(getattr(each, kind)) for kind in kinds] for each in model.parameters()],
        "module hooks": [len(each._forward_hooks) + len(each._backward_hooks) for each in model.modules()],
        "backward": f"{torch.autograd.backward.__module__}.{torch.autograd.backward.__qualname__}",
        "step": "step" in vars(optimizer),
        "threads": sorted(str(thread.name) for thread in threading.enumerate()),
        "tasks": len([*Path("/proc/self/task").iterdir()]),
        "files": sorted(file for file in files() if "/shm/torch_" not in file),  # batches that are handed over
        "path": sys.path,
        "finders": [str(each) for each in sys.meta_path],
        "main": sorted(vars(sys.modules["__main__"])),
        "interval": sys.getswitchinterval(),
        "excepthook": repr(sys.excepthook),
    }


def files() -> list[str]:
    links = [*Path("/proc/self/fd").iterdir()]
    return [str(link.readlink()) for link in links if link.exists()]


def idle() -> None:
    while True:
        sum(range(100))
        time.sleep(0.01)


def main(folder: Path) -> None:
    global resting_in
    torch.manual_seed(0)
    for number in range(3):
        threading.Thread(target=idle, name=f"idle-{number}", daemon=True).start()
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    optimizers.register_optimizer_step_pre_hook(lambda *_: rest("step"))  # while torch goes through all such hooks
    rows = DataLoader(Rows(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for micro_step, x in enumerate(rows):
        model(x).sub(x.roll(1, 1)).square().sum().backward()
        if micro_step % 2 == 0:
            continue
        optimizer.step()
        optimizer.zero_grad()
        steps = micro_step // 2 + 1
        if is_last(folder, steps, model, optimizer):
            return
        rest("loop")
        resting_in = "" if (folder / "fast").exists() else PLACES[steps % len(PLACES)]


def is_last(folder: Path, steps: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Tell how far it is, and do what is asked for."""
    (folder / "step.new").write_text(str(steps))
    (folder / "step.new").rename(folder / "step")
    if (folder / "look").exists():
        (folder / "look").unlink()
        (folder / "seen.new").write_text(json.dumps(seen(model, optimizer)))
        (folder / "seen.new").rename(folder / "seen")
    if not (folder / "stop").exists() or steps < int((folder / "stop").read_text() or 10**9):
        return False
    print(steps, digest(model, optimizer), flush=True)
    return True


if __name__ == "__main__":
    main(Path(sys.argv[1]))
