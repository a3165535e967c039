"""The tables that the browser draws: heads, rows and their names."""

import json
from typing import Any

from gradcanary_dashboard.components import difference_table, layer_table, member_table, static, table
from gradcanary_dashboard.components.table import Column, Row
from gradcanary_dashboard.text.names import Common

COLUMNS = (Column("Layer", "link"), Column("value", "number", "What it had"))
NAMES = {"link", "button", "button link"}


def described(component: Any) -> Any:
    return json.loads(json.dumps(component, default=lambda part: part.to_plotly_json()))


def names(kind: str, row: Row) -> list[Any]:
    [tree] = json.loads(table.written([Column("Layer", kind)], [row]))
    return list(tree[2][2:])


def test_a_body_is_a_slot_below_its_heads() -> None:
    head, body = described(table.table("rows", table.heads(COLUMNS), {"rows": "[1]"}, labelled_by="title"))["props"][
        "children"
    ]
    heads = head["props"]["children"]["props"]["children"]
    first, second = (each["props"]["children"] for each in heads)
    assert (first, second["props"]["children"], second["props"]["title"]) == ("Layer", "value", "What it had")
    assert (body["props"]["id"], body["props"][static.TREES]) == ("rows", "[1]")


def test_rows_are_trees_with_a_key_each() -> None:
    rows = [Row("a", ["1"]), Row("a", [{"text": "\N{EN DASH}", "mark": "far"}], tone="firing", is_chosen=True)]
    first, second = json.loads(table.written(COLUMNS, rows))
    assert first[1] == {"class": "", "role": "row", "data-key": "a 1"}
    assert first[3] == ["td", {"class": "number", "role": "cell", "data-name": "value"}, "1"]
    assert second[1] == {"class": "firing chosen", "role": "row", "data-key": "a 2"}
    assert second[3][1]["class"] == "number far none"
    [parts] = json.loads(table.written(COLUMNS, [Row("a", [{"parts": [["b", {}, "A"], " 1"]}])]))
    assert parts[3][2:] == [["b", {}, "A"], " 1"]


def test_a_long_name_goes_on_behind_its_dots() -> None:
    [link] = names("link", Row("a.b.", [], href="/x"))
    assert link[1] == {"class": "layer", "title": "a.b.", "href": "/x", "data-way": ""}
    assert link[2:] == ["a.", ["wbr", {}], "b.", ["wbr", {}]]


def test_what_all_names_share_is_in_the_text_and_not_seen() -> None:
    [link] = names("link", Row("model.a.b.weight", [], href="/x", common=Common("model.", ".weight")))
    assert link[1]["title"] == "model.a.b.weight"
    shared = [["span", {"class": "shared"}, text] for text in ("model.", ".weight")]
    assert link[2:] == [shared[0], "a.", ["wbr", {}], "b", ["wbr", {}], shared[1]]


def test_a_button_draws_the_layer() -> None:
    [button] = names("button", Row("a", [], is_chosen=True))
    assert (button[1]["data-layer"], button[1]["aria-pressed"], button[2:]) == ("a", "true", ["a", ["wbr", {}]])
    button, link = names("button link", Row("a", [], href="/x"))
    assert (button[1]["aria-pressed"], link[0]) == ("false", "a")


def test_the_first_column_of_each_table_is_a_name() -> None:
    for columns in (member_table.COLUMNS, difference_table.COLUMNS):
        assert columns[0].kind in NAMES
        assert not NAMES & {column.kind for column in columns[1:]}
    assert not NAMES & {column.kind for column in layer_table.COLUMNS.values()}
