"""Files as Python reads them: folders walked, encodings, syntax errors, and the ignore comments of a file.

Nothing of a file is run or imported.
"""

from __future__ import annotations

import ast
import io
import os
import re
import tokenize
import warnings
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SKIPPED_FOLDERS = frozenset({"__pycache__", "build", "dist", "node_modules", "site-packages", "venv"})
"""Beside those whose name begins with a dot. A folder that is named on the command line is always walked."""

TOO_DEEP = "nested too deeply for Python's parser"

_IGNORE = re.compile(r"#\s*gradcanary:\s*ignore\b(?:\s*\[([^\]]*)\])?")


class SourceError(Exception):
    """Python cannot read this file; ``line`` and ``column`` count from 1."""

    def __init__(self, message: str, line: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.line, self.column = line, column


@dataclass(frozen=True)
class Ignore:
    """An ignore comment; without codes it is for every finding of its line."""

    line: int
    column: int
    end_column: int
    codes: frozenset[str] | None


@dataclass(frozen=True)
class Source:
    """A parsed file. ``lines`` are without their ends, ``path`` is shown as it is."""

    path: str
    lines: list[str]
    tree: ast.Module
    ignores: Mapping[int, Ignore] = field(default_factory=dict)

    def column(self, line: int, offset: int) -> int:
        """Return the column, in characters from 1, of an offset of ``ast``, which is in UTF-8 bytes from 0."""
        text = self.lines[line - 1] if 0 < line <= len(self.lines) else ""
        return len(text.encode("utf-8", "surrogatepass")[:offset].decode("utf-8", "ignore")) + 1


def find_files(path: Path) -> Iterator[Path]:
    """Yield the file itself, or the Python files of a folder in the order of their names. Links are not followed."""
    if not path.is_dir():
        yield path
        return
    for folder, below, files in os.walk(path, onerror=_raise):
        below[:] = sorted(name for name in below if not name.startswith(".") and name not in SKIPPED_FOLDERS)
        for name in sorted(files):
            if name.endswith((".py", ".pyw")) and not name.startswith("."):
                yield Path(folder, name)


def _raise(error: OSError) -> None:
    raise error


def parse(path: str, content: bytes) -> Source:
    """Return the parsed file; raises SourceError."""
    text = _decode(content)
    lines = text.split("\n")
    return Source(path, lines, _tree(text), {each.line: each for each in _find_ignores(text)})


def _decode(content: bytes) -> str:
    """Return the text with newlines as ``\\n``, by the encoding that the file declares, else UTF-8."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        message = f"byte 0x{content[error.start]:02x} is not {error.encoding}: declare the encoding, or save as UTF-8"
        raise SourceError(message, line) from error
    except (LookupError, UnicodeError) as error:  # a codec that is none of text
        raise SourceError(str(error)) from error
    except SyntaxError as error:
        raise SourceError(_message(error)) from error
    if "\0" in text:
        raise SourceError("a null byte: this is not a text file", text.count("\n", 0, text.index("\0")) + 1)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def shown_lines(content: bytes) -> list[str]:
    """Return the lines of a file to be shown, also of one that Python cannot read."""
    try:
        return _decode(content).split("\n")
    except SourceError:
        return content.decode("utf-8", "replace").replace("\r\n", "\n").replace("\r", "\n").split("\n")


def _message(error: SyntaxError) -> str:
    return (error.msg or "not Python").strip()


def _tree(text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes are no business of ours
            return ast.parse(text)
    except SyntaxError as error:
        raise SourceError(_message(error), error.lineno or 1, max(error.offset or 1, 1)) from error
    except (RecursionError, MemoryError) as error:
        raise SourceError(TOO_DEEP) from error
    except ValueError as error:  # surrogates, which no file can hold
        raise SourceError(str(error)) from error


def _find_ignores(text: str) -> Iterable[Ignore]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            matched = _IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
            if matched:
                codes = None if matched[1] is None else frozenset(code.strip() for code in matched[1].split(","))
                line, start = token.start
                yield Ignore(line, start + matched.start() + 1, start + matched.end() + 1, codes)
    except (tokenize.TokenError, SyntaxError):  # it reads less than the parser does: no comment after this place
        return
