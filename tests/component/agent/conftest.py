"""A collector that records what the agent sends, and what holds for each test of the agent."""

from collections.abc import Iterator

import pytest

from support.agent.fixtures import complaints, no_watch_is_left, nothing_waits_to_be_collected, phases_of_the_table
from support.agent.recorded import Recorded, recording

__all__ = ["no_watch_is_left", "nothing_waits_to_be_collected", "phases_of_the_table"]


@pytest.fixture
def collector(capsys: pytest.CaptureFixture[str]) -> Iterator[Recorded]:
    """A collector that records; the agent complains of nothing on stderr meanwhile."""
    with recording() as recorded:
        yield recorded
    assert complaints(capsys.readouterr().err) == ""
