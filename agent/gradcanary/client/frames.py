"""Columns as frames of pandas or Polars; each package is imported when a frame is made.

A column is a numpy array, ``Labels``, or a list of values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pandas as pd
    import polars as pl


@dataclass(frozen=True)
class Labels:
    """A column of few different texts: ``codes`` int[n] into ``names``."""

    codes: npt.NDArray[np.intp]
    names: Sequence[str]


def require(package: str) -> Any:  # noqa: ANN401 -- a module
    """Return a package; raises ImportError that says how to install it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise ImportError(f"this needs {package}, which gradcanary does not bring: pip install {package}") from error


def to_times(seconds: npt.NDArray[np.float64]) -> npt.NDArray[np.datetime64]:
    """Return unix seconds as UTC to the microsecond; NaN is not-a-time."""
    numpy = require("numpy")
    micro = numpy.where(numpy.isnan(seconds), numpy.iinfo(numpy.int64).min, numpy.rint(1e6 * seconds))
    times: npt.NDArray[np.datetime64] = micro.astype(numpy.int64).view("datetime64[us]")
    return times


def to_pandas(columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return a frame; times are UTC, labels are categories."""
    pandas = require("pandas")

    def convert(column: Any) -> object:  # noqa: ANN401 -- a Column
        if isinstance(column, Labels):
            return pandas.Categorical.from_codes(column.codes, list(column.names))
        is_time = getattr(getattr(column, "dtype", None), "kind", "") == "M"
        return pandas.DatetimeIndex(column).tz_localize("UTC") if is_time else column

    frame: pd.DataFrame = pandas.DataFrame({name: convert(column) for name, column in columns.items()})
    return frame


def to_polars(columns: Mapping[str, Any]) -> pl.DataFrame:
    """Return a frame; times are UTC, labels are an Enum."""
    polars = require("polars")

    def convert(name: str, column: Any) -> object:  # noqa: ANN401 -- a Column
        if isinstance(column, Labels):
            return polars.Series(name, list(column.names), dtype=polars.Enum(column.names)).gather(column.codes)
        is_time = getattr(getattr(column, "dtype", None), "kind", "") == "M"
        series = polars.Series(name, column, strict=False)
        return series.dt.replace_time_zone("UTC") if is_time else series

    frame: pl.DataFrame = polars.DataFrame([convert(name, column) for name, column in columns.items()])
    return frame
