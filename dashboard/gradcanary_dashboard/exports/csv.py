"""Tables as CSV in pieces, and the names of the files. Pure."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence

from gradcanary_dashboard.address.run import View

FORMULA = ("=", "+", "-", "@")
"""First characters of a formula in a spreadsheet; names of runs and layers are untrusted."""

ROWS = 500
"""Rows of a piece."""

Pieces = Iterator[bytes]
Table = Iterator[Sequence[object]]


def to_csv(table: Table) -> Pieces:
    """Yield a table as CSV; no cell is a formula, and numbers keep their sign."""
    sheet = io.StringIO()
    writer = csv.writer(sheet, lineterminator="\n")
    for place, row in enumerate(table, start=1):
        writer.writerow([_safe(cell) for cell in row])
        if place % ROWS == 0:
            yield sheet.getvalue().encode()
            sheet.seek(0)
            sheet.truncate()
    yield sheet.getvalue().encode()


def _safe(cell: object) -> object:
    if not isinstance(cell, str) or not cell.startswith(FORMULA) or _is_number(cell):
        return cell
    return f"'{cell}"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def file_name(*parts: str | View) -> str:
    """Return the name of a file: the run, the contents, and the steps if not all are visible."""
    words = [_bounds(part) if isinstance(part, View) else part for part in parts]
    return re.sub(r"[^\w.-]+", "_", "-".join(filter(None, words)), flags=re.ASCII) + ".csv"


def _bounds(view: View) -> str:
    return f"{view.from_step or 0}-{'end' if view.to_step is None else view.to_step}" if view.is_zoomed else ""
