"""Names in patterns: what is covered, what is not, and how few they are."""

from hypothesis import given, settings
from hypothesis import strategies as st

from gradcanary_server.incidents.name_patterns import compress_names
from support.server.covering import covers

LIMIT = 20
KINDS = ("attn.to_q", "attn.to_k", "attn.to_v", "attn.to_out", "mlp.up", "mlp.down")
NETWORK = tuple(
    f"blocks.{block}.{kind}.{half}" for block in range(10) for kind in KINDS for half in ("lora_A", "lora_B")
)


def of(which):
    bad = [name for name in NETWORK if which(name)]
    return compress_names(bad, [name for name in NETWORK if name not in bad], LIMIT)


def test_half_of_some_blocks_is_one_pattern():
    assert of(lambda name: name.endswith("lora_A") and name.split(".")[1] in "789") == ("blocks.7-9.*.lora_A",)


def test_whole_blocks_and_the_whole_network():
    assert of(lambda name: name.split(".")[1] in "13") == ("blocks.1,3.*",)
    assert of(lambda name: True) == ("*",)


def test_a_single_layer_is_itself():
    assert of(lambda name: name == NETWORK[7]) == (NETWORK[7],)


def test_patterns_that_cover_a_healthy_layer_are_not_merged():
    bad = ["blocks.1.attn.lora_A", "blocks.2.mlp.lora_A"]
    healthy = ["blocks.1.mlp.lora_A", "blocks.2.attn.lora_A"]
    assert compress_names(bad, healthy, LIMIT) == tuple(bad)


numbers = st.integers(0, 12).map(str)
words = st.sampled_from(["attn", "mlp", "lora_A", "lora_B", "weight"])
plain_names = st.lists(st.one_of(numbers, words), min_size=1, max_size=5).map(".".join)


@given(st.sets(plain_names, min_size=1, max_size=40), st.sets(plain_names, max_size=40), st.integers(1, 20))
@settings(max_examples=120)
def test_every_name_is_covered_within_the_limit(names, others, limit):
    found = compress_names(names, sorted(others - names), limit)
    assert len(found) <= limit
    for name in names:
        assert any(covers(pattern, name) for pattern in found), (name, found)


@given(st.sets(plain_names, min_size=1, max_size=15), st.sets(plain_names, min_size=1, max_size=40))
@settings(max_examples=120)
def test_while_there_is_room_no_healthy_layer_is_covered(names, others):
    healthy = sorted(others - names)
    found = compress_names(names, healthy, 15)
    if healthy:
        assert not [name for name in healthy if any(covers(pattern, name) for pattern in found)]


@given(st.sets(st.text(max_size=30), min_size=1, max_size=60))
@settings(max_examples=80)
def test_hostile_names_stay_within_the_limit(names):
    assert 1 <= len(compress_names(names, ["healthy"], 5)) <= 5
