"""``gradcanary export``: lines of arrays become files, and what is cut off is no file."""

import base64
import io
import json
import sys
from array import array
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from gradcanary.cli import export
from gradcanary.cli.export import Output, Stream, unique_titles
from gradcanary.export.collector import CollectorError

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


@given(st.lists(st.integers(0, 4_000), max_size=6))
def test_lines_do_not_depend_on_blocks(cuts: list[int]) -> None:
    whole = b"".join(blocks())
    borders = sorted({0, *(min(cut, len(whole)) for cut in cuts), len(whole)})
    pieces = (whole[begin:end] for begin, end in pairwise(borders))
    assert [list(table.own[0]) for table in Stream(pieces)] == [list(range(at, at + ROWS)) for at in (0, 5, 10)]


def test_an_object_per_step() -> None:
    file = io.BytesIO()
    export.write_ndjson(Stream(blocks(1)), Output(file))
    lines = file.getvalue().decode().splitlines()
    assert lines[0] == '{"step": 0, "time": "1970-01-01T00:00:01.500000Z", "launch": 1, "a": 0.0, "b": null}'
    assert lines[1] == '{"step": 1, "time": null, "launch": 1, "a": 0.125, "b": 0.125}'


@pytest.mark.parametrize("write", [export.write_ndjson, export.write_parquet])
def test_rows_are_written_before_all_have_come(monkeypatch: pytest.MonkeyPatch, write: object) -> None:
    for limit in ("ROW_GROUP_CELLS", "ROW_GROUP_ROWS"):
        monkeypatch.setattr(export, limit, 1)
    file = io.BytesIO()
    sizes = []

    def watched() -> Iterator[bytes]:
        for block in blocks(50):
            sizes.append(len(file.getvalue()))
            yield block

    write(Stream(watched()), Output(file))  # type: ignore[operator]
    assert sizes[3] > sizes[1]
    assert sizes == sorted(sizes)
    assert sizes[-1] > 10 * sizes[3]


@pytest.mark.parametrize("missing", [1, 2, 4])
def test_what_was_cut_off_is_not_read_as_parquet(monkeypatch: pytest.MonkeyPatch, missing: int) -> None:
    for limit in ("ROW_GROUP_CELLS", "ROW_GROUP_ROWS"):
        monkeypatch.setattr(export, limit, 1)
    file = io.BytesIO()
    output = Output(file)
    with pytest.raises(CollectorError, match="cut off"):
        export.write_parquet(Stream(list(blocks(3))[:-missing]), output)
    assert output.is_cut
    with pytest.raises(Exception, match=r"Parquet magic bytes not found|Parquet file size is"):
        parquet.read_table(io.BytesIO(file.getvalue()))


def test_rows_are_counted() -> None:
    lines = list(blocks(3))
    with pytest.raises(CollectorError, match="10 rows of 15 came"):
        list(Stream([*lines[:2], *lines[3:]]))


@given(st.lists(st.sampled_from(["step", "step (2)", "time", "launch", "a", "a (2)", "A"])))
def test_titles_are_unique(titles: list[str]) -> None:
    found = unique_titles(titles)
    assert len({*found, *export.OWN_COLUMNS}) == len(titles) + len(export.OWN_COLUMNS)
    assert all(made.startswith(title) for made, title in zip(found, titles, strict=True))


def test_a_missing_package_is_named(
    typed: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    status, said, error = typed("export", "run", "--format", "parquet", "--url", "http://127.0.0.1:1")
    assert (status, said, "pip install pyarrow" in error) == (2, "", True)
