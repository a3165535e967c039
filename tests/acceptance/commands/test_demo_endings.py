"""However the demo ends it leaves no process behind; and it finds its way around what stands in its way."""

import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gradcanary.demo import LOOK_EACH_S, processes
from gradcanary.demo.processes import Collector, NotListeningError, new_secret
from support.waiting import eventually

PATIENCE_S = 60


class Demo:
    """``gradcanary demo`` as a process whose lines can be waited for."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gradcanary.cli", "demo", *arguments],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.seen = ""
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._lines.put(line)

    def wait_for(self, text: str) -> None:
        while text not in self.seen:
            self.seen += self._lines.get(timeout=PATIENCE_S)

    def children(self) -> list[int]:
        return children_of(self.process.pid)


def children_of(parent: int) -> list[int]:
    listing = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listing.splitlines()]
    return [pid for pid, of in pairs if of == parent]


@pytest.fixture
def start() -> Iterator[Callable[..., Demo]]:
    demos: list[Demo] = []

    def start_one(*arguments: str) -> Demo:
        demos.append(Demo(*arguments))
        return demos[-1]

    yield start_one
    for demo in demos:
        demo.process.terminate()
        demo.process.wait(PATIENCE_S)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def interrupt(demo: Demo, ending: signal.Signals) -> None:
    """End a demo that trains, as a terminal or a service manager does; it takes its children along."""
    children = demo.children()
    assert len(children) == 3
    demo.process.send_signal(ending)
    assert demo.process.wait(PATIENCE_S) == 130
    assert not [pid for pid in children if is_alive(pid)]


def test_interrupted_while_the_collector_starts_it_ends_it(start) -> None:
    demo = start("--port", "0")
    deadline = time.monotonic() + PATIENCE_S
    while not demo.children():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    children = demo.children()
    demo.process.send_signal(signal.SIGTERM)
    assert demo.process.wait(PATIENCE_S) == 130
    assert not [pid for pid in children if is_alive(pid)]


def test_a_taken_port_is_said_and_another_one_is_used(start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        demo = start("--port", str(port))
        demo.wait_for("watch them live")
    interrupt(demo, signal.SIGINT)
    assert f"Port {port} is taken" in demo.seen
    assert f"http://127.0.0.1:{port}/" not in demo.seen


def test_data_that_cannot_be_used_ends_it_with_a_reason(start, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    demo = start("--port", "0", "--data", str(tmp_path / "file"))
    demo.wait_for("did not start")
    assert demo.process.wait(PATIENCE_S) == 1


def test_killed_demo_leaves_no_process_and_kept_data_gives_new_names(start, tmp_path: Path) -> None:
    killed = start("--port", "0", "--data", str(tmp_path))
    killed.wait_for("/runs/lora-wrong-decay\n")
    wait_until_known(killed, "lora-wrong-decay")
    children = killed.children()
    assert len(children) == 3
    killed.process.kill()
    eventually(lambda: not [pid for pid in children if is_alive(pid)])
    demo = start("--port", "0", "--data", str(tmp_path))
    demo.wait_for("/runs/lora-wrong-decay-2\n")
    interrupt(demo, signal.SIGHUP)


def test_without_its_collector_it_ends_and_says_so(start) -> None:
    demo = start("--port", "0")
    demo.wait_for("watch them live")
    collector, _, twin = sorted(demo.children())
    os.kill(twin, signal.SIGTERM)
    time.sleep(2 * LOOK_EACH_S)
    assert demo.process.poll() is None, "a training that ends is told, and no reason to end"
    os.kill(collector, signal.SIGKILL)
    assert demo.process.wait(PATIENCE_S) == 1
    demo.wait_for("The collector has ended with status -9. The demo ends with it: start it again.")
    assert demo.children() == []


def test_demo_uses_a_running_collector_and_leaves_it_running(start, collector) -> None:
    demo = start("--url", collector.url)
    demo.wait_for(f"{collector.url}/runs/lora-healthy-")
    names = {word.rpartition("/")[2] for word in demo.seen.split() if "/runs/" in word}
    eventually(lambda: {each["run"] for each in collector.get("/api/v1/runs").json()["runs"]} == names)
    children = demo.children()
    assert len(children) == 2
    demo.process.send_signal(signal.SIGINT)
    assert demo.process.wait(PATIENCE_S) == 130
    assert not [pid for pid in children if is_alive(pid)]
    assert collector.get("/healthz").status_code == 200


def test_a_collector_that_does_not_answer_is_said_before_anything_starts(start) -> None:
    demo = start("--url", "http://127.0.0.1:9/")
    demo.wait_for("The collector at http://127.0.0.1:9 does not answer")
    assert demo.process.wait(PATIENCE_S) == 1


def wait_until_known(demo: Demo, name: str) -> None:
    url = next(word for word in demo.seen.split() if word.endswith(f"/runs/{name}")).removesuffix(f"/runs/{name}")
    deadline = time.monotonic() + PATIENCE_S
    while True:
        with processes.direct_opener().open(f"{url}/api/v1/runs") as answer:
            if f'"{name}"'.encode() in answer.read():
                return
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_settings_of_the_users_own_trainings_are_not_the_demos(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Both variables set is an error of `gradcanary up`: it starts only if the stranger's one is left out.
    monkeypatch.setenv("GRADCANARY_WEBHOOK_SECRET_FILE", "/nowhere")
    with closing(Collector(tmp_path, 0, "http://127.0.0.1:9/", new_secret())) as collector:
        assert collector.read("/runs")["runs"] == []


def test_a_collector_that_ends_at_once_is_an_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(NotListeningError, match="the reason is above"):
        Collector(tmp_path, taken.getsockname()[1], "http://127.0.0.1:9/", new_secret())


def test_a_collector_that_starts_too_slowly_is_another_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "STARTUP_S", 0.01)
    with pytest.raises(NotListeningError, match="it did not listen within 0 s, perhaps because this machine is busy"):
        Collector(tmp_path, 0)
