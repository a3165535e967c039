"""A store that is away for hours: PostgreSQL is down, the disk is full. What is asked meanwhile, and that all heals."""

import contextlib
import os
import signal

from support import blank_stores, postgres, warm
from support.programs import full_disk
from support.server.outages import LOOPS, QUICK, tell


def test_postgresql_that_is_away_for_hours(tmp_path, caplog, monkeypatch):
    """All that was acknowledged is there, nobody is missed for it, every thread goes on, and messages are sent."""
    for loop in QUICK:
        monkeypatch.setattr(loop, "WAKE_S", 0.1)
    with postgres.running() as server:

        @contextlib.contextmanager
        def away():
            server.stop(signal.SIGQUIT)
            yield
            server.start()

        tell(tmp_path, server.create_database(), away)
    hold_log(caplog.text)


def test_a_disk_that_is_full_for_hours(tmp_path):
    """As that, where no file can grow."""
    folder = blank_stores.lay(tmp_path).parent
    ended = warm.run(warm.COLLECTOR, [full_disk.__file__, str(folder)], os.environ)
    assert ended.returncode == 0, ended.stderr
    hold_log(ended.stderr)


def hold_log(said):
    assert "Traceback" not in said
    assert 1 <= said.count("Trying again") <= 2 * len(LOOPS), "a line for each loop, and not for each round"
