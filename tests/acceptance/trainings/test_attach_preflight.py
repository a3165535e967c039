"""What cannot be attached to is told why and what to do, before it is touched; what fails later leaves no trace."""

import contextlib
import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gradcanary import cli
from gradcanary.attach import actions, injection, processes, request, resident, target
from gradcanary.attach.request import AttachError
from support.agent.attach_targets import LOOP, Typed, mapped, program, until

# A rank that starts another program, which has its environment.
STARTS = """
import subprocess, sys
held = "import mmap, sys; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, prot=1); print(flush=True); input()"
words = [sys.executable, "-S", "-c", held, sys.argv[1]]
other = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
other.stdout.readline()
"""
PTRACE_ATTACH, PTRACE_DETACH = 16, 17
FREE_ID = 2**22 - 1


@pytest.fixture
def python(tmp_path: Path) -> Iterator["subprocess.Popen[str]"]:
    """A Python with threads that looks as if it had torch, and has not."""
    (tmp_path / "torch").mkdir()
    with program(sys.executable, "-S", "-c", LOOP, str(mapped(tmp_path / "torch"))) as started:
        yield started


@pytest.fixture(autouse=True)
def it_goes_on(python: "subprocess.Popen[str]") -> Iterator[None]:
    """Whatever is refused, the process goes on as it was: it counts, and has as many threads and files as before."""
    before = things_of(python.pid)
    yield
    until(lambda: things_of(python.pid) == before)
    waits = waits_of(python.pid)
    until(lambda: waits_of(python.pid) > waits)


def things_of(pid: int) -> tuple[int, int]:
    own = Path("/proc") / str(pid)
    return len(list((own / "task").iterdir())), len(list((own / "fd").iterdir()))


def waits_of(pid: int) -> int:
    """Return how often its main thread has slept."""
    return int(processes._status(pid)["voluntary_ctxt_switches"])


def is_traced(pid: int) -> bool:
    return processes._status(pid)["TracerPid"] != "0"


def refused(typed: Typed, pid: int) -> str:
    status, out, err = typed("attach", pid)
    assert (status, out) == (1, "")
    assert err.startswith("gradcanary attach: ")
    assert "Traceback" not in err
    return err


@contextlib.contextmanager
def answering(pid: int, said: dict[str, object] | None) -> Iterator[None]:
    """Listen in place of an attached process; one that says nothing lets everybody wait."""
    process = processes.find(pid)
    assert process is not None
    path = request.socket_of(process)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            with contextlib.suppress(OSError):
                while said is not None:
                    with listener.accept()[0] as door:
                        request.read_message(door)
                        request.write_message(door, said)

        threading.Thread(target=answer, daemon=True).start()
        yield
        listener.shutdown(socket.SHUT_RDWR)
    path.unlink()


def test_no_process_and_itself(typed: Typed) -> None:
    assert f"there is no process {FREE_ID} here. gradcanary ps lists" in refused(typed, FREE_ID)
    assert "is this very process" in refused(typed, os.getpid())
    assert typed("detach", FREE_ID)[0] == 1


def test_preflight_refuses_a_process_of_another_user(typed: Typed) -> None:
    if os.geteuid():
        assert "belongs to user 0, not to you" in refused(typed, 1)
        return
    with program("sh", "-c", "echo ready; exec sleep 60", user=65534) as other:
        assert "sudo -u '#65534' gradcanary attach" in refused(typed, other.pid)


def test_preflight_refuses_processes_without_python_or_torch(typed: Typed) -> None:
    with program("sh", "-c", "echo ready; exec sleep 60") as shell:
        assert "is not Python: sleep 60" in refused(typed, shell.pid)
    with program(sys.executable, "-S", "-u", "-c", "print(); import time; time.sleep(60)") as bare:
        assert "has not loaded torch" in refused(typed, bare.pid)
        bare.send_signal(signal.SIGSTOP)
        until(lambda: processes.read_state(bare.pid) == "T")
        assert f"kill -CONT {bare.pid}" in refused(typed, bare.pid)
        bare.send_signal(signal.SIGKILL)
        until(lambda: processes.read_state(bare.pid) == "Z")
        assert "has ended" in refused(typed, bare.pid)


def test_preflight_refuses_a_debugged_process(typed: Typed, python: "subprocess.Popen[str]") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.ptrace(PTRACE_ATTACH, python.pid, None, None) == 0
    try:
        os.waitpid(python.pid, 0)
        assert f"is being debugged by process {os.getpid()}" in refused(typed, python.pid)
    finally:
        assert libc.ptrace(PTRACE_DETACH, python.pid, None, None) == 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": (3, 9)}, "runs Python 3.9, and gradcanary needs 3.10"),
        ({"is_cpython": False}, "runs PyPy"),
        ({"is_free_threaded": True}, "free-threaded"),
        ({"is_readable": False}, "--cap-add SYS_PTRACE"),
        ({"is_readable": False, "command": ("/sbin/init",)}, "does not look like Python: init. gradcanary ps lists"),
        ({"version": (3, 14), "environ": {"PYTHON_DISABLE_REMOTE_DEBUG": "1"}}, "PYTHON_DISABLE_REMOTE_DEBUG is set"),
        ({"version": (3, 14), "command": ("python", "-Xdisable-remote-debug", "x")}, "-X disable-remote-debug is set"),
    ],
)
def test_other_pythons(
    typed: Typed, python: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch, change: dict[str, object], why: str
) -> None:
    found = processes.find(python.pid)
    monkeypatch.setattr(processes, "find", lambda _: replace(found, **change))
    assert why in refused(typed, python.pid)


@pytest.mark.parametrize(
    ("scope", "why"),
    [(0, "--cap-add SYS_PTRACE"), (1, "sysctl kernel.yama.ptrace_scope=0"), (3, "until the next boot")],
)
def test_preflight_reports_ptrace_restrictions(
    typed: Typed, python: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch, scope: int, why: str
) -> None:
    monkeypatch.setattr(processes, "may_trace", lambda _: False)
    monkeypatch.setattr(processes, "ptrace_scope", lambda: scope)
    assert why in refused(typed, python.pid)


def test_another_container_and_a_disk_that_hangs(
    typed: Typed, python: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    found = processes.find(python.pid)
    with monkeypatch.context() as patched:
        patched.setattr(processes, "_link", lambda pid, kind: f"{kind}:[{pid}]")
        assert "docker exec CONTAINER" in refused(typed, python.pid)
    with monkeypatch.context() as patched:
        patched.setattr(processes, "find", lambda _: replace(found, state="D"))
        patched.setattr(processes, "read_state", lambda _: "D")
        assert "waits for a disk or a driver" in refused(typed, python.pid)


def test_without_gdb(typed: Typed, python: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    assert "apt-get install gdb" in refused(typed, python.pid)


@pytest.mark.parametrize(("option", "value"), [("--every", "7"), ("--url", "nowhere"), ("--absmax-below", "low")])
def test_wrong_settings(typed: Typed, python: "subprocess.Popen[str]", option: str, value: str) -> None:
    assert f"{option} is '{value}'" in refused(typed, f"{python.pid} {option}={value}".split())


def test_preflight_refuses_an_invalid_process_id(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["attach", "train.py"])
    assert "'train.py' is not the id of a process: gradcanary ps lists trainings" in capsys.readouterr().err


def test_failures_inside_the_process_are_reported_and_undone(typed: Typed, python: "subprocess.Popen[str]") -> None:
    why = refused(typed, python.pid)
    assert f"process {python.pid} was not attached and goes on as it was: No module named 'torch'" in why


def test_preflight_checks_every_rank_of_a_job(typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By any of them, or by who started them; here they have no torch, and each says so. What they start is no rank."""
    asks: list[dict[str, object]] = []
    made = request.Request.__init__
    monkeypatch.setattr(
        request.Request, "__init__", lambda self, asked, uid: asks.append(asked) or made(self, asked, uid)
    )
    words = (sys.executable, "-S", "-c", STARTS + LOOP, str(mapped(tmp_path)))
    job = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "job.example", "MASTER_PORT": "29500"}
    with (
        program(*words, env={**job, "RANK": "1"}) as second,
        program(*words, env={**job, "RANK": "0"}) as first,
        program(*words, env={**job, "RANK": "0", "MASTER_PORT": "29501"}) as other,
    ):
        status, _, err = typed("attach", second.pid)
        assert status == 1
        asked = [int(line.split()[3]) for line in err.splitlines() if "No module named 'torch'" in line]
        assert asked == [first.pid, second.pid]
        assert asks[0]["launch"]
        assert [(each["default_run"], each["launch"]) for each in asks[:1]] * 2 == [
            (each["default_run"], each["launch"]) for each in asks
        ]
        with answering(first.pid, {"run": "half", "url": "http://half", "launch": "l1"}):
            status, _, err = typed("attach", first.pid)
            assert f"process {first.pid} is attached already, as run half" in err
            assert f"process {second.pid} was not attached and goes on as it was" in err
            assert asks[-1]["launch"] == "l1"
        monkeypatch.setattr(actions, "DETACH_S", 0.1)
        monkeypatch.setattr(request, "PATIENCE_S", 0.1)
        with answering(first.pid, None), answering(second.pid, {"detached": "half", "thread": 1}):
            status, out, err = typed("detach", second.pid)
            assert (status, out) == (1, f"left process {second.pid}, run half: detached\n")
            assert f"process {first.pid} has not reached a moment yet" in err
        rows = dict(re.findall(r"^(\d+) +\S+ +(\S+)", typed("ps")[1], re.MULTILINE))
        assert [rows[str(each.pid)] for each in (first, second, other)] == ["0", "1", "0"]
        started = {each.pid for each in processes.ranks_of(processes.find(os.getpid()))}
        assert started == {first.pid, second.pid, other.pid}
        (started_by_it,) = (each for each in processes.find_all(os.geteuid()) if each.parent == second.pid)
        assert processes.ranks_of(started_by_it) == []


def test_launcher_with_torch_stands_for_its_children(python: "subprocess.Popen[str]") -> None:
    itself = processes.find(os.getpid())
    assert itself is not None
    assert processes.ranks_of(itself) == []
    launcher = replace(itself, command=("python", "/usr/bin/accelerate", "launch", "train.py"))
    assert python.pid in [each.pid for each in processes.ranks_of(launcher)]


def test_two_who_attach_at_once(typed: Typed, python: "subprocess.Popen[str]") -> None:
    process = processes.find(python.pid)
    assert process is not None
    with request.locked(process):
        assert f"another command is attaching to process {python.pid} just now" in refused(typed, python.pid)
    path = request.socket_of(process)
    with contextlib.ExitStack() as held:
        door = held.enter_context(socket.socket(socket.AF_UNIX))
        held.callback(path.unlink)
        door.bind(str(path))
        door.listen(0)
        held.enter_context(socket.socket(socket.AF_UNIX)).connect(str(path))
        assert f"another command is attaching to process {python.pid} just now, or it hangs" in refused(
            typed, python.pid
        )
        with pytest.raises(RuntimeError, match="another command is attaching"):
            resident._listen(path)


def test_ps_where_nothing_trains(typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "find_all", lambda _: iter(()))
    status, out, err = typed("ps")
    assert (status, err) == (0, "")
    assert "no training of yours runs here" in out


def test_a_main_thread_that_sleeps_is_waited_for_and_then_left_alone(
    typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(target, "PROGRESS_INTERVAL_S", 0.2)
    monkeypatch.setattr(target, "PATIENCE_S", 0.5)
    sleeping = LOOP.replace(
        "# waits", "import select; select.select([sys.stdin], [], []); print('ctypes' in sys.modules, flush=True)"
    )
    with program(sys.executable, "-S", "-c", sleeping, str(mapped(tmp_path)), stdin=subprocess.PIPE) as python:
        status, _, err = typed("attach", python.pid)
        assert status == 1
        assert "waiting for its main thread, which sleeps or waits and runs no Python" in err
        assert "The request was withdrawn" in err
        before = things_of(python.pid)
        assert python.stdin is not None
        assert python.stdout is not None
        python.stdin.write("\n")
        python.stdin.flush()
        assert python.stdout.readline() == "False\n", "not even what the line would need"
        assert things_of(python.pid) == before


def test_a_gdb_that_hangs_lets_go(
    typed: Typed, python: "subprocess.Popen[str]", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(injection, "PATIENCE_S", 2.0)
    lines = injection.SCRIPT.splitlines()
    lines[-4] = "set $refused = ((int (*)(int)) &sleep)(1000)"
    monkeypatch.setattr(injection, "SCRIPT", "\n".join(lines) + "\n")
    why = refused(typed, python.pid)
    assert f"gdb did not come to an end within 2 s and has let go of process {python.pid}" in why
    assert "(sleep) will be abandoned" in why, "by itself, and with the registers as they were"
    assert not is_traced(python.pid)


def test_a_gdb_that_is_late_with_its_end_has_done_it(
    python: "subprocess.Popen[str]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gdb = tmp_path / "gdb"
    gdb.write_text("#!/bin/sh\necho '1.00 1.00\n1.25 1.00\nrefused 0'; exec sleep 60\n")
    gdb.chmod(0o755)

    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(injection, "PATIENCE_S", 0.5)
    found = processes.find(python.pid)
    assert found is not None
    assert injection.inject(found, "pass\n", tmp_path) == 0.25


def test_a_gdb_whose_asker_is_killed_lets_go(python: "subprocess.Popen[str]", tmp_path: Path) -> None:
    code = f"""
from pathlib import Path
from gradcanary.attach import injection, processes
injection.PATIENCE_S = 2
lines = injection.SCRIPT.splitlines()
lines[-4] = "set $refused = ((int (*)(int)) &sleep)(1000)"
injection.SCRIPT = "\\n".join(lines) + "\\n"
print(flush=True)
injection.inject(processes.find({python.pid}), "pass", Path({str(tmp_path)!r}))
"""
    with program(sys.executable, "-c", code) as asker:
        until(lambda: is_traced(python.pid))
        asker.kill()
        until(lambda: not is_traced(python.pid))


def test_a_gdb_that_is_forbidden_or_fails_says_so(
    typed: Typed, python: "subprocess.Popen[str]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gdb = tmp_path / "gdb"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    for said, why in (("ptrace: Operation not permitted.", "SYS_PTRACE"), ("No symbol table.", "No symbol table.")):
        gdb.write_text(f"#!/bin/sh\necho '{said}'\n")
        gdb.chmod(0o755)
        assert why in refused(typed, python.pid)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("RuntimeError: Remote debugging is not enabled in the remote process", "PYTHON_DISABLE_REMOTE_DEBUG"),
        ("PermissionError: [Errno 1] Operation not permitted", "SYS_PTRACE"),
        ("RuntimeError: Can't determine the Python version", "Can't determine the Python version"),
    ],
)
def test_errors_of_remote_exec_of_python_3_14(python: "subprocess.Popen[str]", said: str, why: str) -> None:
    """There is no 3.14 for the tests: what its ``sys.remote_exec`` raises is taken from its source."""
    found = processes.find(python.pid)
    assert found is not None
    assert why in injection.remedy_for(f"Traceback:\n{said}\n", replace(found, version=(3, 14)))


def test_python_3_14_is_asked_by_its_own_binary(
    python: "subprocess.Popen[str]", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The binary here has no ``remote_exec``: that is what it says, and the line is left for one that has."""
    found = processes.find(python.pid)
    assert found is not None
    with pytest.raises(AttachError, match="has no attribute 'remote_exec'"):
        injection.inject(replace(found, version=(3, 14)), "pass\n", tmp_path)
    assert (tmp_path / "line.py").read_text() == "pass\n"
