"""Bodies in the log: smaller than they came, and to the last byte what came."""

import base64

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gradcanary import wire
from gradcanary_server.tsdb import log
from support import streams

COLUMNS = st.one_of(
    st.binary(min_size=150, max_size=400),
    st.builds(lambda byte, length: byte * length, st.binary(min_size=1, max_size=1), st.integers(1, 1000)),
).map(base64.b64encode)
ODD = COLUMNS.flatmap(
    lambda text: st.sampled_from(
        [
            text[:-1],  # no whole number of bytes
            text + b"=",
            text[:200] + b"\n" + text[200:],
            text.replace(b"/", b"\\/"),  # as some write it in JSON
            text[:-2] + b"B=",  # bits behind the last byte
            text[:-3] + b"B==",
        ]
    )
)
PIECES = st.one_of(COLUMNS, ODD, st.binary(max_size=20), st.just(b'"'), st.just(b'":"'), st.just(b""))


@given(st.lists(PIECES, max_size=12), st.booleans())
def test_a_body_comes_back_as_it_came(pieces, quoted):
    raw = b"{" + (b'"' if quoted else b"").join(pieces)
    assert log.decompress_body(log.compress_body(raw)) == raw


def test_a_body_takes_the_room_of_its_numbers_and_planes_of_one_value_take_none():
    absmax = np.float32(10 ** np.random.default_rng(0).normal(-2, 0.1, (64, 100)))
    raw = wire.dump(streams.Stream(absmax).batch(0, 64))
    kept = log.compress_body(raw)
    text = len(raw) - 4 * (64 * 100 * (4 + 4 + 4 + 1) + 64 * 8 * 2) // 3
    assert len(kept) <= text + 64 * 100 * (4 + 4) + 64 * 8 * 2 + 200, "absmax, norm and times; not state and nonfinite"
    assert log.decompress_body(kept) == raw


def test_a_body_of_an_older_version_is_what_it_is():
    raw = wire.dump(streams.Stream(np.ones((64, 10), np.float32)).batch(0, 64))
    assert log.decompress_body(raw) == raw
