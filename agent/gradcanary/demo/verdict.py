"""Was exactly the right thing caught? What a careful user would check by hand, over the API and the webhook."""

from __future__ import annotations

import math
from array import array
from base64 import b64decode
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

from gradcanary.demo.receiver import Message, Receiver

FAULTY, TWIN = "lora-wrong-schedule", "lora-healthy"

COLLAPSED = {f"blocks.{block}.lora_A.weight" for block in (3, 4, 5)}

MAX_STEPS_TO_DETECT = 30
MAX_SECONDS_TO_TELL = 15.0

Read = Callable[[str], Any]


def problems(read: Read, receiver: Receiver) -> list[str]:
    """Return what is wrong, in words; nothing if everything is as it should be."""
    return [*_of_incidents(read), *_of_twin(read), *_of_messages(read, receiver), *_of_loss(read)]


def collapse(read: Read) -> dict[str, Any] | None:
    """Return the one collapse of the faulty run, None if there is not exactly one."""
    found = [each for each in _alarms(read, FAULTY) if each["rule"] == "collapse"]
    incident: dict[str, Any] | None = read(f"/incidents/{found[0]['id']}") if len(found) == 1 else None
    return incident


def _alarms(read: Read, run: str) -> list[dict[str, Any]]:
    incidents = read(f"/incidents?run={run}")["incidents"]
    return [each for each in incidents if each["severity"] != "information"]


def _of_incidents(read: Read) -> Iterator[str]:
    alarms = _alarms(read, FAULTY)
    incident = collapse(read)
    if incident is None or len(alarms) != 1:
        yield f"{FAULTY} has incidents of the rules {[each['rule'] for each in alarms]}, not one collapse"
        return
    named = {layer["name"] for layer in incident["layers"]}
    if named != COLLAPSED:
        yield f"the incident names {sorted(named)}, not {sorted(COLLAPSED)}"
    if incident["severity"] != "critical":
        yield f"the incident is {incident['severity']}, not critical"
    delay = incident["opened_step"] - min(layer["since_step"] for layer in incident["layers"])
    if not 0 <= delay <= MAX_STEPS_TO_DETECT:
        yield f"the incident opened {delay} steps after the fall"


def _of_twin(read: Read) -> Iterator[str]:
    alarms = _alarms(read, TWIN)
    if alarms:
        yield f"{TWIN} is not quiet: {[each['summary'] for each in alarms]}"
    if read(f"/runs/{TWIN}")["step"] < 500:
        yield f"{TWIN} was not watched for 500 steps"


def _of_messages(read: Read, receiver: Receiver) -> Iterator[str]:
    incident = collapse(read)
    kinds = [message.content["type"] for message in receiver.messages]
    if kinds != ["gradient.collapse.opened"] or receiver.refused:
        yield f"the webhooks were {kinds}, and {receiver.refused} with a wrong signature"
    elif incident is not None:
        yield from _of_message(receiver.messages[0], incident)


def _of_message(message: Message, incident: dict[str, Any]) -> Iterator[str]:
    if message.data["run"] != FAULTY or {layer["name"] for layer in message.data["worst"]} != COLLAPSED:
        yield f"the webhook names {message.data['run']}: {message.data['worst']}"
    took = message.at - datetime.fromisoformat(incident["opened"].replace("Z", "+00:00")).timestamp()
    if took > MAX_SECONDS_TO_TELL:
        yield f"the webhook came {took:.0f} s after the incident opened"


def _of_loss(read: Read) -> Iterator[str]:
    losses = losses_of(read, FAULTY)
    if not losses or not math.isfinite(losses[-1]) or losses[-1] >= 0.7 * losses[0]:
        yield f"the loss of {FAULTY} did not fall: {losses[:1]} to {losses[-1:]}"


def losses_of(read: Read, run: str) -> list[float]:
    """Return the mean loss per bucket of steps."""
    metrics = read(f"/runs/{run}/metrics?name=loss&points=100")["metrics"]
    typecodes = {"float32": "f", "float64": "d"}
    for metric in metrics:
        values = array(typecodes[metric["mean"]["dtype"]])
        values.frombytes(b64decode(metric["mean"]["data"]))
        return [value for value in values if not math.isnan(value)]
    return []
