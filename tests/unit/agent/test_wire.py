"""Messages survive the way there and back, and an old agent understands a newer collector."""

import json
import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradcanary import wire

LAYERS = st.lists(
    st.builds(
        wire.Layer,
        name=st.text(min_size=1, max_size=20),
        shape=st.lists(st.integers(0, 10**6), max_size=4).map(tuple),
        local_numel=st.integers(0, 10**9),
        param_dtype=st.sampled_from(["float32", "bfloat16"]),
        group=st.none() | st.integers(0, 9),
        module_class=st.none() | st.text(max_size=10),
    ),
    max_size=6,
)
COLUMNS = {
    "f": st.floats(width=32),
    "d": st.floats(),
    "B": st.integers(0, 255),
}
REPLY = {
    "status": "stored",
    "next_seq": 4,
    "limits": {"max_body": 1, "max_points": 2, "max_layers": 3},
    "incidents": [
        {
            "id": 7,
            "rule": "collapse",
            "severity": "critical",
            "state": "open",
            "opened_step": 9,
            "layers": 2,
            "summary": "s",
            "url": "u",
        }
    ],
}


@pytest.mark.parametrize("typecode", COLUMNS)
def test_a_column_comes_back_bit_for_bit(typecode):
    @given(st.lists(COLUMNS[typecode]))
    def there_and_back(values):
        packed = array(typecode, values)
        assert wire.uncolumn(typecode, wire.column(typecode, values)).tobytes() == packed.tobytes()

    there_and_back()


def test_a_column_is_little_endian_base64():
    assert wire.column("f", [1.0]) == "AACAPw=="
    for wrong in ("AACAP", "AAA=", "AACA?w=="):
        with pytest.raises(ValueError, match=r".+"):
            wire.uncolumn("f", wrong)


@given(LAYERS)
def test_a_hello_comes_back_from_its_json(layers):
    layer_set = wire.LayerSet(wire.layer_set_id(layers), tuple(layers))
    body = json.loads(wire.dump(layer_set))
    again = tuple(wire.Layer(**{**layer, "shape": tuple(layer["shape"])}) for layer in body["layers"])
    assert (body["id"], again) == (layer_set.id, layer_set.layers)
    assert wire.layer_set_id(again) == layer_set.id


@given(LAYERS, st.data())
def test_another_order_of_layers_is_another_set(layers, data):
    other = data.draw(st.permutations(layers))
    assert (wire.layer_set_id(other) == wire.layer_set_id(layers)) == (other == layers)


def test_the_id_of_a_layer_set_is_pinned():
    """Runs in collectors of today are known by it."""
    layer = wire.Layer("head.weight", (4, 8), 32, "float32", 0, "Linear")
    assert wire.layer_set_id([layer]) == wire.layer_set_id((layer,)) == "ab2a6f74c186c813"


def test_no_nan_outside_of_a_column():
    with pytest.raises(ValueError, match="JSON"):
        wire.dump(wire.Heartbeat(None, 0, 0, math.nan))


def test_keys_that_a_newer_collector_adds_are_passed_over():
    newer = {**REPLY, "new": 1, "limits": {**REPLY["limits"], "new": 1}}
    newer["incidents"] = [{**REPLY["incidents"][0], "new": 1}]
    assert wire.load_reply(json.dumps(newer).encode()) == wire.load_reply(json.dumps(REPLY).encode())


def test_a_reply_comes_back_from_its_json():
    reply = wire.load_reply(json.dumps(REPLY).encode())
    assert reply.incidents[0].id == 7
    assert wire.load_reply(wire.dump(reply)) == reply


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*REPLY, "max_body", "id"]), inner),
)


@given(st.binary() | VALUES.map(lambda value: json.dumps(value).encode()))
def test_anything_else_is_one_kind_of_error(raw):
    try:
        wire.load_reply(raw)
    except ValueError:
        return
    assert isinstance(json.loads(raw), dict)


@pytest.mark.parametrize("raw", [b"[" * 100_000, b'{"status":"ok","next_seq":1e999,"limits":{},"incidents":[]}'])
def test_a_hostile_answer_is_the_same_error(raw):
    with pytest.raises(ValueError, match=r".+"):
        wire.load_reply(raw)
