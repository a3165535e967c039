"""What sums and weights in bfloat16 lose, and what float32 ones cost: the tables of docs/results/precision.md.

    python tests/benchmarks/precision.py [--quick] [--write] [--workers 2]

At each K (micro-steps of a step), each way of ``ways.py`` fine-tunes a small language model to another rule of its
language: all weights, LoRA included, or the LoRA alone. Errors are those of whole gradients, of all parameters as one
vector, against float64 sums of the very same micro-gradients, taken by hooks. Step times are the CPU time of the
training's thread (CUDA: waited for), of all ways in turns, micro-step by micro-step; the plain way is there twice, and
the second time shows the noise. Peak memory is that of a process of its own over what it took before: on CUDA as torch
counts it, on a CPU the resident set. ``--write`` publishes; ``--quick`` takes a minute. Exit status 1 where a target is
missed.
"""

import argparse
import gc
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import ratios

ratios.need("torch")

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # torchao compiles; no processes of its own for it

import torch
from precision_page import (
    PAGE,
    Job,
    Memory,
    Results,
    Sums,
    Trained,
    change,
    measured,
    published,
)
from torch import Tensor, nn
from ways import ALL, DEVICE, LORA, PLAIN, WAYS, Training, Way, adamw, float64_sums, stack, trainable, ways_for

from gradcanary.wording import percent

RATE = 1e-3
SLOW_RATES = (1e-4, 1e-5)

MEMORY_WIDTH, MEMORY_BATCH, MEMORY_WINDOWS = 1024, 8, 2
TIME_LAYERS, TIME_WIDTH, TIME_RANK, TIME_BATCH = 4, 256, 16, 64

MOST_ACCUMULATORS, MOST_PEAK = 2.0, 1.27
"""4 bytes instead of 2. Of all that AdamW keeps of a bfloat16 parameter 10 instead of 8, and one tensor twice."""

AGAIN = "the plain way again"


@dataclass(frozen=True)
class Plan:
    """How much is done; ``steps`` by K, at the large learning rate."""

    steps: dict[int, int]
    slow_steps: int
    seeds: int
    windows: dict[int, int]
    """Whose steps are timed, by K."""
    layers: int
    """Of the stack whose memory is measured."""
    held: list[tuple[str, int]]
    """What is trained there, and the rank of the LoRA."""


FULL = Plan({8: 200, 64: 40, 512: 8, 2048: 3}, 200, 3, {8: 24, 64: 6, 512: 1, 2048: 1}, 24, [(ALL, 64), (LORA, 8)])
QUICK = Plan({8: 10, 64: 3}, 10, 2, {8: 2, 64: 1}, 4, [(ALL, 64)])


def window(way: Way, micro_steps: int, lr: float, alike: bool) -> Sums:
    """Sum the gradients of one window, and make its step."""
    training = Training(way, ALL, lr, seed=0)
    parameters, optimizer = training.parameters, training.optimizer
    is_lora = ["lora_" in name for name, _ in training.model.named_parameters()]
    with way.begin(optimizer), float64_sums(parameters) as exact:
        training.accumulate(micro_steps, alike=alike)
        summed = [each.grad.double() for each in parameters]
        handed: list[Tensor] = []
        stepped: list[tuple[Tensor, Tensor]] = []

        def look(inner: torch.optim.Optimizer, _args: object, _kwargs: object) -> None:
            for each in (each for group in inner.param_groups for each in group["params"]):
                handed.append(each.grad.double())
                stepped.append((each, each.detach().clone()))

        optimizer.register_step_pre_hook(look)  # after those of the way
        before = [each.detach().clone() for each in parameters]
        optimizer.step()
    return Sums(
        summed=error(summed, exact),
        handed=error(handed, exact),
        lora=error(*([each for each, lora in zip(vector, is_lora, strict=True) if lora] for vector in (handed, exact))),
        norm=norm(handed) / norm(exact),
        unmoved=unmoved(zip(parameters, before, strict=True), exact),
        unmoved_stepped=unmoved(stepped, exact),
    )


def unmoved(pairs: Iterable[tuple[Tensor, Tensor]], gradients: Sequence[Tensor]) -> float:
    """Return the share of the elements with a gradient that are the same in both tensors."""
    same = count = 0
    for (new, old), gradient in zip(pairs, gradients, strict=True):
        same += int(((new == old) & (gradient != 0)).sum())
        count += int((gradient != 0).sum())
    return same / count


def error(found: Sequence[Tensor], exact: Sequence[Tensor]) -> float:
    """Return the norm of the difference, divided by that of the exact vector."""
    return norm([each - other for each, other in zip(found, exact, strict=True)]) / norm(exact)


def norm(vector: Iterable[Tensor]) -> float:
    return float(torch.stack([each.norm() for each in vector]).norm())


def trained(way: Way, job: Job, steps: int, seed: int) -> Trained:
    """Fine-tune for some steps."""
    what, micro_steps, lr = job
    training = Training(way, what, lr, seed)
    before, loss_before = [each.detach().clone() for each in training.parameters], training.loss()
    with way.begin(training.optimizer):
        for _ in range(steps):
            training.accumulate(micro_steps)
            training.optimizer.step()
            training.optimizer.zero_grad()
    pairs = zip(training.parameters, before, strict=True)
    return Trained(loss_before, training.loss(), unmoved(pairs, [torch.ones_like(each) for each in before]))


class Timed:
    """A training of which the parts are timed."""

    def __init__(self, way: Way, opened: ExitStack) -> None:
        torch.manual_seed(0)
        self._way = way
        self._model = stack(TIME_LAYERS, TIME_WIDTH, TIME_RANK, way.weights, ALL)
        self._optimizer = way.optimizer(trainable(self._model), 1e-4)
        self._inputs = torch.randn(TIME_BATCH, TIME_WIDTH, device=DEVICE, dtype=way.weights)
        opened.enter_context(way.begin(self._optimizer))
        self.seconds = 0.0

    def accumulate(self) -> None:
        began = clock()
        with self._way.forward():
            loss = self._model(self._inputs).float().square().mean()
        loss.backward()
        self.seconds += clock() - began

    def step(self) -> None:
        began = clock()
        self._optimizer.step()
        self._optimizer.zero_grad()
        self.seconds += clock() - began


def clock() -> float:
    """Return seconds: of the thread's CPU, where all of the work is done, or those after the device is through."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()
        return time.perf_counter()
    return time.thread_time()


def step_times(windows: dict[int, int]) -> dict[int, dict[str, float]]:
    """Return by K and way how many times as long as the plain way's a step takes, its micro-steps included."""
    with ExitStack() as opened:
        timed = {way.name: Timed(way, opened) for way in WAYS} | {AGAIN: Timed(PLAIN, opened)}
        turn(list(timed.values()), 8)
        gc.collect()
        gc.disable()  # a collection in a short window would count for one way alone
        found = {}
        for micro_steps, count in windows.items():
            for each in timed.values():
                each.seconds = 0.0
            for _ in range(count):
                turn(list(timed.values()), micro_steps)
            found[micro_steps] = {name: each.seconds / timed[PLAIN.name].seconds for name, each in timed.items()}
        gc.enable()
        return found


def turn(all_of_them: list[Timed], micro_steps: int) -> None:
    """Make a window and a step of each; each begins as often as any other."""
    for number in range(micro_steps):
        place = number % len(all_of_them)
        for each in all_of_them[place:] + all_of_them[:place]:
            each.accumulate()
    for each in all_of_them:
        each.step()


def peak(way: Way, what: str, layers: int, rank: int, micro_steps: int) -> Memory:
    """Return bytes of this process, which must have done nothing else."""
    warm_up(way, rank)
    before = resident("VmRSS")
    torch.manual_seed(0)
    model = stack(layers, MEMORY_WIDTH, rank, way.weights if what == ALL else torch.bfloat16, what)
    if what == LORA:
        for each in trainable(model):
            each.data = each.data.to(way.weights)
    chosen = trainable(model)
    optimizer = way.optimizer(chosen, 1e-4)
    with way.begin(optimizer):
        for number in range(MEMORY_WINDOWS):
            for _ in range(1 if number == 0 else micro_steps):
                memory_loss(way, model).backward()
            accumulators = sum(each.grad.nbytes for each in chosen if each.grad is not None)
            optimizer.step()
            optimizer.zero_grad()
    most = torch.cuda.max_memory_allocated() if DEVICE == "cuda" else resident("VmHWM") - before
    return Memory(sum(map(torch.numel, chosen)), accumulators, most)


def warm_up(way: Way, rank: int) -> None:
    """Compile, import and set up all that a step needs once, then forget its peak."""
    model = stack(1, MEMORY_WIDTH, rank, way.weights, ALL)
    optimizer = way.optimizer(trainable(model), 1e-4)
    with way.begin(optimizer):
        memory_loss(way, model).backward()
        optimizer.step()
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # the largest resident set begins again


def memory_loss(way: Way, model: nn.Module) -> Tensor:
    inputs = torch.randn(MEMORY_BATCH, MEMORY_WIDTH, device=DEVICE, dtype=way.weights)
    with way.forward():
        return model(inputs).float().square().mean()


def resident(which: str) -> int:
    """Return the present (``VmRSS``) or largest (``VmHWM``) resident set of this process in bytes."""
    found = re.search(rf"^{which}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    if found is None:
        raise SystemExit("the system does not tell the resident set of a process")
    return int(found[1]) * 1024


def peak_apart(way: Way, what: str, layers: int, rank: int, micro_steps: int = 8) -> Memory:
    """Measure in another process, in which what is freed goes back to the system: so the resident set is what is
    used."""
    command = [sys.executable, __file__, "--memory", json.dumps([WAYS.index(way), what, layers, rank, micro_steps])]
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"}
    said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return Memory(**json.loads(said.splitlines()[-1]))


def dead_key() -> str:
    """Return a sentence on a key of a parameter group that PyTorch does not know."""
    found = []
    for key in ({}, {"grad_accumulator_dtype": torch.float32}):
        training = Training(PLAIN, ALL, RATE, seed=0)
        training.optimizer.param_groups[0].update(key)
        for _ in range(3):
            training.accumulate(8)
            kinds = {str(each.grad.dtype) for each in training.parameters}
            training.optimizer.step()
            training.optimizer.zero_grad()
        found.append((kinds, training.parameters))
    (_, plain), (kinds, keyed) = found
    is_same = all(map(torch.equal, plain, keyed))
    return (
        f'`param_groups[0]["grad_accumulator_dtype"] = torch.float32`: gradients are summed in {", ".join(kinds)}. '
        f"After 3 steps the weights are {'the same bit for bit' if is_same else 'OTHERS'} with the key and without it."
    )


def limits() -> str:
    """Return a sentence on the smallest numbers of float16 and bfloat16."""
    half, brain = torch.finfo(torch.float16), torch.finfo(torch.bfloat16)
    return (
        f"6e-8 is float16's floor: its smallest number over 0 is {half.smallest_normal * half.eps:.2e}. In bfloat16 "
        f"this is {brain.smallest_normal * brain.eps:.2e}, and the smallest normal number is "
        f"{brain.smallest_normal:.2e}. bfloat16 has fewer digits: after 1 comes 1 + {brain.eps:g}, in float16 "
        f"1 + {half.eps:g}."
    )


def forward_error() -> str:
    """Return a sentence on one gradient that is computed in bfloat16."""
    low = Training(PLAIN, ALL, RATE, seed=0)
    exact = Training(Way("float64", weights=torch.float64), ALL, RATE, seed=0)
    for each in (low, exact):
        each.accumulate(1)
    found, true = ([each.grad.double() for each in training.parameters] for training in (low, exact))
    difference = percent(error(found, true))
    return f"One micro-step's gradient, computed in bfloat16, differs from that of float64 by {difference}."


def sentences(results: Results, plan: Plan, at_most: dict[str, Memory], at_least: dict[str, Memory]) -> list[str]:
    """Return what else is measured, one number a sentence."""
    names = [way.name for way in WAYS if way.sums == "all" and not way.masters]
    (sums,) = names
    times = {count: change(each[sums]) for count, each in results.times.items()}
    noise = max(abs(each[AGAIN] - 1) for each in results.times.values())
    peaks = {what: change(each[sums].peak / each[PLAIN.name].peak) for what, each in results.memory.items()}
    rounding = max(each[sums].summed for each in [*results.independent.values(), *results.alike.values()])
    largest = max(plan.steps)
    again = [f"{at_most[name].peak / at_least[name].peak:.3f} ({name})" for name in at_most]
    return [
        "Float32 accumulators change the step time by "
        + ", ".join(f"{each} (K = {count:,})" for count, each in times.items())
        + f". Two runs of the plain way differ by up to {100 * noise:.1f} %.",
        "Float32 accumulators change the peak of memory by "
        + ", ".join(f"{each} ({what})" for what, each in peaks.items())
        + ".",
        f"The peak at K = {largest:,} is the peak at K = 8 times {' and '.join(again)}.",
        f"The float32 sum itself, before it is rounded for the step, is off by {rounding:.0e} at most.",
        forward_error(),
        dead_key(),
        limits(),
    ]


def measure(plan: Plan, workers: int) -> Results:
    """Measure all, in as many processes."""
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else f"{os.cpu_count()} CPU cores"
    torchao = "" if WAYS[-1].optimizer is adamw else f", torchao {version('torchao')}"
    jobs: dict[Job, int] = {(ALL, count, RATE): steps for count, steps in plan.steps.items()}
    jobs |= {(ALL, min(plan.steps), rate): plan.slow_steps for rate in SLOW_RATES}
    jobs |= {(LORA, min(plan.steps), rate): plan.slow_steps for rate in (RATE, SLOW_RATES[0])}
    results = Results(
        f"torch {torch.__version__}{torchao}, {device}, load {os.getloadavg()[0]:.0f} before, {plan.seeds} seeds",
        PLAIN.name,
        [way.name for way in WAYS],
        jobs,
    )
    context = get_context("spawn")
    with ProcessPoolExecutor(workers, context, torch.set_num_threads, (1,)) as pool:
        times = pool.submit(step_times, plan.windows)
        if DEVICE == "cuda":
            times.result()  # the others would be on the same device
        runs = {
            (job, way.name): [pool.submit(trained, way, job, steps, seed) for seed in range(plan.seeds)]
            for job, steps in sorted(jobs.items(), key=lambda item: -item[0][1] * item[1])
            for way in ways_for(job[0])
        }
        windows = {
            (count, rate, alike, way.name): pool.submit(window, way, count, rate, alike)
            for count in reversed(plan.steps)
            for rate, alike in ((min(SLOW_RATES), False), (RATE, True))
            for way in WAYS
        }
        for what, rank in plan.held:
            results.memory[f"{what}, rank {rank}"] = {
                way.name: peak_apart(way, what, plan.layers, rank) for way in ways_for(what)
            }
        few = [{way.name: peak_apart(way, ALL, 4, 64, count) for way in WAYS[:2]} for count in (8, max(plan.steps))]
        print("memory is measured", file=sys.stderr, flush=True)
        results.times = times.result()
        print("times are measured", file=sys.stderr, flush=True)
        for job in jobs:
            results.trained[job] = {way.name: [run.result() for run in runs[job, way.name]] for way in ways_for(job[0])}
            print(f"trained: {job}", file=sys.stderr, flush=True)
        for (count, rate, alike, way), found in windows.items():
            if alike:
                results.alike.setdefault(count, {})[way] = found.result()
            else:
                results.independent.setdefault((count, rate), {})[way] = found.result()
    results.sentences = sentences(results, plan, few[1], few[0])
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description="What bfloat16 loses, and what float32 costs.")
    parser.add_argument("--quick", action="store_true", help="a minute, to see that it works")
    parser.add_argument("--write", action="store_true", help=f"publish in {PAGE.relative_to(PAGE.parents[2])}")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time (default: %(default)s)")
    parser.add_argument("--memory", type=json.loads, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.memory is not None:
        number, *others = arguments.memory
        print(json.dumps(asdict(peak(WAYS[number], *others))))
        return 0
    if arguments.quick and arguments.write:
        parser.error("--quick measures too little to publish")
    results = measure(QUICK if arguments.quick else FULL, arguments.workers)
    page = measured(results)
    print(page)
    if arguments.write:
        PAGE.write_text(published(PAGE.read_text("utf-8"), page), "utf-8")
    plain, sums = (results.memory[f"{ALL}, rank 64"][way.name] for way in WAYS[:2])
    are_met = [
        ratios.judged("gradients, times plain", sums.accumulators / plain.accumulators, MOST_ACCUMULATORS),
        ratios.judged("peak, times plain", sums.peak / plain.peak, MOST_PEAK),
    ]
    return int(not all(are_met))


if __name__ == "__main__":
    raise SystemExit(main())
