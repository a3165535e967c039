"""How long the list of runs takes when there are many: its first page, a later one, a search. Prints a table."""

import argparse
import tempfile
import time
from pathlib import Path

from sqlalchemy import insert

from gradcanary_server import runs
from gradcanary_server.database import Database
from gradcanary_server.schema import launch, layer, run, session
from gradcanary_server.spark import Spark

NOW, LAYERS, ROUNDS = 1e9, 20, 9
FACTS = '[{"code": "x", "text": "' + "y" * 2000 + '", "layers": []}]'
QUESTIONS = {
    "first page": runs.Choice(),
    "a later page": runs.Choice(after="5000.0~5001"),
    "by a part of the name": runs.Choice(named="run-009"),
    "archive": runs.Choice(archived=True),
}


def fill(database: Database, count: int) -> None:
    """Store so many runs of one session each, a hundredth of which has not ended."""
    database.migrate()
    spark = Spark.unpack(None).pack()
    with database.write() as connection:
        for begin in range(1, count + 1, 1000):
            numbers = range(begin, min(begin + 1000, count + 1))
            at = {number: float(number - 1) for number in numbers}
            ended = {number: None if number % 100 == 0 else "finished" for number in numbers}
            of_run = {"facts": FACTS, "spark": spark}
            named = [
                {"run_id": number, "name": f"run-{number:06}", "created": at[number], "last_seen": at[number]}
                | {"ended": ended[number], "archived": number % 10 == 1, **of_run}
                for number in numbers
            ]
            connection.execute(insert(run), named)
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


def measure(database: Database, chosen: runs.Choice) -> tuple[float, float, int]:
    """Return the milliseconds of the quickest of some answers, those of CPU, and how many runs it has."""
    took = []
    for _ in range(ROUNDS):
        begun, used = time.perf_counter(), time.process_time()
        with database.read() as connection:
            found, _ = runs.page(connection, chosen, NOW)
            runs.summaries(connection, found)
        took.append((1000 * (time.perf_counter() - begun), 1000 * (time.process_time() - used)))
    return min(wall for wall, _ in took), min(cpu for _, cpu in took), len(found)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--runs", type=int, default=10_000)
    arguments.add_argument("--db", help="an empty PostgreSQL database (default: SQLite in a folder that goes again)")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        database = Database(given.db or f"sqlite:///{Path(folder) / 'gradcanary.db'}")
        fill(database, given.runs)
        print(f"| of {given.runs:,} runs | ms | ms of CPU here | runs in the answer |\n|---|---|---|---|")
        for words, chosen in QUESTIONS.items():
            ms, cpu_ms, number = measure(database, chosen)
            print(f"| {words} | {ms:.0f} | {cpu_ms:.0f} | {number} |")
        database.close()


if __name__ == "__main__":
    main()
