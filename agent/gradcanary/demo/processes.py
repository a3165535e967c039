"""The processes of the demo: a collector and trainings, ended when the demo ends however it ends."""

from __future__ import annotations

import base64
import json
import os
import secrets
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from typing import Any

STARTUP_S = 60.0
STOP_S = 10.0


class NotListeningError(Exception):
    """The collector did not start; the message is what it said."""


def new_secret() -> str:
    """Return a signing secret as Standard Webhooks write it."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(24)).decode()


class Process:
    """A child that ends when it is closed."""

    def __init__(self, module: str, arguments: list[str], environment: dict[str, str]) -> None:
        # One thread each: two trainings, the collector and a browser share the machine.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        self._process = subprocess.Popen(  # noqa: S603 -- our own modules
            [sys.executable, "-m", module, *arguments], env=environment, stdout=subprocess.PIPE, text=True
        )

    @property
    def status(self) -> int | None:
        """The exit status, None while it runs."""
        return self._process.poll()

    def wait(self) -> int:
        """Wait until it has ended, and return its exit status."""
        return self._process.wait()

    def close(self) -> None:
        """End it, politely first."""
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


class Collector(Process):
    """``gradcanary up`` with a webhook, ready to be used; raises NotListeningError."""

    def __init__(self, folder: Path, port: int, webhook: str, secret: str) -> None:
        arguments = ["up", "--port", str(port), "--data", str(folder), "--webhook", webhook]
        super().__init__("gradcanary.cli", arguments, {"GRADCANARY_WEBHOOK_SECRET": secret})
        self.url = ""
        listening = threading.Event()
        threading.Thread(target=self._read, args=(listening,), daemon=True).start()
        listening.wait(STARTUP_S)
        if not self.url:
            self.close()
            raise NotListeningError(f"gradcanary up ended with status {self._process.returncode}")

    def _read(self, listening: threading.Event) -> None:
        for line in self._process.stdout or ():
            if "listening on" in line:
                self.url = line.split()[-1]
                listening.set()
        listening.set()

    def read(self, path: str) -> Any:  # noqa: ANN401 -- JSON
        """Return an answer of the read API."""
        with urllib.request.urlopen(f"{self.url}/api/v1{path}", timeout=30) as answer:  # noqa: S310 -- our own URL
            return json.load(answer)


class Training(Process):
    """One of the two trainings."""

    def __init__(self, name: str, url: str, faulty: bool) -> None:
        arguments = ["--run", name, *(["--fault"] if faulty else [])]
        super().__init__("gradcanary.demo.training", arguments, {"GRADCANARY_URL": url})
        self.name = name
