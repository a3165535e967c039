"""A crash over HTTP: one webhook that names it, and the incident with its frames."""

import time

from gradcanary import wire
from support.receivers import SECRET
from support.streams import Session, Stream, healthy

CRASH = wire.Crash(
    "OutOfMemoryError",
    "CUDA out of memory. Tried to allocate 2.00 GiB.",
    ("model.py:12 in Block.forward", "train.py:40 in <module>"),
    "cuda",
    78_165_442_560,
)


def test_a_crash_is_told_once_by_its_name(collector_factory, receiver_factory, tmp_path):
    receiver = receiver_factory()
    rules = tmp_path / "rules.yaml"
    rules.write_text("version: 1\npace: {wait_s: 1, interval_s: 2}\n")
    collector = collector_factory(
        "--webhook", receiver.url, "--rules", str(rules), env={"GRADCANARY_WEBHOOK_SECRET": SECRET}
    )
    session = Session(collector.url)
    session.send(Stream(healthy(60, 4)))
    end = wire.End("crashed", 59, "OutOfMemoryError: CUDA out of memory", CRASH)
    session.post("/end", end).raise_for_status()
    session.post("/end", end).raise_for_status()
    receiver.wait(1)
    time.sleep(6)
    message, *others = [each for each in receiver.verified(SECRET) if not each["type"].endswith(".resolved")]
    assert others == []
    assert message["type"] == "gradient.crash.opened"
    assert message["data"]["summary"].startswith("CUDA out of memory at step 60 (peak 72.8 GiB) ended the training")
    assert "Raised in model.py:12 in Block.forward." in message["data"]["likely_cause"]
    (found,) = collector.get("/api/v1/incidents").json()["incidents"]
    assert found["crash"] == {
        "type": "OutOfMemoryError",
        "message": "CUDA out of memory. Tried to allocate 2.00 GiB.",
        "frames": list(CRASH.frames),
        "memory": "cuda",
        "peak_bytes": 78_165_442_560,
        "rank": None,
    }
    assert collector.get("/api/v1/runs/run-1").json()["headline"] == "CUDA out of memory at step 60 (peak 72.8 GiB)"


def test_a_crash_that_is_not_one_is_refused_and_the_end_is_taken_without_it(module_collector):
    session = Session(module_collector.url, run="odd")
    session.send(Stream(healthy(4, 4)))
    for crash in (
        {"type": "", "message": "", "frames": []},
        {"type": "E", "message": "x" * 301, "frames": []},
        {"type": "E", "message": "", "frames": ["f"] * 11},
        {"type": "E", "message": "", "frames": [], "memory": "tape"},
        {"type": "E", "message": "", "frames": [], "peak_bytes": -1},
    ):
        body = {"state": "crashed", "last_step": 3, "error": None, "crash": crash}
        assert session.post("/end", body).status_code == 422
    assert session.post("/end", wire.End("crashed", 3, "E")).status_code == 200
    assert module_collector.get("/api/v1/incidents", run="odd").json()["incidents"] == []
