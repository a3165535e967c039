"""The tutorial about a training of one's own, as it stands: watched it is healthy, broken it has an incident."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.waiting import eventually

PAGE = Path(__file__).parents[3] / "docs" / "tutorials" / "watch-your-training.md"
SCRIPT, BREAK = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
COMMANDS = re.findall(r"^gradcanary (run .*)$", PAGE.read_text("utf-8"), re.MULTILINE)
LOOP = "for step in range(1_000):\n"


@pytest.mark.parametrize(("command", "broken"), [(COMMANDS[0], False), (COMMANDS[1], True)])
def test_the_training_of_the_tutorial(module_collector, tmp_path, monkeypatch, command, broken):
    monkeypatch.setenv("GRADCANARY_URL", module_collector.url)
    added = "".join(f"    {line}\n" for line in BREAK.splitlines()) if broken else ""
    (tmp_path / "train.py").write_text(SCRIPT.replace(LOOP, LOOP + added))
    line = [sys.executable, "-m", "gradcanary.cli", *command.split()]
    subprocess.run(line, cwd=tmp_path, check=True, timeout=300)
    run = command.split()[2]
    eventually(lambda: module_collector.get(f"/api/v1/runs/{run}").json()["state"] == "finished")
    found = module_collector.get("/api/v1/incidents", run=run).json()["incidents"]
    assert [(each["rule"], each["severity"], each["counts"]["ever"]) for each in found] == (
        [("vanished", "information", 2)] if broken else []
    )
