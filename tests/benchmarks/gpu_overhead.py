"""What watching costs a training on a GPU: a GPT of a billion parameters beside nothing, the agent, and wandb.

python tests/benchmarks/gpu_overhead.py [--rounds 5] [--steps 10] [--width 2048] [--blocks 18] [--device cuda] [--lora]
Seconds per step by the clock, the device waited for before and after the steps of a turn only; a round is one turn for
each way to watch, with a turn of nothing before and after it. The agent's default is that after its first 1,000 steps,
which are all sampled: with the interval N that it settles for here (``settling.py``) a step costs what one costs that
is not sampled, which is a turn of its own, and 1/N of what ``every=1`` adds to that, round by round. The norms that the
collector has of a step are compared with those of the same gradients in float64. Exit status 1 where a target is missed
by the median. With ``--lora`` it is the LoRA of ``trainings.py``, 400 small tensors: a step in which a GPU waits for
the host, where each microsecond of the agent shows. That has no targets: a training of any size hides them. It is not
held against wandb, whose step waits for the device 400 times there.
"""

import argparse
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import ratios

ratios.need("torch", "wandb", "httpx", "psutil")

import httpx
import torch
import trainings
import wandb
from servers import collector
from settling import AT_DEFAULT, WARM_UP, Settled, settle
from torch import Tensor, nn
from torch.nn import functional
from trainings import Lora

import gradcanary

VOCABULARY, LENGTH, BATCH = 32_000, 1024, 4
NOTHING, EVERY_STEP, WANDB = "nothing", "gradcanary, `every=1`", "`wandb.watch`"
UNSAMPLED, DEFAULT = "gradcanary, in steps that are not sampled", "gradcanary, default after 1,000 steps"
AT_EVERY_STEP = 1.03
EXACT = 1e-4

Ways = dict[str, Callable[[], AbstractContextManager[object]]]


class Gpt(nn.Module):
    """Of width 2048 and 18 blocks: 1.04 billion parameters in 220 tensors."""

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        block = nn.TransformerEncoderLayer(
            width, max(width // 128, 1), 4 * width, dropout=0.0, batch_first=True, norm_first=True
        )
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(torch.zeros(LENGTH, width))
        self.blocks = nn.TransformerEncoder(block, blocks, enable_nested_tensor=False)
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        inner = self.tokens(tokens) + self.positions[:length]
        logits: Tensor = self.head(self.blocks(inner, mask=mask, is_causal=True))
        return logits


class Loop:
    """Float32 weights under bfloat16 autocast, AdamW as torch chooses it."""

    def __init__(self, device: torch.device, model: nn.Module, vocabulary: int, length: int) -> None:
        self.device, self.model = device, model.to(device)
        self.vocabulary, self.length = vocabulary, length
        trained = [each for each in self.model.parameters() if each.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4)

    def step(self) -> None:
        """Make one optimizer step; the host does not wait."""
        self.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def backward(self) -> None:
        tokens = torch.randint(self.vocabulary, (BATCH, self.length + 1), device=self.device)
        with torch.autocast(self.device.type, torch.bfloat16):
            logits = self.model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()

    def step_s(self, steps: int) -> float:
        """Return the mean seconds of a step."""
        self.wait()
        began = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.wait()
        return (time.perf_counter() - began) / steps

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def largest_error(loop: Loop, url: str) -> float:
    """Return the largest relative error of a norm that arrived, beside float64; raises KeyError where one did not."""
    with gradcanary.watch(loop.model, loop.optimizer, url=url, run="exact", every=1):
        loop.backward()
        gradients = {name: each.grad for name, each in loop.model.named_parameters()}
        exact = {name: float(each.double().norm()) for name, each in gradients.items() if each is not None}
        loop.optimizer.step()
        loop.optimizer.zero_grad()
    layers = httpx.get(f"{url}/api/v1/runs/exact/layers").raise_for_status().json()["layers"]
    arrived = {each["name"]: each["norm"] for each in layers}
    return max(abs(arrived[name] - norm) / norm for name, norm in exact.items() if norm)


@contextmanager
def ways_of(loop: Loop, url: str, settled: Settled, *, has_wandb: bool) -> Iterator[Ways]:
    """Yield each way to watch the loop."""
    ours: Ways = {
        NOTHING: nullcontext,
        UNSAMPLED: lambda: settled.watch(loop, url, 1000),
        EVERY_STEP: lambda: gradcanary.watch(loop.model, loop.optimizer, url=url, run="every-step", every=1),
    }
    if not has_wandb:
        yield ours
        return
    with tempfile.TemporaryDirectory(prefix="gradcanary-wandb-") as folder:
        quiet = wandb.Settings(console="off", silent=True, x_disable_stats=True, x_disable_meta=True, disable_git=True)
        with wandb.init(mode="offline", dir=Path(folder), settings=quiet) as run:
            yield {**ours, WANDB: lambda: _wandb_watch(loop, run)}


@contextmanager
def _wandb_watch(loop: Loop, run: wandb.Run) -> Iterator[None]:
    numbers = itertools.count()
    run.watch(loop.model, log="gradients", log_freq=1, idx=0)
    handle = loop.optimizer.register_step_post_hook(lambda *_: run.log({"number": next(numbers)}))
    yield
    handle.remove()
    run.unwatch(loop.model)


def measured(loop: Loop, ways: Ways, rounds: int, steps: int) -> dict[str, list[float]]:
    """Return the ratios to nothing of each way, one each round."""
    found: dict[str, list[float]] = {way: [] for way in ways}

    def turn(way: str) -> float:
        with ways[way]():
            for _ in range(WARM_UP):
                loop.step()
            return loop.step_s(steps)

    for way in ways:
        turn(way)
    for _ in range(rounds):
        before = turn(NOTHING)
        for way in (way for way in ways if way != NOTHING):
            used, after = turn(way), turn(NOTHING)
            found[way].append(2 * used / (before + after))
            found[NOTHING].append(after / before)
            before = after
    print(f"{before * 1e3:.1f} ms a step\n")
    return found


def main() -> int:
    """Measure, and print the table and the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, usual in (("rounds", 5), ("steps", 10), ("width", 2048), ("blocks", 18)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda"))
    parser.add_argument("--lora", action="store_true")
    given = parser.parse_args()
    if given.device.type == "cuda" and not torch.cuda.is_available():
        parser.error(f"torch {torch.__version__} sees no CUDA device: try it with --device cpu --width 64 --blocks 2")
    torch.manual_seed(0)
    if given.lora:
        loop = Loop(given.device, Lora(), trainings.VOCABULARY, Lora.length)
    else:
        model = Gpt(given.width, given.blocks)
        loop = Loop(given.device, model, VOCABULARY, LENGTH if given.device.type == "cuda" else 32)
    elements = [each.numel() for each in loop.model.parameters() if each.requires_grad]
    name = torch.cuda.get_device_name() if given.device.type == "cuda" else "CPU"
    print(f"{sum(elements):,} parameters in {len(elements)} tensors, torch {torch.__version__}, {name}, ", end="")
    with (
        tempfile.TemporaryDirectory(prefix="gradcanary-cost-") as folder,
        collector(Path(folder) / "data") as receiver,
    ):
        error = largest_error(loop, receiver.url)
        settled = settle(loop, receiver.url, clock=time.perf_counter)
        with ways_of(loop, receiver.url, settled, has_wandb=not given.lora) as ways:
            found = measured(loop, ways, given.rounds, given.steps)
    found[DEFAULT] = settled.default(found[EVERY_STEP], found[UNSAMPLED])
    print(f"N = {settled.every}; own share {settled.share:.2%}\n")
    print("| watched by | ratio: median (range) |\n|---|---|")
    for way, each in found.items():
        print(f"| {way} | {ratios.told(each)} |")
    print()
    if given.lora:
        return int(error > EXACT)
    are_met = [
        ratios.judged("default", statistics.median(found[DEFAULT]), AT_DEFAULT),
        ratios.judged("`every=1`", statistics.median(found[EVERY_STEP]), AT_EVERY_STEP),
        ratios.judged("largest relative error of a norm", error, EXACT),
    ]
    return int(not all(are_met))


if __name__ == "__main__":
    raise SystemExit(main())
