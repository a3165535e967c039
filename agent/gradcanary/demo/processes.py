"""The processes of the demo: a collector and trainings. They end with the demo, also if it is killed."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import runpy
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

STARTUP_S = 60.0
STOP_S = 10.0
GONE_S = 3.0
"""The time in which a collector that does not answer is found to have ended."""

_CHILD = "from gradcanary.demo import processes; processes.run_supervised()"
"""The program of each child. Not ``-m``: the module is imported with its package before it would be run."""


class NotListeningError(Exception):
    """The collector did not start; the message says why, or that its stderr does."""


def direct_opener(tls: ssl.SSLContext | None = None) -> urllib.request.OpenerDirector:
    """Return an opener past the proxies of the environment, as the agent sends."""
    return urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=tls))


def reader(url: str, token: str | None = None, tls: ssl.SSLContext | None = None) -> Callable[[str], Any]:
    """Return a function that reads a path of a collector's API, JSON or CSV; it raises OSError."""
    opener = direct_opener(tls)
    headers = {} if token is None else {"authorization": f"Bearer {token}"}

    def read(path: str) -> Any:  # noqa: ANN401 -- JSON
        with opener.open(urllib.request.Request(f"{url}/api/v1{path}", headers=headers), timeout=30) as answer:  # noqa: S310 -- http or https, checked
            is_csv = answer.headers.get_content_type() == "text/csv"
            return answer.read().decode() if is_csv else json.load(answer)

    return read


def new_secret() -> str:
    """Return a signing secret in the form of Standard Webhooks."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()


def is_free(port: int) -> bool:
    """Return True if a collector could listen on this port of this machine; 0 stands for any port."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class GoneError(Exception):
    """The collector has ended too early; the message has its status."""


class Process:
    """A child that ends when it is closed, or when this process ends, also by a kill."""

    def __init__(
        self, module: str, arguments: list[str], environment: dict[str, str], stdout: int | None = None
    ) -> None:
        self._process = subprocess.Popen(  # noqa: S603 -- our own modules
            [sys.executable, "-c", _CHILD, module, *arguments],
            env=_environment(environment),
            stdin=subprocess.PIPE,
            stdout=stdout,
            text=True,
            # A Ctrl-C at the terminal is the demo's alone: it ends its children in order.
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status, None for a running process."""
        return self._process.poll()

    def close(self) -> None:
        """End it by SIGTERM, then by SIGKILL."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()


def _environment(variables: dict[str, str]) -> dict[str, str]:
    """Return our environment without the user's settings of gradcanary: the demo shows the defaults."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("GRADCANARY_")}
    # One thread each: two trainings, the collector and a browser share the machine.
    return {**inherited, "OMP_NUM_THREADS": "1", **variables}


class Collector(Process):
    """``gradcanary up``, if there is one with a webhook, ready to be used; raises NotListeningError."""

    def __init__(self, folder: Path, port: int, webhook: str | None = None, secret: str = "") -> None:
        arguments = ["up", "--port", str(port), "--data", str(folder)]
        arguments += [] if webhook is None else ["--webhook", webhook]
        super().__init__("gradcanary.cli", arguments, {"GRADCANARY_WEBHOOK_SECRET": secret}, subprocess.PIPE)
        self.url = ""
        try:
            self._await_url()
        except BaseException:  # an interrupt too: no other code can end this process yet
            self.close()
            raise

    def _await_url(self) -> None:
        listening = threading.Event()
        threading.Thread(target=self._read_lines, args=(listening,), daemon=True).start()
        listening.wait(STARTUP_S)
        if not self.url:
            slow = f"it did not listen within {STARTUP_S:.0f} s, perhaps because this machine is busy"
            raise NotListeningError("the reason is above" if listening.is_set() else slow)

    def _read_lines(self, listening: threading.Event) -> None:
        assert self._process.stdout is not None  # noqa: S101 -- asked for in __init__
        with self._process.stdout as lines:
            for line in lines:
                if "listening on" in line:
                    self.url = line.split()[-1]
                    listening.set()
        listening.set()

    def read(self, path: str) -> Any:  # noqa: ANN401 -- JSON
        """Return an answer of the read API; raises GoneError if the process has ended."""
        try:
            return reader(self.url)(path)
        except (OSError, http.client.HTTPException):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait_for_end(GONE_S)
            raise

    def wait_for_end(self, within_s: float | None = None) -> NoReturn:
        """Wait for its end, then raise GoneError."""
        status = self._process.wait(within_s)
        raise GoneError(f"The collector has ended with status {status}.")


class Training(Process):
    """One of the two trainings."""

    def __init__(self, name: str, url: str, folder: Path, variables: Mapping[str, str], *, is_faulty: bool) -> None:
        arguments = ["--run", name, *(["--fault"] if is_faulty else [])]
        # Batches that an interrupted collector did not take are useless later: their spool goes with the demo.
        environment = {**variables, "GRADCANARY_URL": url, "GRADCANARY_SPOOL": str(folder / "spool")}
        super().__init__("gradcanary.demo.training", arguments, environment)
        self.name = name


def run_supervised() -> None:
    """Run the module of the first argument as ``python -m`` does; end when the input ends, as by SIGTERM.

    The parent holds the other side of that pipe, which closes however the parent ends.
    """
    threading.Thread(target=_end_with_input, name="gradcanary-supervised", daemon=True).start()
    sys.argv = sys.argv[1:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


def _end_with_input() -> None:
    # Not by sys.stdin: a thread that is in there as the process ends holds a lock that its end wants.
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
