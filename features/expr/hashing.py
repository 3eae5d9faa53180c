"""64 well-mixed bits of (salt, unit): one function behind `hash01` of the language, experiment arms and exploration.

Nothing is stored and no clock is read, so whatever was drawn can be recomputed from a logged record.

The scheme (`engine/vectors/README.md` has it for other languages, with values to test against): a unit becomes a 64-bit
key once, by MurmurHash64A over the UTF-8 bytes of its text; a salt likewise, from another seed; `fmix64` of MurmurHash3
joins the two. So one key serves any number of salts at the price of one `fmix64` each, and two salts are independent:
schemes that append the salt to the text and use a weak mix have correlated experiments. An int is its decimal text.
Legend: N units.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np

_MASK: Final = (1 << 64) - 1
_M: Final = 0xC6A4A7935BD1E995  # of MurmurHash64A
_GOLDEN: Final = 0x9E3779B97F4A7C15  # 2^64 / the golden ratio: the seed of salts, and the step of `step_key`
_FMIX_1: Final = 0xFF51AFD7ED558CCD
_FMIX_2: Final = 0xC4CEB9FE1A85EC53
_CHUNK: Final = 8192  # rows whose intermediate columns stay in the cache


def hash64(salt: str, unit: str) -> int:
    """64 well-mixed bits of (salt, unit). The vectorised form is `hash64_array`; both are one function."""
    return draw64(salt, unit_key(unit))


def hash01(salt: str, unit: str) -> float:
    """A number in [0, 1): the top 53 bits of `hash64`, so every value is exact in float64."""
    return (hash64(salt, unit) >> 11) * 2.0**-53


def unit_key(unit: str) -> int:
    """The key of a unit: what `draw64` takes, for any number of salts."""
    return _murmur64a(unit.encode(), 0)


def step_key(key: int, step: int) -> int:
    """The key of (a unit, a whole number), such as a region and its window: the step-th state of SplitMix64 from `key`."""
    return _fmix64((key + step * _GOLDEN) & _MASK)


def draw64(salt: str, key: int) -> int:
    """64 well-mixed bits of (salt, the unit with that key)."""
    return _fmix64(key ^ _salt_key(salt))


def hash64_array(salt: str, units: Any) -> np.ndarray:
    """`hash64` of many units at once. `units` is what `unit_keys` takes.

    Shapes: units N; returns (N,) uint64.
    """
    return draw64_array(salt, unit_keys(units))


def draw64_array(salt: str, keys_N: np.ndarray) -> np.ndarray:
    """`draw64` of many keys. Shapes: keys_N (N,) uint64; returns (N,) uint64."""
    out_N = np.empty_like(keys_N)
    salt_key = np.uint64(_salt_key(salt))
    for start in range(0, len(keys_N), _CHUNK):
        _fmix64_into(keys_N[start : start + _CHUNK] ^ salt_key, out_N[start : start + _CHUNK])
    return out_N


def step_keys(keys_N: np.ndarray, steps_N: np.ndarray) -> np.ndarray:
    """`step_key` of many. Shapes: keys_N (N,) uint64, steps_N (N,) int64; returns (N,) uint64."""
    out_N = np.empty_like(keys_N)
    for start in range(0, len(keys_N), _CHUNK):
        rows = slice(start, start + _CHUNK)
        _fmix64_into(keys_N[rows] + steps_N[rows].view(np.uint64) * np.uint64(_GOLDEN), out_N[rows])
    return out_N


def unit_keys(units: Any) -> np.ndarray:
    """`unit_key` of many units: a sequence or object array of texts, an array of ints, or an Arrow array of either.

    Shapes: units N; returns (N,) uint64.
    Raises: ValueError for a null among them, or an Arrow array of anything else.
    """
    if isinstance(units, np.ndarray) and units.dtype.kind in "iu":
        import pyarrow  # only ints pay for the import

        units = pyarrow.array(units)
    if hasattr(units, "type"):
        return _arrow_keys(units)
    texts: Sequence[str] = units.tolist() if isinstance(units, np.ndarray) else units
    out_N = np.empty(len(texts), dtype=np.uint64)
    for start in range(0, len(texts), _CHUNK):
        out_N[start : start + _CHUNK] = _text_keys(texts[start : start + _CHUNK])
    return out_N


def _text_keys(texts: Sequence[str]) -> np.ndarray:
    joined = "\0".join(texts).encode()
    ends_N = np.flatnonzero(np.frombuffer(joined, dtype=np.uint8) == 0)
    if len(ends_N) == len(texts) - 1:
        edges = np.empty(len(texts) + 1, dtype=np.int64)
        edges[0], edges[-1] = 0, len(joined) + 1
        np.add(ends_N, 1, out=edges[1:-1])
        return _keys(joined, edges[:-1], np.diff(edges) - 1)
    encoded = [text.encode() for text in texts]  # a text with \0 in it
    lengths_N = np.fromiter(map(len, encoded), dtype=np.int64, count=len(encoded))
    return _keys(b"".join(encoded), np.cumsum(lengths_N) - lengths_N, lengths_N)


def _arrow_keys(units: Any) -> np.ndarray:
    """The keys of an Arrow array, read from its buffers; a dictionary is mixed once per entry."""
    import pyarrow
    import pyarrow.compute

    if isinstance(units, pyarrow.ChunkedArray):
        units = units.combine_chunks()
    if units.null_count:
        raise ValueError(f"{units.null_count} of {len(units)} units are null")
    if pyarrow.types.is_dictionary(units.type):
        return _arrow_keys(units.dictionary)[units.indices.to_numpy()]
    if pyarrow.types.is_integer(units.type):
        units = pyarrow.compute.cast(units, pyarrow.string())
    elif not (pyarrow.types.is_string(units.type) or pyarrow.types.is_large_string(units.type)):
        raise ValueError(f"a unit is a text or a whole number, not {units.type}")
    _, offsets, text = units.buffers()
    if not len(units) or text is None:  # no unit, or only empty ones
        return np.full(len(units), unit_key(""), dtype=np.uint64)
    kind = np.int32 if pyarrow.types.is_string(units.type) else np.int64
    edges = np.frombuffer(offsets, dtype=kind)[units.offset : units.offset + len(units) + 1].astype(np.int64)
    used = memoryview(text)[edges[0] : edges[-1]]
    return _keys(used, edges[:-1] - edges[0], np.diff(edges))


def _keys(text: bytes | memoryview, starts_N: np.ndarray, lengths_N: np.ndarray) -> np.ndarray:
    """MurmurHash64A, seed 0, of the texts that start there and are that long, in bytes.

    A text is read as little-endian words of 8 bytes: `words` has one that starts at every byte, so a word is one lookup.
    """
    words: np.ndarray = np.ndarray(len(text) + 1, dtype="<u8", buffer=b"".join((text, bytes(8))), strides=(1,))
    out_N = np.empty(len(starts_N), dtype=np.uint64)
    for start in range(0, len(starts_N), _CHUNK):
        rows = slice(start, start + _CHUNK)
        _murmur64a_into(words, starts_N[rows], lengths_N[rows], out_N[rows])
    return out_N


def _murmur64a_into(words: np.ndarray, starts_N: np.ndarray, lengths_N: np.ndarray, state_N: np.ndarray) -> None:
    """One chunk of `_keys`, into `state_N`.

    The first word and the tail are computed for all rows and kept where there is one: that is faster than to pick rows
    out, which is for the further words of longer texts.
    """
    np.multiply(lengths_N.view(np.uint64), _M64, out=state_N)
    full_N = lengths_N >> 3
    for at in range(int(full_N.max())):
        rows = np.flatnonzero(full_N > at) if at and full_N.min() <= at else slice(None)
        word = words[starts_N[rows] + 8 * at]
        word *= _M64
        word ^= word >> _HALF
        word *= _M64
        word ^= state_N[rows]
        word *= _M64
        if at:
            state_N[rows] = word
        else:
            np.copyto(state_N, word, where=full_N > 0)
    rest_N = lengths_N & 7
    word = words[starts_N + (full_N << 3)]
    word &= _TAIL_MASK[rest_N]
    word ^= state_N
    word *= _M64
    np.copyto(state_N, word, where=rest_N > 0)
    state_N ^= state_N >> _HALF
    state_N *= _M64
    state_N ^= state_N >> _HALF


_M64: Final = np.uint64(_M)
_HALF: Final = np.uint64(47)  # the shift of MurmurHash64A
_TAIL_MASK: Final = np.array([(1 << 8 * rest) - 1 for rest in range(8)], dtype=np.uint64)


@lru_cache(maxsize=1024)  # there are a handful of salts, and several are mixed for every request
def _salt_key(salt: str) -> int:
    return _murmur64a(salt.encode(), _GOLDEN)


def _murmur64a(text: bytes, seed: int) -> int:
    state = seed ^ (len(text) * _M & _MASK)
    full = len(text) & ~7
    for at in range(0, full, 8):
        word = int.from_bytes(text[at : at + 8], "little") * _M & _MASK
        word = (word ^ (word >> 47)) * _M & _MASK
        state = (state ^ word) * _M & _MASK
    if full < len(text):
        state = (state ^ int.from_bytes(text[full:], "little")) * _M & _MASK
    state = (state ^ (state >> 47)) * _M & _MASK
    return state ^ (state >> 47)


def _fmix64(value: int) -> int:
    value = (value ^ (value >> 33)) * _FMIX_1 & _MASK
    value = (value ^ (value >> 33)) * _FMIX_2 & _MASK
    return value ^ (value >> 33)


def _fmix64_into(values: np.ndarray, out: np.ndarray) -> None:
    """`_fmix64` of values that may be overwritten, into `out`."""
    values ^= values >> np.uint64(33)
    values *= np.uint64(_FMIX_1)
    values ^= values >> np.uint64(33)
    values *= np.uint64(_FMIX_2)
    np.bitwise_xor(values, values >> np.uint64(33), out=out)
