"""The tables of ``precision.py``, for a terminal and in docs/results/precision.md. Imported, not run."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gradcanary.wording import count as count_of
from gradcanary.wording import percent

PAGE = Path(__file__).parents[2] / "docs" / "results" / "precision.md"
BEGIN, END = "<!-- measured: python tests/benchmarks/precision.py --write -->\n", "<!-- end of what is measured -->\n"

SMALLEST = 5e-4
"""Of a loss with three decimals."""


@dataclass(frozen=True)
class Sums:
    """Of one window: the relative error of the sum and of what the optimizer got of it, and the share of the norm that
    is left; ``lora`` is the error of the LoRA alone. ``unmoved`` is the share of elements with a gradient that the step
    left bit for bit as they were, in the weights and in what the optimizer stepped."""

    summed: float
    handed: float
    lora: float
    norm: float
    unmoved: float
    unmoved_stepped: float


@dataclass(frozen=True)
class Trained:
    """What some steps came to: the loss before and after, and the share of weights that are as they were."""

    loss_before: float
    loss: float
    unmoved: float


@dataclass(frozen=True)
class Memory:
    """Bytes: ``.grad`` at the end of a window, and the peak over what the process took before."""

    elements: int
    accumulators: int
    peak: int


Job = tuple[str, int, float]
"""What is trained, K, and the learning rate."""


@dataclass
class Results:
    """All that was measured, by the name of a way; the first way is the one that others are compared with."""

    machine: str
    plain: str
    ways: list[str]
    steps: dict[Job, int]
    independent: dict[tuple[int, float], dict[str, Sums]] = field(default_factory=dict)
    alike: dict[int, dict[str, Sums]] = field(default_factory=dict)
    trained: dict[Job, dict[str, list[Trained]]] = field(default_factory=dict)
    times: dict[int, dict[str, float]] = field(default_factory=dict)
    memory: dict[str, dict[str, Memory]] = field(default_factory=dict)
    sentences: list[str] = field(default_factory=list)


def change(ratio: float) -> str:
    """Return a ratio as what it adds: ``+4.2 %``."""
    return f"{100 * (ratio - 1):+.1f} %"


def is_difference(differences: Sequence[float]) -> bool:
    """Return True if differences, one by seed, are more than their spread: all of one sign, and their mean over twice
    their standard deviation, and over what is printed."""
    mean, spread = statistics.mean(differences), statistics.stdev(differences)
    return (min(differences) > 0 or max(differences) < 0) and abs(mean) > max(2 * spread, SMALLEST)


def loss(trainings: Sequence[Trained], plain: Sequence[Trained]) -> str:
    """Return the mean final loss and its difference from the plain way's, seed by seed; ``=`` is none beyond the
    spread."""
    mean = f"{statistics.mean(each.loss for each in trainings):.3f}"
    if trainings is plain:
        return f"{mean} ± {statistics.stdev(each.loss for each in trainings):.3f}"
    differences = [each.loss - other.loss for each, other in zip(trainings, plain, strict=True)]
    if not is_difference(differences):
        return f"{mean} ="
    return f"{mean} ({statistics.mean(differences):+.3f} ± {statistics.stdev(differences):.3f})"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    return "".join("| " + " | ".join(each) + " |\n" for each in [head, ["---"] * len(head), *rows])


def measured(results: Results) -> str:
    """Return all tables and sentences."""
    parts = [
        f"{results.machine}.\n",
        "### By K\n",
        by_micro_steps(results),
        "### By learning rate\n",
        by_rate(results),
        "### Peak memory\n",
        memory(results),
        "### In sentences\n",
        "".join(f"- {each}\n" for each in results.sentences),
    ]
    return "\n".join(parts)


def by_micro_steps(results: Results) -> str:
    """Return the table of all ways at each K; its final losses are of the largest learning rate."""
    trained = max(results.trained, key=lambda job: job[2])[0]
    rate = max(job[2] for job in results.trained)
    slow = min(job[1] for job in results.independent)
    head = [
        "K",
        "way",
        "error: independent",
        "error: alike",
        f"a step at lr {_rate(slow)} leaves",
        f"final loss, lr {_rate(rate)}",
    ]
    rows = []
    for count, times in results.times.items():
        job = (trained, count, rate)
        for way in results.ways:
            trainings, plain = results.trained[job][way], results.trained[job][results.plain]
            independent, alike = results.independent[count, slow][way], results.alike[count][way]
            rows.append(
                [
                    f"{count:,}" if way == results.plain else "",
                    way,
                    _error(independent),
                    f"{_error(alike)}, {percent(alike.norm)} of the norm left",
                    _unmoved(independent),
                    f"{loss(trainings, plain)}, {count_of(results.steps[job], 'step')}",
                    "1" if way == results.plain else change(times[way]),
                ]
            )
    return table([*head, "step time"], rows)


def _rate(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-")


def _error(sums: Sums) -> str:
    is_other = sums.lora < sums.handed / 2 and sums.handed > 5e-5
    return percent(sums.handed) + (f" (LoRA: {percent(sums.lora)})" if is_other else "")


def _unmoved(sums: Sums) -> str:
    copies = "" if sums.unmoved_stepped == sums.unmoved else f" (copies: {percent(sums.unmoved_stepped)})"
    return percent(sums.unmoved) + copies


def by_rate(results: Results) -> str:
    """Return the table of final losses and of weights that did not move, at the smallest K."""
    least = min(job[1] for job in results.trained)
    rows = []
    for (what, count, rate), trained in results.trained.items():
        if count != least:
            continue
        for way, trainings in trained.items():
            plain = trained[results.plain]
            before = statistics.mean(each.loss_before for each in plain)
            is_first = way == results.plain
            rows.append(
                [
                    f"{what}, lr {_rate(rate)}, {results.steps[what, count, rate]} steps" if is_first else "",
                    way,
                    percent(statistics.mean(each.unmoved for each in trainings)),
                    f"{before:.3f}" if is_first else "",
                    loss(trainings, plain),
                ]
            )
    return table(["trained", "way", "weights that are as before", "loss before", "final loss"], rows)


def memory(results: Results) -> str:
    """Return the table of peak memory by what is trained."""
    rows = []
    for what, found in results.memory.items():
        plain = found[results.plain]
        for way, each in found.items():
            rows.append(
                [
                    f"{what}: {each.elements / 1e6:.1f} M" if way == results.plain else "",
                    way,
                    f"{each.accumulators / 2**20:.1f} MiB",
                    f"{each.peak / 2**20:.1f} MiB",
                    "1" if way == results.plain else change(each.peak / plain.peak),
                ]
            )
    return table(["trained", "way", "gradients", "peak", ""], rows)


def published(text: str, part: str) -> str:
    """Return a document with what is measured between its two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"the document has not both marks: {BEGIN.strip()} and {END.strip()}")
    return before + begin + part + end + after
