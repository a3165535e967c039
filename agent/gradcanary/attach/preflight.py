"""The checks before a process is touched; each failure says what to do."""

from __future__ import annotations

import os
import shutil

from gradcanary.attach import processes, request
from gradcanary.attach.injection import NO_GDB, NOT_PERMITTED
from gradcanary.attach.processes import Process
from gradcanary.attach.request import AlreadyAttachedError, AttachError

OLDEST = (3, 10)
LIST = "gradcanary ps lists the trainings that can be attached to"

NO_LINUX = "this system has no /proc: attach works on Linux. Elsewhere start the training with: gradcanary run ..."
NONE = f"there is no process {{pid}} here. {LIST}; in a container, run this inside it"
ITSELF = "{pid} is this very process"
GONE = "process {pid} has ended"
NOT_YOURS = """\
process {pid} belongs to user {owner}, not to you. Run this as that user: sudo -u '#{owner}' gradcanary attach {pid}"""
ELSEWHERE = """\
process {pid} runs in another container. Run this inside of that: docker exec CONTAINER gradcanary attach PID, or
kubectl exec POD -- ..., with the id that the process has there"""
STOPPED = "process {pid} is stopped (Ctrl-Z, SIGSTOP). Continue it first: fg, or kill -CONT {pid}"
TRACED = "process {pid} is being debugged by process {tracer}: a debugger, strace, or another attach. End that first"
STUCK = """\
process {pid} waits for a disk or a driver, where nothing can interrupt it. Try again when it goes on;
see where: cat /proc/{pid}/stack"""
NO_PYTHON = f"process {{pid}} is not Python: {{command}}. {LIST}"
NO_PYTHON_SEEN = f"process {{pid}} does not look like Python: {{command}}. {LIST}.\nIf it is a training after all: "
PYPY = "process {pid} runs PyPy, and this needs CPython. Start the training with: gradcanary run ..."
TOO_OLD = "process {pid} runs Python {version}, and gradcanary needs 3.10 or newer"
FREE_THREADED = """\
process {pid} runs a free-threaded Python {version}, where no moment is safe for code from outside.
Start the training with: gradcanary run ..."""
NO_TORCH = f"""\
process {{pid}} has not loaded torch: it trains nothing (yet). A launcher's ranks, or a script's children, have ids of
their own: {LIST}"""
DISABLED = """\
process {pid} does not take code: {why} is set there. Start the training without it, or with: gradcanary run ..."""
LOWER_SCOPE = "Until the next boot:\nsudo sysctl kernel.yama.ptrace_scope=0"
START_WITH_RUN = "Start the training with: gradcanary run ..."
SCOPE = f"the kernel forbids attaching to process {{pid}} (ptrace_scope is {{scope}}). {LOWER_SCOPE}"
SCOPE_FOR_EVER = f"""\
the kernel forbids attaching to any process until the next boot (ptrace_scope is 3).
{START_WITH_RUN}"""
ATTACHED = "process {pid} is attached already, as run {run}: {url}\nEnd that with: gradcanary detach {pid}"


def check_system() -> None:
    """Raise AttachError on a system without /proc."""
    if not (processes.PROC / "self" / "stat").exists():
        raise AttachError(NO_LINUX)


def attachable(pid: int) -> Process:
    """Return the process if it can be attached to; raises AttachError with the reason and the remedy."""
    process = processes.find(pid)
    if process is None:
        raise AttachError(NONE.format(pid=pid))
    if pid == os.getpid():
        raise AttachError(ITSELF.format(pid=pid))
    _check_owner(process)
    _check_state(process)
    _check_python(process)
    _check_attached(process)
    _check_way_in(process)
    return process


def _check_owner(process: Process) -> None:
    if process.state in "ZX":
        raise AttachError(GONE.format(pid=process.pid))
    if process.uid != os.geteuid():
        raise AttachError(NOT_YOURS.format(pid=process.pid, owner=process.uid))
    if not process.is_readable:
        raise AttachError(f"{_not_python(process)}{NOT_PERMITTED.format(pid=process.pid)}")
    if processes.is_in_other_container(process.pid):
        raise AttachError(ELSEWHERE.format(pid=process.pid))


def _not_python(process: Process) -> str:
    """Return a first sentence on an unreadable process, empty if its command may be Python."""
    command = process.command_line
    if "python" in command.lower():
        return ""
    return NO_PYTHON_SEEN.format(pid=process.pid, command=command or "a kernel thread")


def _check_state(process: Process) -> None:
    if process.tracer:
        raise AttachError(TRACED.format(pid=process.pid, tracer=process.tracer))
    if process.state in "Tt":
        raise AttachError(STOPPED.format(pid=process.pid))
    if process.state == "D" and processes.is_stuck(process.pid):
        raise AttachError(STUCK.format(pid=process.pid))


def _check_python(process: Process) -> None:
    if not process.is_cpython:
        raise AttachError(PYPY.format(pid=process.pid))
    if process.version == (0, 0):
        raise AttachError(NO_PYTHON.format(pid=process.pid, command=process.command_line or "a kernel thread"))
    if process.version < OLDEST:
        raise AttachError(TOO_OLD.format(pid=process.pid, version=process.python_version))
    if process.is_free_threaded:
        raise AttachError(FREE_THREADED.format(pid=process.pid, version=process.python_version))
    if not process.has_torch:
        raise AttachError(NO_TORCH.format(pid=process.pid))


def _check_attached(process: Process) -> None:
    try:
        status = request.read_status(process)
    except TimeoutError as error:
        raise AttachError(request.UNDER_WAY.format(pid=process.pid)) from error
    if status is not None:
        raise AlreadyAttachedError(
            ATTACHED.format(pid=process.pid, run=status["run"], url=status["url"]), status.get("launch")
        )


def _check_way_in(process: Process) -> None:
    if process.version >= (3, 14):
        why = disabled_by(process)
        if why is not None:
            raise AttachError(DISABLED.format(pid=process.pid, why=why))
    elif shutil.which("gdb") is None:
        raise AttachError(NO_GDB.format(version=process.python_version))
    if not processes.may_trace(process.pid):
        raise AttachError(ptrace_remedy(process.pid, processes.ptrace_scope()))


def disabled_by(process: Process) -> str | None:
    """Return the option of its start that disables remote debugging of Python 3.14, None if there is none."""
    if "PYTHON_DISABLE_REMOTE_DEBUG" in process.environ:
        return "PYTHON_DISABLE_REMOTE_DEBUG"
    return "-X disable-remote-debug" if any("disable-remote-debug" in word for word in process.command) else None


def ptrace_remedy(pid: int, scope: int) -> str:
    """Return the remedy for a system that forbids attaching, by Yama's scope."""
    if scope == 3:
        return SCOPE_FOR_EVER
    return SCOPE.format(pid=pid, scope=scope) if scope else NOT_PERMITTED.format(pid=pid)
