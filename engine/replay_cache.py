"""Blocks of logged Decisions in one Arrow file: decoding JSON is what a replay spends most of its time on, so once is enough.

A file begins with what it was made from (`signature`): a log that grew, or another part of it, is another file. Each block is an IPC
stream of one row whose columns are lists, so that what belongs to decisions and what belongs to candidates stand beside each other.
Numbers are read in place (memory map); texts go through a dictionary.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa

from engine.replay_block import Block, ModelColumns, Raw, RoleColumns

_FORMAT: Final = b"hailstream decisions 1"
_TEXTS: Final = ("decision_ids", "order_ids", "cities", "products", "reasons")
_BYTES: Final = ("assigned", "heads_D")
_PLAIN: Final = ("strategy", "version", "hash", "killed", "candidate_key")


class Cache:
    """One file. `load` reads it when it is of this signature; `keep` writes it beside and renames when all is there."""

    def __init__(self, path: Path, signature: Mapping[str, Any]) -> None:
        self.path = path
        self._signature = msgspec.json.encode(signature, order="sorted")

    def load(self) -> Iterator[Block] | None:
        """The blocks, or None when the file is absent, of another signature or of another format. Raises: OSError."""
        if not self.path.is_file():
            return None
        file = pa.memory_map(str(self.path))
        try:
            head = pa.ipc.open_stream(file).schema.metadata or {}
        except pa.ArrowInvalid:
            return None
        if head.get(b"format") != _FORMAT or head.get(b"signature") != self._signature:
            return None
        return self._blocks()

    def keep(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """The same blocks, written as they pass; the file is there once the last one has passed. Raises: OSError."""
        with tempfile.NamedTemporaryFile(dir=self.path.parent, prefix=f".{self.path.name}-", delete=False) as file:
            try:
                head = pa.schema([], metadata={b"format": _FORMAT, b"signature": self._signature})
                with pa.ipc.new_stream(file, head):
                    pass
                for block in blocks:
                    _write(file, block)
                    yield block
                file.flush()
                os.replace(file.name, self.path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise

    def _blocks(self) -> Iterator[Block]:
        with pa.memory_map(str(self.path)) as file:
            size = file.size()
            with pa.ipc.open_stream(file) as head:
                head.read_all()
            while file.tell() < size:
                with pa.ipc.open_stream(file) as stream:
                    yield _block(stream.read_next_batch(), stream.schema.metadata)
                    stream.read_all()  # the end mark, so that the next stream begins here


def _write(file: Any, block: Block) -> None:
    columns: dict[str, pa.Array] = {}
    meta: dict[str, Any] = {name: getattr(block, name) for name in _PLAIN}
    for one in fields(Block):
        value = getattr(block, one.name)
        if one.name in _TEXTS:
            columns[one.name] = pa.array(value, pa.string()).dictionary_encode()
        elif one.name in _BYTES:
            columns[one.name] = pa.array(value, pa.binary())
        elif one.name == "candidate_ids":
            columns[one.name] = pa.array(value, pa.string()).dictionary_encode()
        elif isinstance(value, np.ndarray):
            columns[one.name] = _numbers(value)
    for section in ("request", "candidates", "outputs"):
        raws: Mapping[str, Raw] = getattr(block, section)
        meta[section] = {name: raw.kind for name, raw in raws.items()}
        for name, raw in raws.items():
            columns[f"{section}/{name}"] = _values(raw)
            columns[f"{section}/{name}/valid"] = _numbers(raw.valid)
    meta["roles"], meta["models"] = {}, {}
    for name, role in block.roles.items():
        meta["roles"][name] = [role.view, role.generation, role.names, role.types]
        for part in ("rows_D", "through_ms_D", "through_known_D"):
            columns[f"roles/{name}/{part}"] = _numbers(getattr(role, part))
        columns[f"roles/{name}/statuses"] = _numbers(role.statuses.reshape(-1))
        for feature, kind in zip(role.names, role.types, strict=True):
            column = role.columns[feature]
            texts = kind == "string"
            columns[f"roles/{name}//{feature}"] = (
                pa.array(column, pa.string()).dictionary_encode() if texts else _numbers(column)
            )
    for name, model in block.models.items():
        meta["models"][name] = [model.model, model.model_hash]
        for part in ("source_D", "values", "valid"):
            columns[f"models/{name}/{part}"] = _numbers(getattr(model, part))
    lists = [_one_row(array) for array in columns.values()]
    batch = pa.RecordBatch.from_arrays(lists, names=list(columns))
    batch = batch.replace_schema_metadata({b"block": msgspec.json.encode(meta)})
    with pa.ipc.new_stream(file, batch.schema) as stream:
        stream.write_batch(batch)


def _one_row(array: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, len(array)], pa.int32()), array)


def _numbers(array: np.ndarray) -> pa.Array:
    """Booleans as bytes: as bits they could not be read in place."""
    return pa.array(array.view(np.uint8) if array.dtype == np.bool_ else np.ascontiguousarray(array))


def _values(raw: Raw) -> pa.Array:
    if raw.kind == "string":
        return pa.array(raw.values, pa.string()).dictionary_encode()
    if raw.kind in ("list", "mixed"):
        return pa.array([msgspec.json.encode(value) for value in raw.tolist()], pa.binary())
    return _numbers(raw.values)


def _block(batch: pa.RecordBatch, metadata: Mapping[bytes, bytes]) -> Block:
    meta = msgspec.json.decode(metadata[b"block"])
    arrays = {name: batch.column(at).values for at, name in enumerate(batch.schema.names)}

    def numbers(name: str, dtype: Any = None) -> np.ndarray:
        found: np.ndarray = arrays[name].to_numpy()
        return found.view(dtype) if dtype is not None else found

    def raws(section: str) -> dict[str, Raw]:
        return {
            name: Raw(
                kind, _raw_values(arrays[f"{section}/{name}"], kind), numbers(f"{section}/{name}/valid", np.bool_)
            )
            for name, kind in meta[section].items()
        }

    booleans = {"survives_R", "scored_R"}
    given: dict[str, Any] = {name: tuple(v) if isinstance(v := meta[name], list) else v for name in _PLAIN}
    for one in fields(Block):
        if one.name in _TEXTS:
            given[one.name] = _texts(arrays[one.name]).tolist()
        elif one.name in _BYTES:
            given[one.name] = arrays[one.name].to_pylist()
        elif one.name == "candidate_ids":
            given[one.name] = _texts(arrays[one.name])
        elif one.name in arrays:
            given[one.name] = numbers(one.name, np.bool_ if one.name in booleans else None)
    return Block(
        **given,
        request=raws("request"),
        candidates=raws("candidates"),
        outputs=raws("outputs"),
        roles={name: _role(name, entry, arrays, numbers) for name, entry in meta["roles"].items()},
        models={
            name: ModelColumns(
                model=entry[0],
                model_hash=entry[1],
                source_D=numbers(f"models/{name}/source_D"),
                values=numbers(f"models/{name}/values"),
                valid=numbers(f"models/{name}/valid", np.bool_),
            )
            for name, entry in meta["models"].items()
        },
    )


def _role(name: str, entry: list[Any], arrays: Mapping[str, pa.Array], numbers: Any) -> RoleColumns:
    view, generation, names, types = entry
    columns = {}
    for feature, kind in zip(names, types, strict=True):
        place = f"roles/{name}//{feature}"
        columns[feature] = (
            _texts(arrays[place]) if kind == "string" else numbers(place, np.bool_ if kind == "bool" else None)
        )
    return RoleColumns(
        view=view,
        generation=generation,
        names=tuple(names),
        types=tuple(types),
        rows_D=numbers(f"roles/{name}/rows_D"),
        through_ms_D=numbers(f"roles/{name}/through_ms_D"),
        through_known_D=numbers(f"roles/{name}/through_known_D", np.bool_),
        columns=columns,
        statuses=numbers(f"roles/{name}/statuses").reshape(len(names), -1),
    )


def _raw_values(array: pa.Array, kind: str) -> np.ndarray:
    if kind == "string":
        return _texts(array)
    if kind in ("list", "mixed"):
        out = np.empty(len(array), dtype=np.object_)
        for row, text in enumerate(array.to_pylist()):
            out[row] = msgspec.json.decode(text)
        return out
    found: np.ndarray = array.to_numpy()
    return found.view(np.bool_) if kind in ("bool", "null") else found


def _texts(array: pa.Array) -> np.ndarray:
    """An object array of texts; equal ones are one object."""
    texts = array.dictionary.to_numpy(zero_copy_only=False)
    if len(texts) == 0:
        return np.empty(0, dtype=np.object_)
    found: np.ndarray = texts.astype(np.object_)[array.indices.to_numpy()]
    return found
