"""Runs a command for some optimizer steps under a collector, reads what was measured, and has it judged.

The training ends itself: as the window after the last step begins, the agent in it raises SIGINT, as Ctrl-C does. One
that goes on nevertheless is terminated, then killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gradcanary.attach import processes
from gradcanary.demo.processes import Collector, reader
from gradcanary.sanity.judge import judge
from gradcanary.sanity.measurements import Outcome, read_measurements
from gradcanary.sanity.report import Report

TAIL_LINES = 20
"""Lines of the output that a report keeps: a traceback of a small script."""

POLL_S, ASK_S = 0.05, 1.0
"""The times between two looks at the process, and between two questions to the collector."""

SAVE_S, TERM_S = 20.0, 10.0
"""The times that a training has after its last step, to save what it likes, and after SIGTERM."""

Read = Callable[[str], Any]


@dataclass(frozen=True)
class Source:
    """A collector that takes the runs: its address, and the token to read with."""

    url: str
    token: str | None = None


@contextmanager
def own_collector() -> Iterator[Source]:
    """Start a collector on a free port with a temporary folder; it ends with the context, and nothing is left.

    Raises :class:`gradcanary.demo.processes.NotListeningError` if it does not start.
    """
    with (
        tempfile.TemporaryDirectory(prefix="gradcanary-sanity-") as folder,
        contextlib.closing(Collector(Path(folder), 0)) as collector,
    ):
        yield Source(collector.url)


def run_watched(
    program: Sequence[str],
    steps: int,
    source: Source,
    *,
    environ: Mapping[str, str],
    verbose: bool = False,
) -> Report:
    """Run a program, as ``cli.run.resolve_program`` returns it, until ``steps`` optimizer steps are made; judge it.

    ``environ`` is that of ``cli.run.environment``: it names the run and the collector. ``verbose`` shows the output of
    the training on stderr. Raises OSError if the program cannot be started or the collector does not answer.
    """
    read, name = reader(source.url, source.token), environ["GRADCANARY_RUN"]
    known = _names(read)
    with tempfile.TemporaryDirectory(prefix="gradcanary-spool-") as spool:
        variables = {"GRADCANARY_STOP_AFTER": str(steps), "GRADCANARY_SPOOL": spool}
        child = _Child(program, {**environ, **variables}, verbose=verbose)
        try:
            status, peak_bytes = child.wait(lambda: _has_made(read, name, steps))
        except KeyboardInterrupt:
            child.interrupt()
            raise
        finally:
            child.close()
    if name not in (now := _names(read)):  # the script names its run itself
        name = next((each for each in now if each not in known), name)
    tail = tuple(line for line in child.tail if f"{source.url}/runs/" not in line)  # a page that is gone by then
    outcome = Outcome(name, tuple(program), steps, status, tail, peak_bytes, child.is_terminated)
    return judge(outcome, read_measurements(read, name, now))


def _names(read: Read) -> list[str]:
    """Return the names of the newest runs, the last made first."""
    return [run["run"] for run in read("/runs?sort=created&limit=50")["runs"]]


def _has_made(read: Read, name: str, steps: int) -> bool:
    """Return True if the collector has all steps of the run."""
    try:
        sessions = read(f"/runs/{name}")["sessions"]
    except urllib.error.HTTPError:
        return False
    return any(
        each["first_step"] is not None
        and each["last_step"] is not None
        and each["last_step"] - each["first_step"] + 1 >= steps
        for each in sessions
    )


class _Child:
    """The training, in a session of its own, with the last lines of its output."""

    def __init__(self, program: Sequence[str], environ: dict[str, str], *, verbose: bool) -> None:
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.is_terminated = False
        self._launch, self._verbose = environ["GRADCANARY_LAUNCH"], verbose
        # A shell that started us in the background ignores SIGINT, and a child would inherit that.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self._process = subprocess.Popen(  # noqa: S603 -- the user's command is the purpose
                program,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        finally:
            signal.signal(signal.SIGINT, before)
        self._output = threading.Thread(target=self._read_output, daemon=True)
        self._output.start()

    def _read_output(self) -> None:
        assert self._process.stdout is not None  # noqa: S101 -- asked for in __init__
        with self._process.stdout as lines:
            for line in lines:
                text = line.decode("utf-8", "replace")
                self.tail.append(text.rstrip())
                if self._verbose:
                    with contextlib.suppress(OSError):
                        sys.stderr.write(text)
                        sys.stderr.flush()

    def wait(self, has_made_all: Callable[[], bool]) -> tuple[int, int]:
        """Wait for its end; return its status and the peak of its resident memory in bytes."""
        ask_at, deadline = 0.0, float("inf")
        while not (ended := os.wait4(self._process.pid, os.WNOHANG))[0]:
            now = time.monotonic()
            if deadline == float("inf") and now >= ask_at:
                ask_at = now + ASK_S
                deadline = now + SAVE_S if has_made_all() else deadline
            if now >= deadline:
                self._signal(signal.SIGKILL if self.is_terminated else signal.SIGTERM)
                self.is_terminated, deadline = True, now + TERM_S
            time.sleep(POLL_S)
        self._process.returncode = os.waitstatus_to_exitcode(ended[1])
        self._output.join(1.0)
        peak = ended[2].ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        return self._process.returncode, peak

    def interrupt(self) -> None:
        """Pass a Ctrl-C on, and give the training the time to end its own workers."""
        self._signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(TERM_S)

    def close(self) -> None:
        """End all that is left of it, also workers of a launcher that was killed."""
        self._signal(signal.SIGKILL)
        if processes.PROC.is_dir():
            for each in processes.find_all(os.getuid()):
                if each.environ.get("GRADCANARY_LAUNCH") == self._launch:
                    with contextlib.suppress(OSError):
                        os.kill(each.pid, signal.SIGKILL)
        if self._process.returncode is None:
            self._process.wait()
        self._output.join(1.0)

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, number)
