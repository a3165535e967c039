"""Tables as CSV, piece by piece, and the names of their files; no I/O."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence

from gradcanary_dashboard.address.run import View

FORMULA = ("=", "+", "-", "@")
"""How a cell begins that a spreadsheet runs; names come from strangers."""

ROWS = 500
"""Of a piece."""

Pieces = Iterator[bytes]
Table = Iterator[Sequence[object]]


def written(table: Table) -> Pieces:
    """Yield a table as CSV; no cell of it is a formula, but numbers may have their sign."""
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
    """Return the name of a file: the run, what is in it, and of which steps where some are out of sight."""
    words = [_bounds(part) if isinstance(part, View) else part for part in parts]
    return re.sub(r"[^\w.-]+", "_", "-".join(filter(None, words)), flags=re.ASCII) + ".csv"


def _bounds(view: View) -> str:
    return f"{view.from_step or 0}-{'end' if view.to_step is None else view.to_step}" if view.is_zoomed else ""
