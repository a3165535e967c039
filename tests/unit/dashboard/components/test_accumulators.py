"""Accumulators in few lines: what is alike together, the worst of each kind, and what to do."""

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from plotly.utils import PlotlyJSONEncoder

from gradcanary_dashboard.components import accumulators
from support.api_answers import layer, run

BF16 = {"declared": "float32", "stored": "bfloat16", "effective": "bfloat16"}
FP32 = {"declared": None, "stored": "float32", "effective": None}


def words(children: Any) -> str:
    return json.dumps(children, cls=PlotlyJSONEncoder)


def test_three_hundred_layers_of_one_kind_are_one_line_with_their_worst_numbers() -> None:
    layers = [
        layer(
            number, accumulator=BF16, accumulation_error=number / 1e4, norm_ratio=1 - number / 1e4, frozen_fraction=None
        )
        for number in range(300)
    ]
    (group,) = accumulators.groups(layers)
    (kind,) = group.kinds
    assert (kind.pattern, kind.layers, kind.error, kind.frozen) == ("blocks.#.lora_A", 300, 0.0299, None)
    assert kind.norm_ratio == 1 - 0.0299
    assert accumulators.tally([group]) == "300 parameters, all alike"
    shown = words(accumulators.card([group], "peft"))
    assert "3.0 %" in shown
    assert "0.97" in shown
    assert "not measured yet" in shown
    assert "fp32_accumulators(optimizer, 'lora')" in shown


def test_low_precision_comes_first_and_only_it_has_a_remedy() -> None:
    layers = [layer(number, accumulator=FP32) for number in range(8)]
    assert "What to do" not in words(accumulators.card(accumulators.groups(layers), None))
    found = accumulators.groups([*layers, layer(8, accumulator=BF16), layer(9, accumulator=BF16, micro_steps=1)])
    assert [(group.stored, group.k, group.is_low) for group in found] == [
        ("bfloat16", 8, True),
        ("float32", 8, False),
        ("bfloat16", 1, False),
    ]
    assert accumulators.tally(found) == "10 parameters, summed in 3 ways"
    assert "What to do" in words(accumulators.card(found, None))


def test_a_lossy_kind_comes_first_and_says_so() -> None:
    kinds = [layer(0, name="a.0", accumulation_error=0.001), layer(1, name="b.1", accumulation_error=0.12)]
    (group,) = accumulators.groups(kinds)
    assert [kind.pattern for kind in group.kinds] == ["b.1", "a.0"]
    shown = words(accumulators.card([group], None))
    assert shown.count('"bad"') == 1
    assert "12 %" in shown


@given(st.lists(st.from_regex(r"[a-z.()\[\]*+]{1,8}[0-9]{0,3}[a-z]{0,3}", fullmatch=True), min_size=1, max_size=30))
def test_a_kind_names_its_layers_and_no_layer_is_lost(names: list[str]) -> None:
    listed = [layer(number, name=name) for number, name in enumerate(names)]
    (group,) = accumulators.groups(listed)
    assert group.layers == len(names)
    for kind in group.kinds:
        assert sum(re.search(kind.expression, name) is not None for name in names) >= kind.layers
    assert {name for kind in group.kinds for name in names if re.search(kind.expression, name)} == set(names)


def test_findings_stand_beside_and_no_layer_is_said() -> None:
    facts = [{"code": "dead_config_key", "text": "grad_accumulator_dtype does nothing", "layers": []}]
    assert "grad_accumulator_dtype does nothing" in words(accumulators.facts(run(facts=facts)))
    assert accumulators.facts(run()) == []
    assert "No parameter yet." in words(accumulators.card([], None))
    assert "No parameter." in words(accumulators.card([], None, has_ended=True))
    assert accumulators.tally([]) == ""
