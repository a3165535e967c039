"""What the commands share: time spans, tables at the width of a terminal."""

import argparse
from datetime import timedelta

import pytest

from gradcanary import cli, terminal
from gradcanary.cli import console


@pytest.mark.parametrize(
    ("text", "seconds"), [("45s", 45), ("30m", 1800), ("8h", 28800), ("3d", 259200), ("172800s", 172800)]
)
def test_time_spans(text, seconds):
    assert console.parse_time_span(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "0s", "8", "h", "-8h", "1.5h", "2w", "8h ", "٣d", "100000d", "9999999999s"])
def test_invalid_time_spans(text):
    with pytest.raises(argparse.ArgumentTypeError, match="is not a time span: 45s, 30m, 8h, 3d"):
        console.parse_time_span(text)


def test_attach_takes_the_same_time_spans(capsys):
    with pytest.raises(SystemExit, match="2"):
        cli.main(["attach", "999999999", "--for", "0s"])
    assert "argument --for: '0s' is not a time span: 45s, 30m, 8h, 3d" in capsys.readouterr().err


def test_a_table_is_as_wide_as_its_entries_and_wraps():
    table = terminal.table(("ID", "NOTE"), [("1", "a note of several words"), ("200", "short")])
    assert table == "ID   NOTE\n1    a note of several words\n200  short"
    assert terminal.wrapped(table, 20, "    ") == "ID   NOTE\n1    a note of\n    several words\n200  short"
