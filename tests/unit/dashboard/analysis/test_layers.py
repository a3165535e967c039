"""The order of layers, and the siblings of one."""

from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.analysis import layers
from support.api_answers import layer


def test_the_worst_layers_come_first() -> None:
    listed = [
        layer(0),
        layer(1, absmax=None, norm=None, state="no_gradient"),
        layer(2, absmax=1e-5, below_threshold=True),
        layer(3, absmax=None, state="nonfinite"),
        layer(4, absmax=1e-6, rules={"collapse": "suspect"}),
        layer(5, absmax=1e-2, rules={"collapse": "firing"}),
        layer(6, absmax=0.0, state="zero"),
    ]
    assert [one["layer"] for one in layers.worst_first(listed)] == [5, 4, 3, 2, 6, 0, 1]


@given(st.permutations(range(6)))
def test_the_order_does_not_depend_on_the_answer(order: list[int]) -> None:
    listed = [layer(number, absmax=10.0 ** -(number % 3)) for number in order]
    assert [one["layer"] for one in layers.worst_first(listed)] == [2, 5, 1, 4, 0, 3]


def test_the_url_names_the_layer() -> None:
    listed = [layer(0), layer(1, rules={"collapse": "firing"}), layer(2)]
    chosen = [
        layers.choose(listed, "blocks.2.lora_A", 1, 0),
        layers.choose(listed, "2", 1, 0),
        layers.choose(listed, "no such layer", 0, 2),
        layers.choose(listed, None, None, None),
        layers.choose([layer(0, absmax=1e-3), layer(1, absmax=1e-4)], None, None, 0),
        layers.choose(listed, None, None, 0),
    ]
    assert [one and one["layer"] for one in chosen] == [2, 2, 0, 1, 0, 1]
    assert layers.choose([], "x", None, None) is None


def test_siblings_differ_in_their_numbers_only() -> None:
    listed = [layer(number) for number in range(5)]
    listed += [layer(5, name="blocks.5.lora_B"), layer(6, shape=[8, 32])]
    assert [one["layer"] for one in layers.siblings(listed, listed[2])] == [0, 1, 2, 3, 4]
    assert layers.siblings(listed[2:], listed[2]) == []


@given(st.integers(1, 450), st.integers(0, 449))
def test_nearest_siblings_are_shown(count: int, place: int) -> None:
    listed = [layer(number) for number in range(count)]
    mine = listed[place % count]
    shown = layers.around(listed, mine)
    assert mine in shown
    assert len(shown) == min(count, layers.MAX_ROWS)
    assert shown == listed[shown[0]["layer"] :][: len(shown)]


def test_nothing_fires_after_the_end_of_a_run() -> None:
    collapsed = layer(0, rules={"collapse": "firing", "frozen": "recovering", "second_moments": "info"})
    assert layers.row(collapsed, has_ended=False)["rule"] == "collapse firing, frozen recovering"
    assert layers.row(collapsed, has_ended=True)["rule"] == "collapse not recovered, frozen not recovered"
