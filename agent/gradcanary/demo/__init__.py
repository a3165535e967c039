"""``gradcanary demo``: two real trainings, one of which goes wrong, and the whole product watching them.

The demo is a user of gradcanary: it starts ``gradcanary up`` as a process, receives its webhook, and reads its API.
"""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import tempfile
import time
from pathlib import Path
from types import FrameType

from gradcanary.demo.processes import Collector, GoneError, NotListeningError, Training, is_free, new_secret
from gradcanary.demo.receiver import Receiver
from gradcanary.demo.story import Story, introduce, say, tell
from gradcanary.demo.verdict import Runs, problems

NEEDED = ("torch", "fastapi", "dash", "standardwebhooks")

MISSING = """\
gradcanary demo needs torch, the collector and the dashboard, and {missing} is not installed. Install them with,
in a clone of gradcanary: pip install torch '.[all]'"""

TRAININGS_S = 300.0
"""How long the trainings may take; alone on two cores it is about a tenth of it."""
MESSAGE_S = 30.0
"""How long a message may take behind the last training: 10 s of gathering, and a slow machine."""
LOOK_EACH_S = 0.5


def run(headless: bool, data: Path | None, port: int) -> int:
    """Show a collapse being caught, and return an exit status: headless, 0 only if the right thing was caught."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        say(MISSING.format(missing=missing[0]))
        return 2
    for ending in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(ending, _interrupt)
    with contextlib.ExitStack() as stack:
        folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradcanary-demo-")))
        receiver = stack.enter_context(contextlib.closing(Receiver(new_secret(), tell)))
        try:
            collector = stack.enter_context(contextlib.closing(_collector(folder, port, receiver)))
        except NotListeningError:
            say("The collector did not start, so there is nothing to show.")
            return 1
        try:
            return _show(stack, collector, folder, receiver, headless)
        except GoneError as gone:
            say(f"{gone} The demo ends with it: start it again.")
            return 1


def _collector(folder: Path, port: int, receiver: Receiver) -> Collector:
    """Start the collector on this port, or on a free one where it is taken."""
    if not is_free(port):
        say(f"Port {port} is taken (another collector?), so the pages get another one.")
        port = 0
    return Collector(folder, port, receiver.url, receiver.secret)


def _show(stack: contextlib.ExitStack, collector: Collector, folder: Path, receiver: Receiver, headless: bool) -> int:
    runs = Runs.unused(collector.read)
    trainings = []
    for name in (runs.faulty, runs.twin):
        training = Training(name, collector.url, folder, is_faulty=name == runs.faulty)
        trainings.append(stack.enter_context(contextlib.closing(training)))
    introduce(collector.url, runs)
    wrong = _watch(collector, trainings, runs)
    _await_message(receiver)
    if headless:
        wrong += problems(collector.read, runs, receiver.messages, receiver.refused)
    for line in wrong:
        say(f"wrong: {line}")
    if not headless:
        _linger(collector)
    elif not wrong:
        say("Exactly the right thing was caught: three layers, one incident, one webhook; the healthy twin is quiet.")
    return 1 if wrong else 0


def _watch(collector: Collector, trainings: list[Training], runs: Runs) -> list[str]:
    """Tell what happens until all trainings have ended; return what went wrong with them, in words."""
    story, running, wrong = Story(runs), list(trainings), []
    deadline = time.monotonic() + TRAININGS_S
    while running and time.monotonic() < deadline:
        time.sleep(LOOK_EACH_S)
        ended = [training for training in running if training.status is not None]
        running = [training for training in running if training not in ended]
        story.look(collector.read)
        for training in ended:
            if training.status:
                wrong.append(f"{training.name} ended with status {training.status}")
            else:
                story.ended(collector.read, training.name)
    return wrong + [f"{training.name} did not end within {TRAININGS_S:.0f} s" for training in running]


def _await_message(receiver: Receiver) -> None:
    deadline = time.monotonic() + MESSAGE_S
    while not receiver.messages and time.monotonic() < deadline:
        time.sleep(0.2)


def _linger(collector: Collector) -> None:
    say(f"The pages stay up at {collector.url} until Ctrl-C.")
    with contextlib.suppress(KeyboardInterrupt):  # the way this is meant to end
        collector.stay()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
