"""Files as Python reads them: encodings, errors with their line, columns in characters, ignore comments, folders."""

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary.check.source import SourceError, find_files, parse, shown_lines


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (b"x = 1\ny = (\n", 2, "was never closed"),
        (b"x = 1\n  y = 2\n", 2, "unexpected indent"),
        (b"x = 1\ny = '\xe9'\n", 0, "utf-8"),
        (b"x = 1\n\n\ny = '\xe9'\n", 4, "0xe9"),
        (b"x = 1\ny = 2\0\n", 2, "null byte"),
        (b"# coding: no-such\n", 1, "no-such"),
        (b"# coding: rot13\n", 1, "text encoding"),
        (b"(" * 5000, 1, ""),
        (b"-" * 200_000 + b"1", 1, "deep"),  # in the words of the parser, or in ours
    ],
)
def test_what_python_cannot_read_has_a_line(content: bytes, line: int, message: str) -> None:
    with pytest.raises(SourceError) as raised:
        parse("train.py", content)
    assert message in str(raised.value)
    assert raised.value.line == line or (not line and raised.value.line >= 1)


@pytest.mark.parametrize(
    "content",
    [
        "\ufeffx = 'é'\r\ny = 1\r\n".encode(),
        "# -*- coding: cp1252 -*-\nx = 'é'\ny = 1\n".encode("cp1252"),
        b"x = '\\d'\ry = 1\r",
        b"",
        b"# only a comment",
    ],
)
def test_what_python_reads_is_read(content: bytes) -> None:
    source = parse("train.py", content)
    assert len(source.tree.body) in (0, 2)
    assert source.lines == shown_lines(content)


def test_lines_of_a_file_that_cannot_be_read_are_shown_all_the_same() -> None:
    assert shown_lines(b"x\n\xe9\r\nz") == ["x", "\ufffd", "z"]


@given(st.text(st.characters(exclude_characters="'\\", exclude_categories=["Cs", "Cc"]), max_size=20))
def test_columns_count_characters(text: str) -> None:
    source = parse("train.py", f"x = '{text}'; call()".encode())
    call = source.tree.body[1]
    assert source.lines[0][source.column(call.lineno, call.col_offset) - 1 :] == "call()"


def test_ignore_comments_are_comments_and_not_text() -> None:
    text = (
        "a()  # gradcanary: ignore\n"
        "b()  # type: ignore # gradcanary: ignore[one, two]\n"
        "c('# gradcanary: ignore')\n"
        "d()  # gradcanary: ignored\n"
        "'''\n# gradcanary: ignore\n'''\n"
    )
    ignores = parse("train.py", text.encode()).ignores
    assert {line: each.codes for line, each in ignores.items()} == {1: None, 2: frozenset({"one", "two"})}
    assert text.split("\n")[1][ignores[2].column - 1 : ignores[2].end_column - 1] == "# gradcanary: ignore[one, two]"


def test_a_folder_is_walked_without_what_nobody_wrote(tmp_path: Path) -> None:
    for name in ("a.py", "b/c.py", "b/d.pyw", "b/e.txt", ".git/f.py", ".venv/g.py", "b/__pycache__/h.py", "build/i.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    assert [path.relative_to(tmp_path).as_posix() for path in find_files(tmp_path)] == ["a.py", "b/c.py", "b/d.pyw"]
    assert [path.name for path in find_files(tmp_path / "build")] == ["i.py"]
    assert list(find_files(tmp_path / "b" / "e.txt")) == [tmp_path / "b" / "e.txt"]


def test_a_link_in_a_circle_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "a.py").touch()
    (tmp_path / "again").symlink_to(tmp_path, target_is_directory=True)
    assert [path.name for path in find_files(tmp_path)] == ["a.py"]


def test_offsets_beyond_the_file_do_no_harm() -> None:
    source = parse("train.py", b"x = 1")
    assert source.column(99, 7) == 1
    assert isinstance(source.tree, ast.Module)
