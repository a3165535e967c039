"""The API's arrays (``{"dtype", "shape", "data"}``, base64 little-endian) as numpy arrays, and back for Plotly;
and the codes of cells without a value.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from gradcanary.display import colours

PLOTLY_DTYPES = {"float64": "f8", "float32": "f4", "int32": "i4", "int16": "i2", "uint8": "u1"}
Floats: TypeAlias = npt.NDArray[np.float64]

NO_DATA, ZERO, NO_GRADIENT = colours.NO_DATA, colours.ZERO, colours.NO_GRADIENT
NOT_TRAINABLE, NONFINITE = colours.NOT_TRAINABLE, colours.NONFINITE
"""Sentinels of the API's cells; everything between is round(1000 * log10 x)."""


def decode(column: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Return the array of a column; raises ValueError if data and shape disagree."""
    dtype = np.dtype(column["dtype"]).newbyteorder("<")
    flat = np.frombuffer(base64.b64decode(column["data"]), dtype)
    return flat.reshape(tuple(column["shape"])).astype(dtype.newbyteorder("="), copy=False)


def read(typed: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Return the array that :func:`encode` encoded."""
    dtype = np.dtype(typed["dtype"]).newbyteorder("<")
    shape = tuple(int(side) for side in typed["shape"].split(","))
    return np.frombuffer(base64.b64decode(typed["bdata"]), dtype).reshape(shape)


def encode(array: npt.NDArray[Any]) -> dict[str, str]:
    """Return an array as Plotly's typed array: a tenth of the time and a third of the size of a JSON list."""
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return {
        "dtype": PLOTLY_DTYPES[array.dtype.name],
        "bdata": base64.b64encode(little.tobytes()).decode("ascii"),
        "shape": ", ".join(map(str, array.shape)),
    }
