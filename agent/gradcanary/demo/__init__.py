"""``gradcanary demo``: two real trainings, one of which goes wrong, and the whole product watching them.

The demo is a user of gradcanary: it starts ``gradcanary up`` as a process, receives its webhook, and reads its API.
"""

from __future__ import annotations

import contextlib
import importlib.util
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from gradcanary.demo.processes import Collector, NotListeningError, Training, new_secret
from gradcanary.demo.receiver import Message, Receiver
from gradcanary.demo.verdict import FAULTY, TWIN, problems

NEEDED = ("torch", "fastapi", "dash", "standardwebhooks")

MISSING = """\
gradcanary demo needs torch, the collector and the dashboard, and {missing} is not installed. Install them with:
  pip install torch 'gradcanary[server,dashboard]'"""

MESSAGE_WAIT_S = 30.0
"""How long a message may take behind the last training: 10 s of gathering, and a slow machine."""


def run(headless: bool, data: Path | None, port: int) -> int:
    """Show a collapse being caught, and return an exit status: headless, 0 only if the right thing was caught."""
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        _say(MISSING.format(missing=missing[0]))
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    with contextlib.ExitStack() as stack:
        folder = data or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradcanary-demo-")))
        receiver = stack.enter_context(contextlib.closing(Receiver(new_secret(), _tell)))
        collector = stack.enter_context(contextlib.closing(_collector(folder, port, receiver)))
        trainings = [Training(name, collector.url, faulty=name == FAULTY) for name in (FAULTY, TWIN)]
        for training in trainings:
            stack.enter_context(contextlib.closing(training))
        _introduce(collector.url)
        _watch(trainings, receiver)
        if headless:
            return _judge(collector, trainings, receiver)
        _linger(collector.url)
    return 0


def _collector(folder: Path, port: int, receiver: Receiver) -> Collector:
    """Start the collector on this port, or on a free one where it is taken."""
    try:
        return Collector(folder, port, receiver.url, receiver.secret)
    except NotListeningError as reason:
        _say(f"Port {port} cannot be used, so the page gets another one. ({reason})")
        return Collector(folder, 0, receiver.url, receiver.secret)


def _introduce(url: str) -> None:
    _say(
        f"""\
Two LoRA trainings have started on this machine, {FAULTY} and {TWIN}: the same model, data and seed.
In {FAULTY} the schedule of lora_B in blocks 3-5 is wrong from step 200 on. Its loss will look fine.

  watch them live:  {url}/runs/{FAULTY}
                    {url}/runs/{TWIN}
"""
    )


def _watch(trainings: list[Training], receiver: Receiver) -> None:
    """Wait until both trainings ended and a message came, or is not to be expected any more."""
    for training in trainings:
        training.wait()
    _say("Both trainings have ended.")
    deadline = time.monotonic() + MESSAGE_WAIT_S
    while not receiver.messages and time.monotonic() < deadline:
        time.sleep(0.2)


def _judge(collector: Collector, trainings: list[Training], receiver: Receiver) -> int:
    wrong = [f"{each.name} ended with status {each.status}" for each in trainings if each.status]
    wrong += problems(collector.read, receiver)
    for line in wrong:
        _say(f"wrong: {line}")
    if not wrong:
        _say("Exactly the right thing was caught: three layers, one incident, one webhook; the healthy twin is quiet.")
    return 1 if wrong else 0


def _linger(url: str) -> None:
    _say(f"The pages stay up at {url} until Ctrl-C.")
    while True:
        time.sleep(3600)


def _tell(message: Message) -> None:
    said = message.data
    _say(
        f"""
A webhook arrived and its signature is right: {message.content["type"]}
  what   {said["summary"]}
  why    {said["likely_cause"]}
  fix    {said["fix"]}
  page   {said["url"]}
"""
    )


def _interrupt(_signal: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _say(text: str) -> None:
    print(text, file=sys.stdout, flush=True)  # noqa: T201 -- the demo is a story told on stdout
