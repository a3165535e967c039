"""``gradcanary test-rules``: a rules.yaml tried on a run of a collector or on a CSV file, beside the rules in force."""

import json
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx

from gradcanary.wording import count
from gradcanary_server.clock import timestamp
from gradcanary_server.errors import TraceError
from gradcanary_server.incidents.text import series_name
from gradcanary_server.notify.payload import layer_prefixes
from gradcanary_server.ops import replay_source
from gradcanary_server.ops.replay_source import ReplaySource
from gradcanary_server.ops.simulation import SimulatedIncident, Simulation, replay
from gradcanary_server.rules import config_file
from gradcanary_server.rules.config import MetricRule, Rules, rules_from_json
from gradcanary_server.rules.detectors.metric import SeriesKey

MAX_PATTERNS = 4
"""Patterns of layers in a line."""

MAX_NAMES = 12
"""Names of metrics in a line: agents log some of their own."""

TIMEOUT_S = 60.0
"""Without a byte from the collector."""

PrintLine = Callable[[str], None]


def try_on_run(
    rules: Path, run: str, url: str, token: str | None, print_line: PrintLine, trusted: ssl.SSLContext | None = None
) -> bool:
    """Try rules on a run of a collector and print a report; return True if no message would have been sent.

    ``trusted``: the accepted TLS certificates, None for the authorities of the system.
    Raises RulesError, and TraceError where the collector does not answer or has no such run.
    """
    tried = config_file.load(rules)
    with open_collector(url, token, trusted) as client:
        in_force = client.get("rules")
        check_status(in_force)
        name = f"the rules of the collector, version {in_force.json()['rules_version']}"
        with open_recording(client, run) as source:
            return _try(source, {str(rules): tried, name: rules_from_json(in_force.content)}, print_line)


@contextmanager
def open_collector(url: str, token: str | None, trusted: ssl.SSLContext | None) -> Iterator[httpx.Client]:
    """Yield a client of a collector's API; raises TraceError where it does not answer."""
    headers = {"Accept-Encoding": "identity", **({"Authorization": f"Bearer {token}"} if token else {})}
    try:
        with httpx.Client(
            base_url=f"{url}/api/v1/", headers=headers, timeout=TIMEOUT_S, verify=trusted or True
        ) as client:
            yield client
    except httpx.HTTPError as error:
        raise TraceError(f"The collector at {url} does not answer ({error}): is --url right?") from error


@contextmanager
def open_recording(client: httpx.Client, run: str) -> Iterator[ReplaySource]:
    """Yield a run of a collector, which is read with its chunks; raises TraceError if there is none."""
    with client.stream("GET", f"{run_path(run)}/recording") as answer:
        check_status(answer)
        yield replay_source.source_of_recording(_lines(answer))


def run_path(run: str) -> str:
    """Return the path of a run in the API."""
    return f"runs/{quote(run, safe='')}"


def try_on_file(rules: Path, trace: Path, print_line: PrintLine) -> bool:
    """Try rules on a CSV file and print a report, as :func:`try_on_run`."""
    tried = config_file.load(rules)
    try:
        with trace.open(encoding="utf-8-sig", newline="") as lines:
            source = replay_source.source_of_csv(str(trace), lines)
    except OSError as error:
        raise TraceError(f"{trace} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{trace} is no text in UTF-8: {error}.") from error
    return _try(source, {str(rules): tried, "the default rules": Rules()}, print_line)


def _try(source: ReplaySource, rules: Mapping[str, Rules], print_line: PrintLine) -> bool:
    played = replay(source, rules)
    if played.first_step is None or played.last_step is None:
        raise TraceError(f"There are no samples of {source.name}.")
    for line in report_lines(source, played.simulations, (played.first_step, played.last_step)):
        print_line(line)
    for line in _unmatched_lines(next(iter(rules.values())).metrics, played.series):
        print_line(line)
    return next(iter(played.simulations.values())).message_count == 0


def check_status(answer: httpx.Response) -> None:
    """Raise TraceError with the collector's reason unless an answer is 200."""
    if answer.status_code == httpx.codes.OK:
        return
    answer.read()
    try:
        reason = answer.json()["error"]["message"]
    except (ValueError, TypeError, KeyError):
        reason = f"status {answer.status_code}"
    token = " Give a token with --token or GRADCANARY_TOKEN." if answer.status_code in (401, 403) else ""
    raise TraceError(f"The collector at {answer.url.scheme}://{answer.url.netloc.decode()} answered: {reason}{token}")


def _lines(answer: httpx.Response) -> Iterator[bytes]:
    """Yield the lines of an answer, as bytes: a text has more line ends than JSON."""
    unfinished = b""
    for chunk in answer.iter_bytes():
        *lines, unfinished = (unfinished + chunk).split(b"\n")
        yield from lines


def report_lines(source: ReplaySource, simulations: Mapping[str, Simulation], steps: tuple[int, int]) -> Iterator[str]:
    """Yield the report of rules, by their names, that were tried on the same run."""
    yield f"{source.name}: steps {steps[0]:,} to {steps[1]:,}, {count(len(source.layers), 'parameter')}"
    if source.raw_start_step is not None:
        yield (
            f"Single samples before step {source.raw_start_step:,} are gone (GRADCANARY_RAW_DAYS): "
            "the rules see what is left, and learn baselines from it."
        )
    for name, simulation in simulations.items():
        yield ""
        incidents = count(len(simulation.incidents), "incident")
        yield f"{name}: {incidents}, {count(simulation.message_count, 'message')}"
        for simulated in simulation.incidents:
            yield from _incident_lines(simulated, source)


def _unmatched_lines(entries: Collection[MetricRule], series: Collection[SeriesKey]) -> Iterator[str]:
    """Yield a line for each entry of ``metrics`` that no logged series matches: a misspelt one finds nothing."""
    names = sorted({name for name, _ in series})
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    logged = f"logged are {', '.join(names[:MAX_NAMES])}{more}" if names else "no metric is logged"
    for entry in entries:
        if not any(entry.is_about(name, json.loads(tags)) for name, tags in series):
            tags = f" with tags {dict(entry.tags)}" if entry.tags else ""
            yield f"metrics: match {entry.match!r}{tags} matches nothing here: {logged}"


def _incident_lines(simulated: SimulatedIncident, source: ReplaySource) -> Iterator[str]:
    incident, end = simulated.case.incident, "still open"
    if incident.resolved_step is not None:
        end = f"{incident.resolution} at step {incident.resolved_step:,}"
    times = "once" if incident.reopened == 1 else f"{incident.reopened:,} times"
    again = f", reopened {times}" if incident.reopened else ""
    yield f"  {incident.rule} ({incident.severity}) fired at step {incident.opened_step:,}{again}, {end}"
    yield f"    {_layers(simulated, source)}"
    for message in simulated.messages:
        yield f"    {message.kind} at {timestamp(message.at)}, after step {message.step:,}"


def _layers(simulated: SimulatedIncident, source: ReplaySource) -> str:
    series = simulated.case.incident.series
    if series:
        named = [series_name(facts) for facts in series.values()]
        more = f" and {len(named) - MAX_PATTERNS} more" if len(named) > MAX_PATTERNS else ""
        return f"{len(named)} of {simulated.case.incident.layers} series: {', '.join(named[:MAX_PATTERNS])}{more}"
    names = [source.layers[number] for number in simulated.case.members if number is not None]
    if not names:
        return "the whole run"
    members = set(names)
    patterns = layer_prefixes(names, [name for name in source.layers.values() if name not in members])
    more = f" and {len(patterns) - MAX_PATTERNS} more" if len(patterns) > MAX_PATTERNS else ""
    run = "the whole run, " if None in simulated.case.members else ""
    return f"{run}{len(names)} of {count(len(source.layers), 'parameter')}: {', '.join(patterns[:MAX_PATTERNS])}{more}"
