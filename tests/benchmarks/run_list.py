"""How long the list of runs takes when there are many: its first page, a later one, a search; one run whose launches
are many and describe their layers anew: what it takes to show it, and to take something of it; and a page of incidents
of as many wide runs. Prints tables.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sqlalchemy import Connection, func, insert, select

sys.path[:0] = [str(Path(__file__).parent.parent)]

from gradcanary_server.api import incidents
from gradcanary_server.api import runs as api_runs
from gradcanary_server.api.runs import RunFilter
from gradcanary_server.incidents import liveness, service, text
from gradcanary_server.ingest import sessions
from gradcanary_server.rules.config import Silent
from gradcanary_server.rules.types import Transition
from gradcanary_server.storage import runs as run_store
from gradcanary_server.storage.database import Database
from gradcanary_server.storage.schema import incident, launch, layer, run, run_name, session
from gradcanary_server.tsdb.sparkline import Sparkline
from support import streams

NOW, LAYERS, ROUNDS = 1e9, 20, 9
WIDE, HIT, PAGE = 3_000, 30, 100
RESUMED, LAUNCHES, RANKS, WIDTH, DTYPES = "resumed", 8, 8, 500, ("float32", "bfloat16")
FACTS = '[{"code": "x", "text": "' + "y" * 2000 + '", "layers": []}]'
QUESTIONS = {
    "first page": RunFilter(),
    "a later page": RunFilter(after="WzUwMDAuMCw1MDAxXQ"),
    "by a part of the name": RunFilter(name_contains="run-009"),
    "by a word": RunFilter(text="run-009"),
    "live ones": RunFilter(state="live"),
    "by name": RunFilter(sort="name"),
    "by worst incident": RunFilter(sort="worst"),
    "by loss": RunFilter(sort="loss"),
    "that need attention": RunFilter(unacked=True),
    "all others": RunFilter(unacked=False),
    "archive": RunFilter(archived=True),
}


def fill(database: Database, count: int) -> None:
    """Store so many runs of one session each, a hundredth of which has not ended."""
    database.migrate()
    sparkline = Sparkline.unpack(None).pack()
    with database.write() as connection:
        for begin in range(1, count + 1, 1000):
            numbers = range(begin, min(begin + 1000, count + 1))
            at = {number: float(number - 1) for number in numbers}
            ended = {number: None if number % 100 == 0 else "finished" for number in numbers}
            of_run = {"facts": FACTS, "sparkline": sparkline}
            named = [
                {"run_id": number, "name": f"run-{number:06}", "created": at[number], "last_seen": at[number]}
                | {"ended": ended[number], "archived": number % 10 == 1, **of_run}
                for number in numbers
            ]
            connection.execute(insert(run), named)
            connection.execute(insert(run_name), [{key: each[key] for key in ("name", "run_id")} for each in named])
            begun = {"launch_no": 1, "launch": "x", "world_size": 1, "late": False}
            connection.execute(insert(launch), [{"run_id": number, **begun} for number in numbers])
            told = {"session": "s", "launch_no": 1, "rank": 0, "interval_s": 15.0, "hello": "{}", "layer_sets": "{}"}
            heard = [
                {"run_id": number, "started": 0.0, "last_seen": at[number], "ended": ended[number], **told}
                for number in numbers
            ]
            connection.execute(insert(session), heard)
            known = {"shape": "[1]", "param_dtype": "float32", "stored": "float32"}
            layers = [
                {"run_id": number, "layer_no": place, "name": f"layer.{place}", **known}
                for number in numbers
                for place in range(LAYERS)
            ]
            connection.execute(insert(layer), layers)


def launch_again(database: Database) -> float:
    """Store a run of many launches, each with layers of another dtype; return the milliseconds of CPU of a hello."""
    used = time.process_time()
    for number in range(LAUNCHES):
        layers = streams.layer_set(streams.layer_names(WIDTH), dtype=DTYPES[number % len(DTYPES)])
        for rank in range(RANKS):
            hello = replace(streams.hello(layers), launch=f"launch-{number}", rank=rank, world_size=RANKS)
            with database.write() as connection:
                sessions.register_session(connection, RESUMED, f"{number}.{rank}", hello, None, NOW + number)
    return 1000 * (time.process_time() - used) / (LAUNCHES * RANKS)


def measure(database: Database, ask: Callable[[Connection], object]) -> tuple[float, float]:
    """Return the milliseconds of the quickest of some answers, and those of CPU in this process."""
    took = []
    for _ in range(ROUNDS):
        begun, used = time.perf_counter(), time.process_time()
        with database.read() as connection:
            ask(connection)
        took.append((1000 * (time.perf_counter() - begun), 1000 * (time.process_time() - used)))
    return min(wall for wall, _ in took), min(cpu for _, cpu in took)


def ask_for_the_list(database: Database) -> None:
    """Print how long pages of the list take."""
    for words, chosen in QUESTIONS.items():
        found: list[liveness.RunStatus] = []

        def page(connection: Connection, chosen: RunFilter = chosen, found: list[liveness.RunStatus] = found) -> None:
            found[:] = api_runs.page(connection, chosen, NOW, Silent())[0]
            api_runs.summaries(connection, found)

        ms, cpu_ms = measure(database, page)
        print(f"| {words} | {ms:.0f} | {cpu_ms:.0f} | {len(found)} |")


def ask_for_one(database: Database) -> None:
    """Print how long the run of many launches takes."""
    asked: dict[str, Callable[[Connection], object]] = {
        "GET /runs/{run}": lambda connection: api_runs.to_json(
            connection, liveness.read_status(connection, RESUMED, NOW, Silent()), NOW, Silent()
        ),
        "its gaps, which each heatmap has": lambda connection: api_runs.read_gaps(
            connection, run_store.get_run(connection, RESUMED).run_id
        ),
        "its row and a session's, which each batch reads": lambda connection: run_store.lock_session(
            connection, RESUMED, "0.0"
        ),
    }
    for words, ask in asked.items():
        ms, cpu_ms = measure(database, ask)
        print(f"| {words} | {ms:.2f} | {cpu_ms:.2f} |")


def add_wide_runs(database: Database, rule: str, evidence: str) -> list[int]:
    """Store runs of many layers with an incident each, of a block; return the numbers of the incidents."""
    names = streams.layer_names(WIDE)
    with database.write() as connection:
        first = connection.execute(select(func.max(run.c.run_id))).scalar_one() + 1
        numbers = range(first, first + PAGE)
        at = {"created": NOW, "last_seen": NOW, "facts": FACTS}
        named = [{"run_id": each, "name": f"wide-{each}"} for each in numbers]
        connection.execute(insert(run), [{**each, **at} for each in named])
        connection.execute(insert(run_name), named)
        known = {"shape": "[1280, 1280]", "param_dtype": "bfloat16", "module_class": "Linear", "group_no": 0}
        for number in numbers:
            named = [{"run_id": number, "layer_no": place, "name": name} for place, name in enumerate(names)]
            connection.execute(insert(layer), [{**each, **known} for each in named])
        change = [
            Transition(700, rule, place, "fired", "critical", 690, 1e-6, 1e-3, None, evidence) for place in range(HIT)
        ]
        for number in numbers:
            service.record_transitions(connection, number, 1, change, NOW, 600.0)
        while missing := text.compose_missing(connection):
            text.store_summaries(connection, missing)
        found = select(incident.c.incident_id).where(incident.c.run_id.in_(numbers))
        return list(connection.scalars(found.order_by(incident.c.incident_id)))


def ask_for_incidents(database: Database) -> None:
    """Print how long a page of incidents takes, which are all of other runs."""
    for rule, evidence in (("collapse", "fall"), ("nonfinite", None)):
        ids = add_wide_runs(database, rule, evidence)

        def page(connection: Connection, ids: list[int] = ids) -> None:
            of_ids = select(incident.c.run_id).where(incident.c.incident_id.in_(ids))
            states = liveness.read_states(connection, connection.scalars(of_ids).all(), NOW, Silent())
            incidents.summaries(connection, ids, "", incidents.Momentary([], states))

        ms, cpu_ms = measure(database, page)
        print(f"| {rule} | {ms:.0f} | {cpu_ms:.0f} |")


def size_of(database: Database) -> int:
    """Return the bytes on disk, without the log of writes."""
    database.release_free_pages()
    with database.read() as connection:
        return database.size(connection)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=10_000)
    arguments.add_argument("--db", help="an empty PostgreSQL database (default: SQLite in a folder that goes again)")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = Database(given.db or f"sqlite:///{Path(folder) / 'gradcanary.db'}")
        fill(database, given.runs)
        print(f"| of {given.runs:,} runs | ms | ms of CPU here | runs in the answer |\n|---|---|---|---|")
        ask_for_the_list(database)
        before = size_of(database)
        hello_ms = launch_again(database)
        size = size_of(database) - before
        print(f"\n| of {LAUNCHES * RANKS} sessions of {WIDTH} layers | ms | ms of CPU here |\n|---|---|---|")
        ask_for_one(database)
        print(f"\na hello: {hello_ms:.1f} ms of CPU; all of it: {size / 1e6:.1f} MB more on disk")
        print(f"\n| {PAGE} incidents of runs of {WIDE:,} layers | ms | ms of CPU here |\n|---|---|---|")
        ask_for_incidents(database)
        database.close()


if __name__ == "__main__":
    main()
