"""The bytes of a model directory: write it whole or not at all, and say what is wrong with one that was changed.

    <models>/<name>/versions/<version>/   model.onnx  program.json  golden.json  weights.*  report.json  manifest.json

`manifest.json` holds the sha256 of every other file; `model_hash` is the sha256 over the sorted map of those, so the same
weights, program and report give the same hash wherever and whenever they are written. Nothing here is ever pickled.
`publish.py` moves the champion between such directories; `engine/model.py` reads them.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.model import FORMAT, GOLDEN, GRAPH, MANIFEST, PROGRAM, model_hash
from features.files import sync_folder

GOLDEN_ATOL: Final = 1e-5
ABANDONED_S: Final = 3600
VERSION: Final = re.compile(r"^v(\d{4,})$")
NAME: Final = re.compile(r"^[a-z][a-z0-9_]{0,63}$")


class PublishError(ValueError):
    """A model directory that cannot be written, read, promoted or rolled back; the text says which and what to do."""


@dataclass(frozen=True, kw_only=True)
class ModelFiles:
    """Everything that is hashed into a model."""

    onnx: bytes
    program: Sequence[Mapping[str, Any]]
    golden_x: NDArray[np.float32]  # (n, F)
    golden_p: NDArray[np.float64]  # (n,), by torch
    weights: Mapping[str, NDArray[np.float32]]
    report: Mapping[str, Any]

    def contents(self) -> dict[str, bytes]:
        weights_name, weights = _weights_bytes(self.weights)
        golden = {"x": self.golden_x.tolist(), "p": self.golden_p.tolist(), "atol": GOLDEN_ATOL}
        return {
            GRAPH: self.onnx,
            PROGRAM: _json([dict(column) for column in self.program]),
            GOLDEN: _json(golden, indent=None),
            weights_name: weights,
            "report.json": _json(self.report),
        }


class StagedModel:
    """A model directory under a temporary name: complete and loadable, but not yet a version.

    `publish` gives it its name in one rename; leaving the `with` block without that removes it.
    """

    def __init__(self, models_dir: Path, name: str, files: ModelFiles, manifest: Mapping[str, Any]) -> None:
        """`manifest` holds what the files do not say: strategy, label, created_ms, names, schema_fingerprint, metrics."""
        if not NAME.match(name):
            raise PublishError(f"model name {name!r}: use lower-case letters, digits and _, first a letter, at most 64")
        self._versions = models_dir / name / "versions"
        self._versions.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(self._versions)
        self.path = self._versions / f".staged-{uuid.uuid4().hex}"
        self.path.mkdir()
        contents = files.contents()
        for file, data in contents.items():
            _write_synced(self.path / file, data)
        hashes = {file: hashlib.sha256(data).hexdigest() for file, data in sorted(contents.items())}
        self.model_hash = model_hash(hashes)
        self._manifest: dict[str, Any] = {
            "format": FORMAT, "name": name, "version": "staged", **manifest,
            "files": hashes, "model_hash": self.model_hash, "gate": None,
        }  # fmt: skip
        self._write_manifest()

    def publish(self, gate: Mapping[str, Any]) -> str:
        """Write the gate's verdict, give the directory the next free version, make it durable; returns the version."""
        for _ in range(100):  # another process may take the number between look and rename
            version = f"v{max([_number(v) for v in versions_of(self._versions.parent)], default=0) + 1:04d}"
            self._manifest |= {"gate": dict(gate), "version": version}
            self._write_manifest()
            target = self._versions / version
            if target.exists():
                continue
            try:
                os.rename(self.path, target)
            except OSError as error:
                if target.exists():
                    continue
                raise PublishError(f"{target}: {error.strerror}") from error
            sync_folder(self._versions)
            self.path = target
            return version
        raise PublishError(
            f"{self._versions}: no free version number after 100 tries; is something else writing there?"
        )

    def _write_manifest(self) -> None:
        write_atomic(self.path / MANIFEST, _json(self._manifest))

    def __enter__(self) -> StagedModel:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.path.name.startswith(".staged-"):
            shutil.rmtree(self.path, ignore_errors=True)


def _remove_abandoned(versions: Path) -> None:
    """Staged directories of runs that were killed; a run stages for seconds, so an hour is far beyond any."""
    for path in versions.glob(".staged-*"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(path, ignore_errors=True)


def read_manifest(version_dir: Path) -> dict[str, Any]:
    """The manifest, after checking every file against it.

    Raises: PublishError naming each file that is absent, changed or not listed, or a manifest that cannot be read.
    """
    path = version_dir / MANIFEST
    try:
        manifest = json.loads(path.read_bytes())
        files = dict(manifest["files"])
    except FileNotFoundError:
        raise PublishError(f"{path}: not there; this is not a model directory") from None
    except (ValueError, KeyError, TypeError) as error:
        raise PublishError(f"{path}: cannot be read ({error}); publish the model again") from None
    if manifest.get("format") != FORMAT:
        raise PublishError(f"{path}: format {manifest.get('format')!r}; this version reads format {FORMAT}")
    problems = [
        f"{file} {problem}" for file, sha in sorted(files.items()) if (problem := _problem(version_dir / file, sha))
    ]
    present = {entry.name for entry in version_dir.iterdir()}
    problems += [f"{file} is not in the manifest" for file in sorted(present - set(files) - {MANIFEST})]
    if not problems and model_hash(files) != manifest.get("model_hash"):
        problems = ["model_hash is not the hash of the files"]
    if problems:
        raise PublishError(
            f"{version_dir}: {'; '.join(problems)}. Publish the model again, or roll back to another version"
        )
    return manifest


def read_weights(version_dir: Path) -> dict[str, NDArray[np.float32]]:
    """The weights by name, from whichever of the two formats the directory has."""
    plain = version_dir / "weights.npz"
    if plain.exists():
        with np.load(plain, allow_pickle=False) as stored:
            return {name: stored[name] for name in stored.files}
    from safetensors.numpy import load_file

    return dict(load_file(version_dir / "weights.safetensors"))


def versions_of(model_dir: Path) -> list[str]:
    """Published versions, oldest first."""
    directory = model_dir / "versions"
    found = [entry.name for entry in directory.iterdir() if VERSION.match(entry.name)] if directory.is_dir() else []
    return sorted(found, key=_number)


def write_atomic(path: Path, data: bytes) -> None:
    """Replace a file by a durable rename: a reader sees the old bytes or the new ones, whole."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        _write_synced(temporary, data)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _problem(path: Path, sha: str) -> str | None:
    try:
        found = hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        return "is missing"
    return None if found == sha else f"was changed (sha256 {found[:12]}…, the manifest says {sha[:12]}…)"


def _weights_bytes(weights: Mapping[str, NDArray[np.float32]]) -> tuple[str, bytes]:
    """safetensors where that package is installed, else NumPy's own archive; never pickle."""
    try:
        from safetensors.numpy import save
    except ImportError:
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {name: np.ascontiguousarray(value) for name, value in weights.items()}
        np.savez(buffer, **arrays)
        return "weights.npz", buffer.getvalue()
    return "weights.safetensors", save({name: np.ascontiguousarray(value) for name, value in weights.items()})


def _json(value: Any, indent: int | None = 2) -> bytes:
    # allow_nan=False: NaN is not JSON, and a reader in another language would refuse the whole file
    return (json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False) + "\n").encode()


def _number(version: str) -> int:
    match = VERSION.match(version)
    assert match is not None
    return int(match[1])
