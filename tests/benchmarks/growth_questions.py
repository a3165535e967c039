"""What a collector is asked while its store grows, and what that takes of CPU, time and memory. Imported, not run."""

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import growth_stores
import httpx
import many_runs
import psutil
import tabs

from gradcanary_server.api import runs as api_runs
from gradcanary_server.rules.config import Rules
from gradcanary_server.storage.database import Database

RUN, OTHER = growth_stores.RUN, growth_stores.OTHER
EACH = 2
"""Questions that are measured at a time: on two cores another process may take the place of one."""

BATCHES_EACH = 12
PAGES = {
    "list of runs": ("/", ""),
    "run": (f"/runs/{RUN}", ""),
    "layer": (f"/runs/{RUN}/layers/3", ""),
    "settings of the run": (f"/runs/{RUN}/settings", ""),
    "incidents": ("/incidents", ""),
    "comparison": ("/compare", f"?run={RUN}&run={OTHER}"),
    "storage": ("/settings/retention", ""),
}
SEARCH = "/api/v1/runs?text=run-0009"

AT_REST = ("watchdog, a round (each 5 s)", "dispatcher, the next one", "compactor, a round (each 2 s)")

Processes = Callable[[], Iterable[psutil.Process]]


@dataclass
class Cost:
    """Milliseconds of CPU and of time, each of one question, round by round."""

    cpu_ms: list[float] = field(default_factory=list)
    ms: list[float] = field(default_factory=list)

    def told(self) -> str:
        """Return the medians."""
        return f"{statistics.median(self.cpu_ms):.1f} ms ({statistics.median(self.ms):.1f})"


class Asked:
    """The questions to one collector, and what they took."""

    def __init__(self, url: str, training: growth_stores.Training, processes: Processes) -> None:
        self.costs: dict[str, Cost] = {}
        self._training, self._processes = training, processes
        self._client = httpx.Client(base_url=url, timeout=600, headers=tabs.HEADERS)

    def ask(self, is_counted: bool) -> None:
        """Ask everything once; a batch comes before each question, so that there is news."""
        training = self._training
        batches = BATCHES_EACH // training.posting or 1
        self._measure("a batch", training.post_step, batches, training.posting, is_counted)
        self._measure("a heartbeat", training.beat, EACH, 1, is_counted)
        self._measure("a hello again", training.greet_again, EACH, 1, is_counted)
        if training.posting == 1:  # each shard has its rank from the beginning
            self._measure("a session more", training.join, EACH, 1, is_counted)
        for name, address in PAGES.items():
            self._measure(f"page: {name}", lambda address=address: self._open(*address), EACH, 1, is_counted)
        for name, path in {"/metrics": "/metrics", "search of runs": SEARCH}.items():
            self._measure(name, lambda path=path: self._get(path), EACH, 1, is_counted)

    def close(self) -> None:
        self._client.close()

    def _measure(self, name: str, act: Callable[[], object], times: int, parts: int, is_counted: bool) -> None:
        cost = self.costs.setdefault(name, Cost())
        used, took = 0.0, 0.0
        for _ in range(times):
            if name != "a batch":
                self._training.post()
            before, began = cpu_ns(self._processes()), time.perf_counter()
            act()
            took += time.perf_counter() - began
            after = cpu_ns(self._processes())
            used += sum(after[thread] - before.get(thread, 0) for thread in after)
        if is_counted:
            cost.cpu_ms.append(used / times / parts / 1e6)
            cost.ms.append(took / times / parts * 1e3)

    def _open(self, path: str, search: str) -> None:
        """Open a page, and ask what it asks next."""
        shown = ""
        for _ in range(2):
            asked = {"path": path, "search": search, "shown": shown}
            answer = self._client.post("/_refresh", json=asked).raise_for_status()
            if answer.status_code == httpx.codes.NO_CONTENT:
                return
            found = json.loads(answer.content)
            shown = found["slots"].get(f"{found['page']}-page-state", shown)

    def _get(self, path: str) -> None:
        self._client.get(path).raise_for_status()


def cpu_ns(processes: Iterable[psutil.Process]) -> dict[str, int]:
    """Return the nanoseconds of CPU of each thread: processes count theirs in hundredths of a second only."""
    found: dict[str, int] = {}
    for process in processes:
        with contextlib.suppress(OSError):  # it has ended
            for thread in os.scandir(f"/proc/{process.pid}/task"):
                found[f"{process.pid}/{thread.name}"] = int(Path(thread.path, "schedstat").read_text().split()[0])
    return found


def peak_mb(processes: Iterable[psutil.Process]) -> float:
    """Return the largest resident sets of processes so far, in MB, summed up."""
    lines = [line for each in processes for line in Path(f"/proc/{each.pid}/status").read_text().splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1e3


def rounds_at_rest(database: Database, processes: Processes, rounds: int) -> Mapping[str, Cost]:
    """Return what rounds of the loops take that find nothing to do, and the deletion of the run; of this process."""
    acts, costs = many_runs.rounds(database), {name: Cost() for name in (*AT_REST, "deletion of the run")}
    for name, act in acts.items():
        if name in AT_REST or (name.startswith(("dispatcher", "compactor")) and "after" not in name):
            act()
    for _ in range(rounds):
        for name in AT_REST:
            _run(costs[name], acts[name], processes)
    _run(costs["deletion of the run"], lambda: _delete(database), processes)
    costs["the compactor's round after it"] = Cost()
    _run(costs["the compactor's round after it"], acts["compactor, the round after it"], processes)
    return costs


def _run(cost: Cost, act: Callable[[], object], processes: Processes) -> None:
    own, before, began = time.process_time_ns(), cpu_ns(processes()), time.perf_counter()
    act()
    cost.ms.append((time.perf_counter() - began) * 1e3)
    after = cpu_ns(processes())
    others = sum(after[thread] - before.get(thread, 0) for thread in after)
    cost.cpu_ms.append((time.process_time_ns() - own + others) / 1e6)


def _delete(database: Database) -> None:
    with database.write() as connection:
        api_runs.end_and_delete(connection, RUN, Rules(), "", database.now(connection))
