"""Training is the same bit for bit: without the agent, with it, and with its collector dead, its spool full."""

import os
from pathlib import Path

import pytest

from support import PROGRAMS, warm
from support.collectors import Collector

SCRIPT = PROGRAMS / "identical_training.py"
NOBODY = "http://127.0.0.1:9"


def trained(mode: str, url: str = NOBODY, steps: int = 200) -> str:
    """Return the digest of a training in a process of its own."""
    process = warm.Process(warm.TRAINING, [str(SCRIPT), mode, url, str(steps)], {**os.environ, "OMP_NUM_THREADS": "1"})
    with process.stdout as lines:
        said = lines.read()
    assert process.wait(120) == 0, said
    return said.splitlines()[-1]


@pytest.mark.loop("plain, and accumulation over K micro-steps")
def test_the_agent_changes_no_bit_and_one_random_number_would_show(collector: Collector, spool_folder: Path) -> None:
    bare = trained("bare")
    assert trained("watched", collector.url) == bare
    assert collector.get("/api/v1/runs/identical-watched").json()["step"] == 199
    assert trained("watched") == bare
    assert trained("spooled") == bare
    assert len(list(spool_folder.glob("*.spool"))) == 2
    assert trained("sabotaged", collector.url, steps=20) != trained("bare", steps=20)
