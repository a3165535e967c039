"""The child process of a backtest: plays the latest runs again, and writes JSON lines.

A process of its own keeps requests from waiting; it has a lower priority. Its first line of stdin is the task, with the
store's password; stdin stays open, and its end ends this process, however the collector ended.

A count is for one receiver of warnings and above, which takes each message at once; there are no acks and no silences.
So a count depends on the rules alone, and is the same for rules that were never in force.
"""

import contextlib
import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection, select

from gradcanary_server import caches
from gradcanary_server.ops import recording, replay_source
from gradcanary_server.ops.replay_source import ReplaySource
from gradcanary_server.ops.simulation import Simulation, replay
from gradcanary_server.rules import layer_config
from gradcanary_server.rules.config import Rules, rules_from_json
from gradcanary_server.storage.database import Database, Record
from gradcanary_server.storage.layers import LayerSetCache
from gradcanary_server.storage.schema import run
from gradcanary_server.tsdb.log import BatchLog
from gradcanary_server.tsdb.reader import Reader
from gradcanary_server.tsdb.tiles import TileStore

logger = logging.getLogger(__name__)

NICE = 5
"""Of 19: beside other processes that want the processor it gets a third of their share, and still comes to an end."""

MEMORY_BYTES = 2 * 2**30
"""Data of this process. A run of 3,000 steps x 1,500 layers takes 170 MiB, and caches grow to 512 MiB.

A run that needs more is left out, and logged.
"""

PLAY_S = 600.0
"""After this time no further run is begun: the result has the counts until then."""

MAX_RUNS = 30

MAX_SAMPLES = 20_000
MAX_POINTS = 5_000_000
"""Of one stat. Of a run its first samples are played, up to either limit: that takes seconds of one core."""

RulesByName = Mapping[str, Rules]
"""``in_force``, and ``tried`` where rules are tried."""


@dataclass(frozen=True)
class Count:
    """The incidents and messages of one run by some rules; ``by_rule`` counts messages."""

    incidents: int
    messages: int
    by_rule: Mapping[str, int]


@dataclass(frozen=True)
class Outcome:
    """One run that was played again, and its counts by the name of the rules.

    ``is_whole``: all samples were played. ``raw_start_step``: the step before which single samples are gone.
    ``matched``, by the same names: the number of layers that each entry of ``layers`` matches.
    """

    run: str
    layers: int
    samples: int
    first_step: int | None
    last_step: int | None
    is_whole: bool
    raw_start_step: int | None
    counts: Mapping[str, Count]
    matched: Mapping[str, tuple[int, ...]]


def main() -> None:
    """Play the runs of the task on stdin."""
    os.nice(NICE)
    with contextlib.suppress(OSError, ValueError, ImportError):  # a system may have a lower limit, or none of this kind
        import resource  # not on Windows

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
    task = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_exit_with_stdin, name="gradcanary-stdin", daemon=True).start()
    rules = {name: rules_from_json(json.dumps(content)) for name, content in task["rules"].items()}
    database = Database(task["db"])
    shares = caches.split_cache_budget(task["cache_bytes"])
    layer_config.COMPILED.resize(shares.rules)
    measurements = Reader(BatchLog(LayerSetCache(shares.layers), shares.batches), TileStore(shares.tiles))
    with database.read() as connection:
        rows = select_runs(connection)
    _write_line(_result(_play_runs(database, measurements, rules, rows), len(rows), rules))
    database.close()


def select_runs(connection: Connection) -> list[Record]:
    """Return the latest runs that are not archived, the one with the latest activity first."""
    query = select(run).where(run.c.archived.is_(False)).order_by(run.c.last_seen.desc(), run.c.run_id.desc())
    return list(connection.execute(query.limit(MAX_RUNS)))


def play_run(database: Database, measurements: Reader, rules: RulesByName, row: Record) -> Outcome:
    lines = recording.recording_lines(database, measurements, row, row.ended or "")
    return play(replay_source.source_of_recording(lines), rules)


def play(source: ReplaySource, rules: RulesByName) -> Outcome:
    """Play a run again by all rules."""
    played = replay(source, rules, min(MAX_SAMPLES, MAX_POINTS // max(len(source.layers), 1)))
    return Outcome(
        run=source.name,
        layers=len(source.layers),
        samples=played.samples,
        first_step=played.first_step,
        last_step=played.last_step,
        is_whole=played.is_whole,
        raw_start_step=source.raw_start_step,
        counts={name: _count(simulation) for name, simulation in played.simulations.items()},
        matched={name: _matched_layers(source, content) for name, content in rules.items()},
    )


def _count(simulation: Simulation) -> Count:
    by_rule: Counter[str] = Counter()
    for simulated in simulation.incidents:
        by_rule[simulated.case.incident.rule] += len(simulated.messages)
    return Count(len(simulation.incidents), simulation.message_count, dict(by_rule))


def _matched_layers(source: ReplaySource, rules: Rules) -> tuple[int, ...]:
    counts = Counter(id(rules.entry_of(name)) for name in source.layers.values())
    return tuple(counts[id(entry)] for entry in rules.layers)


def _play_runs(database: Database, measurements: Reader, rules: RulesByName, rows: Sequence[Record]) -> list[Outcome]:
    started, outcomes = time.monotonic(), []
    for played, row in enumerate(rows):
        _write_line({"kind": "progress", "runs": len(rows), "played": played})
        if time.monotonic() - started > PLAY_S:
            break
        try:
            outcomes.append(play_run(database, measurements, rules, row))
        except Exception:  # one run must not keep all others from being counted
            logger.exception("run %s could not be played again", row.name)
    return outcomes


def _result(outcomes: Sequence[Outcome], runs: int, rules: RulesByName) -> dict[str, Any]:
    played = [asdict(outcome) for outcome in outcomes]
    for outcome in played:
        del outcome["matched"]
    totals = {name: _total(outcomes, name, content) for name, content in rules.items()}
    return {"kind": "result", "runs": runs, "played": len(played), "totals": totals, "outcomes": played}


def _total(outcomes: Sequence[Outcome], name: str, rules: Rules) -> dict[str, Any]:
    counts = [outcome.counts[name] for outcome in outcomes]
    by_entry = zip(*(outcome.matched[name] for outcome in outcomes), strict=True)
    entries = [
        {"match": entry.match, "layers": max(matched), "runs": sum(map(bool, matched))}
        for entry, matched in zip(rules.layers, by_entry, strict=False)  # no entries where no run was played
    ]
    incidents, messages = sum(count.incidents for count in counts), sum(count.messages for count in counts)
    return {"incidents": incidents, "messages": messages, "entries": entries}


def _write_line(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)  # noqa: T201 -- stdout is the answer


def _exit_with_stdin() -> None:
    while os.read(0, 4096):
        pass
    os._exit(os.EX_IOERR)
