"""torch, its devices, and the dtypes that they compute in, from :mod:`torch_probe` in a process with a time limit.

Starting, reading and judging are apart: judging is pure.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from gradcanary.doctor.report import Finding
from gradcanary.doctor.torch_probe import DTYPES, MARK
from gradcanary.wording import count, format_bytes

PROBE_S = 120.0
"""For all of it. To import torch takes seconds, and a minute from a slow network disk."""

SMI_S = 10.0
"""For nvidia-smi, which takes a second without a persistent driver, and hangs on a broken GPU."""

IDLE_MIB = 1024
"""A GPU with more memory in use than this trains something; a driver and a screen take some hundred MiB."""

OLDEST = (2, 4)
TENSOR_CORES, NATIVE_BF16 = (7, 0), (8, 0)
"""CUDA compute capabilities with tensor cores for float16, and with those for bfloat16 and TF32."""

BF16_FLAGS = ("avx512_bf16", "amx_bf16", "bf16", "svebf16")
FP16_FLAGS = ("avx512_fp16", "amx_fp16", "asimdhp")
"""Of /proc/cpuinfo, on x86 and ARM: arithmetic in bfloat16 and float16."""

NO_GPU = re.compile("found no NVIDIA driver|no CUDA GPUs are available|no device is visible", re.IGNORECASE)

OTHER_PYTHON = "run the doctor by the Python of the training: /path/to/python -m gradcanary.cli doctor"
OTHER_BUILD = (
    "install a torch for this GPU and driver (https://pytorch.org/get-started/previous-versions), or a newer driver"
)

RIGHT = "matmuls in float32, float16 and bfloat16 are right"
NOT_RUN = "in use, or not known to be idle (nvidia-smi): nothing was run on it"

Json = Mapping[str, Any]


class Probe:
    """The program that imports torch, under way; :meth:`records` waits for it."""

    def __init__(self, gpus: Sequence[Json], only: int | None) -> None:
        idle = ",".join(find_idle(gpus))
        environ = {**os.environ, "GRADCANARY_WATCH": ""}
        command = [
            sys.executable,
            "-m",
            "gradcanary.doctor.torch_probe",
            idle or "-",
            "" if only is None else str(only),
        ]
        self._process = subprocess.Popen(  # noqa: S603 -- this Python and our own module
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ
        )
        self._lines: list[str] = []
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
        self._reader.start()

    def records(self, timeout_s: float = PROBE_S) -> list[Json]:
        """Return what it has found; one that did not end by itself has a last record with the step ``cut``."""
        self._reader.join(timeout_s)
        has_ended = not self._reader.is_alive()
        if not has_ended:
            self._process.kill()
        status: int | None = None
        with contextlib.suppress(subprocess.TimeoutExpired):  # in a driver that hangs it cannot even be killed
            status = self._process.wait(2.0)
        lines = list(self._lines)
        found: list[Json] = [json.loads(line[len(MARK) :]) for line in lines if line.startswith(MARK)]
        if not has_ended:
            found.append({"step": "cut", "why": f"no answer within {timeout_s:g} s"})
        elif status != 0:
            others = [line for line in lines if line.strip() and not line.startswith(MARK)]
            end = f"signal {-status}" if status is not None and status < 0 else f"status {status}"
            found.append({"step": "cut", "why": f"it ended with {end}{': ' + others[-1] if others else ''}"})
        return found

    def _read(self, output: IO[bytes]) -> None:
        with output:
            for line in output:
                self._lines.append(line.decode(errors="replace").rstrip())


def read_gpus() -> list[Json]:
    """Return the NVIDIA GPUs of this machine by nvidia-smi, which makes no context on them; empty if there is none."""
    query = ["nvidia-smi", "--query-gpu=uuid,name,memory.used,driver_version", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=SMI_S, check=True)  # noqa: S603 -- fixed words
    except (OSError, subprocess.SubprocessError):
        return []
    return parse_gpus(done.stdout)


def find_idle(gpus: Sequence[Json]) -> list[str]:
    """Return the ids of the GPUs that no program uses."""
    return [gpu["uuid"] for gpu in gpus if gpu["used_mib"] <= IDLE_MIB]


def parse_gpus(text: str) -> list[Json]:
    """Return the rows of nvidia-smi; memory that it does not know (as of MIG) counts as in use."""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines() if line.count(",") == 3]
    return [
        {"uuid": uuid, "name": name, "used_mib": float(used) if used.isdigit() else float("inf"), "driver": driver}
        for uuid, name, used, driver in rows
    ]


def read_cpu() -> tuple[str, frozenset[str]]:
    """Return the name of the CPU and its flags; empty where there is no /proc/cpuinfo."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return "", frozenset()
    fields = dict(re.findall(r"^(model name|flags|Features)\s*: (.*)$", text, re.MULTILINE))
    return fields.get("model name", ""), frozenset((fields.get("flags") or fields.get("Features") or "").split())


def judge_records(records: Sequence[Json], gpus: Sequence[Json], cpu: tuple[str, frozenset[str]]) -> Iterator[Finding]:
    """Yield the findings of a probe; ``gpus`` are those of nvidia-smi."""
    begun = "torch"
    for record in records:
        if record["step"] == "begin":
            begun = record["device"]
        elif record["step"] == "torch":
            yield _judge_torch(record, gpus)
        elif record["step"] == "cuda":
            yield from _judge_cuda(record, gpus)
        elif record["step"] == "device" and record["device"].startswith("cuda"):
            yield _judge_gpu(record)
        elif record["step"] == "device":
            yield _judge_plain_device(record, cpu)
        else:
            yield Finding(begun, "fault", f"torch did not get past this: {record['why']}", _after_cut(begun))


def _after_cut(begun: str) -> str:
    if begun == "torch":
        return f"try it: {sys.executable} -c 'import torch'; a slow disk is faster the second time"
    return "look at the driver: nvidia-smi, and dmesg | grep -i xid; a GPU that hangs needs a reset by the operator"


def _judge_torch(record: Json, gpus: Sequence[Json]) -> Finding:
    if record.get("is_missing"):
        return Finding("torch", "note", f"this Python has none ({sys.executable}): nothing trains here", OTHER_PYTHON)
    if "error" in record:
        return Finding("torch", "fault", f"cannot be imported: {record['error']}", "install it again")
    version = record["version"]
    build = f"CUDA {record['cuda']}" if record["cuda"] else f"ROCm {record['hip']}" if record["hip"] else "without CUDA"
    found = f"{version}, {build}, imported in {record['took_s']:.1f} s"
    if tuple(map(int, re.findall(r"\d+", version)[:2])) < OLDEST:
        return Finding("torch", "fault", f"{found}: gradcanary needs 2.4 or newer", "pip install -U torch")
    if gpus and not (record["cuda"] or record["hip"]):
        do = "if the training is for the GPU, install a torch with CUDA: https://pytorch.org/get-started"
        return Finding("torch", "note", f"{found}; this machine has {gpus[0]['name']}, which it does not use", do)
    return Finding("torch", "ok", found)


def _judge_cuda(record: Json, gpus: Sequence[Json]) -> Iterator[Finding]:
    if "error" not in record and record["count"]:
        return
    error = record.get("error", "no device is visible")
    if not gpus and NO_GPU.search(error):
        yield Finding("cuda", "note", "no GPU is here, or none is given to this job")
    elif os.environ.get("CUDA_VISIBLE_DEVICES", "all") in ("", "-1", "NoDevFiles"):
        hidden = f"CUDA_VISIBLE_DEVICES={os.environ['CUDA_VISIBLE_DEVICES']!r} hides {count(len(gpus), 'GPU')}"
        yield Finding("cuda", "note", hidden, "ask the scheduler for a GPU (Slurm: --gpus 1), or unset it")
    else:
        driver = f"driver {gpus[0]['driver']}: " if gpus else ""
        yield Finding("cuda", "fault", f"torch cannot use the GPU: {driver}{error}", OTHER_BUILD)


def _judge_gpu(record: Json) -> Finding:
    check, capability = record["device"], tuple(record["capability"])
    found = f"{record['name']}, {format_bytes(record['memory'])}"
    found += "" if record["is_rocm"] else f", compute capability {capability[0]}.{capability[1]}"
    proof = _failed(record) or (RIGHT if "matmuls" in record else NOT_RUN)
    is_native = record["is_rocm"] or capability >= NATIVE_BF16
    if _failed(record, DTYPES if is_native else ("float32", "float16")):
        if "busy or unavailable" in proof:
            return Finding(check, "note", f"{found}: {proof}", "nvidia-smi shows the process that has it alone")
        return Finding(check, "fault", f"{found}: {proof}", OTHER_BUILD)
    if record["is_rocm"]:
        return Finding(check, "ok", f"{found}: bf16 and fp16 by ROCm; {proof}")
    if is_native:
        tf32 = "off" if record["tf32"] == "highest" else "on"
        dtypes = f"bf16 and fp16 in hardware, TF32 in float32 matmuls {tf32} until the script sets it"
        return Finding(check, "ok", f"{found}: {dtypes}; {proof}")
    fp16, do = "no tensor cores for fp16", "train in float32 on this GPU"
    if capability >= TENSOR_CORES:
        fp16, do = "fp16 in hardware", "train in fp16 with torch.amp.GradScaler, or in float32, on this GPU"
    return Finding(check, "note", f"{found}: bf16 is emulated (in hardware from 8.0 on), {fp16}; {proof}", do)


def _judge_plain_device(record: Json, cpu: tuple[str, frozenset[str]]) -> Finding:
    failed = _failed(record)
    if record["device"] != "cpu":
        return Finding(record["device"], "note" if failed else "ok", failed or RIGHT)
    name, flags = cpu
    if failed:
        return Finding("cpu", "fault", f"{name}: {failed}", "install torch again, for this CPU")
    dtypes = ", ".join(
        f"{dtype} {_in_hardware(names, flags)}" for dtype, names in (("bf16", BF16_FLAGS), ("fp16", FP16_FLAGS))
    )
    return Finding("cpu", "ok", f"{name + ': ' if name else ''}{dtypes}; {RIGHT}")


def _in_hardware(names: Sequence[str], flags: frozenset[str]) -> str:
    if not flags:
        return "unknown"
    found = [name for name in names if name in flags]
    return f"in hardware ({', '.join(found)})" if found else "emulated by float32"


def _failed(record: Json, dtypes: Sequence[str] = DTYPES) -> str:
    """Return the dtypes whose matrix product failed, with the reasons; empty if none did."""
    reasons: dict[str, list[str]] = {}
    for dtype, error in record.get("matmuls", {}).items():
        if error and dtype in dtypes:
            reasons.setdefault(error, []).append(dtype)
    return "; ".join(f"{', '.join(names)}: {error}" for error, names in reasons.items())
