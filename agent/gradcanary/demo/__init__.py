"""``gradcanary demo``: two real trainings, one of which goes wrong, and the whole product watching them.

The demo uses gradcanary as a user does: it starts ``gradcanary up``, receives its webhook, and reads its API.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import signal
import ssl
import tempfile
import time
import urllib.error
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from gradcanary.demo.processes import (
    Collector,
    GoneError,
    NotListeningError,
    Training,
    direct_opener,
    is_free,
    new_secret,
    reader,
)
from gradcanary.demo.story import Receiver, Story, print_introduction, print_line, print_webhook
from gradcanary.demo.verdict import Read, Runs, problems

NEEDED_PACKAGES = ("torch", "fastapi", "dash", "standardwebhooks")

MISSING = """\
gradcanary demo needs torch, the collector and the dashboard, and {missing} is not installed. Install them with,
in a clone of gradcanary: pip install torch '.[all]'"""

CAUGHT = "Exactly the right thing was caught: three parameters, one incident; the healthy twin is quiet."
CAUGHT_WITH_WEBHOOK = CAUGHT.replace("one incident", "one incident, one webhook")
NOT_READ = "Both trainings have ended. What was caught is on their pages: the token may not read it."
NEEDS_READING = """\
--headless reads what was caught, and this token may only send: set GRADCANARY_TOKEN to one with the scope admin."""

COLLECTOR_VARIABLES = ("GRADCANARY_TOKEN", "GRADCANARY_CA_FILE")
"""The variables of the user that a running collector needs; the demo has no other of them."""

ANSWER_S = 10.0

TRAININGS_S = 300.0
"""The limit of both trainings; alone on two cores they take about a tenth of it."""
MESSAGE_S = 30.0
"""The limit of a webhook after the last training: 10 s of grouping, and a slow machine."""
LOOK_EACH_S = 0.5


def run(headless: bool, data: Path | None, port: int) -> int:
    """Show a collapse and its incident; return the exit status: headless, 0 only if exactly that was caught."""
    if not _has_packages(NEEDED_PACKAGES):
        return 2
    _interrupt_on_signals()
    with contextlib.ExitStack() as stack:
        folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradcanary-demo-")))
        receiver = stack.enter_context(contextlib.closing(Receiver(new_secret(), print_webhook)))
        try:
            collector = stack.enter_context(contextlib.closing(_start_collector(folder, port, receiver)))
        except NotListeningError as error:
            print_line(f"The collector did not start, so there is nothing to show: {error}.")
            return 1
        try:
            return _run_and_check(stack, collector, folder, receiver, headless)
        except GoneError as gone:
            print_line(f"{gone} The demo ends with it: start it again.")
            return 1


def run_with_collector(url: str, tls: ssl.SSLContext | None, *, headless: bool) -> int:
    """Train both runs for a running collector; return 0 only if exactly the right thing was caught.

    A token with the scope ingest may not read the incidents: then only the trainings count, and headless is refused.
    """
    if not _has_packages(("torch",)):
        return 2
    _interrupt_on_signals()
    error = _connection_error(url, tls)
    if error is not None:
        print_line(f"The collector at {url} does not answer ({error}): is --url right?")
        return 1
    variables = {name: os.environ[name] for name in COLLECTOR_VARIABLES if name in os.environ}
    read = reader(url, variables.get("GRADCANARY_TOKEN"), tls)
    may_read = _may_read(read)
    if headless and not may_read:
        print_line(NEEDS_READING)
        return 2
    mark = secrets.token_hex(2)
    runs = Runs(f"lora-wrong-decay-{mark}", f"lora-healthy-{mark}")
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradcanary-demo-")))
        trainings = _start_trainings(stack, runs, url, folder, variables)
        print_introduction(url, runs)
        try:
            wrong = _follow_trainings(Story(runs), read if may_read else None, trainings)
            wrong += problems(read, runs, None) if may_read else []
        except OSError as gone:
            print_line(f"The collector at {url} does not answer any more ({gone}). The demo ends with it.")
            return 1
    return _print_verdict(wrong, CAUGHT if may_read else NOT_READ)


def _may_read(read: Read) -> bool:
    """Return True if the token may read runs and incidents."""
    try:
        read("/runs?limit=1")
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            return False
        raise
    return True


def _has_packages(needed: Sequence[str]) -> bool:
    """Return True if these packages are installed; else print the first one that is missing."""
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        print_line(MISSING.format(missing=missing[0]))
        return False
    return True


def _interrupt_on_signals() -> None:
    """Let SIGTERM and SIGHUP end the demo in order, as Ctrl-C does."""
    for ending in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, ending):  # Windows has no SIGHUP
            signal.signal(getattr(signal, ending), _interrupt)


def _connection_error(url: str, tls: ssl.SSLContext | None) -> str | None:
    """Return the error of a collector that does not answer, None if it answers."""
    try:
        direct_opener(tls).open(f"{url}/healthz", timeout=ANSWER_S).close()
    except urllib.error.URLError as error:
        return str(error.reason)
    except OSError as error:
        return str(error)
    return None


def _start_collector(folder: Path, port: int, receiver: Receiver) -> Collector:
    """Start the collector on this port; on a free one if the port is taken."""
    if not is_free(port):
        print_line(f"Port {port} is taken (another collector?), so the pages get another one.")
        port = 0
    return Collector(folder, port, receiver.url, receiver.secret)


def _run_and_check(
    stack: contextlib.ExitStack, collector: Collector, folder: Path, receiver: Receiver, headless: bool
) -> int:
    runs = Runs.unused(collector.read)
    trainings = _start_trainings(stack, runs, collector.url, folder, {})
    print_introduction(collector.url, runs)
    wrong = _follow_trainings(Story(runs, has_webhook=True), collector.read, trainings)
    _await_webhook(receiver)
    if headless:
        wrong += problems(collector.read, runs, receiver.messages, receiver.refused)
    status = _print_verdict(wrong, CAUGHT_WITH_WEBHOOK if headless else "")
    if not headless:
        _keep_pages_up(collector)
    return status


def _print_verdict(wrong: Sequence[str], right: str) -> int:
    """Print a line for each problem, else the sentence ``right`` if there is one; return the exit status."""
    for line in [f"wrong: {problem}" for problem in wrong] or [right]:
        if line:
            print_line(line)
    return 1 if wrong else 0


def _start_trainings(
    stack: contextlib.ExitStack, runs: Runs, url: str, folder: Path, variables: Mapping[str, str]
) -> list[Training]:
    trainings = []
    for name in (runs.faulty, runs.twin):
        training = Training(name, url, folder, variables, is_faulty=name == runs.faulty)
        trainings.append(stack.enter_context(contextlib.closing(training)))
    return trainings


def _follow_trainings(story: Story, read: Read | None, trainings: list[Training]) -> list[str]:
    """Print the events until all trainings have ended; return a sentence for each that failed.

    Without ``read`` nothing is printed.
    """
    running, wrong = list(trainings), []
    deadline = time.monotonic() + TRAININGS_S
    while running and time.monotonic() < deadline:
        time.sleep(LOOK_EACH_S)
        ended = [training for training in running if training.status is not None]
        running = [training for training in running if training not in ended]
        if read is not None:
            story.update(read)
        for training in ended:
            if training.status:
                wrong.append(f"{training.name} ended with status {training.status}")
            elif read is not None:
                story.print_end(read, training.name)
    return wrong + [f"{training.name} did not end within {TRAININGS_S:.0f} s" for training in running]


def _await_webhook(receiver: Receiver) -> None:
    deadline = time.monotonic() + MESSAGE_S
    while not receiver.messages and time.monotonic() < deadline:
        time.sleep(0.2)


def _keep_pages_up(collector: Collector) -> None:
    print_line(f"The pages stay up at {collector.url} until Ctrl-C.")
    with contextlib.suppress(KeyboardInterrupt):  # the usual end
        collector.wait_for_end()


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
