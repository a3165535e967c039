"""Short names of the parameters of a model."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary_dashboard.text.names import Common

PART = st.sampled_from(["base_model", "model", "blocks", "0", "1", "lora_A", "default", "weight", "bias", ""])
MODEL = st.lists(st.lists(PART, min_size=1, max_size=6).map(".".join), min_size=1, max_size=12)


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (
            [
                "base_model.model.blocks.0.attn.lora_A.default.weight",
                "base_model.model.blocks.1.attn.lora_B.default.weight",
            ],
            ["blocks.0.attn.lora_A", "blocks.1.attn.lora_B"],
        ),
        (["model.embed.weight", "model.head.weight"], ["embed", "head"]),
        (["model.embed.weight", "model.head.bias"], ["embed.weight", "head.bias"]),
        (["blocks.0.attn.weight", "blocks.1.attn.weight"], ["blocks.0.attn", "blocks.1.attn"]),
        (["0.weight", "2.weight"], ["0.weight", "2.weight"]),
        (["a.weight", "a.b.weight"], ["a", "a.b"]),
        (["model.weight", "model.weights"], ["weight", "weights"]),
        (["model.head.weight"], ["model.head.weight"]),
        (["weight", "bias"], ["weight", "bias"]),
    ],
)
def test_what_all_names_share_is_left_out(names: list[str], short: list[str]) -> None:
    common = Common.of(names)
    assert [common.short(name) for name in names] == short


def test_a_line_ends_behind_a_dot_and_within_a_part_that_is_too_long() -> None:
    long = "lora_unet_down_blocks_0_attentions_0_transformer_blocks_0_attn1_to_q"
    names = ["model.a.b.weight", f"model.{long}.weight"]
    common = Common.of(names)
    assert common.split(names[0]) == ("model.", ["a.", "b"], ".weight")
    assert common.split(names[1])[1] == ["lora_unet_down_blocks_0_", "attentions_0_transformer_blocks_", "0_attn1_to_q"]
    assert common.split("0.weight") == ("", ["0.", "weight"], "")
    assert Common().split("x" * 40) == ("", ["x" * 32, "x" * 8], "")


def test_a_name_of_another_model_stays() -> None:
    common = Common.of(["model.a.weight", "model.b.weight"])
    assert [common.short(name) for name in ("(whole run)", "model.c.bias", "model.weight")] == [
        "(whole run)",
        "model.c.bias",
        "model.weight",
    ]
    assert Common.of([]).short("a.b") == "a.b"


@given(MODEL)
def test_short_names_are_unique_parts_of_the_names(names: list[str]) -> None:
    common = Common.of(names)
    short = [common.short(name) for name in names]
    assert len(set(short)) == len(set(names))
    for name, left in zip(names, short, strict=True):
        assert f".{left}." in f".{name}."
        before, pieces, after = common.split(name)
        assert ("".join(pieces), "".join([before, *pieces, after])) == (left, name)
