"""The text of the demo while it runs, from the read API; and the webhook receiver, written as a user would."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gradcanary.demo.verdict import FAULT_STEP, Message, Read, Runs, losses_of


def print_line(text: str) -> None:
    """Print a line of the demo at once."""
    print(text, file=sys.stdout, flush=True)  # noqa: T201 -- the output of the command


def print_introduction(url: str, runs: Runs) -> None:
    """Print the plan of the demo, and the addresses of both runs."""
    print_line(
        f"""\
Two LoRA trainings have started on this machine: the same model, data and seed.
In {runs.faulty} the weight decay of lora_B in blocks 3-5 rises from 0 to 100,000
at step {FAULT_STEP}. Its loss will bump, and go on falling.

  watch them live:  {url}/runs/{runs.faulty}
                    {url}/runs/{runs.twin}
"""
    )


def print_webhook(message: Message) -> None:
    """Print a webhook."""
    data = message.data
    parts = data["explanation"]
    print_line(
        f"""
A webhook arrived and its signature is right: {message.content["type"]}
  what   {parts["what"]}
  do     {parts["do_first"]}
  why    {parts["why"]}
  page   {data["url"]}
"""
    )


class Story:
    """Follows the faulty run; each event is printed once."""

    def __init__(self, runs: Runs, *, has_webhook: bool = False) -> None:
        """``has_webhook``: the webhook is printed, too."""
        self._runs = runs
        self._next = " The webhook follows after 10 s of grouping." if has_webhook else ""
        self._is_faulty = False
        self._is_caught = False

    def update(self, read: Read) -> None:
        """Print that the fault began, and that it was noticed."""
        for run in read("/runs")["runs"]:
            if run["run"] == self._runs.faulty:
                self._follow(run)

    def _follow(self, run: dict[str, Any]) -> None:
        step = run["step"] or 0
        if step >= FAULT_STEP and not self._is_faulty:
            self._is_faulty = True
            print_line(
                f"Step {FAULT_STEP}: the weight decay of lora_B in blocks 3-5 of {run['run']} rises to 100,000. "
                "No error, no warning from the training."
            )
        if run["open_incidents"] and not self._is_caught:
            self._is_caught = True
            print_line(f"Step {step}: gradcanary noticed: {run['headline']}.{self._next}")

    def print_end(self, read: Read, name: str) -> None:
        """Print that a training has ended without an error."""
        losses = losses_of(read, name)
        fell = f": its loss fell from {losses[0]:.2f} to {losses[-1]:.2f}" if losses else ""
        print_line(f"{name} has ended{fell}.")


class Receiver:
    """Listens on a free port of this machine; ``refused`` counts bodies with a wrong signature."""

    def __init__(self, secret: str, on_message: Callable[[Message], None]) -> None:
        self.secret = secret
        self.messages: list[Message] = []
        self.refused = 0
        self._on_message = on_message
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                self.send_response(204 if receiver.receive(body, dict(self.headers.items())) else 401)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing: the messages are printed."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/"

    def receive(self, body: bytes, headers: dict[str, str]) -> bool:
        """Keep a message with the right signature and call back; return False for a wrong one."""
        from standardwebhooks import Webhook, WebhookVerificationError

        lower = {name.lower(): value for name, value in headers.items()}
        try:
            Webhook(self.secret).verify(body, lower)
        except WebhookVerificationError:
            self.refused += 1
            return False
        message = Message(time.time(), lower["webhook-id"], json.loads(body))
        self.messages.append(message)
        self._on_message(message)
        return True
