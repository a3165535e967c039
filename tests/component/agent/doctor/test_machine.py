"""The folder for unsent numbers, what waits in it, gdb and ptrace."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from component.agent.doctor.conftest import Examine
from gradcanary.attach import processes
from gradcanary.doctor import machine
from gradcanary.export import spool
from gradcanary.export.spool import Progress, Spool, StoredBatch

NOBODY = "http://127.0.0.1:9"


def test_a_folder_that_is_not_there_yet_is_fine_and_stays_away(examine: Examine, spool_folder: Path) -> None:
    _, found = examine("--url", NOBODY)
    assert found["spool"]["state"] == "ok"
    assert found["spool"]["found"].startswith(f"{spool_folder}, ")
    assert found["waiting"]["found"] == "no earlier session waits to be sent"
    assert not spool_folder.exists()


def test_sessions_that_wait_are_counted_and_left_as_they_are(examine: Examine, spool_folder: Path) -> None:
    for session, is_left in (("old", True), ("new", True), ("live", False)):
        made = Spool.create(spool_folder, "run", session, NOBODY, b"{}", Progress())
        made.append(StoredBatch(bytes(2**20), 1, 1))
        if is_left:
            made.close()
    os.utime(spool_folder / "run.old.spool", (0, 0))
    before = sorted(spool_folder.rglob("*"))
    _, found = examine("--url", NOBODY)
    assert sorted(spool_folder.rglob("*")) == before
    made.close()
    assert found["waiting"]["state"] == "note"
    assert found["waiting"]["found"].startswith("2 earlier sessions wait to be sent, 2.00 MiB, the oldest of 2")
    assert found["waiting"]["do"] == f"gradcanary sync {spool_folder}"


def test_a_folder_that_takes_no_file_is_a_fault(examine: Examine, spool_folder: Path, monkeypatch) -> None:
    spool_folder.parent.mkdir(exist_ok=True)
    spool_folder.write_text("a file")
    _, found = examine("--url", NOBODY)
    assert found["spool"]["state"] == "fault"
    assert f"{spool_folder} takes no file (Not a directory): while the collector is away" in found["spool"]["found"]
    assert "GRADCANARY_SPOOL" in found["spool"]["do"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_fault(examine: Examine, monkeypatch) -> None:
    monkeypatch.setattr(spool.tempfile, "TemporaryFile", lambda **_: Path("/dev/full").open("wb"))  # noqa: SIM115 -- the caller closes it
    _, found = examine("--url", NOBODY)
    assert "takes no file (No space left on device)" in found["spool"]["found"]


def test_a_disk_that_hangs_and_one_that_is_nearly_full(examine: Examine, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(100, 99, 2**20))
    assert "1.00 MiB free: a process keeps up to 256 MiB there" in examine("--url", NOBODY)[1]["spool"]["found"]
    hangs = threading.Event()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: hangs.wait(30))
    monkeypatch.setattr(machine, "FOLDER_S", 0.1)
    assert "does not answer" in examine("--url", NOBODY)[1]["spool"]["found"]
    hangs.set()


def test_a_user_without_a_home(examine: Examine, monkeypatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("no home")

    for name in ("GRADCANARY_SPOOL", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert examine("--url", NOBODY)[1]["spool"]["state"] == "note"


def test_a_variable_that_watch_refuses_is_a_fault(examine: Examine, monkeypatch) -> None:
    monkeypatch.setenv("GRADCANARY_EVERY", "7")
    status, found = examine("--url", NOBODY)
    assert status == 1
    assert found["settings"]["found"].startswith("GRADCANARY_EVERY is '7': it must be")
    assert "collector" not in found


@pytest.mark.parametrize(
    ("scope", "do"), [(0, "--cap-add SYS_PTRACE"), (1, "sysctl kernel.yama.ptrace_scope=0"), (3, "gradcanary run")]
)
def test_what_attach_needs_is_a_note(examine: Examine, monkeypatch, scope, do) -> None:
    asked: list[int] = []
    monkeypatch.setattr(processes, "ptrace_scope", lambda: scope)
    monkeypatch.setattr(processes, "may_trace", lambda pid: asked.append(pid) is not None)
    monkeypatch.setattr(shutil, "which", lambda _: None)
    _, found = examine("--url", NOBODY)
    assert (found["gdb"]["state"], found["ptrace"]["state"]) == ("note", "note")
    assert "apt-get install gdb" in found["gdb"]["do"]
    assert do in found["ptrace"]["do"]
    assert f"ptrace_scope {scope}" in found["ptrace"]["found"]
    assert processes.read_state(asked[0]) in ("", "Z"), "the process to try it on is gone"


def test_ptrace_is_tried_on_a_process_that_is_no_child(monkeypatch) -> None:
    parents: list[int] = []
    monkeypatch.setattr(processes, "may_trace", lambda pid: parents.append(int(processes._stat(pid)[1])) is None)
    machine._may_trace()
    assert parents
    assert os.getpid() not in parents
