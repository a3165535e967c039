"""The check of the demo: exactly the right thing was caught, by the API and the webhook."""

from __future__ import annotations

import math
from array import array
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gradcanary.wording import count

COLLAPSED = {f"blocks.{block}.lora_A.weight" for block in (3, 4, 5)}

FAULT_STEP = 200
TRUE_STEP = 207
"""From here on the three layers are collapsed, in float64 readings without gradcanary (test_demo.py)."""

MAX_STEPS_TO_DETECT = 30
MAX_SECONDS_TO_WEBHOOK = 15.0
TWIN_STEPS = 500

Read = Callable[[str], Any]


@dataclass(frozen=True)
class Message:
    """A verified webhook: its time of arrival (unix seconds), its id and its content."""

    at: float
    id: str
    content: dict[str, Any]

    @property
    def data(self) -> dict[str, Any]:
        """The data of the webhook."""
        data: dict[str, Any] = self.content["data"]
        return data


@dataclass(frozen=True)
class Runs:
    """The names of the two runs."""

    faulty: str
    twin: str

    @classmethod
    def unused(cls, read: Read) -> Runs:
        """Return names that this collector does not have yet: a kept store has the runs of earlier demos."""
        names = {run["run"] for run in read("/runs")["runs"]}
        number = 1
        while True:
            suffix = f"-{number}" if number > 1 else ""
            runs = cls(f"lora-wrong-decay{suffix}", f"lora-healthy{suffix}")
            if not {runs.faulty, runs.twin} & names:
                return runs
            number += 1


def problems(read: Read, runs: Runs, messages: Sequence[Message] | None, refused: int = 0) -> list[str]:
    """Return a sentence for each problem; ``refused`` counts webhooks with a wrong signature.

    ``messages`` is None if the collector sends its webhooks to other receivers.
    """
    alarms = _alarms(read, runs.faulty)
    wrong = [*_twin_problems(read, runs.twin), *_loss_problems(read, runs.faulty)]
    if refused:
        wrong.append(f"{count(refused, 'webhook')} had a wrong signature")
    if [each["rule"] for each in alarms] != ["collapse"]:
        return [
            f"{runs.faulty} has incidents of the rules {[each['rule'] for each in alarms]}, not one collapse",
            *wrong,
        ]
    incident = read(f"/incidents/{alarms[0]['id']}")
    of_webhook = () if messages is None else _webhook_problems(messages, incident)
    return [*_incident_problems(incident), *of_webhook, *wrong]


def _alarms(read: Read, run: str) -> list[dict[str, Any]]:
    incidents = read(f"/incidents?run={run}")["incidents"]
    return [each for each in incidents if each["severity"] != "information"]


def _incident_problems(incident: dict[str, Any]) -> Iterator[str]:
    named = {layer["name"] for layer in incident["layers"]}
    if named != COLLAPSED:
        yield f"the incident names {sorted(named)}, not {sorted(COLLAPSED)}"
    if incident["severity"] != "critical":
        yield f"the incident is {incident['severity']}, not critical"
    if incident["likely_cause"]["code"] != "weight_decay":
        yield f"the likely cause is {incident['likely_cause']['code']}, not the weight decay"
    delay = incident["opened_step"] - TRUE_STEP
    if not 0 <= delay <= MAX_STEPS_TO_DETECT:
        yield f"the incident opened at step {incident['opened_step']}, {count(delay, 'step')} after the fall"


def _webhook_problems(messages: Sequence[Message], incident: dict[str, Any]) -> Iterator[str]:
    kinds = [message.content["type"] for message in messages]
    if kinds != ["gradient.collapse.opened"]:
        yield f"the webhooks were {kinds}, not one gradient.collapse.opened"
        return
    data, took = messages[0].data, messages[0].at - _unix_seconds(incident["opened"])
    if data["incident"] != incident["id"] or {layer["name"] for layer in data["worst"]} != COLLAPSED:
        yield f"the webhook is about incident {data['incident']} of {data['run']}: {data['worst']}"
    if took > MAX_SECONDS_TO_WEBHOOK:
        yield f"the webhook came {took:.0f} s after the incident opened"


def _unix_seconds(text: str) -> float:
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def _twin_problems(read: Read, twin: str) -> Iterator[str]:
    alarms = _alarms(read, twin)
    if alarms:
        yield f"{twin} is not quiet: {[each['summary'] for each in alarms]}"
    step = read(f"/runs/{twin}")["step"]
    if step is None or step + 1 < TWIN_STEPS:
        yield f"{twin} was watched until step {step}, not for {TWIN_STEPS} steps"


def _loss_problems(read: Read, run: str) -> Iterator[str]:
    losses = losses_of(read, run)
    if not losses or not math.isfinite(losses[-1]) or losses[-1] >= 0.7 * losses[0]:
        yield f"the loss of {run} did not fall: {losses[:1]} to {losses[-1:]}"


def losses_of(read: Read, run: str) -> list[float]:
    """Return the mean loss of each bucket of steps; a bucket without data has none."""
    metrics = read(f"/runs/{run}/metrics?name=loss&points=1000")["metrics"]
    typecodes = {"float32": "f", "float64": "d"}
    for metric in metrics:
        values = array(typecodes[metric["mean"]["dtype"]])
        values.frombytes(b64decode(metric["mean"]["data"]))
        return [value for value in values if not math.isnan(value)]
    return []
