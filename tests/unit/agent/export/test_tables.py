"""Streams of tables: lines that come in blocks of any size, and answers that lack a part or do not have their shape."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary.export.collector import CollectorError
from gradcanary.export.tables import OWN_COLUMNS, Stream, unique_titles
from support.agent.tables import ROWS, blocks


@given(st.lists(st.integers(0, 4_000), max_size=6))
def test_lines_do_not_depend_on_blocks(cuts: list[int]) -> None:
    whole = b"".join(blocks())
    borders = sorted({0, *(min(cut, len(whole)) for cut in cuts), len(whole)})
    pieces = (whole[begin:end] for begin, end in pairwise(borders))
    assert [list(table.own[0]) for table in Stream(pieces)] == [list(range(at, at + ROWS)) for at in (0, 5, 10)]


def test_rows_are_counted() -> None:
    lines = list(blocks(3))
    with pytest.raises(CollectorError, match="10 rows of 15 came"):
        list(Stream([*lines[:2], *lines[3:]]))


def test_an_array_has_its_shape() -> None:
    head, line, *_ = blocks(1)
    table = json.loads(line)
    table["values"]["shape"] = [3, ROWS]
    with pytest.raises(ValueError, match=r"an array of shape \[3, 5\] has 10 values"):
        list(Stream([head, json.dumps(table).encode() + b"\n"]))


@given(st.lists(st.sampled_from(["step", "step (2)", "time", "launch", "a", "a (2)", "A"])))
def test_titles_are_unique(titles: list[str]) -> None:
    found = unique_titles(titles)
    assert len({*found, *OWN_COLUMNS}) == len(titles) + len(OWN_COLUMNS)
    assert all(made.startswith(title) for made, title in zip(found, titles, strict=True))
