"""What an open page costs the collector: CPU of a refresh, of a run and of the list, beside that of a batch.

python tests/benchmarks/tab_cost.py [--steps 1500] [--layers 500] [--rounds 5]
A batch of five steps comes, then the page asks, so there is news for each of its questions. How many batches a refresh
is worth says the same on a busy machine.
"""

import argparse
import itertools
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import ratios

ratios.need("psutil", "pytest")

import jobs
import servers
import tabs
from jobs import streams

RUN = "growing"
EACH = 10
"""Batches and refreshes that are measured at a time: CPU is counted in hundredths of a second."""


class Growing:
    """A training that posts when it is told to."""

    def __init__(self, url: str, layers: int, steps: int) -> None:
        self._stream = streams.Stream(streams.healthy(steps, layers), streams.falling_loss(steps))
        self._session = streams.Session(url, RUN)
        self._session.put_hello(self._stream.hello()).raise_for_status()
        self._numbers, self._at = itertools.count(), 0

    def post(self, steps: int = jobs.STEPS) -> None:
        """Post the next batch."""
        end = self._at + steps
        batch = self._stream.batch(self._at, end, change_records=self._at == 0)
        self._session.post_batch(next(self._numbers), batch).raise_for_status()
        self._at = end


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1_500)
    parser.add_argument("--layers", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=ratios.ROUNDS)
    given = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="gradcanary-tab-") as folder,
        servers.collector(Path(folder) / "data") as server,
    ):
        most = given.steps + 64 + 3 * EACH * (given.rounds + 1) * jobs.STEPS
        training = Growing(server.url, given.layers, most)
        for _ in range(0, given.steps, 64):
            training.post(64)
        found = measured(server, training, given.rounds)
    batch = found.pop("a batch")
    print(f"{given.layers} layers, {given.steps} steps\n\n| what | ms of CPU | batches |\n|---|---|---|")
    print(f"| a batch of {jobs.STEPS} steps | {ratios.told(batch, '.1f')} | 1 |")
    for name, used in found.items():
        worth = [each / one for each, one in zip(used, batch, strict=True)]
        print(f"| {name} | {ratios.told(used, '.1f')} | {ratios.told(worth, '.1f')} |")
    return 0


def measured(server: servers.Server, training: Growing, rounds: int) -> dict[str, list[float]]:
    """Return milliseconds of CPU of a batch, and of what each page asks, round by round; the first one warms up."""
    pages = {"a refresh of a run": tabs.Tab(server.url, RUN), "a refresh of the list": tabs.Tab(server.url, None)}
    found: dict[str, list[float]] = {"a batch": [], **{name: [] for name in pages}}
    for _ in range(rounds + 1):
        batch = _used_ms(server, training.post)
        found["a batch"].append(batch)
        for name, page in pages.items():
            found[name].append(_used_ms(server, lambda page=page: (training.post(), page.ask())) - batch)
    for page in pages.values():
        page.close()
    return {name: used[1:] for name, used in found.items()}


def _used_ms(server: servers.Server, act: Callable[[], object]) -> float:
    used = server.cpu_s()
    for _ in range(EACH):
        act()
        time.sleep(0.02)  # what is left to do after the answer
    return (server.cpu_s() - used) * 1e3 / EACH


if __name__ == "__main__":
    raise SystemExit(main())
