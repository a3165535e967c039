"""Ways to watch the gradients of a training, as context managers over its loop. Imported, not run."""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import torch
import wandb
from lightning.pytorch.utilities import grad_norm
from settling import Settled
from trainings import Loop

import gradcanary

Ways = dict[str, Callable[[Loop], AbstractContextManager[object]]]

NOTHING, UNSAMPLED, EVERY_STEP, WANDB = (
    "nothing",
    "gradcanary, in steps that are not sampled",
    "gradcanary, `every=1`",
    "`wandb.watch(log_freq=1)`",
)


@contextmanager
def all_ways(url: str, settled: Settled) -> Iterator[Ways]:
    """Yield each way to watch a loop; the agent's batches go to a collector at ``url``, and some are as it is after the
    first 1,000 steps."""
    with tempfile.TemporaryDirectory(prefix="gradcanary-wandb-") as folder, _wandb_run(Path(folder)) as run:
        yield {
            NOTHING: lambda loop: nullcontext(),
            UNSAMPLED: lambda loop: settled.watch(loop, url, 1000),
            EVERY_STEP: lambda loop: gradcanary.watch(loop.model, loop.optimizer, url=url, run="every-step", every=1),
            "Lightning's `grad_norm`": _lightning_norms,
            "a hook with `.item()` per layer": _item_hooks,
            WANDB: lambda loop: _wandb_watch(loop, run),
        }


@contextmanager
def _item_hooks(loop: Loop) -> Iterator[None]:
    """Read the largest gradient of each parameter the way it is first written down."""
    read: dict[str, float] = {}

    def hook(name: str) -> Callable[[torch.Tensor], None]:
        def store(parameter: torch.Tensor) -> None:
            read[name] = parameter.grad.abs().max().item()
            read[name + ".norm"] = parameter.grad.norm().item()

        return store

    named = [(name, each) for name, each in loop.model.named_parameters() if each.requires_grad]
    handles = [each.register_post_accumulate_grad_hook(hook(name)) for name, each in named]
    yield
    for handle in handles:
        handle.remove()


@contextmanager
def _lightning_norms(loop: Loop) -> Iterator[None]:
    """Call what Lightning's documentation puts into ``on_before_optimizer_step``, and read the numbers to log them."""

    def read(*_: object) -> None:
        for norm in grad_norm(loop.model, norm_type=2).values():
            float(norm)

    handle = loop.optimizer.register_step_pre_hook(read)
    yield
    handle.remove()


@contextmanager
def _wandb_run(folder: Path) -> Iterator[wandb.Run]:
    """Begin an offline run that measures nothing by itself."""
    quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True, disable_git=True)
    with wandb.init(mode="offline", dir=folder, settings=quiet) as run:
        yield run


@contextmanager
def _wandb_watch(loop: Loop, run: wandb.Run) -> Iterator[None]:
    """Log a histogram of each gradient at each step; ``run.log`` ends a step, as in any loop that uses wandb."""
    numbers = itertools.count()
    run.watch(loop.model, log="gradients", log_freq=1, idx=0)
    handle = loop.optimizer.register_step_post_hook(lambda *_: run.log({"number": next(numbers)}))
    yield
    handle.remove()
    run.unwatch(loop.model)
