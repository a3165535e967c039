"""A line of Python for another process: run by its main thread, between two of its own bytecodes.

CPython 3.14 takes such requests itself (``sys.remote_exec``). Before it, gdb puts the line into a new page of memory
and has the interpreter queue ``PyRun_SimpleString`` on it as a pending call. No Python code runs while the process is
stopped, so no lock of its allocator or its interpreter can be in the way. No library is loaded.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

from gradcanary.attach import processes
from gradcanary.attach.request import AttachError

PATIENCE_S = 20.0
"""For gdb, which takes half a second, and more for the symbols of a debug build. Then the watchdog ends it."""

LOST_S = 30.0
"""For a gdb whose call has ended. Then the watchdog kills it, which may end the training as well."""

# All symbols are found before anything is changed. "handle": what signals the process gets meanwhile are passed on, but
# a stop, which is how a call that hangs is ended. "unwindonsignal": such a call leaves the registers as they were;
# "scheduler-locking": no other thread runs beside it and gets the stop. Neither call waits for another thread.
SCRIPT = """\
set confirm off
set pagination off
set unwindonsignal on
handle all nostop noprint pass
handle SIGSTOP stop print nopass
shell cat /proc/uptime
attach {pid}
sharedlibrary libpython
sharedlibrary libc\\.\\|libc-\\|ld-musl
set $run = (long) &PyRun_SimpleString
set $queue = (long) &Py_AddPendingCall
set $map = (long) &mmap
set scheduler-locking on
set $page = ((long (*)(void *, long, int, int, int, long)) $map)((void *) 0, {size}, 3, 0x22, -1, 0)
restore {line} binary $page
set $refused = ((int (*)(void *, void *)) $queue)((void *) $run, (void *) $page)
detach
shell cat /proc/uptime
printf "refused %d\\n", $refused
"""

# Makes a late gdb let go, even if the command that waits for it was killed. A stop of the process ends a call that is
# under way, and the script with it; gdb hands an interrupt or a SIGTERM on to the process, where it may come after the
# call and end the training (2 of 160; by a stop: 0 of 250). A stop that comes between two calls ends nothing, so there
# is another every second. As a part of gdb's group it keeps the id of that in use.
WATCHDOG = """\
gdb=$$
is_traced() {{ grep -q "^TracerPid:[^0-9]*$gdb$" /proc/{pid}/status; }}
(
    sleep {late}
    for look in $(seq 0 {looks}); do
        is_traced || break
        [ $((look % 10)) = 0 ] && kill -STOP {pid}
        sleep 0.1
    done
    kill -KILL $gdb
    sleep 0.1
    grep -q "^State:.T" /proc/{pid}/status && kill -CONT {pid}
) &
exec "$@"
"""

INSTALL_GDB = "apt-get install gdb, dnf install gdb, or conda install -c conda-forge gdb"
ALLOW_PTRACE = """\
In a container, start it with --cap-add SYS_PTRACE, or run this
with docker exec --privileged; in Kubernetes add SYS_PTRACE to securityContext.capabilities"""

NO_GDB = f"""\
gdb is not installed, and Python {{version}} can only be reached with it (3.14 and newer need nothing). Install it:
{INSTALL_GDB}"""
NOT_PERMITTED = f"the system does not let gdb attach to process {{pid}}. {ALLOW_PTRACE}"
NO_ANSWER = "gdb did not come to an end within {seconds:.0f} s and has let go of process {pid}; it output: {output}"
FAILED = "gdb could not reach the interpreter of process {pid}; it is as it was. gdb output: {output}"
DISABLED = """\
process {pid} does not take code: remote debugging is disabled there (PYTHON_DISABLE_REMOTE_DEBUG,
-X disable-remote-debug, or a Python built without it). Start the training with: gradcanary run ..."""
NO_REMOTE = "Python {version} of process {pid} did not take the request: {output}"


def inject(process: processes.Process, line: str, folder: Path) -> float | None:
    """Have the process run the line, which must never raise; return how many seconds it was stopped, None if never.

    ``folder`` is for files that have to stay until the line has run. The page of memory that holds the line stays.
    Raises AttachError; then the process is as it was, and runs.
    """
    if process.version >= (3, 14):
        _by_remote_exec(process, line, folder)
        return None
    return _by_gdb(process, line, folder)


# -- 3.14 ------------------------------------------------------------------------------------------------------------


def _by_remote_exec(process: processes.Process, line: str, folder: Path) -> None:
    """Run the process's own binary: ``sys.remote_exec`` needs the same version."""
    script = folder / "line.py"
    script.write_text(line, encoding="utf-8")
    asking = f"import sys; sys.remote_exec({process.pid}, {str(script)!r})"
    command = [f"/proc/{process.pid}/exe", "-I", "-S", "-c", asking]
    try:
        ended = subprocess.run(  # noqa: S603 -- the interpreter that runs there
            command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=process.environ
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise AttachError(NO_REMOTE.format(version=process.python_version, pid=process.pid, output=error)) from error
    if ended.returncode:
        raise AttachError(remedy_for(ended.stderr, process))


def remedy_for(output: str, process: processes.Process) -> str:
    """Return the remedy for an error of ``sys.remote_exec``."""
    last = output.strip().rpartition("\n")[2]
    if "ermission" in last or "not permitted" in last:
        return NOT_PERMITTED.format(pid=process.pid).replace("let gdb attach", "allow writing")
    if "disabled" in last or "not enabled" in last:
        return DISABLED.format(pid=process.pid)
    return NO_REMOTE.format(version=process.python_version, pid=process.pid, output=last or "nothing")


# -- gdb -------------------------------------------------------------------------------------------------------------


def _by_gdb(process: processes.Process, line: str, folder: Path) -> float:
    gdb = shutil.which("gdb")
    if gdb is None:
        raise AttachError(NO_GDB.format(version=process.python_version))
    held = line.encode() + b"\0"
    (folder / "line").write_bytes(held)
    script = folder / "script.gdb"
    script.write_text(SCRIPT.format(pid=process.pid, line=folder / "line", size=len(held)), encoding="utf-8")
    options = [("auto-solib-add", "off"), ("auto-load", "no"), ("debuginfod enabled", "off"), ("width", "0")]
    words = [word for option, value in options for word in ("-iex", f"set {option} {value}")]
    # The names in its binary are read before the process is stopped; what else debuggers know of it is not read.
    command = [gdb, "-nx", "-nh", "-batch", "-readnever", *words, "-x", str(script), f"/proc/{process.pid}/exe"]
    watchdog = WATCHDOG.format(pid=process.pid, late=PATIENCE_S, looks=int(LOST_S * 10))
    output, is_late = _run(["/bin/sh", "-c", watchdog, "sh", *command], process, folder / "output")
    found = re.search(r"^refused (-?\d+)$", output, re.MULTILINE)
    if found is not None and found[1] == "0":
        stopped, ended = (float(uptime) for uptime in re.findall(r"^(\d+\.\d\d) \d+\.\d\d$", output, re.MULTILINE))
        return ended - stopped
    if "ptrace: Operation not permitted" in output:
        raise AttachError(NOT_PERMITTED.format(pid=process.pid))
    if is_late:
        raise AttachError(NO_ANSWER.format(seconds=PATIENCE_S, pid=process.pid, output=_last(output)))
    raise AttachError(FAILED.format(pid=process.pid, output=_last(output)))


def _run(command: list[str], process: processes.Process, output: Path) -> tuple[str, bool]:
    """Run gdb to its end: whatever happens to it or to us, the process is not left stopped.

    Returns its output, and True if it was late: it may be late after it has done everything. It writes to a file and
    belongs to no terminal, so it reaches its end even if this command is killed.
    """
    with output.open("wb") as file:
        gdb = subprocess.Popen(  # noqa: S603 -- gdb, found on PATH
            command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True,
            env={**_without_python(os.environ), "LC_ALL": "C", "SHELL": "/bin/sh"},
        )  # fmt: skip
    began = time.monotonic()
    try:
        gdb.wait()
    finally:  # Ctrl-C does not keep it from its end, which is near
        gdb.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(gdb.pid, signal.SIGTERM)  # its watchdog
        is_late = time.monotonic() - began >= PATIENCE_S
        if is_late or gdb.returncode:
            _continue(process)
    return output.read_text(encoding="utf-8", errors="replace"), is_late


def _without_python(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment without the variables that lead gdb's own Python to foreign modules."""
    return {name: value for name, value in environ.items() if name not in ("PYTHONHOME", "PYTHONPATH")}


def _continue(process: processes.Process) -> None:
    """Continue a process that is stopped, or is about to be: preflight refuses one that was stopped before.

    A running process gets no signal: it may have a handler for it.
    """
    for _ in range(10):
        if processes.read_state(process.pid) == "T":
            with contextlib.suppress(OSError):  # it has ended
                os.kill(process.pid, signal.SIGCONT)
        time.sleep(0.02)


def _last(output: str) -> str:
    lines = [line for line in output.splitlines() if line.strip() and not line.startswith(("warning", "[", "0x"))]
    return " / ".join(lines[-2:]) or "nothing"
