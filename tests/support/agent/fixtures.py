"""What holds for each test of the agent; the conftest of a folder imports these fixtures."""

import gc
import re
from collections.abc import Iterator
from functools import lru_cache

import pytest
from torch.optim import optimizer

from gradcanary import api
from gradcanary.hooks import backward
from support.agent import loop_table
from support.agent.recorded import Recorded

loops = lru_cache(loop_table.loops)

_WATCHING = re.compile(r"^gradcanary: watching .*: http\S+/runs/\S+\n", re.MULTILINE)
_OPEN = re.compile(r"^gradcanary: \d+ incidents? open at the end, .*\n?", re.MULTILINE)


def complaints(stderr: str, incident_of: str | None = None) -> str:
    """Return what was printed but for the lines of each watch: its run's page, and the incidents open at the end.

    Of a training that is sick on purpose, the lines of incidents of the rule ``incident_of`` are left out, too. They
    come if the collector has found the incident before the training ends.
    """
    left = _OPEN.sub("", _WATCHING.sub("", stderr))
    if incident_of is None:
        return left
    return re.sub(rf"^gradcanary: {incident_of} \(.*\n?", "", left, flags=re.MULTILINE)


@pytest.fixture(autouse=True)
def phases_of_the_table(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test of a training loop sees the phases that docs/reference/training-loops.md says, and no other."""
    marks = [mark.args[0] for mark in request.node.iter_markers("loop")]
    collector = request.getfixturevalue("collector") if marks and "collector" in request.fixturenames else None
    yield
    if isinstance(collector, Recorded):
        allowed = set().union(*(loops()[name].phases for name in marks))
        assert collector.phases("norm") <= allowed


@pytest.fixture(autouse=True, scope="module")
def nothing_waits_to_be_collected() -> Iterator[None]:
    """Float32 sums that a test did not close end with their optimizer, which may be part of a cycle."""
    yield
    gc.collect()
    assert not backward._listeners


@pytest.fixture(autouse=True)
def no_watch_is_left() -> Iterator[None]:
    """A watch that is left open follows whatever the next test trains."""
    yield
    left, api._open[:] = list(api._open), []
    for watch in left:
        watch.close(timeout_s=0)
    assert left == []
    hooks = (*optimizer._global_optimizer_pre_hooks.values(), *optimizer._global_optimizer_post_hooks.values())
    assert not [each for each in hooks if "gradcanary" in str(getattr(each, "__module__", ""))]
