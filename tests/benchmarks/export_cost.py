"""What ``gradcanary export`` costs: time, CPU and memory, of a run and of one ten times as long.

    OMP_NUM_THREADS=1 python tests/benchmarks/export_cost.py [--steps 100000] [--layers 500] [--formats csv] [--keep D]

The runs are those of big_run.py; their absmax is exported to a file, each time by a collector just started. Memory is
the peak of the resident set, of either process. Exit status 1 where that of the long run is over 1.25 times that of the
short one.
"""

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import big_run
import httpx
import ratios

FORMATS = ("parquet", "ndjson", "csv")
TIMES = 10
GROWN = 1.25


def main() -> int:
    """Load both runs, export them in each format, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--layers", type=int, default=500)
    parser.add_argument("--formats", nargs="*", default=FORMATS)
    parser.add_argument("--keep", type=Path)
    arguments = parser.parse_args()
    ratios.need("pyarrow")
    with tempfile.TemporaryDirectory(prefix="gradcanary-export-") as folder:
        data = arguments.keep or Path(folder)
        grown: dict[str, float] = {}
        sizes = (arguments.steps // TIMES, arguments.steps)
        for steps in sizes:
            if not (data / str(steps) / "gradcanary.db").exists():
                big_run.load(data / str(steps), steps, arguments.layers)
        head = "format | steps | file | time | file, MB/s | CPU of the collector, of the command"
        print(f"\n{arguments.layers} layers\n\n| {head} | peak of the collector | of the command |\n|{'---|' * 8}")
        for form in arguments.formats:
            short, long = (exported(data / str(steps), form, steps) for steps in sizes)
            for who, few, many in zip(("collector", "command"), short, long, strict=True):
                grown[f"{form}, {who}"] = many / few
    print()
    are_met = [ratios.judged(f"memory of {TIMES} times the steps, {what}", grown[what], GROWN) for what in grown]
    return int(not all(are_met))


def exported(data: Path, form: str, steps: int) -> tuple[float, float]:
    """Export a run once and print a row; return the peaks of collector and command, in bytes."""
    file = data / f"f.{form}"
    running = big_run.collector(data)
    with running as url, httpx.Client(base_url=url, timeout=60) as client:
        before, began = big_run.told(client, "process_cpu_seconds_total"), time.perf_counter()
        command = [sys.executable, "-m", "gradcanary.cli", "export", big_run.RUN, "--format", form]
        command += ["--out", str(file), "--url", url]
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        process = subprocess.Popen(command)
        own = 0
        while process.poll() is None:  # the peak that the system tells at the end is that of this process, if larger
            own = max(own, peak(process.pid))
            time.sleep(0.02)
        took = time.perf_counter() - began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent = big_run.told(client, "process_cpu_seconds_total") - before
        of_collector = peak(running._process.pid)
    if process.returncode != 0:
        raise SystemExit(f"the export of {form} failed")
    size = file.stat().st_size
    file.unlink()
    own_s = after.ru_utime + after.ru_stime - used.ru_utime - used.ru_stime
    cells = f"{form} | {steps:,} | {size / 1e6:,.0f} MB | {took:.1f} s | {size / took / 1e6:.0f}"
    print(
        f"| {cells} | {spent:.1f} s, {own_s:.1f} s | {of_collector / 2**20:.0f} MB | {own / 2**20:.0f} MB |", flush=True
    )
    return of_collector, own


def peak(process: int) -> int:
    """Return the peak of the resident set of a process, in bytes; 0 if it has ended."""
    lines = Path(f"/proc/{process}/status").read_text("utf-8").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM")), 0)


if __name__ == "__main__":
    raise SystemExit(main())
