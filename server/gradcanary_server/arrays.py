"""Numbers as the read API sends them; pure."""

import numpy as np
import pybase64
from numpy.typing import NDArray
from typing_extensions import TypedDict


class Array(TypedDict):
    """An array: base64 of its little-endian bytes, rows first."""

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


def numbers(values: NDArray[np.float32]) -> list[float | None]:
    """Return numbers that JSON can hold: None for NaN and infinities, others in the shortest digits of a float32."""
    are_finite = np.isfinite(values).tolist()
    return [float(str(value)) if is_finite else None for value, is_finite in zip(values, are_finite, strict=True)]
