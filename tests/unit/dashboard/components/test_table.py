"""The tables that the browser draws: what a body says of its columns, and what a row holds."""

import json
from typing import Any

from gradcanary_dashboard.components import difference_table, layer_table, member_table, table
from gradcanary_dashboard.components.table import Column

COLUMNS = (Column("Layer", "link"), Column("value", "number", "What it had"))
NAMES = {"link", "button", "button link"}


def described(component: Any) -> Any:
    return json.loads(json.dumps(component, default=lambda part: part.to_plotly_json()))


def parts(component: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return the heads of a table and the properties of its body."""
    head, body = described(component)["props"]["children"]
    [row] = [head["props"]["children"]]
    return row["props"]["children"], body["props"]


def test_a_body_describes_its_columns_and_holds_what_it_was_filled_with() -> None:
    heads, body = parts(table.table("rows", COLUMNS, {"rows": "[1]"}, labelled_by="title"))
    assert [head["props"]["children"] for head in heads] == ["Layer", "value"]
    assert (body["id"], body[table.ROWS]) == ("rows", "[1]")
    assert json.loads(body["data-columns"]) == [
        {"head": "Layer", "kind": "link"},
        {"head": "value", "kind": "number"},
    ]
    assert "data-few" not in body


def test_a_long_table_is_sorted_by_its_heads() -> None:
    heads, body = parts(table.table("rows", COLUMNS, {}, labelled_by="title", few=100))
    assert [head["props"]["children"]["props"]["data-sort"] for head in heads] == ["0", "1"]
    assert (body["data-few"], body[table.ROWS]) == ("100", "[]")
    found = described(table.finder("rows", "Layers with this in their name"))
    assert '"data-finds": "rows"' in json.dumps(found)


def test_a_row_leaves_out_what_it_does_not_have() -> None:
    assert table.row("layer", ["1"]) == {"name": "layer", "cells": ["1"]}
    full = table.row("layer", [{"text": "1", "mark": "far"}], href="/x", tone="firing", is_chosen=False)
    assert json.loads(table.written([full])) == [
        {"name": "layer", "cells": [{"text": "1", "mark": "far"}], "href": "/x", "tone": "firing", "chosen": False}
    ]


def test_the_first_column_of_each_table_is_a_name() -> None:
    for columns in (member_table.COLUMNS, difference_table.COLUMNS):
        assert columns[0].kind in NAMES
        assert not NAMES & {column.kind for column in columns[1:]}
    assert not NAMES & {column.kind for column in layer_table.COLUMNS}
