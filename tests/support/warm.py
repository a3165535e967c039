"""Programs that start at once: each is forked from a process that has already imported what takes seconds to import.

What a test starts this way is a process of its own, with its arguments, environment and output, and is killed as any
other; half of the suite's CPU time went into importing the same modules again. How the real commands start is tested
where they are the subject: the command line, the launchers, the demo, the pages.
"""

import atexit
import contextlib
import errno
import faulthandler
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NoReturn
from zlib import crc32

COLLECTOR = (
    "alembic.command",
    "anyio._backends._asyncio",
    "dash.backends._fastapi",
    "dash.backends._flask",
    "fastapi.staticfiles",
    "gradcanary_dashboard.app",
    "gradcanary_server.app",
    "httpcore",
    "platformdirs",
    "plotly.io",
    "plotly.offline",
    "psycopg",
    "uvicorn",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
TRAINING = ("torch", "torch._dynamo", "torch.optim")

SHARED = "GRADCANARY_TEST_NURSERIES"
"""Names the folder of nurseries for this process and those it starts."""

_lock = threading.Lock()


class Process:
    """As much of ``subprocess.Popen`` as the tests need; ``stdout`` and ``stderr`` are text."""

    def __init__(
        self, preloaded: tuple[str, ...], words: Sequence[str], env: Mapping[str, str], *, is_told: bool = False
    ) -> None:
        """Run ``python WORDS``: a script or ``-m module``, with arguments. Of one that is told something, ``stdin`` is
        a pipe, and ``stderr`` another one than ``stdout``."""
        read_in, write_in = os.pipe()
        read_out, write_out = os.pipe()
        read_err, write_err = os.pipe() if is_told else (-1, os.dup(write_out))
        self._said, says = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        weakref.finalize(self, self._said.close)
        with says, _door(preloaded) as door:
            fds = [read_in, write_out, write_err, says.fileno()]
            socket.send_fds(door, [json.dumps([list(words), dict(env)]).encode()], fds)
        for fd in (read_in, write_out, write_err):
            os.close(fd)
        self.stdout: IO[str] = os.fdopen(read_out)
        self.stdin: IO[str] | None = None
        self.stderr: IO[str] | None = None
        if is_told:
            self.stdin, self.stderr = os.fdopen(write_in, "w"), os.fdopen(read_err)
        else:
            os.close(write_in)
        self.pid = int(self._said.recv(20))
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status as ``subprocess`` has it, None while the process runs."""
        if self.returncode is None and select.select([self._said], [], [], 0)[0]:
            # It stays there to be read: another thread may wait for it, too.
            self.returncode = os.waitstatus_to_exitcode(int(self._said.recv(20, socket.MSG_PEEK)))
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._said], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended meanwhile, as subprocess has it
                os.kill(self.pid, number)


def run(preloaded: tuple[str, ...], words: Sequence[str], env: Mapping[str, str]) -> "subprocess.CompletedProcess[str]":
    """Run ``python WORDS`` to its end and return what it said."""
    process = Process(preloaded, words, env, is_told=True)
    assert process.stdin is not None
    assert process.stderr is not None
    with process.stdin, process.stdout as lines, process.stderr as errors, ThreadPoolExecutor(1) as other:
        said = other.submit(errors.read)
        printed = lines.read()
        return subprocess.CompletedProcess(list(words), process.wait(60), printed, said.result())


def share(*preloaded: tuple[str, ...]) -> None:
    """Start nurseries with these modules for this process and for all that it starts from now on."""
    with _lock:
        for modules in preloaded:
            _start(modules)


def _door(preloaded: tuple[str, ...]) -> socket.socket:
    """Return a connection to the process that has these modules; the first call starts it."""
    with _lock:
        if SHARED not in os.environ or not _place(preloaded).exists():
            _start(preloaded)
    door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    door.connect(str(_place(preloaded)))
    return door


def _place(preloaded: tuple[str, ...]) -> Path:
    return Path(os.environ[SHARED]) / f"{crc32(' '.join(preloaded).encode()):x}"


def _start(preloaded: tuple[str, ...]) -> None:
    if SHARED not in os.environ:
        folder = tempfile.TemporaryDirectory(prefix="gradcanary-nurseries-")
        atexit.register(folder.cleanup)
        os.environ[SHARED] = folder.name
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(str(_place(preloaded)))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:  # another worker of the suite starts it just now
                return
            raise
        ours, theirs = os.pipe()
        listener.listen(64)  # who asks before everything is imported waits
        fds = (listener.fileno(), ours)
        command = [sys.executable, __file__, *map(str, fds), *preloaded]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, env=env, pass_fds=fds, stdin=subprocess.DEVNULL)
    os.close(ours)
    atexit.register(process.wait)
    atexit.register(os.close, theirs)  # that is what ends it


def _serve(listener: socket.socket, owner: int) -> tuple[list[str], dict[str, str]] | None:
    """Fork for each request; return in the child, with what it is to run, and with None when the owner is gone."""
    while True:
        if owner in select.select([listener, owner], [], [])[0]:
            return None
        door, _ = listener.accept()
        with door:
            request, fds, _, _ = socket.recv_fds(door, 1 << 20, 4)
        if not request:
            continue
        keeper = os.fork()
        if keeper:
            for fd in fds:
                os.close(fd)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        pid = os.fork()
        if pid:
            _keep(pid, fds[3])
        listener.close()
        os.close(owner)
        for number, fd in enumerate(fds[:3]):
            os.dup2(fd, number)
        for fd in fds:
            os.close(fd)
        words, env = json.loads(request)
        return words, env


def _keep(pid: int, says: int) -> NoReturn:
    """Tell whoever asked the process's id, and its status when it has ended."""
    for fd in range(3):
        os.close(fd)
    os.write(says, b"%d" % pid)
    os.write(says, b"%d" % os.waitpid(pid, 0)[1])
    os._exit(0)


def _run(words: list[str], env: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout, sys.stderr = open(0), open(1, "w"), open(2, "w", buffering=1)  # noqa: SIM115 -- until the process ends
    faulthandler.enable()  # so that one that hangs can be asked where, by SIGABRT
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path[0] = str(Path(words[0]).parent)
        runpy.run_path(words[0], run_name="__main__")


def _main() -> None:
    sys.path.append(str(Path(__file__).parents[1]))  # where ``support`` is, for the programs in it
    for name in sys.argv[3:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a keeper
    with socket.socket(fileno=int(sys.argv[1])) as listener:
        request = _serve(listener, int(sys.argv[2]))
    if request is not None:
        _run(*request)


if __name__ == "__main__":
    _main()
