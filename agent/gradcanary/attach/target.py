"""One process that is being attached to, from outside: asked, waited for, told of."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gradcanary import naming, summary
from gradcanary.arguments import UNPRINTABLE
from gradcanary.attach import injection, processes, request
from gradcanary.attach.request import AttachError
from gradcanary.version import __version__

PATIENCE_S = 900.0
"""For the main thread to come to a place where it can be let in: an evaluation, or a checkpoint being written."""

SAID_EACH_S = 5.0
WINDOW_S = 60.0
"""For a whole window to be seen: who waits longer reads the page."""

WAITING = "process {pid}: waiting for {what}, {seconds:.0f} s so far (Ctrl-C gives up and leaves it as it is)"
ASLEEP = "its main thread, which sleeps or waits and runs no Python"
IN_C = "its main thread, which is in one long call and runs no Python"
NO_PLACE = "a moment in which hooks may be put on; it is in {place}"
TOO_LONG = "process {pid} was not let in within {minutes:.0f} minutes: it waited for {what}. The request was withdrawn"
GONE = "process {pid} ended meanwhile"
SILENT = "  it is attached, and does not answer yet: what it trains will be on the page; gradcanary ps tells its run"
LEFT = "  it was attached, and has been left again already"
STEPPING = (
    "process {pid}: attached, waiting for its next whole step, {seconds:.0f} s so far (Ctrl-C leaves it attached)"
)
LET_IN = "process {pid} is attached already: it goes on being watched, until gradcanary detach {pid}"
REFUSED = "process {pid} was not attached and goes on as it was: {why}"


class Visit:
    """``is_over`` tells that nothing more will come of it."""

    def __init__(
        self,
        process: processes.Process,
        settings: dict[str, str | None],
        for_s: float | None,
        names: tuple[str, str | None],
        say: Callable[[str], None],
    ) -> None:
        """``names`` are those that all of a job get: the run's where nobody names it, and the launch's."""
        self.process, self._say = process, say
        self.is_over = False
        self._socket = request.socket_of(process.uid, process.pid, process.started)
        asked = {
            "agent": __version__,
            "pid": process.pid,
            "asker": os.getpid(),
            "asker_started": naming.started(os.getpid()),
            "socket": str(self._socket),
            "settings": settings,
            "for_s": for_s,
            "unnamed": names[0],
            "launch": names[1],
        }
        self._gate = request.Gate(asked, process.uid)
        self.stopped_s: float | None = None
        """How long the process stood still for gdb, None where it did not."""

    def ask(self) -> None:
        """Get the request into the process; raises AttachError."""
        self.stopped_s = injection.inject(self.process, self._gate.line, self._gate.folder)

    def wait(self) -> None:
        """Wait until it is let in; raises AttachError where it is not."""
        began = said = time.monotonic()
        used = processes.cpu_s(self.process.pid)
        while (answer := self._gate.answer()) is None:
            time.sleep(0.02)
            now = time.monotonic()
            if not processes.is_same(self.process):
                raise AttachError(GONE.format(pid=self.process.pid))
            if now - said >= SAID_EACH_S:
                is_idle = (
                    processes.cpu_s(self.process.pid) - used < 0.2 * (now - said)
                    and processes.state(self.process.pid) != "R"  # it would compute if it had a core
                )
                what = self._what(is_idle=is_idle)
                used, said = processes.cpu_s(self.process.pid), now
                self._say(WAITING.format(pid=self.process.pid, what=what, seconds=now - began))
                if now - began > PATIENCE_S and self._gate.close():
                    raise AttachError(TOO_LONG.format(pid=self.process.pid, minutes=PATIENCE_S / 60, what=what))
        if "error" in answer:
            raise AttachError(REFUSED.format(pid=self.process.pid, why=answer["error"].partition(": ")[2]))

    def found(self) -> Iterator[str]:
        """Yield what it trains, once that is known, or as much of it as is known after a while."""
        began = said = time.monotonic()
        told = self._tell()
        while not _is_known(told) and time.monotonic() - began < WINDOW_S and self._is_there():
            time.sleep(0.1)
            if time.monotonic() - said >= SAID_EACH_S:
                said = time.monotonic()
                self._say(STEPPING.format(pid=self.process.pid, seconds=said - began))
            told = self._tell() or told
        if told is None and not processes.is_same(self.process):
            raise AttachError(GONE.format(pid=self.process.pid))
        if told is None:
            yield SILENT if self._is_there() else LEFT
            return
        yield from described(told, self.process.pid, self.stopped_s)

    def title(self) -> str:
        """Return what it is, in a line."""
        command = typed(self.process.command)
        return f"attached to process {self.process.pid}, Python {self.process.spelled}: {command}"

    def withdraw(self) -> None:
        """Ask for it no more; raises AttachError where it was let in already."""
        if not self._gate.close() and not self.is_over:
            raise AttachError(LET_IN.format(pid=self.process.pid))

    def end(self) -> None:
        """Withdraw what was not let in, and leave no file."""
        self._gate.close()
        self._gate.clear()

    def _is_there(self) -> bool:
        return processes.is_same(self.process) and self._socket.exists()

    def _tell(self) -> dict[str, Any] | None:
        try:
            return request.send_request(self._socket, {"do": "tell"})
        except TimeoutError:  # a long call keeps all of its threads from running
            return None

    def _what(self, *, is_idle: bool) -> str:
        if place := self._gate.place():
            return NO_PLACE.format(place=place)
        return ASLEEP if is_idle else IN_C


def _is_known(told: dict[str, Any] | None) -> bool:
    if told is None or told["layers"] is None or told["is_heard"] is None:
        return False
    return told["k"] is not None or told["is_silent"]


MOST_NAMED = 20
_SOURCES = {
    "framework": "as the framework counts",
    "optimizer": "as the optimizer counts",
    "relative": "counted from now on: nothing here counts steps",
}
NO_STEP = "no optimizer has stepped yet: what it trains will be on the page with the first step"
NO_OPTIMIZER = "no optimizer lives in this process: the first one that steps will be followed"
NO_WINDOW = "no whole window of micro-steps was seen yet: K and what is low will be on the page"
ALERT = "--absmax-below 1e-4 makes that an alert"
BARRED = "refuses the token: detach, and attach again with --token or GRADCANARY_TOKEN; until then it is kept here"
SPOOLS = "{url} does not answer: what is measured is kept by the training's machine, and sent when it does"
SILENT = "sends only what is not finite: the first rank sends the gradients of all"


def described(said: Mapping[str, Any], pid: int, stopped_s: float | None) -> Iterator[str]:
    """Yield the lines about one process."""
    yield from (f"  {name:<13}{text}" for name, text in _facts(said))
    if said["is_barred"]:
        yield f"  {'collector':<13}{BARRED}"
    elif said["is_heard"] is False:
        yield f"  {'collector':<13}{SPOOLS.format(url=said['url'].partition('/runs/')[0])}"
    by_gdb = "" if stopped_s is None else f"{stopped_s:.2f} s for gdb, "
    yield f"  {'stood still':<13}{by_gdb}{said['held_s']:.2f} s to begin"
    yield f"  {'run':<13}{said['run']}"
    yield f"  {'page':<13}{said['url']}"
    until = "" if said["for_s"] is None else f", or wait {duration(said['for_s'])}"
    yield f"  {'leave with':<13}gradcanary detach {pid}{until}"


def _facts(said: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for each in said["alive"]:
        yield "optimizer", f"{each['kind']}: {each['tensors']:,} tensors, {each['elements']:,} elements"
    if not said["alive"]:
        yield "optimizer", NO_OPTIMIZER if said["layers"] is None else said["optimizer"]
    if said["layers"] is None:
        yield "layers", NO_STEP
    else:
        yield "layers", f"{said['layers']:,}: {summary.count_kinds(said['dtypes'])}"
        yield "framework", said["framework"] or "none found"
        yield "step", f"{said['step']:,}, {_SOURCES[said['step_source']]}"
    if said["world_size"] > 1:
        yield "rank", f"{said['rank']} of {said['world_size']}" + (f"; {SILENT}" if said["is_silent"] else "")
    if said["k"] is not None:
        yield "micro-steps", summary.describe_micro_steps(said)
        yield "low", _low(said)
    elif said["layers"] is not None and not said["is_silent"]:
        yield "micro-steps", NO_WINDOW
    for text in said["unseen"]:
        yield "not seen", text


def _low(said: Mapping[str, Any]) -> str:
    low, layers = said["low"], said["layers"]
    if not low:
        return f"none of {layers:,} layers is under 1e-4 now"
    named = ", ".join(low[:MOST_NAMED]) + (f" and {len(low) - MOST_NAMED:,} more" if len(low) > MOST_NAMED else "")
    return f"{len(low):,} of {layers:,} layers {'is' if len(low) == 1 else 'are'} under 1e-4 now: {named} ({ALERT})"


def duration(seconds: float) -> str:
    """Return a time as people write it: 45s, 10m, 3h, 6d."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"


def table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table; the last column is as long as it is."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    for row in rows:
        yield "  ".join([*(word.ljust(width) for word, width in zip(row[:-1], widths, strict=True)), row[-1]])


def plain(text: str) -> str:
    """Return it without what would steer a terminal: names of layers and runs are another process's."""
    return "\n".join(UNPRINTABLE.sub(" ", line) for line in text.split("\n"))


def typed(command: tuple[str, ...]) -> str:
    """Return a command as it would be typed, shortened and in one line; its interpreter without the folder."""
    words = (command[0].rpartition("/")[2], *command[1:]) if command else command
    text = " ".join(UNPRINTABLE.sub(" ", shlex.join(words)).split())
    return text if len(text) <= 80 else text[:77] + "..."
