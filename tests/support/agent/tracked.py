"""The scripts of docs/how-to/trackers.md, run as they stand or without gradcanary, and what trackers have then."""

import json
import os
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support import warm

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "trackers.md"
SCRIPTS = dict(
    zip(
        ("wandb", "mlflow"),
        re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE),
        strict=True,
    )
)

IMPORTED = (*warm.TRAINING, "wandb", "mlflow")
"""Both in each of these processes: a library that has no active run changes nothing."""

RESULT = """
import hashlib, json
weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
result = {"weights": hashlib.sha256(weights).hexdigest(), "random": torch.rand(1).item()}
"""
TAGS = """
run, client = mlflow.last_active_run(), mlflow.MlflowClient()
history = client.get_metric_history(run.info.run_id, "loss")
stored = client.get_run(run.info.run_id).data
result |= {"id": run.info.run_id, "tags": stored.tags, "metrics": sorted(stored.metrics)}
result["history"] = [[each.step, each.value] for each in history]
"""


def without_gradcanary(script: str) -> str:
    """Return a script without the lines that name gradcanary or its watch."""
    return "".join(line for line in script.splitlines(keepends=True) if not re.search("gradcanary|watch", line))


def train(script: str, folder: Path, **env: str) -> tuple[dict[str, Any], str]:
    """Run a script in a folder of its own; return its weights, a random number and, of MLflow, its run; and stderr."""
    more = RESULT + (TAGS if "start_run" in script else "") + "print('result', json.dumps(result))\n"
    printed, stderr = run(script + more, folder, **env)
    return json.loads(printed.rpartition("result ")[2]), stderr


def run(script: str, folder: Path, **env: str) -> tuple[str, str]:
    """Run a script in a folder of its own, offline, and return what it printed on stdout and stderr."""
    folder.mkdir(exist_ok=True)
    file = folder / "train.py"
    file.write_text(script)
    settings = {"WANDB_MODE": "offline", "WANDB_DIR": str(folder), "WANDB_ERROR_REPORTING": "false"}
    settings |= {"MLFLOW_ALLOW_FILE_STORE": "true", "MLFLOW_TRACKING_URI": f"file:{folder}/mlruns"}
    ended = warm.run(IMPORTED, [str(file)], {**os.environ, **settings, **env})
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, ended.stderr


def records(file: Path) -> Iterator[Any]:
    """Yield what is in the file of a W&B run: a log of LevelDB, parts of messages in blocks of 32 KiB."""
    from wandb.proto import wandb_internal_pb2

    data, at, message = file.read_bytes(), 7, b""  # after W&B's own header
    while at + 7 <= len(data):
        left = 2**15 - at % 2**15
        if left < 7:
            at += left
            continue
        _checksum, size, part = struct.unpack_from("<IHB", data, at)
        message += data[at + 7 : at + 7 + size]
        at += 7 + size
        if part in (1, 4):  # whole, or its last part
            record = wandb_internal_pb2.Record()
            record.ParseFromString(message)
            yield record
            message = b""
