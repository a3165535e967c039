"""``gradcanary whatif`` beside what happened: real trainings on the CPU, whose schedules change.

    OMP_NUM_THREADS=1 python tests/benchmarks/whatif.py

Each of tests/support/scheduled_trainings.py is trained with two seeds that set no constant of the forecast (seed 0
did), watched, and sent to a collector; then what was foretold before each change, with the learning rates that came, is
held against what was measured. Prints the table of docs/results/whatif.md, in about ten minutes.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median

sys.path[:0] = [str(Path(__file__).parent.parent)]

import numpy as np
import torch

from gradcanary import wire
from gradcanary_server.ops import rules_command, whatif, whatif_command
from gradcanary_server.ops.whatif import BITS, History, Verdict, WeightModel
from support.collectors import Collector
from support.scheduled_trainings import TRAININGS, Training

SEEDS = (1, 2)
THRESHOLD = 1e-4
WORDS = whatif_command.VERDICTS
ANY_FALL = tuple((0, decay) for decay in np.geomspace(1e-3, 1e7, 100).tolist())
"""Weight decays so close to each other that one of them is as fast as any fall."""


def main() -> None:
    """Train, and print a row for each training and the totals."""
    torch.set_num_threads(1)
    totals: dict[str, Counter[str]] = {"weights": Counter(), "gradients": Counter(), "any fall": Counter()}
    rates: list[float] = []
    reaches: list[float] = []
    print(f"| training | {' | '.join(WORDS)} | steps away, median | error of the share |\n|{'---|' * (len(WORDS) + 3)}")
    with tempfile.TemporaryDirectory() as folder:
        collector = Collector(Path(folder)).start()
        try:
            for training in TRAININGS:
                score, away, errors = Counter[str](), [], []
                for history in histories(collector, training):
                    for step in training.changes:
                        _, verdicts = whatif.backtest(history, step, THRESHOLD)
                        score.update(each.word for each in verdicts)
                        for each in verdicts:
                            totals[each.outlook.kind][each.word] += 1
                        totals["any fall"].update(each.word for each in continued(history, step))
                        away += [abs(each.steps_away) for each in verdicts if each.steps_away is not None]
                        for model in models(history, step):
                            errors += share_errors(history, model, step)
                            rates += passed_rates(history, model, step)
                            reaches += measured_reaches(history, model, step)
                cells = [*(score[word] for word in WORDS), f"{median(away):g}" if away else "-"]
                print("|", training.name, "|", *(f"{cell} |" for cell in cells), middle(errors), "|", flush=True)
        finally:
            collector.kill()
    for name, score in totals.items():
        print(f"| **{name}** | {' | '.join(str(score[word]) for word in WORDS)} | | |")
    low, half, high = np.quantile(rates, [0.1, 0.5, 0.9])
    print(f"\nrate at which a level is passed, over the forecast: {low:.2f}, {half:.2f}, {high:.2f} (10, 50, 90 %)")
    low, half, high = np.quantile(reaches, [0.1, 0.5, 0.9])
    print(f"reach of 50 steps, over the update of one: {low:.2f}, {half:.2f}, {high:.2f}")


def histories(collector: Collector, training: Training) -> Iterator[History]:
    """Train with each seed, and yield what the collector has of it."""
    for seed in SEEDS:
        run = f"{training.name}-{seed}"
        replace(training, name=run).run(collector.url, seed)
        with rules_command.open_collector(collector.url, None, None) as client:
            yield whatif_command.read_history(client, run)


def models(history: History, step: int) -> Iterator[WeightModel]:
    """Yield the models of the weights of all layers that have one."""
    for layer in history.layers:
        model = whatif.fit_weights(history, layer, step - 1)
        if isinstance(model, WeightModel):
            yield model


def share_errors(history: History, model: WeightModel, step: int) -> list[float]:
    """Return the absolute differences of foretold and measured shares of unmoved weights after a step."""
    series = history.of("frozen_fraction", model.layer)
    is_later = series.steps >= step + wire.FROZEN_STEPS
    foretold = model.shares(history.highest_rates(model.layer, series.steps[is_later]))
    return np.abs(foretold - series.values[is_later]).tolist()


def passed_rates(history: History, model: WeightModel, step: int) -> list[float]:
    """Return the rates at which shares passed the levels while a rate fell slowly, over the foretold ones."""
    series = history.of("frozen_fraction", model.layer)
    series = whatif.Series(series.steps[series.steps >= step], series.values[series.steps >= step])
    rates = history.highest_rates(model.layer, series.steps)
    found = []
    for level in whatif.LEVELS:
        above = np.flatnonzero(series.values > level)
        if len(above) and above[0] > 0 and rates[above[0]] > 0.5 * rates[above[0] - 1]:
            found.append(float(rates[above[0] - 1 : above[0] + 1].mean()) / model.critical_rate(level))
    return found


def measured_reaches(history: History, model: WeightModel, step: int) -> list[float]:
    """Return how far the farthest of 50 steps reaches, over the root mean square of one, where both are measured."""
    numel = int(np.prod(model.layer.shape))
    norms = history.of("weight_norm", model.layer).until(step - 1).values
    update = whatif.update_scale(history, model.layer, step - 1, numel)
    if not 0.05 < model.share < 0.4 or numel < 64 or not update:
        return []
    return [model.scale * float(norms[-1]) / np.sqrt(numel) / 2 ** BITS[model.layer.param_dtype] / update]


def continued(history: History, step: int) -> list[Verdict]:
    """Return the verdicts on gradients if any fall is continued, at a threshold of half of the usual level then."""
    levels = history.levels[history.level_steps < step][-3:]
    threshold = float(10 ** np.nanmedian(levels)) / 2
    _, verdicts = whatif.backtest(replace(history, decays=ANY_FALL), step, threshold)
    explained = {each.outlook.layer.name for each in whatif.backtest(history, step, threshold)[1] if each.word == "hit"}
    return [each for each in verdicts if each.outlook.kind == "gradients" and each.outlook.layer.name not in explained]


def middle(errors: list[float]) -> str:
    """Return the mean of some errors with two digits, a dash without any."""
    return f"{np.mean(errors):.2f}" if errors else "-"


if __name__ == "__main__":
    main()
