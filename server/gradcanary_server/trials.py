"""``gradcanary test-rules``: tries a rules.yaml on a run of a collector, or on a CSV file, beside the rules of now."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import quote

import httpx

from gradcanary_server import rules_file, rules_json, takes, trial_report
from gradcanary_server.errors import TraceError
from gradcanary_server.rules import Rules
from gradcanary_server.takes import Source
from gradcanary_server.trial import Trial

TIMEOUT_S = 60.0
"""Without a byte from the collector."""

OVER = ("finished", "crashed")

Tell = Callable[[str], None]


def on_run(
    rules: Path, run: str, url: str, token: str | None, tell: Tell, trusted: ssl.SSLContext | None = None
) -> bool:
    """Try rules on what a collector has of a run and tell how it went; True where no message would have been sent.

    ``trusted``: whose TLS is believed, None for the authorities of the system.
    Raises RulesError, and TraceError where the collector does not answer or has no such run.
    """
    mine = rules_file.load(rules)
    headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {token}"} if token else {})}
    try:
        with httpx.Client(
            base_url=f"{url}/api/v1/", headers=headers, timeout=TIMEOUT_S, verify=trusted or True
        ) as client:
            told = client.get("rules")
            _check(told, url)
            name = f"the rules of the collector, version {told.json()['rules_version']}"
            with client.stream("GET", f"runs/{quote(run, safe='')}/recording") as answer:
                _check(answer, url)
                source = takes.of_recording(_lines(answer))
                return _try(source, {str(rules): mine, name: rules_json.load(told.json())}, tell)
    except httpx.HTTPError as error:
        raise TraceError(f"The collector at {url} does not answer ({error}): is --url right?") from error


def on_file(rules: Path, trace: Path, tell: Tell) -> bool:
    """Try rules on a CSV file and tell how it went, as :func:`on_run`."""
    mine = rules_file.load(rules)
    try:
        with trace.open(encoding="utf-8-sig", newline="") as lines:
            source = takes.of_csv(str(trace), lines)
    except OSError as error:
        raise TraceError(f"{trace} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{trace} is no text in UTF-8: {error}.") from error
    return _try(source, {str(rules): mine, "the default rules": Rules()}, tell)


def _try(source: Source, rules: Mapping[str, Rules], tell: Tell) -> bool:
    trials = {name: Trial(each, len(source.layers), source.ended) for name, each in rules.items()}
    steps: list[int] = []
    for take in source.takes:
        for trial in trials.values():
            trial.play(take)
        if len(take.samples.steps):
            ends = (int(take.samples.steps[0]), int(take.samples.steps[-1]))
            steps = [min([*steps[:1], ends[0]]), max([*steps[1:], ends[1]])]
    if not steps:
        raise TraceError(f"Of {source.name} there are no samples.")
    for trial in trials.values():
        trial.finish(is_over=source.state in OVER)
    for line in trial_report.lines(source, trials, (steps[0], steps[1])):
        tell(line)
    return next(iter(trials.values())).messages == 0


def _check(answer: httpx.Response, url: str) -> None:
    if answer.status_code == httpx.codes.OK:
        return
    answer.read()
    try:
        said = answer.json()["error"]["message"]
    except (ValueError, TypeError, KeyError):
        said = f"status {answer.status_code}"
    token = " Give a token with --token or GRADCANARY_TOKEN." if answer.status_code in (401, 403) else ""
    raise TraceError(f"The collector at {url} answered: {said}{token}")


def _lines(answer: httpx.Response) -> Iterator[bytes]:
    """Yield the lines of an answer, as bytes: a text has more line ends than JSON."""
    rest = b""
    for chunk in answer.iter_bytes():
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
