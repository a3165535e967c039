"""The layers of an incident: which of them, in which order, how many."""

import json
from typing import Any

import pytest

from gradcanary_dashboard.address.incidents import FEW, Members, parse_members
from gradcanary_dashboard.address.run import View
from gradcanary_dashboard.components import member_table
from support.api_answers import full, member

VALUES = {"a.10": (3e-7, 20), "a.9": (None, None), "b.1": (2.5, 100), "B.2": (-1.0, None)}
LAYERS = [
    member(number, name=name, block=name, value=value, until_step=until)
    for number, (name, (value, until)) in enumerate(VALUES.items())
]


def filled(search: str, layers: list[dict[str, Any]] = LAYERS) -> dict[str, Any]:
    return member_table.filled(full(layers=layers), View(), parse_members(search))


def tables(told: dict[str, Any]) -> list[Any]:
    """Return the tables, those in blocks included."""
    return [part if part[0] == "table" else part[3] for part in json.loads(told["members"])]


def rows_of(table: list[Any]) -> list[Any]:
    return list(table[3][2:])


def names(search: str) -> list[str]:
    [table] = tables(filled(search))
    return [row[1]["data-key"].removesuffix(" 1") for row in rows_of(table)]


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ("", ["a.10", "a.9", "b.1", "B.2"]),
        ("?by=0", ["a.9", "a.10", "b.1", "B.2"]),
        ("?by=-0", ["B.2", "b.1", "a.10", "a.9"]),
        ("?by=4", ["B.2", "a.10", "b.1", "a.9"]),
        ("?by=-4", ["b.1", "a.10", "B.2", "a.9"]),
        ("?by=2", ["a.10", "b.1", "a.9", "B.2"]),
        ("?by=12", ["a.10", "a.9", "b.1", "B.2"]),
        ("?by=x", ["a.10", "a.9", "b.1", "B.2"]),
        ("?find=%20B.%20", ["b.1", "B.2"]),
        ("?find=9&by=4", ["a.9"]),
    ],
)
def test_layers_are_found_and_ordered(search: str, expected: list[str]) -> None:
    assert names(search) == expected


def test_a_head_sorts_the_other_way_when_it_is_pressed_again() -> None:
    for search, order, choice in (("", "none", "4"), ("by=4", "ascending", "-4"), ("by=-4", "descending", "4")):
        [table] = tables(filled(search))
        head = table[2][2][2:][4]
        assert (head[1]["aria-sort"], head[2][1]["data-choice"]) == (order, choice)


def test_many_layers_are_shown_in_part() -> None:
    many = [member(number, name=f"layer.{number}", block=f"layer.{number}") for number in range(750)]
    at_first, more = filled("", many), filled("most=600", many)
    assert [len(rows_of(tables(each)[0])) for each in (at_first, more)] == [FEW, 600]
    assert (at_first["members-shown"], more["members-shown"]) == ("100 of 750 shown", "600 of 750 shown")
    assert '"data-choice":"600"' in at_first["members-more"]
    few = filled("find=layer.7", many)
    assert (few["members-shown"], few["members-more"]) == ("61 of 61 shown, of 750 in all", "[]")
    assert filled("most=1100", many)["members-shown"] == ""


def test_members_are_folded_by_block_with_what_they_have_in_common() -> None:
    layers = [
        member(number, name=f"h.{number // 3}.{number}", block=f"h.{number // 3}", since_step=340 + number)
        for number in range(6)
    ]
    layers[1] |= {"until_step": 400}
    layers.append(member(6, name="head.weight", block="head"))
    told = filled("", layers)
    first, second, alone = json.loads(told["members"])
    assert first[2][2:] == [["b", {"title": "h.0"}, "h.0"], ": 3 parameters, 0.0031 → 6.1e-7, since step 340, 2 firing"]
    assert second[2][3] == ": 3 parameters, 0.0031 → 6.1e-7, since step 343"
    assert ("open" in first[1], alone[0]) == (False, "table")
    assert [len(rows_of(table)) for table in tables(told)] == [3, 3, 1]
    assert '"data-choice":"0"' in told["members-fold"]
    one = filled("by=0", layers)
    assert [len(rows_of(table)) for table in tables(one)] == [7]
    assert '"data-choice":""' in one["members-fold"]
    [found] = json.loads(filled("find=h.1", layers)["members"])
    assert found[1] == {"data-key": "h.1", "open": ""}


def test_blocks_and_members_leave_out_what_all_names_of_the_run_share() -> None:
    layers = [member(number, name=f"model.h.0.{number}.weight", block="model.h.0") for number in range(3)]
    incident = full(layers=layers, names={"prefix": "model.", "suffix": ".weight"})
    [block] = json.loads(member_table.filled(incident, View(), parse_members(""))["members"])
    assert block[2][2] == ["b", {"title": "model.h.0"}, "h.0"]
    shown = [part for part in rows_of(block[3])[0][2][2][2:] if isinstance(part, str)]
    assert "".join(shown) == "h.0.0"


def test_folded_blocks_send_no_more_lines_than_a_table() -> None:
    layers = [member(number, name=f"h.{number // 40}.{number}", block=f"h.{number // 40}") for number in range(3_000)]
    told = filled("", layers)
    assert [len(rows_of(table)) for table in tables(told)] == [40, 40, 17]
    assert told["members-shown"] == "97 of 3,000 shown"
    assert ": 40 parameters," in json.loads(told["members"])[2][2][3]
    flat = filled("by=0", layers)
    assert len(told["members"]) < 1.05 * len(flat["members"])


def test_a_choice_that_cannot_be_read_is_none() -> None:
    for search in ("by=4.5", "by=--1", "by=999", "most=-3", "most=x", "most=9999999"):
        assert parse_members(search) == Members(), search


def test_counts_of_samples_are_no_gradients() -> None:
    rare = member(9, name="z", block="z", value=30.0, baseline=4.0, evidence="sporadic")
    told = member_table.filled(full(layers=[rare, *LAYERS]), View(), parse_members("?by=-4"))
    *_, last, _without = rows_of(tables(told)[0])  # after all that have a gradient
    assert "every 4 samples" in str(last)
    assert "none in 30" in str(last)
