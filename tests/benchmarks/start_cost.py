"""What starting a command under ``gradcanary run`` takes: CPU time more than without it, in ms.

    python tests/benchmarks/start_cost.py [ROUNDS]

The launcher itself, a Python that imports nothing, and one that imports torch, each with and without, in turns; the
median of the differences, and the spread between their quartiles. Without a target: it is small beside any training.
"""

import os
import statistics
import sys

import ratios

ratios.need("torch")

from gradcanary.cli import run

PYTHON = sys.executable
CASES = {
    "gradcanary run itself": (["true"], [PYTHON, "-m", "gradcanary.cli", "run", "true"], 1),
    "a Python": ([PYTHON, "-c", ""], [PYTHON, "-c", ""], 3),
    "a Python that imports torch": ([PYTHON, "-c", "import torch"], [PYTHON, "-c", "import torch"], 1),
}
"""Without, with, and how many times the rounds."""


def cpu_ms(command: list[str], environ: dict[str, str]) -> float:
    devnull = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_RDWR, 0) for number in range(3)]
    pid = os.posix_spawnp(command[0], command, environ, file_actions=devnull)
    _, status, used = os.wait4(pid, 0)
    if status:
        raise SystemExit(f"{command} failed")
    return 1000 * (used.ru_utime + used.ru_stime)


def main(rounds: int) -> None:
    under = run.environment(os.environ, [PYTHON], url=None, run="start-cost", every=None)
    for name, (without, within, times) in CASES.items():
        more = []
        for _ in range(times * rounds):
            alone = cpu_ms(without, dict(os.environ))
            more.append(cpu_ms(within, under) - alone)
        low, middle, high = statistics.quantiles(more, n=4)
        print(f"{name}: {middle:+.1f} ms ({low:+.1f} to {high:+.1f})", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
