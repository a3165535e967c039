"""What torch finds on this machine, as a program of its own: a broken driver ends or hangs this process only.

Prints a JSON text after :data:`MARK` for each thing that it finds, at once: of one that hangs the last line names the
step. Its arguments are the ids of the GPUs that no program uses, and the number of the only device to look at. On
other GPUs nothing is run: a context takes some hundred MB, which a training there may lack at that moment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from typing import Any

MARK = "\x1e"
"""Separates the findings from the output of torch and drivers; RFC 7464 begins a JSON text with it."""

DTYPES = ("float32", "float16", "bfloat16")

SIZE = 32
"""Rows of the matrices; their elements are -1, 0 and 1, so that each dtype holds all sums exactly."""


def emit(step: str, **found: object) -> None:
    """Print a finding."""
    print(MARK + json.dumps({"step": step, **found}), flush=True)  # noqa: T201 -- for the process that started this one


def main(idle: list[str], only: int | None) -> None:
    """Import torch and look at each device."""
    began = time.monotonic()
    try:
        import torch
    except Exception as error:  # noqa: BLE001 -- a library that is missing or broken raises anything
        is_missing = isinstance(error, ModuleNotFoundError) and error.name == "torch"
        emit("torch", error=describe(error), is_missing=is_missing)
        return
    took_s = time.monotonic() - began
    emit("torch", version=torch.__version__, cuda=torch.version.cuda, hip=torch.version.hip, took_s=took_s)
    emit("begin", device="cpu")
    emit("device", device="cpu", matmuls=dict(run_matmuls("cpu")))
    if torch.version.cuda or torch.version.hip:
        _look_at_gpus(idle, only)
    if torch.backends.mps.is_available():
        emit("begin", device="mps")
        emit("device", device="mps", matmuls=dict(run_matmuls("mps")))


def _look_at_gpus(idle: list[str], only: int | None) -> None:
    import torch

    emit("begin", device="cuda")
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]  # torch's own lack
        numbers = list(range(torch.cuda.device_count()))
    except Exception as error:  # noqa: BLE001 -- any fault of the driver
        emit("cuda", error=describe(error))
        return
    emit("cuda", count=len(numbers))
    for number in [each for each in numbers if only in (None, each)] or numbers:
        emit("begin", device=f"cuda:{number}")
        emit("device", device=f"cuda:{number}", **_look_at_gpu(number, idle))


def _look_at_gpu(number: int, idle: list[str]) -> dict[str, Any]:
    import torch

    properties = torch.cuda.get_device_properties(number)
    found: dict[str, Any] = {
        "name": properties.name,
        "memory": properties.total_memory,
        "is_rocm": bool(torch.version.hip),
    }
    found["capability"] = [properties.major, properties.minor]
    found["tf32"] = torch.get_float32_matmul_precision()
    uuid = str(getattr(properties, "uuid", ""))  # as of nvidia-smi, without "GPU-"; some builds of torch have none
    if uuid and any(each.endswith(uuid) for each in idle):
        found["matmuls"] = dict(run_matmuls(f"cuda:{number}"))
    return found


def run_matmuls(device: str) -> Iterator[tuple[str, str]]:
    """Multiply two matrices in each dtype on a device; yield the dtype and the error, which is empty if it is right."""
    import torch

    values = (torch.arange(SIZE * SIZE, dtype=torch.int64).reshape(SIZE, SIZE) * 7 % 3 - 1).double()
    right = values @ values.T
    for name in DTYPES:
        try:
            given = values.to(getattr(torch, name)).to(device)
            result = (given @ given.T).cpu().double()
            yield name, "" if torch.equal(result, right) else "the result is wrong"
        except Exception as error:  # noqa: BLE001, PERF203 -- any fault of the driver, of three dtypes
            yield name, describe(error)


def describe(error: BaseException) -> str:
    """Return the kind and the first lines of an error, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


if __name__ == "__main__":
    main(sys.argv[1].split(","), int(sys.argv[2]) if sys.argv[2] else None)
