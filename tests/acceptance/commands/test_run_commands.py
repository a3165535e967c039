"""``gradcanary runs``: the list and what is done with runs, typed at a real collector."""

import json
import re

import httpx
import numpy as np
import pytest

from support.streams import Session, Stream, healthy
from support.waiting import eventually


@pytest.fixture
def typed(typed, module_collector, monkeypatch):
    monkeypatch.setenv("GRADCANARY_URL", module_collector.url)
    return typed


def train(collector, *names):
    for name in names:
        Session(collector.url, run=name).send(Stream(healthy(3, 2)))


def names(said):
    return [line.split()[0] for line in said.splitlines()[1:]]


def test_runs_are_a_table(typed, module_collector):
    assert typed("runs", "--named", "none of them") == (0, "No runs.\n", "")
    train(module_collector, "table-1", "table-2")
    assert typed("runs", "note", "table-1", "after the\nbreak") == (0, "table-1  after the break\n", "")
    assert typed("runs", "tag", "table-1", "sdxl", "old")[1] == "table-1  [sdxl]  [old]  after the break\n"
    assert typed("runs", "tag", "table-1", "new", "--remove", "old")[1] == "table-1  [sdxl]  [new]  after the break\n"
    status, said, _ = typed("runs", "--named", "TABLE")
    assert (status, names(said)) == (0, ["table-2", "table-1"])
    head, _, row = (re.split(r"  +", line) for line in said.splitlines())
    assert head == ["RUN", "STATE", "STEP", "LAST SEEN (UTC)", "WORST", "TAGS", "NOTE"]
    assert (row[:3], row[4:]) == (["table-1", "live", "2"], ["-", "sdxl, new", "after the break"])
    answer = json.loads(typed("runs", "--named", "table-1", "--json")[1])
    assert [each["note"] for each in answer["runs"]] == ["after the\nbreak"]


def test_a_run_that_ended_on_something_says_so(typed, module_collector):
    with_nan = healthy(200, 4)
    with_nan[150:, 2] = np.nan
    session = Session(module_collector.url, run="ended-nan")
    session.send(Stream(with_nan))
    assert session.end(last_step=199).status_code == 200

    def is_judged():
        answer = httpx.get(f"{module_collector.url}/api/v1/runs/ended-nan").json()
        return answer["state"] == "finished" and answer["severity_at_end"] is not None

    eventually(is_judged)
    row = re.split(r"  +", typed("runs", "--named", "ended-nan")[1].splitlines()[1])
    assert (row[1], row[4]) == ("finished", "critical (ended)")


def test_the_list_is_read_to_its_end(typed, module_collector):
    for number in range(205):
        Session(module_collector.url, run=f"many-{number:03}").put_hello(Stream(healthy(1, 1)).hello())
    assert names(typed("runs", "--named", "many-")[1]) == [f"many-{number:03}" for number in reversed(range(205))]


def test_archive_rename_and_delete(typed, module_collector):
    train(module_collector, "kept", "gone")
    assert typed("runs", "archive", "kept") == (0, "kept  archived\n", "")
    assert names(typed("runs", "--archived")[1]) == ["kept"]
    assert typed("runs", "archive", "kept", "--undo") == (0, "kept\n", "")
    assert typed("runs", "--archived")[1] == "No runs.\n"
    assert typed("runs", "rename", "kept", "best") == (0, "best  also kept\n", "")
    assert typed("runs", "note", "kept", "under its old name")[1] == "best  also kept  under its old name\n"
    assert typed("runs", "rename", "best", "first", "--free")[1] == "first  under its old name\n"
    status, _, error = typed("runs", "delete", "gone")
    assert (status, "add --yes" in error) == (2, True)
    assert typed("runs", "delete", "gone", "--yes") == (
        0,
        "gone is deleted; a training that still sends to it will stop sending.\n",
        "",
    )
    assert module_collector.get("/api/v1/runs/gone").status_code == 404


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (("note", "nobody", "x"), 2, "There is no run 'nobody' here"),
        (("note", "no/body", "x"), 2, "There is no /api/v1/runs/no/body here"),
        (("tag", "nobody"), 2, "give tags to add"),
        (("rename", "nobody", "x"), 2, "There is no run 'nobody' here"),
        (("forget", "nobody"), 2, "invalid choice"),
        (("--url", "http://127.0.0.1:9", "note", "nobody", "x"), 1, "http://127.0.0.1:9 does not answer"),
        (("note", "nobody", "x", "--url", "http://127.0.0.1:9"), 1, "http://127.0.0.1:9 does not answer"),
    ],
)
def test_invalid_commands_are_refused_with_a_hint(typed, words, status, reason):
    refused, said, error = typed("runs", *words)
    assert (refused, said) == (status, "")
    assert reason in error
