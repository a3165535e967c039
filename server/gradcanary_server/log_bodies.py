"""The body of a batch as the log keeps it: what came as base64 as the bytes that it stands for; pure.

Base64 is a third longer, and nearly all of a body: what the log writes, and the room that it leaves in the file, are
that much less. Whatever is given comes back to the last byte: text that would not is kept as it came, as an older
version kept all of it.
"""

import struct

import numpy as np
import pybase64

_MARK = b"\x01"
"""Before a body that was cut: none that came begins so, for JSON does not."""

_LEAST = 256
"""Characters of a text between quotes that are worth to be cut out."""

_QUOTE = ord('"')  # found by numpy, and told to be base64 by who decodes it: an expression takes ten times as long

_COUNT = struct.Struct("<I")
_CUT = struct.Struct("<III")
"""Where in the text a column was, how many bytes it stands for, and how many are kept: 1 where all are equal."""


def kept(raw: bytes) -> bytes:
    """Return a body as the log keeps it."""
    cuts, texts, columns, done, length = [], [], [], 0, 0
    for begin, end in _texts(raw):
        if (column := _column(raw[begin:end])) is not None:
            texts.append(raw[done:begin])
            length += begin - done
            columns.append(column[:1] if _is_one(column) else column)
            cuts.append(_CUT.pack(length, len(column), len(columns[-1])))
            done = end
    if not cuts:
        return raw
    return b"".join([_MARK, _COUNT.pack(len(cuts)), *cuts, *texts, raw[done:], *columns])


def restored(body: bytes) -> bytes:
    """Return a body as it came."""
    if not body.startswith(_MARK):
        return body
    (count,) = _COUNT.unpack_from(body, len(_MARK))
    begin = len(_MARK) + _COUNT.size
    text = begin + count * _CUT.size
    cuts = list(_CUT.iter_unpack(body[begin:text]))
    column, done, found = len(body) - sum(size for _, _, size in cuts), 0, []
    rest = column
    for place, length, size in cuts:
        found.append(body[text + done : text + place])
        found.append(pybase64.b64encode(body[column : column + size] * (length // size)))
        column, done = column + size, place
    return b"".join([*found, body[text + done : rest]])


def _texts(raw: bytes) -> list[tuple[int, int]]:
    """Return where long texts between two quotes begin and end, strings of JSON among them."""
    quotes = np.flatnonzero(np.frombuffer(raw, np.uint8) == _QUOTE)
    long = np.flatnonzero(np.diff(quotes) > _LEAST)
    return list(zip((quotes[long] + 1).tolist(), quotes[long + 1].tolist(), strict=True))


def _column(text: bytes) -> bytes | None:
    """Return the bytes that a text stands for, None where these do not stand for this very text."""
    try:
        column: bytes = pybase64.b64decode(text, validate=True)
    except ValueError:
        return None
    return column if pybase64.b64encode(column) == text else None


def _is_one(column: bytes) -> bool:
    return column[:1] == column[-1:] and column == column[:1] * len(column)
