"""One process that the command attaches to: inject, wait, describe, withdraw."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from gradcanary import __version__, identity, summary
from gradcanary.attach import injection, processes, request
from gradcanary.attach.request import AttachError
from gradcanary.wording import agree, count

PATIENCE_S = 900.0
"""For the main thread to reach a safe point: it may evaluate, or write a checkpoint."""

PROGRESS_INTERVAL_S = 5.0
WINDOW_S = 60.0
"""For a whole accumulation window; a longer one is on the page."""

MAX_NAMES = 20

WAITING = "process {pid}: waiting for {what}, {seconds:.0f} s so far (Ctrl-C gives up and leaves it as it is)"
ASLEEP = "its main thread, which sleeps or waits and runs no Python"
IN_C = "its main thread, which is in one long call and runs no Python"
NO_SAFE_POINT = "a moment in which hooks may be put on; it is in {location}"
TOO_LONG = "process {pid} did not attach within {minutes:.0f} minutes: it waited for {what}. The request was withdrawn"
GONE = "process {pid} ended meanwhile"
NO_STATUS = "  it is attached, and does not answer yet: what it trains will be on the page; gradcanary ps shows its run"
DETACHED = "  it was attached, and is detached again already"
STEPPING = (
    "process {pid}: attached, waiting for its next whole step, {seconds:.0f} s so far (Ctrl-C leaves it attached)"
)
ACCEPTED = "process {pid} is attached already: it goes on being watched, until gradcanary detach {pid}"
REFUSED = "process {pid} was not attached and goes on as it was: {why}"

_STEP_SOURCES = {
    "framework": "as the framework counts",
    "optimizer": "as the optimizer counts",
    "relative": "counted from now on: nothing here counts steps",
}
NO_STEP = "no optimizer has stepped yet: what it trains will be on the page with the first step"
NO_OPTIMIZER = (
    "no optimizer lives in this process: the first one that steps will be followed. A loop that updates its parameters "
    "itself cannot be attached to: it calls gradcanary.watch(model) once and gradcanary.step() after each update"
)
NO_PAGE = "{url} (appears with the first step)"
NO_WINDOW = "no whole window of micro-steps was seen yet: K and what is low will be on the page"
ALERT = "--absmax-below 1e-4 makes that an alert"
UNAUTHORIZED = (
    "refuses the token: detach, and attach again with --token or GRADCANARY_TOKEN; until then it is kept here"
)
UNREACHABLE = "{url} does not answer: what is measured is kept by the training's machine, and sent when it does"
NONFINITE_ONLY = "sends only what is not finite: the first rank sends the gradients of all"


class Target:
    """One process, from the request to its answer. ``has_failed`` once nothing more comes of it."""

    def __init__(
        self,
        process: processes.Process,
        settings: dict[str, str | None],
        for_s: float | None,
        *,
        default_run: str,
        launch: str | None,
        show: Callable[[str], None],
    ) -> None:
        """``default_run`` and ``launch`` are the same for all processes of a job; ``show`` prints progress."""
        self.process, self._show = process, show
        self.has_failed = False
        fields = {
            "agent": __version__,
            "pid": process.pid,
            "command": os.getpid(),
            "command_started": identity.start_time(os.getpid()),
            "socket": str(request.socket_of(process)),
            "settings": settings,
            "for_s": for_s,
            "default_run": default_run,
            "launch": launch,
        }
        self._request = request.Request(fields, process.uid)
        self.stopped_s: float | None = None
        """How long gdb stopped the process, None if it did not."""

    def inject(self) -> None:
        """Hand the request to the process; raises AttachError."""
        self.stopped_s = injection.inject(self.process, self._request.line, self._request.folder)

    def wait(self) -> None:
        """Wait until the process is attached; raises AttachError if it cannot be."""
        pid = self.process.pid
        began = shown = time.monotonic()
        cpu_s = processes.read_cpu_s(pid)
        while (answer := self._request.answer()) is None:
            time.sleep(0.02)
            now = time.monotonic()
            if not processes.still_runs(self.process):
                raise AttachError(GONE.format(pid=pid))
            if now - shown >= PROGRESS_INTERVAL_S:
                is_idle = (
                    processes.read_cpu_s(pid) - cpu_s < 0.2 * (now - shown)
                    and processes.read_state(pid) != "R"  # it would compute if it had a core
                )
                what = self._obstacle(is_idle=is_idle)
                cpu_s, shown = processes.read_cpu_s(pid), now
                self._show(WAITING.format(pid=pid, what=what, seconds=now - began))
                if now - began > PATIENCE_S and self._request.withdraw():
                    raise AttachError(TOO_LONG.format(pid=pid, minutes=PATIENCE_S / 60, what=what))
        if "error" in answer:
            raise AttachError(REFUSED.format(pid=pid, why=answer["error"].partition(": ")[2]))

    def describe(self) -> Iterator[str]:
        """Yield lines on the training, as soon as a whole window was seen; after a while, what is known by then."""
        began = shown = time.monotonic()
        status = self._status()
        while not _is_complete(status) and time.monotonic() - began < WINDOW_S and self._is_attached():
            time.sleep(0.1)
            if time.monotonic() - shown >= PROGRESS_INTERVAL_S:
                shown = time.monotonic()
                self._show(STEPPING.format(pid=self.process.pid, seconds=shown - began))
            status = self._status() or status
        if status is not None:
            yield from describe_status(status, self.process.pid, self.stopped_s)
        elif processes.still_runs(self.process):
            yield NO_STATUS if self._is_attached() else DETACHED
        else:
            raise AttachError(GONE.format(pid=self.process.pid))

    def title(self) -> str:
        process = self.process
        return f"attached to process {process.pid}, Python {process.python_version}: {process.command_line}"

    def withdraw(self) -> None:
        """Withdraw the request; raises AttachError if the process has accepted it."""
        if not self._request.withdraw() and not self.has_failed:
            raise AttachError(ACCEPTED.format(pid=self.process.pid))

    def close(self) -> None:
        """Withdraw a request that was not accepted, and remove its files."""
        self._request.withdraw()
        self._request.remove()

    def _is_attached(self) -> bool:
        return processes.still_runs(self.process) and request.socket_of(self.process).exists()

    def _status(self) -> dict[str, Any] | None:
        try:
            return request.send_request(request.socket_of(self.process), "status")
        except TimeoutError:  # a long call keeps all of its threads from running
            return None

    def _obstacle(self, *, is_idle: bool) -> str:
        if location := self._request.blocked_by():
            return NO_SAFE_POINT.format(location=location)
        return ASLEEP if is_idle else IN_C


def _is_complete(status: dict[str, Any] | None) -> bool:
    """Return True if nothing more is to be expected: a process without an optimizer makes no step."""
    if status is None or status["layers"] is None or status["is_reachable"] is None:
        return status is not None and not status["optimizers"]
    return status["k"] is not None or status["sends_only_nonfinite"]


# -- the text of the status ------------------------------------------------------------------------------------------


def describe_status(status: Mapping[str, Any], pid: int, stopped_s: float | None) -> Iterator[str]:
    """Yield the lines on one attached process."""
    by_gdb = "" if stopped_s is None else f"{stopped_s:.2f} s for gdb, "
    until = "" if status["for_s"] is None else f", or wait {format_duration(status['for_s'])}"
    lines = [
        *_training(status),
        *_collector(status),
        ("stood still", f"{by_gdb}{status['held_s']:.2f} s to begin"),
        ("run", status["run"]),
        ("page", status["url"] if status["layers"] is not None else NO_PAGE.format(url=status["url"])),
        ("leave with", f"gradcanary detach {pid}{until}"),
    ]
    yield from (f"  {name:<13}{text}" for name, text in lines)


def _training(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for each in status["optimizers"]:
        yield "optimizer", f"{each['kind']}: {each['tensors']:,} tensors, {each['elements']:,} elements"
    if not status["optimizers"]:
        yield "optimizer", NO_OPTIMIZER if status["layers"] is None else status["optimizer"]
    if status["layers"] is None:
        yield "parameters", NO_STEP
    else:
        yield "parameters", f"{status['layers']:,}: {summary.count_kinds(status['dtypes'])}"
        yield "framework", status["framework"] or "none found"
        yield "step", f"{status['step']:,}, {_STEP_SOURCES[status['step_source']]}"
    if status["world_size"] > 1:
        role = f"; {NONFINITE_ONLY}" if status["sends_only_nonfinite"] else ""
        yield "rank", f"{status['rank']} of {status['world_size']}{role}"
    if status["k"] is not None:
        yield "micro-steps", summary.describe_micro_steps(status)
        yield "low", _low_layers(status["low"], status["layers"])
    elif status["layers"] is not None and not status["sends_only_nonfinite"]:
        yield "micro-steps", NO_WINDOW
    for text in status["facts"]:
        yield "not seen", text


def _low_layers(low: list[str], layers: int) -> str:
    if not low:
        return f"none of {count(layers, 'parameter')} is under 1e-4 now"
    more = f" and {len(low) - MAX_NAMES:,} more" if len(low) > MAX_NAMES else ""
    names = ", ".join(low[:MAX_NAMES]) + more
    return f"{len(low):,} of {layers:,} parameters {agree(len(low), ('is', 'are'))} under 1e-4 now: {names} ({ALERT})"


def _collector(status: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if status["is_unauthorized"]:
        yield "collector", UNAUTHORIZED
    elif status["is_reachable"] is False:
        yield "collector", UNREACHABLE.format(url=status["url"].partition("/runs/")[0])


def format_duration(seconds: float) -> str:
    """Return a time as 45s, 10m, 3h or 6d."""
    for length, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= length:
            return f"{seconds / length:.0f}{unit}"
    return f"{seconds:.0f}s"
