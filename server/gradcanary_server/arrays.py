"""Numbers as the read API sends them; pure."""

import math
from datetime import datetime, timezone
from typing import TypedDict

import numpy as np
import pybase64
from numpy.typing import NDArray


class Array(TypedDict):
    dtype: str
    shape: list[int]
    data: str


def array(values: NDArray[np.generic]) -> Array:
    """Return an array as ``{"dtype", "shape", "data"}``, base64 little-endian, rows first."""
    packed = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return {
        "dtype": values.dtype.name,
        "shape": list(values.shape),
        "data": pybase64.b64encode_as_string(packed.tobytes()),
    }


def number(value: float | np.floating) -> float | None:
    """Return a number that JSON can hold: None for NaN and infinities; a float32 in its own shortest digits."""
    if not math.isfinite(value):
        return None
    return float(str(value)) if isinstance(value, np.float32) else float(value)


def moment(unix_s: float) -> str:
    """Return a time as RFC 3339 UTC with milliseconds."""
    return datetime.fromtimestamp(unix_s, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")
