"""What the demo says while it happens: told once each, from what the read API knows."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gradcanary.demo.verdict import FAULT_STEP, Message, Read, Runs, losses_of


def say(text: str) -> None:
    """Tell people."""
    print(text, file=sys.stdout, flush=True)  # noqa: T201 -- the demo is a story told on stdout


def introduce(url: str, runs: Runs) -> None:
    """Say what is going to happen, and where to see it."""
    say(
        f"""\
Two LoRA trainings have started on this machine: the same model, data and seed.
In {runs.faulty} the schedule of lora_B in blocks 3-5 goes wrong at step {FAULT_STEP}. Its loss
will bump, and go on falling.

  watch them live:  {url}/runs/{runs.faulty}
                    {url}/runs/{runs.twin}
"""
    )


def tell(message: Message) -> None:
    """Show a webhook."""
    said = message.data
    say(
        f"""
A webhook arrived and its signature is right: {message.content["type"]}
  what   {said["summary"]}
  why    {said["likely_cause"]}
  fix    {said["fix"]}
  page   {said["url"]}
"""
    )


class Story:
    """Follows the faulty run; ``look`` says what is new since the last time."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._is_faulty = False
        self._is_caught = False

    def look(self, read: Read) -> None:
        """Say that the fault began, and that it was noticed."""
        for run in read("/runs")["runs"]:
            if run["run"] == self._runs.faulty:
                self._follow(run)

    def _follow(self, run: dict[str, Any]) -> None:
        step = run["step"] or 0
        if step >= FAULT_STEP and not self._is_faulty:
            self._is_faulty = True
            say(f"The schedule of {run['run']} has gone wrong. No error, no warning from the training.")
        if run["open_incidents"] and not self._is_caught:
            self._is_caught = True
            say(f"Step {step}: gradcanary noticed: {run['headline']}. The webhook follows when 10 s are gathered.")

    def ended(self, read: Read, name: str) -> None:
        """Say that a training has ended well."""
        losses = losses_of(read, name)
        fell = f": its loss fell from {losses[0]:.2f} to {losses[-1]:.2f}" if losses else ""
        say(f"{name} has ended{fell}.")


class Receiver:
    """Listens on a free port of this machine; ``refused`` counts bodies whose signature was wrong."""

    def __init__(self, secret: str, told: Callable[[Message], None]) -> None:
        self.secret = secret
        self.messages: list[Message] = []
        self.refused = 0
        self._told = told
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                self.send_response(204 if receiver.take(body, dict(self.headers.items())) else 401)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Stay silent: the messages themselves are printed."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def take(self, body: bytes, headers: dict[str, str]) -> bool:
        """Keep a body whose signature is right, and tell of it."""
        from standardwebhooks import Webhook, WebhookVerificationError

        try:
            Webhook(self.secret).verify(body, {name.lower(): value for name, value in headers.items()})
        except WebhookVerificationError:
            self.refused += 1
            return False
        lower = {name.lower(): value for name, value in headers.items()}
        message = Message(time.time(), lower["webhook-id"], json.loads(body))
        self.messages.append(message)
        self._told(message)
        return True
