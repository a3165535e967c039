"""Answers of ``samples`` and ``points`` of the API, made here."""

import base64
import json
from array import array
from collections.abc import Iterator

ROWS = 5


def encoded(code: str, numbers: list[float], *shape: int) -> dict[str, object]:
    dtype = {"q": "int64", "d": "float64", "i": "int32", "f": "float32", "B": "uint8"}[code]
    data = base64.b64encode(array(code, numbers).tobytes()).decode()  # type: ignore[arg-type]
    return {"dtype": dtype, "shape": shape, "data": data}


def blocks(tables: int = 3, titles: tuple[str, ...] = ("a", "b")) -> Iterator[bytes]:
    """Yield the lines of a stream of tables of five rows; of the second column the first value is missing."""
    columns = [{"title": title} for title in titles]
    yield (
        json.dumps({"dtype": "float32", "launches": True, "raw_start_step": None, "columns": columns}).encode() + b"\n"
    )
    for number in range(tables):
        steps = range(number * ROWS, number * ROWS + ROWS)
        values = [step / 8 for _ in titles for step in steps]
        table = {
            "steps": encoded("q", list(steps), ROWS),
            "times": encoded("d", [1.5, *[float("nan")] * (ROWS - 1)], ROWS),
            "launches": encoded("i", [1] * ROWS, ROWS),
            "values": encoded("f", [*values[:ROWS], float("nan"), *values[ROWS + 1 :]], len(titles), ROWS),
            "is_valid": encoded("B", [0b11111, *[0b11110] * (len(titles) - 1)], len(titles), 1),
        }
        yield json.dumps(table).encode() + b"\n"
    yield json.dumps({"rows": tables * ROWS}).encode() + b"\n"
