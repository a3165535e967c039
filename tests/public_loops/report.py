"""``make public-loops``: training loops of other projects, unchanged and with faults, under default rules.

Needs checkouts of nanoGPT and diffusers, which it leaves as they are; Hugging Face's Trainer is the installed one. Each
healthy loop runs 2,000 steps: no message and no incident of warning or above may come of it. Each fault has to be named
by one of its rules within 300 steps. Ends with status 1 if one of this is not so.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from gradcanary.demo.processes import Collector, new_secret
from gradcanary.demo.story import Receiver
from public_loops import inputs
from public_loops.jobs import Job, lay_out, read_jobs

SOON = 300
"""Steps within which a fault has to be named."""
GATHERED_S = 15.0
"""A message is gathered for 10 s."""
CLONE = """Give the folders of two checkouts, --nanogpt and --diffusers (or NANOGPT and DIFFUSERS):
  git clone https://github.com/karpathy/nanoGPT
  git clone https://github.com/huggingface/diffusers"""


def train(job: Job, folder: Path, sources: dict[str, Path], url: str) -> int:
    """Run a training to its end and return its exit status."""
    words = lay_out(job, folder / job.name, sources, folder / "inputs")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("GRADCANARY_")},
        "GRADCANARY_URL": url,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
    }
    with (folder / f"{job.name}.log").open("w") as log:
        if job.loop == "nanogpt":
            prepare = [sys.executable, "data/shakespeare_char/prepare.py"]
            subprocess.run(prepare, cwd=folder / job.name, stdout=log, check=True)
        watched = [str(Path(sys.executable).with_name("gradcanary")), "run", "--run", job.name, *words]
        return subprocess.run(watched, cwd=folder / job.name, env=environment, stdout=log, stderr=log).returncode


def judge(job: Job, status: int, incidents: list[dict[str, Any]], messages: int) -> str:
    """Return what is wrong, or an empty text."""
    if status:
        return f"the training ended with status {status}"
    if not job.rules:
        alarms = [each["rule"] for each in incidents if each["severity"] != "information"]
        return f"not quiet: {messages} messages, {alarms}" if messages or alarms else ""
    delays = [each["opened_step"] - job.step for each in incidents if each["rule"] in job.rules]
    return "" if any(0 <= delay <= SOON for delay in delays) else f"not named by {' or '.join(job.rules)}"


def report(job: Job, status: int, incidents: list[dict[str, Any]], messages: int) -> bool:
    """Print what was said of a training; return True if it is right."""
    wrong = judge(job, status, incidents, messages)
    print(f"{job.name}: {wrong or 'right'} ({messages} messages)")
    for each in incidents:
        print(f"  {each['rule']} ({each['severity']}) at +{each['opened_step'] - job.step}: {each['summary']}")
        print(f"    cause {each['likely_cause']['code']}: {each['likely_cause']['text']}")
    sys.stdout.flush()
    return not wrong


def main() -> int:
    """Run the jobs one after another and return 1 if one is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", help="names, or beginnings of names: nanogpt, lora-epsilon")
    parser.add_argument("--nanogpt", type=Path, default=os.environ.get("NANOGPT"))
    parser.add_argument("--diffusers", type=Path, default=os.environ.get("DIFFUSERS"))
    parser.add_argument("--folder", type=Path, help="a new folder that is kept: logs, and the collector's data")
    arguments = parser.parse_args()
    chosen = [job for job in read_jobs() if not arguments.jobs or job.name.startswith(tuple(arguments.jobs))]
    sources = {"nanogpt": arguments.nanogpt, "diffusers": arguments.diffusers}
    if not all(sources.values()):
        parser.error(CLONE)
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="gradcanary-public-loops-"))
    print(f"Logs and data: {folder}", flush=True)
    inputs.write_all(folder / "inputs")
    with (
        closing(Receiver(new_secret(), lambda _message: None)) as receiver,
        closing(Collector(folder / "collector", 0, receiver.url, receiver.secret)) as collector,
    ):
        right = True
        for job in chosen:
            status = train(job, folder, sources, collector.url)
            time.sleep(GATHERED_S)
            found = collector.read(f"/incidents?run={job.name}")["incidents"]
            incidents = [collector.read(f"/incidents/{each['id']}") for each in found]
            messages = sum(each.data["run"] == job.name for each in receiver.messages)
            right &= report(job, status, incidents, messages)
    return int(not right)


if __name__ == "__main__":
    raise SystemExit(main())
