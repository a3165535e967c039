"""The way into a process: every Python that this machine has, and places that are no places to do anything."""

import _thread
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from gradcanary.attach import bootstrap, injection, processes, request
from support import PROGRAMS, warm
from support.agent.attach_targets import LOOP, mapped, program, until
from support.pythons import find_pythons

PACKAGE = str(request.PACKAGE)


@pytest.mark.parametrize(("version", "python"), find_pythons().items())
def test_a_line_gets_into_a_python_with_threads(version: str, python: str, tmp_path: Path) -> None:
    with program(python, "-S", "-c", LOOP, str(mapped(tmp_path))) as target:
        process = processes.find(target.pid)
        assert process is not None
        assert process.python_version == version
        for number in range(3):
            came = tmp_path / f"came-{number}"
            line = f"__import__('pathlib').Path({str(came)!r}).touch()\n"
            stopped_s = injection.inject(process, line, tmp_path)
            until(came.exists)
            assert (stopped_s is not None) == (process.version < (3, 14))
            print(f"Python {version} stood still for {stopped_s or 0:.2f} s")
        assert target.poll() is None
        assert processes.read_state(target.pid) in "RS"


SIGNALS = "import os, signal; os.kill(os.getpid(), signal.SIGALRM)"


@pytest.mark.parametrize(
    ("held", "error"),
    [
        (SIGNALS, SystemExit(3)),
        (SIGNALS, KeyboardInterrupt()),
        (SIGNALS, TimeoutError()),
        ("", None),
        (None, None),
    ],
    ids=repr,
)
def test_the_line_never_raises_and_leaves_no_name(
    tmp_path: Path, held: str | None, error: BaseException | None, alarmed: list[BaseException]
) -> None:
    """Whatever the process's own main module has made of the names; a signal that comes meanwhile is the training's."""
    file, came = tmp_path / "program", tmp_path / "came"
    if held is not None:
        file.write_text(f"open({str(came)!r}, 'x').close()\n{held}")
    names = {"__name__": "__main__", "open": None, "exec": None, "compile": 3, "Exception": None, "BaseException": None}
    before = {**names, "__builtins__": __builtins__}
    line = request.LINE.format(file=str(file), opening=request.OPENING)
    returned = []
    alarmed[0] = error or alarmed[0]

    def train() -> None:
        exec(line, before)
        returned.append(True)
        for _ in range(20 if error is None else 5000):
            time.sleep(0.001)

    with contextlib.nullcontext() if error is None else pytest.raises(type(error)):
        train()
    assert returned == [True]
    if held is not None:
        until(came.exists)
    assert came.exists() == (held is not None)
    assert before.keys() == names.keys() | {"__builtins__"}


def test_a_python_without_ctypes_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ctypes", None)
    asked = {"package": PACKAGE, "folder": str(tmp_path), "file": str(tmp_path / "program")}
    _thread.start_new_thread(bootstrap.bootstrap, (asked,))
    until((tmp_path / "answer").exists)
    assert "ctypes" in json.loads((tmp_path / "answer").read_text())["error"]


def test_an_errand_is_done_between_the_calls_of_torch() -> None:
    """While a training steps, from another thread, again and again: never where hooks are being called."""
    weight = torch.nn.Parameter(torch.ones(64))
    optimizer = torch.optim.AdamW([weight])
    places: list[str] = []
    hindered: list[str] = []

    def act() -> None:
        frame = sys._getframe()
        while frame is not None:
            places.append(frame.f_code.co_filename)
            frame = frame.f_back

    def ask() -> None:
        for _ in range(10):
            bootstrap.MainThreadTask(PACKAGE, act, report=hindered.append, on_failure=failures.append).retry()

    failures: list[Exception] = []
    found: list[str | None] = []
    handle = optimizer.register_step_pre_hook(lambda *_: found.append(bootstrap.blocking_frame(PACKAGE)))
    thread = threading.Thread(target=ask)
    thread.start()
    while thread.is_alive():
        weight.square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    thread.join()
    handle.remove()
    assert failures == []
    assert sum(place.endswith("bootstrap.py") for place in places) >= 10
    assert not [place for place in places if f"{os.sep}torch{os.sep}" in place]
    assert {str(place) for place in found} == {"torch/optim/optimizer.py:wrapper"}


def inside_threading(look: Callable[[], None]) -> None:
    """With the lock taken that each start and end of a thread needs."""
    held, threading._active = threading._active, Looking(threading._active)
    threading._active.look = look
    try:
        threading.enumerate()
    finally:
        threading._active = held


class Looking(dict[int, threading.Thread]):
    look: Callable[[], None]

    def values(self):
        self.look()
        return super().values()


def inside_backward(look: Callable[[], None]) -> None:
    weight = torch.ones(1, requires_grad=True)
    weight.register_hook(lambda _: look())
    weight.square().backward()


def inside_forward(look: Callable[[], None]) -> None:
    layer = torch.nn.Identity()
    layer.register_forward_hook(lambda *_: look())
    layer(torch.ones(1))


def in_another_thread(look: Callable[[], None]) -> None:
    """The training is not the main thread's: it is in a layer while that one looks."""
    inside, go_on = threading.Event(), threading.Event()
    layer = torch.nn.Identity()
    layer.register_forward_hook(lambda *_: inside.set() or go_on.wait())
    thread = threading.Thread(target=layer, args=(torch.ones(1),))
    thread.start()
    inside.wait()
    look()
    go_on.set()
    thread.join()


def under_no_grad(look: Callable[[], None]) -> None:
    torch.no_grad()(look)()


@pytest.mark.parametrize(
    ("call", "place"),
    [
        (lambda look: look(), None),
        (under_no_grad, None),
        (inside_threading, "threading.py:enumerate"),
        (inside_backward, "torch/"),
        (inside_forward, "torch/nn/modules/module.py"),
        (in_another_thread, "torch/nn/modules/module.py"),
    ],
)
def test_places_in_which_nothing_may_be_done(call: Callable[[Callable[[], None]], None], place: str | None) -> None:
    found: list[str | None] = []
    call(lambda: found.append(bootstrap.blocking_frame(PACKAGE)))
    assert found
    assert [each[: len(place)] if each and place else each for each in found] == [place] * len(found)


def test_an_import_is_no_place() -> None:
    """That of the frame behind our own, which are those of a text that was handed over."""
    found: list[str | None] = []
    names = {"found": found, "blocking_frame": bootstrap.blocking_frame, "package": PACKAGE}
    look = eval(compile("lambda *_: found.append(blocking_frame(package))", bootstrap._HERE, "eval"), names)
    finder = type("Finder", (), {"find_spec": look})
    sys.meta_path.insert(0, finder)
    try:
        with contextlib.suppress(ImportError):
            importlib.import_module("gradcanary_nothing")
    finally:
        sys.meta_path.remove(finder)
    assert found == ["an import"]


class LateError(Exception):
    def __init__(self, number: int, *, why: str) -> None:
        self.number, self.why = number, why


@pytest.fixture
def alarmed() -> Iterator[list[BaseException]]:
    """Return what the process's own handler of an alarm raises, changed by putting something else in."""
    raises: list[BaseException] = [TimeoutError("the process's own")]

    def handle(*_: object) -> None:
        raise raises[0]

    before = signal.signal(signal.SIGALRM, handle)
    yield raises
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "error", [KeyboardInterrupt(), SystemExit(143), TimeoutError("late"), LateError(3, why="slow")]
)
def test_a_signal_that_comes_meanwhile_is_the_trainings_own(error: BaseException, alarmed: list[BaseException]) -> None:
    """What its handler raises in the middle of our work is not swallowed: it is raised where the training goes on."""
    alarmed[0] = error

    def act() -> None:
        signal.raise_signal(signal.SIGALRM)

    told: list[Exception] = []
    asked = bootstrap.MainThreadTask(PACKAGE, act, on_failure=told.append)

    def train() -> None:
        _thread.start_new_thread(asked.retry, ())
        returned.append(True)
        for _ in range(5000):
            time.sleep(0.001)

    returned: list[bool] = []
    with pytest.raises(type(error)) as raised:
        train()
    assert returned == [True]
    assert (raised.value is error) == (type(error) is not KeyboardInterrupt)
    assert [str(each) for each in told] == ["a signal came in between, try again"]


def test_a_failure_is_told_and_ends_the_errand() -> None:
    told: list[Exception] = []
    asked = bootstrap.MainThreadTask(PACKAGE, lambda: None, prepare=lambda: 1 / 0, on_failure=told.append)
    _thread.start_new_thread(asked.retry, ())
    until(lambda: asked.is_over)
    assert [type(each) for each in told] == [ZeroDivisionError]


def test_a_folder_of_somebody_elses_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request, "user_folder", lambda _: tmp_path / "home")
    (tmp_path / "home").symlink_to(tmp_path / "nowhere")
    with pytest.raises(request.AttachError, match="cannot be made: File exists"):
        request.make_user_folder(os.geteuid())
    (tmp_path / "home").unlink()
    (tmp_path / "home").mkdir(mode=0o755)
    itself = processes.find(os.getpid())
    assert itself is not None
    with pytest.raises(request.AttachError, match="is not a folder of yours alone"):
        request.read_status(itself)
    with pytest.raises(request.AttachError, match="is not a folder of yours alone"):
        request.make_user_folder(os.geteuid())
    subprocess.run(["chmod", "700", str(tmp_path / "home")], check=True)
    assert request.make_user_folder(os.geteuid()) == tmp_path / "home"


def test_the_agent_comes_stays_and_leaves(tmp_path: Path) -> None:
    """In one process: nothing waits while hooks are put on, no failure ends the agent, forks have none."""
    ended = warm.run(warm.TRAINING, [str(PROGRAMS / "activation.py"), str(tmp_path)], dict(os.environ))
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout) == {
        "waits as it moves in": [],
        "in a fork": 0,
        "step": 0,
        "a report that fails": None,
        "answers after no file was to be had": True,
        "left": "stays",
        "GPUs asked in": ["MainThread"],
        "hooks": 0,
        "let in for one who was killed": False,
        "without a folder": "folderless",
        "on a slow disk": "slow",
        "hooks after Ctrl-C": 0,
    }
