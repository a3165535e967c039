"""The examples of docs/how-to/distributed.md as they stand, in two processes with a launcher's environment."""

import os
from pathlib import Path

import pytest

from support import warm
from support.agent.documented import example
from support.agent.ranks import finish
from support.agent.recorded import spooling
from support.collectors import Collector
from support.ports import free_port
from support.waiting import eventually


@pytest.mark.parametrize(
    ("heading", "run", "intervals"), [("DistributedDataParallel", "ddp", [1, None]), ("FSDP2", "fsdp", [1, 1])]
)
def test_the_documented_ranks(
    module_collector: Collector, tmp_path: Path, heading: str, run: str, intervals: list[int | None]
) -> None:
    """Both are one run and one launch; of DDP the first rank sends, of FSDP2 each sends its shards."""
    script = tmp_path / "train.py"
    script.write_text(example(heading))
    told = {"GRADCANARY_URL": module_collector.url, "GRADCANARY_LAUNCH": run, "WORLD_SIZE": "2"}
    told |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    ranks = [
        warm.Process(warm.TRAINING, [str(script)], {**os.environ, **spooling(tmp_path), **told, "RANK": str(rank)})
        for rank in range(2)
    ]
    said = finish(ranks)
    assert [text.count("gradcanary: watching AdamW, 4 parameters") for text in said] == [1, 0]
    eventually(lambda: module_collector.get(f"/api/v1/runs/{run}").json()["state"] == "finished")
    stored = module_collector.get(f"/api/v1/runs/{run}").json()
    assert [(each["rank"], each["world_size"], each["every"]) for each in stored["sessions"]] == [
        (0, 2, intervals[0]),
        (1, 2, intervals[1]),
    ]
    assert (stored["step"], stored["layers"]) == (59, 4)
    layers = module_collector.get(f"/api/v1/runs/{run}/layers").json()["layers"]
    assert [(each["name"], each["shape"]) for each in layers] == [
        ("0.weight", [64, 16]),
        ("0.bias", [64]),
        ("2.weight", [1, 64]),
        ("2.bias", [1]),
    ]
