"""The demo's two trainings for a collector that runs already, ended when whoever started this process ends.

``python -m gradcanary.demo.pair URL`` says ``training FAULTY TWIN`` when both have started; where it fails, its last
line on stderr is why. The trainings leave the processors to whatever else wants them.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from gradcanary.demo.held import await_end
from gradcanary.demo.processes import Training, read
from gradcanary.demo.story import say
from gradcanary.demo.verdict import Runs

LOOK_EACH_S = 0.2


def main(argv: Sequence[str]) -> int:
    """Train until both have ended, and return an exit status; the end of the input ends them."""
    (url,) = argv
    if importlib.util.find_spec("torch") is None:
        return _failed("torch is not installed where the collector runs: pip install torch")
    os.nice(19)
    is_over = threading.Event()
    threading.Thread(target=_await_end, args=(is_over,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: is_over.set())
    try:
        with contextlib.ExitStack() as stack:
            return _train(stack, url, is_over)
    except OSError as error:
        return _failed(f"The trainings could not be started ({error}).")


def _train(stack: contextlib.ExitStack, url: str, is_over: threading.Event) -> int:
    runs = Runs.unused(partial(read, url))
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradcanary-demo-")))
    trainings = []
    for name in (runs.faulty, runs.twin):
        training = Training(name, url, folder, is_faulty=name == runs.faulty)
        trainings.append(stack.enter_context(contextlib.closing(training)))
    say(f"training {runs.faulty} {runs.twin}")
    while any(training.status is None for training in trainings):
        if is_over.wait(LOOK_EACH_S):
            return 0
    failed = next((training for training in trainings if training.status), None)
    return 0 if failed is None else _failed(f"{failed.name} ended with status {failed.status}: the log says more.")


def _await_end(is_over: threading.Event) -> None:
    """Wait for the end of the input: whoever holds its other side is gone, however it ended."""
    await_end()
    is_over.set()


def _failed(why: str) -> int:
    print(why, file=sys.stderr, flush=True)  # noqa: T201 -- what whoever started this shows
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
