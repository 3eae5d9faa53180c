"""A model directory (◆ onnxruntime): checked on load, then probabilities from columns.

    versions/v0001/  manifest.json  program.json  golden.json  model.onnx  …
    champion         the version that serves, one line, replaced by an atomic rename

`ColumnProgram` turns named columns into the graph's input and is the one that training uses too, so the two cannot
differ. Nothing here unpickles. Read `engine/scorer.py` for deadlines and what happens when a model is late.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from features.expr import Column, Mistakes, Program, SourceText, Type, compile_expr, evaluate, parse_type

FORMAT: Final = 1
MANIFEST: Final = "manifest.json"
PROGRAM: Final = "program.json"
GOLDEN: Final = "golden.json"
GRAPH: Final = "model.onnx"
CHAMPION_FILE: Final = "champion"
_NUMERIC: Final = ("int", "double", "bool")


class ModelError(ValueError):
    """A model directory that must not serve; the message names the file and what is wrong with it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnProgram:
    """Which expression makes which input column, and what stands in for null.

    `names` types what the expressions may read; `columns` are (name, program, fill) in the order of the graph's input.
    """

    names: Mapping[str, Type]
    columns: tuple[tuple[str, Program, float], ...]

    @classmethod
    def load(
        cls, entries: Sequence[Mapping[str, Any]], names: Mapping[str, Type], *, file: str = PROGRAM
    ) -> ColumnProgram:
        """Compile the entries of program.json, `[{"name", "expr", "fill"}, …]`.

        Raises: ModelError for an entry of another shape, features.expr.Mistakes for an expression that does not compile.
        """
        columns = []
        for at, entry in enumerate(entries):
            if set(entry) != {"name", "expr", "fill"}:
                raise ModelError(f"{file}: entry {at} must have exactly name, expr and fill, not {sorted(entry)}")
            program = compile_expr(SourceText(entry["expr"], f"{file}:{entry['name']}", 1, 1), names)
            if program.type.kind not in _NUMERIC:
                raise ModelError(
                    f"{file}: column '{entry['name']}' is a {program.type}; a model takes numbers and bools"
                )
            columns.append((str(entry["name"]), program, float(entry["fill"])))
        return cls(names=names, columns=tuple(columns))

    @property
    def reads(self) -> frozenset[str]:
        """The names that evaluation needs."""
        return frozenset().union(*(program.names for _, program, _ in self.columns))

    def evaluate(self, columns: Mapping[str, Column], num_rows: int) -> np.ndarray:
        """The graph's input.

        Shapes: each column (N,) or (1,) for a value of the whole request; returns (N, F) float32, null as its fill.
        """
        x_NF = np.empty((num_rows, len(self.columns)), dtype=np.float32)
        for at, (_, program, fill) in enumerate(self.columns):
            # A bare name, which most inputs are, is its column: evaluating it would cost as much as a whole expression.
            column = columns[str(program.root.value)] if program.root.step == "name" else evaluate(program, columns)
            if column.valid.all():
                x_NF[:, at] = column.values
            else:
                x_NF[:, at] = np.where(column.valid, column.values, fill)
        return x_NF


class Model:
    """One loaded version: its manifest, its column program and a single-threaded session."""

    def __init__(self, manifest: Mapping[str, Any], program: ColumnProgram, session: Any) -> None:
        self.manifest = manifest
        self.name: str = manifest["name"]
        self.version: str = manifest["version"]
        self.hash: str = manifest["model_hash"]
        self.program = program
        self._session = session

    @property
    def ref(self) -> str:
        """What a Decision calls it: `name@version`."""
        return f"{self.name}@{self.version}"

    def run(self, x_NF: np.ndarray) -> np.ndarray:
        """Probabilities of input rows. Shapes: (N, F) float32; returns (N,) float64."""
        return np.asarray(self._session.run(["p"], {"x": x_NF})[0], dtype=np.float64).reshape(-1)

    def score(self, columns: Mapping[str, Column], num_rows: int) -> np.ndarray:
        """Probabilities of candidates. Shapes: as `ColumnProgram.evaluate`; returns (N,) float64."""
        return self.run(self.program.evaluate(columns, num_rows))


def load_model(directory: Path) -> Model:
    """Load one version after checking every hash and the golden rows.

    Raises: ModelError naming the file and the difference.
    """
    manifest = _json(directory / MANIFEST)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise ModelError(f"{directory / MANIFEST}: format {FORMAT} is what this engine reads")
    missing = {"name", "version", "names", "files", "model_hash"} - set(manifest)
    if missing:
        raise ModelError(f"{directory / MANIFEST}: missing {', '.join(sorted(missing))}")
    files: dict[str, str] = manifest["files"]
    if unhashed := {GRAPH, PROGRAM, GOLDEN} - set(files):
        raise ModelError(f"{directory / MANIFEST}: `files` must hash {', '.join(sorted(unhashed))}")
    for name, expected in files.items():
        found = _sha256(directory / name)
        if found != expected:
            raise ModelError(f"{directory / name}: sha256 {found[:12]}… differs from the manifest's {expected[:12]}…")
    if manifest["model_hash"] != model_hash(files):
        raise ModelError(f"{directory / MANIFEST}: model_hash does not match `files`")
    names = {name: parse_type(text) for name, text in manifest["names"].items()}
    try:
        program = ColumnProgram.load(_json(directory / PROGRAM), names, file=str(directory / PROGRAM))
    except Mistakes as error:
        raise ModelError(str(error)) from None
    model = Model(manifest, program, _session(directory / GRAPH, len(program.columns)))
    _check_golden(model, _json(directory / GOLDEN), directory / GOLDEN)
    return model


def model_hash(files: Mapping[str, str]) -> str:
    """One hash over the files' hashes: canonical JSON of the map, keys sorted."""
    return hashlib.sha256(json.dumps(dict(files), sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def champion_version(models_dir: Path, name: str) -> str | None:
    """The version that the pointer file names, or None when there is no champion yet.

    Raises: ModelError for a pointer that is not one plain name.
    """
    path = models_dir / name / CHAMPION_FILE
    try:
        version = path.read_text().strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: is no file with the name of a version ({error})") from None
    if not version or "/" in version or version.startswith("."):
        raise ModelError(f"{path}: holds '{version}', not the name of a version")
    return version


def version_dir(models_dir: Path, name: str, version: str) -> Path:
    return models_dir / name / "versions" / version


def check_names(model: Model, known: Mapping[str, Type]) -> None:
    """Refuse a model that needs what a strategy does not offer, or needs it never null.

    Raises: ModelError naming the first such name.
    """
    for name in sorted(model.program.reads):
        wanted, offered = model.program.names[name], known.get(name)
        if offered is None:
            raise ModelError(f"model {model.ref} reads '{name}', which the strategy does not have")
        if offered.kind != wanted.kind or (offered.nullable and not wanted.nullable):
            raise ModelError(f"model {model.ref} was trained on '{name}: {wanted}', the strategy has '{offered}'")


def _session(path: Path, num_inputs: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    # Front workers share cores: a second thread, or one that spins, slows the neighbours far more than it helps here.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises a dozen types of its own
        raise ModelError(f"{path}: onnxruntime cannot load it: {error}") from None
    inputs = [(item.name, item.type, item.shape[-1]) for item in session.get_inputs()]
    if inputs != [("x", "tensor(float)", num_inputs)]:
        raise ModelError(f"{path}: the input must be x float32 (N, {num_inputs}), it is {inputs}")
    if "p" not in [item.name for item in session.get_outputs()]:
        raise ModelError(f"{path}: no output named 'p'")
    return session


def _check_golden(model: Model, golden: Any, path: Path) -> None:
    x_NF = np.asarray(golden["x"], dtype=np.float32)
    expected_N = np.asarray(golden["p"], dtype=np.float64)
    if x_NF.ndim != 2 or len(x_NF) == 0 or x_NF.shape != (len(expected_N), len(model.program.columns)):
        raise ModelError(
            f"{path}: x has shape {x_NF.shape}, expected ({len(expected_N)}, {len(model.program.columns)})"
        )
    worst = float(np.abs(model.run(x_NF) - expected_N).max())
    if not worst <= golden["atol"]:
        raise ModelError(
            f"{path}: the graph differs from the golden rows by {worst:.3g}, more than {golden['atol']:.3g}"
        )


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"{path}: missing") from None
    except ValueError as error:
        raise ModelError(f"{path}: not JSON: {error}") from None


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except FileNotFoundError:
        raise ModelError(f"{path}: missing, though the manifest lists it") from None
