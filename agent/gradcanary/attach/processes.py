"""Facts of other processes from /proc (Linux), without touching them."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gradcanary import identity
from gradcanary.settings import UNPRINTABLE

PROC = Path("/proc")

# torch/_C.cpython-311-x86_64-linux-gnu.so, libpython3.11.so.1.0, lib/python3.11/..., /usr/bin/python3.11
_VERSIONS = tuple(
    re.compile(pattern) for pattern in (r"\.cpython-3(\d+)(t?)d?-", r"libpython3\.(\d+)(t?)", r"/python3\.(\d+)(t?)\b")
)

_WORKERS = ("pt_data_worker", "pt_data_pin")
"""The ``comm`` that torch gives to processes of a DataLoader; older versions give none."""


_LAUNCHERS = (
    *("torchrun", "torch.distributed.run", "torch.distributed.launch", "deepspeed", "deepspeed.launcher.launch"),
    *("accelerate", "accelerate-launch", "accelerate.commands.launch"),
)


@dataclass(frozen=True)
class Process:
    """A process at one moment.

    ``version`` is that of its Python, (0, 0) if it has none. ``state`` is the letter of ``ps``; ``tracer`` is the id of
    its debugger, 0 if there is none. ``started`` counts clock ticks since boot: a later process of the same id differs.
    """

    pid: int
    parent: int
    uid: int
    state: str
    tracer: int
    started: str
    command: tuple[str, ...]
    environ: dict[str, str]
    version: tuple[int, int] = (0, 0)
    is_cpython: bool = True
    is_free_threaded: bool = False
    has_torch: bool = False
    is_readable: bool = True

    @property
    def python_version(self) -> str:
        """The version of its Python, as 3.11."""
        return ".".join(map(str, self.version))

    @property
    def command_line(self) -> str:
        """The command as a shell takes it, in one short line; its interpreter without the folder."""
        words = (self.command[0].rpartition("/")[2], *self.command[1:]) if self.command else ()
        text = " ".join(UNPRINTABLE.sub(" ", shlex.join(words)).split())
        return text if len(text) <= 80 else text[:77] + "..."

    @property
    def script(self) -> str:
        """The name of the script or program."""
        return identity.script_name(self.command) if self.command else "?"


def find(pid: int) -> Process | None:
    """Return the process of this id, None if there is none."""
    try:
        status = _status(pid)
        stat = _stat(pid)
        command = tuple(os.fsdecode(word) for word in (PROC / str(pid) / "cmdline").read_bytes().split(b"\0")[:-1])
    except (OSError, ValueError, IndexError):
        return None
    readable, maps, environ = True, "", {}
    try:
        maps = (PROC / str(pid) / "maps").read_text(encoding="utf-8", errors="replace")
        environ = _environ(pid)
    except OSError:
        readable = False
    version, is_free_threaded = _version(maps)
    return Process(
        pid=pid,
        parent=int(status["PPid"]),
        uid=int(status["Uid"].split()[0]),
        state=stat[0],
        tracer=int(status["TracerPid"]),
        started=stat[19],
        command=command,
        environ=environ,
        version=version,
        is_cpython="libpypy" not in maps,
        is_free_threaded=is_free_threaded,
        has_torch="libtorch_cpu" in maps or "/torch/_C." in maps,
        is_readable=readable,
    )


def find_all(uid: int) -> Iterator[Process]:
    """Yield the processes of a user that have torch."""
    for entry in PROC.iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid() and _owner(entry) == uid:
            process = find(int(entry.name))
            if process is not None and process.has_torch and _name(entry) not in _WORKERS:
                yield process


def read_state(pid: int) -> str:
    """Return the letter of its main thread's state, empty if it has ended."""
    try:
        return _stat(pid)[0]
    except (OSError, IndexError):
        return ""


def still_runs(process: Process) -> bool:
    """Return True if the process still runs."""
    try:
        fields = _stat(process.pid)
        return fields[19] == process.started and fields[0] not in "ZX"
    except (OSError, IndexError):
        return False


def read_cpu_s(pid: int) -> float:
    """Return the CPU time of its main thread so far, in seconds."""
    try:
        fields = (PROC / str(pid) / "task" / str(pid) / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, IndexError, ValueError):
        return 0.0


def age_s(process: Process) -> float:
    """Return the seconds since its start."""
    uptime_s = float((PROC / "uptime").read_text(encoding="ascii").split()[0])
    return uptime_s - int(process.started) / os.sysconf("SC_CLK_TCK")


def is_stuck(pid: int, looks: int = 5) -> bool:
    """Return True if it stays in an uninterruptible wait, for a disk or a driver."""
    for _ in range(looks):
        if read_state(pid) != "D":
            return False
        time.sleep(0.05)
    return True


def is_in_other_container(pid: int) -> bool:
    """Return True if it is in another container: it sees other processes or another file system."""
    return any(_link(str(pid), kind) != _link("self", kind) for kind in ("ns/pid", "ns/mnt", "root"))


def may_trace(pid: int) -> bool:
    """Return True if the system lets us attach. Opening its memory has the same rules, and stops nothing."""
    try:
        with (PROC / str(pid) / "mem").open("rb"):
            return True
    except OSError:
        return False


def ptrace_scope() -> int:
    """Return Yama's scope: 0 own processes, 1 children only, 2 administrators, 3 none."""
    try:
        return int((PROC / "sys/kernel/yama/ptrace_scope").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def wait_for_thread(pid: int, thread: int, timeout_s: float = 2.0) -> None:
    """Wait until a thread that is about to end has ended."""
    end = time.monotonic() + timeout_s
    while (PROC / str(pid) / "task" / str(thread)).exists() and time.monotonic() < end:
        time.sleep(0.005)


def ranks_of(process: Process) -> list[Process]:
    """Return the ranks of its distributed job on this machine; of a launcher, the ranks that it started."""
    every = list(find_all(process.uid))
    ranks = outermost([each for each in every if "RANK" in each.environ])
    if "RANK" in process.environ and "WORLD_SIZE" in process.environ:
        of_job = [each for each in ranks if _job(each) == _job(process)]
        of_job = of_job if any(each.pid == process.pid for each in of_job) else []
    else:
        of_job = [each for each in ranks if process.pid in ancestors(each)]
        if not of_job and is_launcher(process):
            of_job = outermost([each for each in every if process.pid in ancestors(each)])
    return sorted(of_job, key=lambda each: int(rank) if (rank := each.environ.get("RANK", "")).isdigit() else 0)


def outermost(found: list[Process]) -> list[Process]:
    """Return the processes that none of the others has started: a rank's child has its environment, but is no rank."""
    pids = {each.pid for each in found}
    return [each for each in found if pids.isdisjoint(ancestors(each))]


def ancestors(process: Process) -> set[int]:
    """Return the ids of its parent, of the parent's parent, and so on."""
    found: set[int] = set()
    pid = process.parent
    while pid > 1 and pid not in found:
        found.add(pid)
        try:
            pid = int(_stat(pid)[1])
        except (OSError, IndexError):
            break
    return found


def is_launcher(process: Process) -> bool:
    """Return True if it only starts other processes. Some launchers load torch themselves."""
    return any(os.path.basename(word) in _LAUNCHERS for word in process.command[:4])  # noqa: PTH119 -- may be no path


def _job(process: Process) -> tuple[str | None, ...]:
    keys = ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE")
    return tuple(process.environ.get(key) for key in keys)


def is_forked(process: Process, others: list[Process]) -> bool:
    """Return True if it was forked from one of the others and has its command: most such processes load data."""
    return any(each.pid == process.parent and each.command == process.command for each in others)


def _owner(entry: Path) -> int:
    try:
        return entry.stat().st_uid
    except OSError:
        return -1


def _name(entry: Path) -> str:
    try:
        return (entry / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _status(pid: int) -> dict[str, str]:
    lines = (PROC / str(pid) / "status").read_text(encoding="utf-8", errors="replace").splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _stat(pid: int) -> list[str]:
    """Return the fields after the name, which may hold any character: 0 is the state, 19 the time of its start."""
    return (PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()


def _environ(pid: int) -> dict[str, str]:
    """Return the environment of its start."""
    words = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(word).partition("=") for word in words if b"=" in word)
    return {name: value for name, _, value in pairs}


def _link(pid: str, kind: str) -> str | None:
    try:
        return str((PROC / pid / kind).readlink())
    except OSError:
        return None


def _version(maps: str) -> tuple[tuple[int, int], bool]:
    for pattern in _VERSIONS:
        if (found := pattern.search(maps)) is not None:
            return (3, int(found[1])), bool(found[2])
    return (0, 0), False
