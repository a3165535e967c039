"""Run the jobs against a real collector, and hold its words against the truth.

Run it as ``make words``, or ``python -m words.report [--jobs NAME ...]`` with ``PYTHONPATH=tests``; it ends with status
1 if a sentence is false. The collector is the README's
``gradcanary up --data ... --webhook ...``, and each job is a process of its own. Incidents are read from the
documented HTTP API and from the bodies of the webhook. Raw sentences stand under the table, for a human to judge.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from words.check import Flaw, Incident, find_flaws
from words.jobs import JOBS
from words.truth import TRUTHS

RECOVERY = re.compile(r"recover", re.IGNORECASE)
JOB_SECONDS = 600


@dataclass
class Mailbox:
    """The bodies that the webhook received, with the time of the last one."""

    bodies: list[dict] = field(default_factory=list)
    last: float = field(default_factory=time.monotonic)

    def put(self, body: dict) -> None:
        self.bodies.append(body)
        self.last = time.monotonic()

    def of(self, run: str) -> list[dict]:
        return [body for body in self.bodies if body.get("data", {}).get("run") == run]


@dataclass(frozen=True)
class Outcome:
    """All that one job led to."""

    job: str
    status: int
    incidents: list[dict]
    bodies: list[dict]

    @property
    def recoveries(self) -> int:
        return sum(is_recovery(body) for body in self.bodies)

    @property
    def messages(self) -> int:
        """The messages to a person, recoveries not counted: the end of a run is a message, too."""
        return len(self.bodies) - self.recoveries

    def flaws(self) -> list[Flaw]:
        told = {body["data"]["incident"] for body in self.bodies}
        said = [read_incident(incident, told=incident["id"] in told) for incident in self.incidents]
        said += [read_message(body["data"]) for body in self.bodies if not body["type"].endswith(".resolved")]
        return list(dict.fromkeys(find_flaws(TRUTHS[self.job], said, self.messages)))


def is_recovery(body: dict) -> bool:
    return body["type"].endswith(".resolved") and bool(RECOVERY.search(body["data"].get("resolution") or ""))


def read_incident(incident: dict, *, told: bool) -> Incident:
    cause = incident["likely_cause"]
    fix = incident["fix"]
    return Incident(
        rule=incident["rule"],
        severity=incident["severity"],
        step=incident["since_step"],
        headline=incident["summary"],
        cause="\n".join([cause["text"], *cause["evidence"]]),
        fix=f"{fix['text']}\n{fix['code']}",
        parameters=tuple(layer["name"] for layer in incident["layers"] if layer["layer"] is not None),
        told=told,
        code=cause["code"],
        do_first=incident["explanation"]["do_first"],
    )


def read_message(data: dict) -> Incident:
    return Incident(
        rule=data["rule"],
        severity=data["severity"],
        step=None,
        headline=data["summary"],
        cause=data["likely_cause"],
        fix=data["fix"],
        told=True,
        do_first=data["explanation"]["do_first"],
    )


@contextmanager
def receiver() -> Iterator[tuple[str, Mailbox]]:
    """Serve a webhook on a free port of this machine."""
    mailbox = Mailbox()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            mailbox.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook", mailbox
    finally:
        server.shutdown()


@contextmanager
def collector(folder: Path, webhook: str) -> Iterator[str]:
    """Run ``gradcanary up`` in the folder, and yield its address."""
    command = [
        Path(sys.executable).with_name("gradcanary"),
        "up",
        "--port",
        "0",
        "--data",
        folder,
        "--webhook",
        webhook,
    ]
    output = folder / "up.log"
    with output.open("w") as log, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT) as process:
        try:
            yield wait_for_address(output)
        finally:
            process.terminate()


def wait_for_address(output: Path) -> str:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if match := re.search(r"listening on (http://\S+)", output.read_text()):
            return match[1]
        time.sleep(0.2)
    raise TimeoutError(f"the collector did not start: {output.read_text()}")


def run_job(job: str, address: str, home: Path) -> int:
    """Run one job as a process of its own, and return its exit status."""
    environment = {**os.environ, "GRADCANARY_URL": address, "HOME": str(home)}
    command = [sys.executable, "-m", "words.jobs", job]
    return subprocess.run(command, env=environment, timeout=JOB_SECONDS, capture_output=True, check=False).returncode


def get(address: str, path: str) -> dict:
    with urllib.request.urlopen(f"{address}/api/v1{path}", timeout=30) as answer:
        return json.load(answer)


def read_outcome(job: str, status: int, address: str, mailbox: Mailbox) -> Outcome:
    summaries = get(address, f"/incidents?run={job}")["incidents"]
    incidents = [get(address, f"/incidents/{summary['id']}") for summary in summaries]
    return Outcome(job, status, sorted(incidents, key=lambda incident: incident["id"]), mailbox.of(job))


def run_all(jobs: list[str], quiet_seconds: float) -> list[Outcome]:
    """Run the jobs one after another, wait until the webhook is quiet, and read what each led to."""
    with tempfile.TemporaryDirectory() as name, receiver() as (webhook, mailbox):
        folder = Path(name)
        with collector(folder, webhook) as address:
            statuses = {}
            for job in jobs:
                began = time.monotonic()
                statuses[job] = run_job(job, address, folder)
                print(
                    f"{job}: exit {statuses[job]} after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True
                )
            ended = time.monotonic()
            while time.monotonic() - max(ended, mailbox.last) < quiet_seconds:
                time.sleep(1)
            return [read_outcome(job, statuses[job], address, mailbox) for job in jobs]


def first_line(text: str, width: int) -> str:
    line = text.strip().split("\n")[0]
    return line if len(line) <= width else line[: width - 1] + "…"


def print_table(outcomes: list[Outcome]) -> None:
    print("| job | truth | headline | cause | fix | words true? | messages (right) |")
    print("|---|---|---|---|---|---|---|")
    for outcome in outcomes:
        truth = TRUTHS[outcome.job]
        told = {body["data"]["incident"] for body in outcome.bodies}
        shown = [incident for incident in outcome.incidents if incident["id"] in told] or outcome.incidents
        texts = [
            "<br>".join(f"{incident['rule']}: {first_line(text(incident), 150)}" for incident in shown) or "-"
            for text in (
                lambda incident: incident["summary"],
                lambda incident: incident["likely_cause"]["text"],
                lambda incident: incident["fix"]["text"],
            )
        ]
        verdict = f"no: {len(outcome.flaws())}" if outcome.flaws() else "yes"
        count = f"{outcome.messages} ({truth.messages})" + (f" + {outcome.recoveries}" if outcome.recoveries else "")
        print(f"| {outcome.job} | {truth.cause or 'healthy'} | {' | '.join(texts)} | {verdict} | {count} |")


def print_details(outcome: Outcome) -> None:
    truth = TRUTHS[outcome.job]
    print(f"\n## {outcome.job} (exit {outcome.status})\n\nTruth: {truth.story}")
    print(f"Loss: {truth.loss.course} {truth.loss.marks}")
    for note in truth.ambiguities:
        print(f"Note: {note}")
    for incident in outcome.incidents:
        said = read_incident(incident, told=False)
        head = f"{incident['rule']}, {incident['severity']}, since step {incident['since_step']}, {incident['state']}"
        print(f"\n- incident {incident['id']}: {head}, resolution {incident['resolution']}")
        print(f"  headline: {said.headline}\n  cause ({incident['likely_cause']['code']}): {indent(said.cause)}")
        print(f"  fix ({incident['fix']['framework']}): {indent(said.fix)}")
        print(f"  parameters: {', '.join(said.parameters[:12])}")
    for body in outcome.bodies:
        data = body["data"]
        print(f"\n- message {body['type']}, resolution {data.get('resolution')}: {data['summary']}")
        print(f"  cause: {indent(data['likely_cause'])}\n  fix: {indent(data['fix'])}")
    print("\nFlaws found by pattern:" if outcome.flaws() else "\nNo flaw found by pattern.")
    for flaw in outcome.flaws():
        print(f"- {flaw}")


def indent(text: str) -> str:
    return text.strip().replace("\n", "\n    ")


def main() -> int:
    parser = argparse.ArgumentParser(prog="words.report", description="Hold the product's words against the truth.")
    parser.add_argument("--jobs", nargs="+", choices=JOBS, default=list(JOBS), metavar="NAME")
    parser.add_argument("--quiet", type=float, default=45, help="seconds without a message at the end")
    arguments = parser.parse_args()
    outcomes = run_all(arguments.jobs, arguments.quiet)
    print_table(outcomes)
    flawed = sum(bool(outcome.flaws()) for outcome in outcomes)
    faulty = [outcome for outcome in outcomes if TRUTHS[outcome.job].faulty]
    print(f"\n{len(outcomes)} jobs, {flawed} with flaws found by pattern.")
    print(f"Messages for {len(faulty)} faulty runs: {sum(outcome.messages for outcome in faulty)}.")
    for outcome in outcomes:
        print_details(outcome)
    return int(flawed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
