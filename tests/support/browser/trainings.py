"""The trainings of the published pictures: an afternoon of a small team, each a process on the CPU.

Nothing in the pictures is drawn: what gradcanary says of these trainings is what it measured. Seeds are fixed, and a
training that does not end as it should, or of which something else is found, ends ``make screenshots`` with its name.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

TESTS = Path(__file__).parents[2]
AT_ONCE = 2
LIMIT_S = 600.0
STOP_S = 20.0
STAYS = "all steps are done"
"""The line of a training that keeps its process after the loop (``toy_llama.py``)."""


class TrainingError(Exception):
    """A training did not end as it should; the message is for a person."""


@dataclass(frozen=True)
class Training:
    """``python -m <command> --run <run>``, its exit status, the rules that find something, and what the team notes."""

    run: str
    command: str
    finds: frozenset[str] = frozenset()
    status: int = 0
    tags: tuple[str, ...] = ()
    note: str = ""

    @property
    def words(self) -> list[str]:
        return ["-m", *self.command.split(), "--run", self.run]


def _llama(run: str, options: str, *finds: str, status: int = 0, note: str = "") -> Training:
    tags = ("toy-llama", "lora")
    return Training(run, f"support.programs.toy_llama lora {options}", frozenset(finds), status, tags, note)


DEMO = (
    Training("lora-wrong-decay", "gradcanary.demo.training --fault", frozenset({"collapse"}), tags=("demo",)),
    Training("lora-healthy", "gradcanary.demo.training", tags=("demo",)),
)
"""What ``gradcanary demo`` runs."""

COLLAPSED = _llama(
    "toy-llama-lora-s0-groups",
    "--wrong-decay 400 --stays",
    "collapse",
    note="lora_B of blocks 3-5 in a parameter group of its own",
)
RESUMED = _llama("toy-llama-lora-s1", "--seed 1 --steps 400")
BF16 = Training(
    "curves-k512-bf16",
    "support.programs.bf16_sums",
    frozenset({"accumulation_loss", "accumulator"}),
    tags=("bf16",),
    note="512 micro-steps",
)
FP32 = Training(
    "curves-k512-fp32", "support.programs.bf16_sums --fp32", tags=("bf16",), note="the same, with fp32_accumulators()"
)

BASE = Training("toy-llama-base", "support.programs.toy_llama pretrain --steps 300", tags=("toy-llama",))
WAVES = (
    (
        BF16,  # beside each other, so that their steps take as long as this machine lets both
        FP32,
        BASE,
        Training("digits-head", "words.jobs healthy_finetune", tags=("digits",)),
        Training("ring-gan", "words.jobs healthy_gan"),
        Training("policy-mask", "words.jobs masked_entropy", frozenset({"nonfinite"})),
        Training("digits-autoencoder", "words.jobs encoder_frozen", tags=("digits",)),
        Training("toy-gpt-long-documents", "words.jobs out_of_memory", frozenset({"crash"}), status=1),
    ),
    (
        COLLAPSED,
        _llama("toy-llama-lora-s0", ""),
        _llama(RESUMED.run, "--seed 1 --steps 400 --preempt 230", status=-15),
    ),
    (RESUMED, _llama("toy-llama-lora-s2", "--seed 2 --steps 300 --stays")),
)
"""Each wave needs what the one before has saved."""


class Runner:
    """Runs trainings for a collector, two at a time; those that stay end with it."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._folder = folder
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._futures: list[Future[None]] = []
        self._processes: list[subprocess.Popen[str]] = []
        self._started: list[Training] = []
        self._is_closing = threading.Event()

    def close(self) -> None:
        """End all."""
        self._is_closing.set()
        self._pool.shutdown(cancel_futures=True)
        for process in self._processes:
            _end(process)

    def start(self, trainings: Iterable[Training]) -> None:
        """Start trainings in the background."""
        for training in trainings:
            self._started.append(training)
            self._futures.append(self._pool.submit(self._run, training))

    def wait(self) -> None:
        """Wait for all that were started; raises TrainingError for one that did not end as it should."""
        for future in self._futures:
            future.result()
        self._futures.clear()

    def check(self) -> None:
        """Raise TrainingError unless of each training exactly that was found what it says; set tags and notes."""
        with httpx.Client(base_url=f"{self._url}/api/v1", trust_env=False) as api:
            for training in self._started:
                incidents = api.get("/incidents", params={"run": training.run}).json()["incidents"]
                found = {each["rule"] for each in incidents if each["severity"] != "information"}
                if found != training.finds:
                    raise TrainingError(
                        f"{training.run} has incidents of {sorted(found)}, not {sorted(training.finds)}"
                    )
                said: dict[str, Any] = {"tags": list(training.tags), "note": training.note}
                api.patch(f"/runs/{training.run}", json=said).raise_for_status()

    def _run(self, training: Training) -> None:
        log = self._folder / f"{training.run}.log"
        with log.open("w") as output:
            process = subprocess.Popen(
                ["python", *training.words],  # found by PATH: pages show the command, and no path of this machine
                cwd=TESTS,
                env=self._environment(),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self._processes.append(process)
        deadline = time.monotonic() + LIMIT_S
        while process.poll() is None and STAYS not in log.read_text():
            if self._is_closing.is_set():
                return
            if time.monotonic() > deadline:
                raise TrainingError(f"{training.run} did not end within {LIMIT_S:.0f} s")
            time.sleep(0.2)
        if process.returncode not in (None, training.status):
            last = "\n".join(log.read_text().splitlines()[-15:])
            raise TrainingError(f"{training.run} ended with status {process.returncode}; its last lines:\n{last}")

    def _environment(self) -> dict[str, str]:
        """Return our environment without the user's settings of gradcanary, with this Python before others."""
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("GRADCANARY_")}
        return inherited | {
            "CHECKPOINTS": str(self._folder),
            "GRADCANARY_SPOOL": str(self._folder / "spool"),
            "GRADCANARY_URL": self._url,
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(TESTS),
        }


def _end(process: subprocess.Popen[str]) -> None:
    """Close the input, which ends a training that stays; kill one that goes on."""
    assert process.stdin is not None
    process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(STOP_S)
        return
    process.kill()
    process.wait()
