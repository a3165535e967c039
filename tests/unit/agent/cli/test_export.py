"""``gradcanary export``: lines of arrays become files, and what is cut off is no file."""

import io
import sys
from collections.abc import Callable, Iterator

import pytest
from pyarrow import parquet

from gradcanary.cli import export
from gradcanary.cli.export import Output
from gradcanary.export.collector import CollectorError
from gradcanary.export.tables import Stream
from support.agent.tables import blocks


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


def test_a_missing_package_is_named(
    typed: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    status, said, error = typed("export", "run", "--format", "parquet", "--url", "http://127.0.0.1:1")
    assert (status, said, "pip install pyarrow" in error) == (2, "", True)
