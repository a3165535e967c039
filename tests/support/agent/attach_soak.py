"""Attach to a training and leave it, again and again: ``soak.py [CYCLES]``, with ``tests`` and the package on the path.

The training has threads and workers that load data (``joined_training.py``). Prints how long it stood still, how long a
cycle took, how it grew, and whether it ended bit for bit as one that was left alone; fails on the first thing wrong.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path

from gradcanary.attach import preflight, processes, request
from gradcanary.attach.target import Target
from support.agent.attach_targets import Training, training, until

NOBODY = "http://127.0.0.1:9"


Times = tuple[float, float]


def cycle(target: Training) -> Times:
    """Join and leave once; return for how long it stood still and until it was joined, in seconds."""
    began = time.monotonic()
    process = preflight.attachable(target.pid)
    joined = Target(process, {"url": NOBODY, "run": "soak"}, None, default_run="soak", launch=None, show=print)
    try:
        joined.inject()
        joined.wait()
    finally:
        joined.close()
    joined_s = time.monotonic() - began
    request.send_request(request.socket_of(process), "status")
    target.go_on(3)
    answer = request.send_request(request.socket_of(process), "detach", 60.0)
    assert answer is not None
    assert answer["detached"] == "soak"
    processes.wait_for_thread(process.pid, answer["thread"])
    return joined.stopped_s or 0.0, joined_s


def resident_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS")).split()[1])


def main(cycles: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        env = {"GRADCANARY_SPOOL": f"{folder}/spool"}
        with training(Path(folder) / "joined", env) as target:
            before, sizes, times = target.seen(), [resident_kib(target.pid)], []
            for number in range(cycles):
                times.append(cycle(target))
                until(lambda: target.seen()["tasks"] == before["tasks"])  # the thread that asked to be let in
                seen = target.seen()
                assert seen == before, {name: (before[name], seen[name]) for name in seen if seen[name] != before[name]}
                sizes.append(resident_kib(target.pid))
                if number % 50 == 49 or number == cycles - 1:
                    grown = (sizes[-1] - sizes[min(10, len(sizes) - 1)]) / 1024
                    print(f"{summed(times)}; grew by {grown:.1f} MiB since the 10th", flush=True)
            steps, digest, _ = target.ended()
        print(f"{steps:,} steps; the same ones alone follow", flush=True)
        with training(Path(folder) / "alone") as alone:
            assert alone.ended(steps)[:2] == (steps, digest)
    print("bit for bit as of a training left alone")


def summed(times: list[Times]) -> str:
    """Return what so many cycles took, for people."""
    stopped, joined = ([each[column] for each in times] for column in (0, 1))
    return (
        f"{len(times)} cycles: "
        f"stood still {statistics.median(stopped):.2f} s ({min(stopped):.2f} to {max(stopped):.2f}), "
        f"joined after {statistics.median(joined):.2f} s ({min(joined):.2f} to {max(joined):.2f})"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
