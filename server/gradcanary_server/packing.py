"""Named arrays as bytes for the store: lossless, small, self-describing; pure.

Bytes of equal weight lie together (byte shuffle), so that the exponents of neighbours, which hardly differ, compress;
zstd level 1 on top, those of each weight in blocks of their own: a code for exponents is none for mantissas.
Neighbours are the steps of one layer, then the next layer. An array of one value is kept as that value. Bits of a
layer's float32 values are counted from those of its level: as integers they rise like logarithms, so within a factor of
two around the level the highest byte is always the same, and the next one seldom far from its middle.
"""

import json
import struct
import threading
from collections.abc import Mapping

import numpy as np
import zstandard
from numpy.typing import NDArray

Arrays = dict[str, NDArray[np.generic]]

_LENGTH = struct.Struct("<I")
_CONSTANT, _SHUFFLED, _TURNED, _LEVELLED, _DIFFERENCES = "constant", "shuffled", "turned", "levelled", "differences"

_OCTAVE = 2**23
"""What the bits of a float32 grow by when it doubles."""


class _Contexts(threading.local):
    """What zstd works with: one for each thread, because to make one takes as long as to pack a tile's head."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()


_OF_THREAD = _Contexts()


def pack(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Return the arrays as bytes; one-dimensional int64 arrays, which are steps, as differences."""
    head, parts = [], []
    for name, values in arrays.items():
        how, weights = _encoded(values)
        head.append([name, values.dtype.str, list(values.shape), how, sum(weight.size for weight in weights)])
        parts += weights
    text = json.dumps(head, separators=(",", ":")).encode()
    stream = _OF_THREAD.compressor.compressobj(size=_LENGTH.size + len(text) + sum(part.size for part in parts))
    found = [stream.compress(_LENGTH.pack(len(text)) + text)]
    for part in parts:
        found += [stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK), stream.compress(part.data)]
    return b"".join([*found, stream.flush()])


def lean(arrays: Mapping[str, NDArray[np.generic]]) -> Arrays:
    """Return the arrays as :func:`unpack` would: read-only, one of a single value takes the room of that value, and
    none keeps an array alive of which it is a part."""
    return {name: _lean(values) for name, values in arrays.items()}


def _lean(values: NDArray[np.generic]) -> NDArray[np.generic]:
    if _is_one(_bits(values)):
        return np.broadcast_to(values.reshape(-1)[0].copy(), values.shape)
    alone = np.ascontiguousarray(values)
    alone = alone.copy() if alone.base is not None else alone.view()
    alone.flags.writeable = False
    return alone


def unpack(packed: bytes) -> Arrays:
    """Return what :func:`pack` was given; the arrays are read-only."""
    raw = _OF_THREAD.decompressor.decompress(packed)
    (length,) = _LENGTH.unpack_from(raw)
    at = _LENGTH.size + length
    found: Arrays = {}
    for name, dtype, shape, how, size in json.loads(raw[_LENGTH.size : at]):
        found[name] = _decoded(raw[at : at + size], np.dtype(dtype), tuple(shape), how)
        at += size
    return found


def _encoded(values: NDArray[np.generic]) -> tuple[str, list[NDArray[np.uint8]]]:
    """Return how an array is kept, and its bytes, those of each weight by themselves."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    turned = np.ascontiguousarray(little.T)
    if _is_one(_bits(turned)):
        return _CONSTANT, [turned.reshape(-1)[:1].view(np.uint8)]
    if little.dtype == np.int64 and little.ndim == 1:
        return _DIFFERENCES, _shuffled(np.diff(little, prepend=0))
    if little.ndim == 2 and little.dtype == np.float32:
        bits = turned.view(np.uint32)
        levels = _levels(bits)
        return _LEVELLED, [*_shuffled(levels), *_shuffled(bits - _whole(levels))]
    if little.ndim == 2:
        return _TURNED, _shuffled(turned)
    return _SHUFFLED, _shuffled(little)


def _levels(bits: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Return for each row of bits the upper half of where they are counted from: an octave under their mean.

    Only the upper half: lower bits that are zero, as those of bfloat16 and of nodes, stay so.
    """
    mean = bits.sum(axis=1, dtype=np.uint64) // max(1, bits.shape[1])
    upper: NDArray[np.uint16] = ((mean.astype(np.uint32) - np.uint32(_OCTAVE)) >> 16).astype("<u2")
    return upper


def _whole(levels: NDArray[np.generic]) -> NDArray[np.uint32]:
    return np.left_shift(levels.astype(np.uint32), 16, dtype=np.uint32)[:, None]


def _bits(values: NDArray[np.generic]) -> NDArray[np.generic]:
    # NaN equals itself there, and -0.0 is not 0.0.
    return values.view(f"u{values.itemsize}")


def _is_one(bits: NDArray[np.generic]) -> bool:
    return bits.size > 0 and bool(bits.flat[0] == bits.flat[-1] and (bits == bits.flat[0]).all())


def _decoded(raw: bytes, dtype: np.dtype[np.generic], shape: tuple[int, ...], how: str) -> NDArray[np.generic]:
    if how == _CONSTANT:
        return np.broadcast_to(np.frombuffer(raw, dtype)[0], shape)
    if how == _LEVELLED:
        split = 2 * shape[1]
        levels, over = _mixed(raw[:split], np.dtype("<u2")), _mixed(raw[split:], np.dtype("<u4"))
        bits = over.reshape(shape[::-1]).astype(np.uint32, copy=False) + _whole(levels)
        return np.ascontiguousarray(bits.view(dtype).T)
    values = _mixed(raw, dtype)
    if how == _TURNED:
        return np.ascontiguousarray(values.reshape(shape[::-1]).T)
    values = values.reshape(shape)
    return np.cumsum(values) if how == _DIFFERENCES else values


def _mixed(raw: bytes, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """Return the values of which these are the bytes, weight by weight."""
    weights = np.frombuffer(raw, np.uint8).reshape(dtype.itemsize, -1)
    mixed = np.empty((weights.shape[1], dtype.itemsize), np.uint8)
    for number, weight in enumerate(weights):  # all at once take three times as long
        mixed[:, number] = weight
    return mixed.view(dtype).reshape(-1)


def _shuffled(values: NDArray[np.generic]) -> list[NDArray[np.uint8]]:
    # Shifted, which takes half as long as to gather each byte.
    bits = np.ascontiguousarray(values).reshape(-1).view(f"<u{values.itemsize}")
    return [(bits >> bits.dtype.type(8 * number)).astype(np.uint8) for number in range(values.itemsize)]
