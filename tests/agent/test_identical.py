"""Training is the same bit for bit: without the agent, with it, and with its collector dead, its spool full."""

import subprocess
import sys
from pathlib import Path

from collectors import Collector

SCRIPT = Path(__file__).parent / "identical_training.py"
NOBODY = "http://127.0.0.1:9"


def trained(mode: str, url: str = NOBODY) -> str:
    """Return the digest of a training in a process of its own."""
    ended = subprocess.run([sys.executable, SCRIPT, mode, url], capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def test_the_agent_changes_no_bit_and_one_random_number_would_show(collector: Collector, spool_folder: Path) -> None:
    bare = trained("bare")
    assert trained("watched", collector.url) == bare
    assert collector.get("/api/v1/runs/identical-watched").json()["step"] == 199
    assert trained("watched") == bare
    assert trained("spooled") == bare
    assert len(list(spool_folder.glob("*.spool"))) == 2
    assert trained("sabotaged", collector.url) != bare
