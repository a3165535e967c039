"""The codec of tiles: named arrays and bytes, lossless and small; pure.

Bytes of equal weight are stored together (byte planes), so that the exponents of neighbours compress; then zstd level
1, each byte plane in blocks of its own. Neighbours are the steps of one layer, then the next layer. A constant array is
one value. The float32 values of a layer are stored as the difference of their bits to the layer's level: within a
factor of two around the level the highest byte is constant.
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
_CONSTANT, _TRANSPOSED, _DELTA_TO_LEVEL, _DIFFERENCES = "constant", "transposed", "delta_to_level", "differences"

_OCTAVE = 2**23
"""The difference of the bits of a float32 and of twice its value."""


class _ThreadContexts(threading.local):
    """The zstd contexts of a thread: making one takes as long as packing the head of a tile."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(level=1)
        self.decompressor = zstandard.ZstdDecompressor()


_CONTEXTS = _ThreadContexts()


def pack(arrays: Mapping[str, NDArray[np.generic]]) -> bytes:
    """Return the arrays as bytes; one-dimensional int64 arrays, which are steps, as differences."""
    head, planes = [], []
    for name, values in arrays.items():
        encoding, byte_planes = _encode(values)
        size = sum(plane.size for plane in byte_planes)
        head.append([name, values.dtype.newbyteorder("<").str, list(values.shape), encoding, size])
        planes += byte_planes
    text = json.dumps(head, separators=(",", ":")).encode()
    stream = _CONTEXTS.compressor.compressobj(size=_LENGTH.size + len(text) + sum(plane.size for plane in planes))
    parts = [stream.compress(_LENGTH.pack(len(text)) + text)]
    for plane in planes:
        parts += [stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK), stream.compress(plane.data)]
    return b"".join([*parts, stream.flush()])


def compact(arrays: Mapping[str, NDArray[np.generic]]) -> Arrays:
    """Return the arrays as :func:`unpack` would, read-only and in their own memory; a constant one is one value."""
    return {name: _compact(values) for name, values in arrays.items()}


def _compact(values: NDArray[np.generic]) -> NDArray[np.generic]:
    if _is_constant(_bits(values)):
        return np.broadcast_to(values.reshape(-1)[0].copy(), values.shape)
    own = np.ascontiguousarray(values)
    own = own.copy() if own.base is not None else own.view()
    own.flags.writeable = False
    return own


def unpack(packed: bytes) -> Arrays:
    """Return the arrays of :func:`pack`, which must not be changed."""
    raw = _CONTEXTS.decompressor.decompress(packed)
    (length,) = _LENGTH.unpack_from(raw)
    begin = _LENGTH.size + length
    arrays: Arrays = {}
    for name, dtype, shape, encoding, size in json.loads(raw[_LENGTH.size : begin]):
        arrays[name] = _decode(raw[begin : begin + size], np.dtype(dtype), tuple(shape), encoding)
        begin += size
    return arrays


def _encode(values: NDArray[np.generic]) -> tuple[str, list[NDArray[np.uint8]]]:
    """Return the encoding of an array and its byte planes."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    transposed = np.ascontiguousarray(little.T)
    if _is_constant(_bits(transposed)):
        return _CONSTANT, [transposed.reshape(-1)[:1].view(np.uint8)]
    if little.dtype == np.int64 and little.ndim == 1:
        return _DIFFERENCES, _shuffle(np.diff(little, prepend=0))
    if little.dtype == np.float32 and little.ndim == 2:
        bits = transposed.view(np.uint32)
        levels = _levels(bits)
        return _DELTA_TO_LEVEL, [*_shuffle(levels), *_shuffle(bits - _level_bits(levels))]
    return _TRANSPOSED, _shuffle(transposed)


def _levels(bits: NDArray[np.uint32]) -> NDArray[np.uint16]:
    """Return the level of each row of bits: the upper half of their mean less an octave.

    Only the upper half: lower bits that are zero, as those of bfloat16 and of aggregates, stay zero.
    """
    mean = bits.sum(axis=1, dtype=np.uint64) // max(1, bits.shape[1])
    upper: NDArray[np.uint16] = ((mean.astype(np.uint32) - np.uint32(_OCTAVE)) >> 16).astype("<u2")
    return upper


def _level_bits(levels: NDArray[np.generic]) -> NDArray[np.uint32]:
    return np.left_shift(levels.astype(np.uint32), 16, dtype=np.uint32)[:, None]


def _bits(values: NDArray[np.generic]) -> NDArray[np.generic]:
    # NaN equals itself there, and -0.0 is not 0.0.
    return values.view(f"u{values.itemsize}")


def _is_constant(bits: NDArray[np.generic]) -> bool:
    return bits.size > 0 and bool(bits.flat[0] == bits.flat[-1] and (bits == bits.flat[0]).all())


def _decode(raw: bytes, dtype: np.dtype[np.generic], shape: tuple[int, ...], encoding: str) -> NDArray[np.generic]:
    if encoding == _CONSTANT:
        return np.broadcast_to(np.frombuffer(raw, dtype)[0], shape)
    if encoding == _DIFFERENCES:
        return np.cumsum(_unshuffle(raw, dtype))
    if encoding == _TRANSPOSED:
        return np.ascontiguousarray(_unshuffle(raw, dtype).reshape(shape[::-1]).T)
    split = 2 * shape[1]
    levels, deltas = _unshuffle(raw[:split], np.dtype("<u2")), _unshuffle(raw[split:], np.dtype("<u4"))
    bits = deltas.reshape(shape[::-1]).astype(np.uint32, copy=False) + _level_bits(levels)
    return np.ascontiguousarray(bits.view(dtype).T)


def _unshuffle(raw: bytes, dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
    """Return the values that have these byte planes."""
    planes = np.frombuffer(raw, np.uint8).reshape(dtype.itemsize, -1)
    values = np.empty((planes.shape[1], dtype.itemsize), np.uint8)
    for number, plane in enumerate(planes):  # all at once takes three times as long
        values[:, number] = plane
    return values.view(dtype).reshape(-1)


def _shuffle(values: NDArray[np.generic]) -> list[NDArray[np.uint8]]:
    """Return the byte planes of values; shifting takes half as long as gathering each byte."""
    bits = np.ascontiguousarray(values).reshape(-1).view(f"<u{values.itemsize}")
    return [(bits >> bits.dtype.type(8 * number)).astype(np.uint8) for number in range(values.itemsize)]
