"""A training that activates the agent without gdb, and prints what it saw as JSON: ``activation.py FOLDER``.

Everything happens in its main thread's loop as it would after a request from outside.
"""

import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.optim import optimizer as optimizers

from gradcanary import __version__, identity
from gradcanary.attach import bootstrap, request

PACKAGE = str(Path(bootstrap.__file__).parents[1])
seen: dict[str, object] = {}
waits: list[str] = []
is_activating = False


def audited(event: str, arguments: tuple[object, ...]) -> None:
    is_ours = is_activating and threading.current_thread() is threading.main_thread()
    if is_ours and event.startswith(("open", "import", "os.", "socket.")):
        waits.append(f"{event} {arguments}")


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def asked_for(folder: Path, name: str) -> dict[str, object]:
    home = folder / name
    home.mkdir()
    (home / "program").touch()
    settings = {"url": "http://127.0.0.1:9", "run": name, "every": None, "absmax_below": None, "token": None}
    return {
        "file": str(home / "program"), "folder": str(home), "package": PACKAGE, "pid": os.getpid(),
        "agent": __version__, "socket": str(home / "socket"), "settings": settings, "for_s": None, "default_run": name,
        "command": os.getpid(), "command_started": identity.start_time(os.getpid()), "launch": None,
    }  # fmt: skip


def hooks() -> int:
    both = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
    return sum(map(len, both)) + (torch.autograd.backward.__module__ != "torch.autograd")


def enter(asked: dict[str, object]) -> threading.Thread:
    """Begin with what the line runs in a thread; the main thread has to be free for it."""
    thread = threading.Thread(target=bootstrap.bootstrap, args=(asked,))
    thread.start()
    return thread


def let_in(asked: dict[str, object]) -> None:
    """Have it come in; what it does as it moves in is listened to."""
    activate = bootstrap.Activation.activate

    def listened(activation: bootstrap.Activation) -> None:
        global is_activating
        is_activating = True
        try:
            activate(activation)
        finally:
            is_activating = False

    bootstrap.Activation.activate = listened
    enter(asked)
    until(lambda: (Path(asked["folder"]) / "answer").exists())
    bootstrap.Activation.activate = activate


def told(asked: dict[str, object], action: str) -> dict[str, object] | None:
    """Ask it something, from a thread: the main one has to be free to take hooks off."""
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.append(request.send_request(Path(asked["socket"]), action, 20.0)))
    thread.start()
    until(lambda: not thread.is_alive())
    return answers[0]


def forked() -> int:
    """Return how many watches and hooks a fork has."""
    ours, theirs = os.pipe()
    if not os.fork():
        from gradcanary import api

        os.write(theirs, b"%d" % (len(api.open_watches()) + hooks()))
        os._exit(0)
    found = int(os.read(ours, 10))
    os.close(ours)
    os.close(theirs)
    os.wait()
    return found


def without_files(asked: dict[str, object]) -> bool:
    """Say whether it answers after a time in which the process may open no more files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket(socket.AF_UNIX) as door:
        resource.setrlimit(resource.RLIMIT_NOFILE, (len([*Path("/proc/self/fd").iterdir()]) - 1, hard))
        door.connect(asked["socket"])
        time.sleep(0.1)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        door.settimeout(10)
        request.write_message(door, {"do": "status"})
        return request.read_message(door)["run"] == asked["settings"]["run"]


def on_a_slow_disk(folder: Path) -> str | None:
    """Return the run that it joins while a busy disk takes a second to remove the request's file."""
    asked = asked_for(folder, "slow")
    unlink = os.unlink

    def busy(path: str) -> None:
        unlink(path)
        time.sleep(1)

    os.unlink = busy
    enter(asked)
    until((Path(asked["folder"]) / "answer").exists)
    os.unlink = unlink
    left = told(asked, "detach")
    return left and left["detached"]


def interrupted(folder: Path) -> None:
    """A Ctrl-C that falls into the moment in which hooks are put on leaves none."""
    from gradcanary.tracking.optimizers import Hooks

    attach = Hooks.attach

    def half(*arguments: object) -> None:
        Hooks.attach = attach
        attach(*arguments)
        raise KeyboardInterrupt

    Hooks.attach = half
    try:
        let_in(asked_for(folder, "interrupted"))
        until(lambda: False)
    except KeyboardInterrupt:
        until(lambda: "gradcanary-control" not in [each.name for each in threading.enumerate()])
        seen["hooks after Ctrl-C"] = hooks()


def main(folder: Path) -> None:
    sys.addaudithook(audited)
    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.AdamW([weight])
    os.environ["GRADCANARY_STEP"] = "7"
    asked = asked_for(folder, "stays")
    let_in(asked)
    seen["waits as it moves in"] = waits
    from gradcanary.attach import resident
    from gradcanary.export.device_copy import Transfers

    resident.POLL_S = 0.02
    seen["in a fork"] = forked()
    weight.square().sum().backward()
    optimizer.step()
    seen["step"] = told(asked, "status")["step"]
    (Path(asked["folder"]) / "answer").unlink()
    describe, resident.AttachedWatch.describe = resident.AttachedWatch.describe, lambda _: {}["none"]
    seen["a report that fails"] = told(asked, "status")
    resident.AttachedWatch.describe = describe
    seen["answers after no file was to be had"] = without_files(asked)
    drain, threads = Transfers.drain, []
    Transfers.drain = lambda *arguments: (threads.append(threading.current_thread().name), drain(*arguments))
    seen["left"] = told(asked, "detach")["detached"]
    seen["GPUs asked in"] = [*threads]
    seen["hooks"] = hooks()
    folderless = asked_for(folder, "folderless")
    abandoned = asked_for(folder, "abandoned")
    unwanted = enter({**abandoned, "command_started": "0"})
    until(lambda: not unwanted.is_alive())
    seen["let in for one who was killed"] = (Path(abandoned["folder"]) / "socket").exists()
    answer, bootstrap.write_answer = (
        bootstrap.write_answer,
        lambda *_: (_ for _ in ()).throw(FileNotFoundError("no folder")),
    )
    enter(folderless)
    until((Path(folderless["folder"]) / "socket").exists)
    seen["without a folder"] = told(folderless, "detach")["detached"]
    bootstrap.write_answer = answer
    seen["on a slow disk"] = on_a_slow_disk(folder)
    interrupted(folder)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
