"""The process that plays runs again: apart from the collector, so that no request waits for it, and behind others that
want the processor. It reads what to do from stdin, the store's password among it, and writes a line per finding."""

from __future__ import annotations

import json
import logging
import os
import sys
from dataclasses import asdict
from typing import Any

from gradcanary_server import backtest, rules_json
from gradcanary_server.archive import Archive
from gradcanary_server.backtest import Count
from gradcanary_server.database import Database, Record
from gradcanary_server.layer_sets import KnownSets
from gradcanary_server.log import Log
from gradcanary_server.rules import Rules
from gradcanary_server.tiles import Tiles

logger = logging.getLogger(__name__)

NICE = 5
"""Of 19: beside others that want the processor it gets a third of their share, and still comes to an end."""


def main() -> None:
    """Play what stdin asks for."""
    os.nice(NICE)
    task = json.load(sys.stdin)
    known = {int(run_id): revision for run_id, revision in task["known"].items()}
    database = Database(task["db"])
    archive = Archive(Log(KnownSets()), Tiles())
    with database.read() as connection:
        found = backtest.chosen(connection)
    others = [row for row in found if known.get(row.run_id) != row.revision]
    _say({"runs": [row.run_id for row in found], "left": len(others)})
    for row in others:
        count = _counted(database, archive, rules_json.load(task["rules"]), row)
        if count is not None:
            _say({"run_id": row.run_id, "count": asdict(count)})
    database.close()


def _counted(database: Database, archive: Archive, rules: Rules, row: Record) -> Count | None:
    try:
        return backtest.count_run(database, archive, rules, row)
    except Exception:  # one run must not keep all others from being counted
        logger.exception("run %s could not be played again", row.name)
        return None


def _say(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()
