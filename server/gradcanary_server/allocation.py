"""Memory that was given back is kept for what comes next, in place of being asked of the kernel anew.

A heatmap is made of some megabytes of arrays, which glibc gives back to the kernel at once: 3,000 pages that are zeroed
and mapped again for the next one were a third of its CPU.
"""

from __future__ import annotations

import ctypes
import os

KEPT_BYTES = 32 * 2**20
"""Of each arena, the room behind what is in use that is not given back; what is larger still is. glibc's own most."""

ARENAS = 4
"""At most, where glibc would make eight for each core: one interpreter has no use for more, and each keeps its own."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
"""As malloc.h numbers them."""


def keep() -> None:
    """Let this process keep memory; nothing happens where its C library is another one, or the operator set his own."""
    if "CS_GNU_LIBC_VERSION" not in getattr(os, "confstr_names", {}) or any(
        name.startswith("MALLOC_") or "glibc.malloc" in value for name, value in os.environ.items()
    ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for option, value in ((_ARENA_MAX, ARENAS), (_MMAP_THRESHOLD, KEPT_BYTES), (_TRIM_THRESHOLD, KEPT_BYTES)):
        mallopt(option, value)
