"""``gradcanary demo``: two real trainings, one of which goes wrong, and the whole product watching them.

The demo is a user of gradcanary: it starts ``gradcanary up`` as a process, receives its webhook, and reads its API.
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
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from gradcanary.demo.processes import Collector, GoneError, NotListeningError, Training, is_free, new_secret
from gradcanary.demo.story import Receiver, Story, introduce, say, tell
from gradcanary.demo.verdict import Runs, problems

NEEDED = ("torch", "fastapi", "dash", "standardwebhooks")

MISSING = """\
gradcanary demo needs torch, the collector and the dashboard, and {missing} is not installed. Install them with,
in a clone of gradcanary: pip install torch '.[all]'"""

OF_COLLECTOR = ("GRADCANARY_TOKEN", "GRADCANARY_CA_FILE")
"""Settings of the user's own trainings that a collector of theirs needs."""

ANSWER_S = 10.0

TRAININGS_S = 300.0
"""How long the trainings may take; alone on two cores it is about a tenth of it."""
MESSAGE_S = 30.0
"""How long a message may take behind the last training: 10 s of gathering, and a slow machine."""
LOOK_EACH_S = 0.5


def run(headless: bool, data: Path | None, port: int) -> int:
    """Show a collapse being caught, and return an exit status: headless, 0 only if the right thing was caught."""
    if not _is_ready(NEEDED):
        return 2
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


def run_into(url: str, trusted: ssl.SSLContext | None) -> int:
    """Train both runs for a collector that runs already, and return an exit status.

    ``trusted``: the context of its TLS. Nothing is read from it: its token may be one that only sends.
    """
    if not _is_ready(("torch",)):
        return 2
    problem = _problem_of(url, trusted)
    if problem is not None:
        say(f"The collector at {url} does not answer ({problem}): is --url right?")
        return 1
    mark = secrets.token_hex(2)
    runs = Runs(f"lora-wrong-schedule-{mark}", f"lora-healthy-{mark}")
    own = {name: os.environ[name] for name in OF_COLLECTOR if name in os.environ}
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradcanary-demo-")))
        trainings = _start(stack, runs, url, folder, own)
        introduce(url, runs)
        failed = [training.name for training in trainings if training.wait()]
    for name in failed:
        say(f"wrong: {name} did not end well")
    return 1 if failed else 0


def _is_ready(needed: Sequence[str]) -> bool:
    """Say which package is missing, and return whether none is; let signals end the demo in order."""
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    if missing:
        say(MISSING.format(missing=missing[0]))
        return False
    for ending in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, ending):  # Windows has no SIGHUP
            signal.signal(getattr(signal, ending), _interrupt)
    return True


def _problem_of(url: str, trusted: ssl.SSLContext | None) -> str | None:
    """Return why a collector does not answer, None where it does."""
    # As the agent sends: past the proxies of the environment.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted))
    try:
        direct.open(f"{url}/healthz", timeout=ANSWER_S).close()
    except urllib.error.URLError as error:
        return str(error.reason)
    except OSError as error:
        return str(error)
    return None


def _collector(folder: Path, port: int, receiver: Receiver) -> Collector:
    """Start the collector on this port, or on a free one where it is taken."""
    if not is_free(port):
        say(f"Port {port} is taken (another collector?), so the pages get another one.")
        port = 0
    return Collector(folder, port, receiver.url, receiver.secret)


def _show(stack: contextlib.ExitStack, collector: Collector, folder: Path, receiver: Receiver, headless: bool) -> int:
    runs = Runs.unused(collector.read)
    trainings = _start(stack, runs, collector.url, folder, {})
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


def _start(stack: contextlib.ExitStack, runs: Runs, url: str, folder: Path, own: Mapping[str, str]) -> list[Training]:
    trainings = []
    for name in (runs.faulty, runs.twin):
        training = Training(name, url, folder, own, is_faulty=name == runs.faulty)
        trainings.append(stack.enter_context(contextlib.closing(training)))
    return trainings


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
