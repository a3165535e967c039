"""The most memory that a training has taken, as counted on the host: no device is asked or waited for."""

from __future__ import annotations

import sys
from collections.abc import Collection

import torch

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]  # asked for by its absence

EACH = 16
"""Samples: to ask torch's CUDA allocator takes its lock and makes a hundred entries, and a peak only rises."""

UNIT = 1 if sys.platform == "darwin" else 1024
"""Of ``ru_maxrss``, in bytes."""


def peak_bytes(devices: Collection[torch.device], number: int) -> int | None:
    """Return the peak so far where the gradients are; of CUDA devices that of the fullest one.

    On CUDA what torch has allocated since the process began or the script reset the peak, on a CPU the largest resident
    set of the process. None on other devices, and where nobody counts; on CUDA also but in each 16th sample, by its
    ``number`` from 1 on.
    """
    kinds = {device.type for device in devices}
    if kinds == {"cpu"} and resource is not None:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNIT
    if "cuda" not in kinds or number % EACH != 1:
        return None
    try:
        return max(_allocated(device) for device in devices if device.type == "cuda")
    except (RuntimeError, LookupError):  # an allocator of somebody else's, which keeps no statistics
        return None


def _allocated(device: torch.device) -> int:
    # max_memory_allocated() makes a flat copy of all statistics first.
    return int(torch.cuda.memory_stats_as_nested_dict(device)["allocated_bytes"]["all"]["peak"])
