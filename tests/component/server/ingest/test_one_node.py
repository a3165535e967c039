"""On a cluster a batch waits for no node but its run's: each of its statements about runs names this one."""

import re
import threading

from fastapi.testclient import TestClient
from sqlalchemy import Engine, event

from gradcanary_server.app import create_app
from gradcanary_server.settings import Settings
from gradcanary_server.storage.citus import DISTRIBUTED
from support import postgres
from support.streams import Session, Stream, collapsed, falling_loss

OF_RUNS = {table.name for table in DISTRIBUTED}
TABLE = re.compile(r"\b(?:FROM|JOIN|UPDATE|INTO) (\w+)")


def is_of_one_run(statement):
    return statement.startswith("INSERT") or re.search(r"\brun_id (= |IN \()%\(", statement) is not None


def test_statements_of_a_batch_name_its_run(tmp_path):
    """Also those of a batch that opens an incident, and of its answer, which tells the likely cause."""
    seen = []

    def note(_connection, _cursor, statement, *_):
        seen.append((threading.current_thread().name, " ".join(statement.split())))

    stream = Stream(collapsed(300, 6, (3,), 200), falling_loss(300))
    with postgres.running() as server:
        app = create_app(Settings(tmp_path, server.create_store()))
        with TestClient(app, base_url="http://localhost") as client:
            event.listen(Engine, "before_cursor_execute", note)
            try:
                session = Session("", client=client)
                session.send(stream, 50)
                [brief] = session.heartbeat().json()["incidents"]
                session.end(last_step=299)
            finally:
                event.remove(Engine, "before_cursor_execute", note)
    assert brief["do_first"]
    statements = [text for thread, text in seen if thread.startswith("gradcanary-ingest")]
    about_runs = {text for text in statements if OF_RUNS.intersection(TABLE.findall(text))}
    assert any("FROM incident " in text for text in about_runs)
    assert [text for text in about_runs if not is_of_one_run(text)] == []
