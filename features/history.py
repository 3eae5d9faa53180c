"""Point-in-time join: what the online store would have answered at each row's time, from Parquet. One row out per row in.

    frame (keys, as_of_ms, anything else) ──chunk by chunk──► the same rows, with a column per feature

**Known at T.** A record counts when it arrived (ingest time) strictly before T, and met the fate that the job would
have given it on arrival: copies within the dedup horizon, late and future records are left out. A batch row counts from
its event time on (event time <= T), where its source has an ingest time only if that is before T; the latest by
(event time, ingest time) wins, and one whose `valid_to` is not after T leaves nothing. `event_time_only=True` takes every
record as known when it happened: for a history without ingest times, and for comparing with systems that have no other.

**Statuses.** Online, a windowed value is missing before the first heartbeat and stale when the heartbeat is older than the
view's max_age. Offline the heartbeat at T is the newest ingest time before T of any record of the source. The rest is as
online: last, first and batch values go by their own age, defaults stand in, and `expr` is evaluated by the same code.

Values are those of `InMemoryStore` after a replay of what arrived before T (tests/features/test_history.py), bit for bit.
The joins are in `history_joins.py`, the files in `parquet.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from features.expr import did_you_mean
from features.frames import Frame, frame_of
from features.loader import SHIPPED
from features.parquet import HistoryError, Limits, session
from features.role_history import RoleHistory
from features.rows import Status
from features.spec import Catalogue, FeatureSpec, FeatureView

if TYPE_CHECKING:
    from features.rows import FeatureBatch

AS_OF: Final = "as_of_ms"
STATUS: Final = "__status"  # suffix of a feature's column of statuses
CHUNK_ROWS: Final = 200_000
_ARROW: Final = {"int": pa.int64(), "double": pa.float64(), "bool": pa.bool_(), "string": pa.string()}
_STATUS_NAMES: Final = [status.name.lower() for status in Status]


@dataclass(frozen=True, kw_only=True)
class Role:
    """A view under another name. `keys`: join key -> column of the frame; default: `<role>` for a one-column key,
    `<role>.<join key>` for several."""

    view: str
    keys: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One role as it is asked for: the view cut down to the features needed, and where its keys are in the frame."""

    role: str
    view: FeatureView
    features: tuple[str, ...]
    keys: tuple[str, ...]


def history(
    catalogue: Catalogue,
    frame: pa.Table,
    features: Sequence[str],
    *,
    roles: Mapping[str, Role | str] | None = None,
    folder: Path | str = SHIPPED,
    event_time_only: bool = False,
    statuses: bool = False,
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> pa.Table:
    """The frame with a column `view.feature` or `role.feature` behind it for each of `features` (`view.*`: all of them).

    `frame` has the entity's keys under their names (of a role: see Role), `as_of_ms`, and request fields that are read;
    all its columns, rows and their order stay. `folder`: where the sources' relative paths start. `statuses` adds a
    column `<feature>__status` each. `progress(rows done, rows)`.
    Raises: HistoryError for an unknown feature, a column that is absent or of another type, or files that do not fit.
    """
    parts = list(
        history_batches(
            catalogue, frame, features, roles=roles, folder=folder, event_time_only=event_time_only,
            statuses=statuses, limits=limits, progress=progress,
        )
    )  # fmt: skip
    return pa.concat_tables(parts)


def history_to_parquet(
    catalogue: Catalogue, frame: pa.Table | Path | str, out: Path | str, features: Sequence[str], **options: Any
) -> int:
    """`history` of a frame (a table, a Parquet or a CSV file) of any size into a Parquet file; returns its rows.

    The file appears whole or not at all. Options and errors as `history`.
    """
    return write_batches(catalogue, frame_of(frame), out, features, **options)


def write_batches(catalogue: Catalogue, frame: Frame, out: Path | str, features: Sequence[str], **options: Any) -> int:
    """`history_batches` into a Parquet file, under its name only when it is whole."""
    target = Path(out)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.unfinished")
    num_rows = 0
    writer: pq.ParquetWriter | None = None
    try:
        for part in history_batches(catalogue, frame, features, **options):
            writer = writer or pq.ParquetWriter(unfinished, part.schema, compression="zstd")
            writer.write_table(part)
            num_rows += part.num_rows
        assert writer is not None
        writer.close()
        unfinished.replace(target)
    except BaseException:
        if writer is not None:
            writer.close()
        unfinished.unlink(missing_ok=True)
        raise
    return num_rows


def history_batches(
    catalogue: Catalogue,
    frame: pa.Table | Path | str | Frame,
    features: Sequence[str],
    *,
    roles: Mapping[str, Role | str] | None = None,
    folder: Path | str = SHIPPED,
    event_time_only: bool = False,
    statuses: bool = False,
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
    chunk_rows: int = CHUNK_ROWS,
) -> Iterator[pa.Table]:
    """`history` part by part, so that neither the frame nor the answer has to fit into memory. At least one part."""
    rows = frame if isinstance(frame, Frame) else frame_of(frame)
    asked = resolve(catalogue, features, roles or {})
    _check_columns(rows, asked, statuses)
    bounds = rows.bounds(AS_OF)
    with session(limits or Limits()) as connection:
        joins = [
            RoleHistory(
                connection, catalogue, one.role, one.view, Path(folder), bounds, event_time_only=event_time_only
            )
            for one in asked
        ]
        done = 0
        for chunk in rows.chunks(chunk_rows):
            as_of_ms = rows.times(chunk, AS_OF)
            for one, join in zip(asked, joins, strict=True):
                keys = [rows.keys(chunk, column, entity_key) for column, entity_key in _key_columns(one)]
                batch = join.batch(keys, as_of_ms, rows.requests(chunk, one.view))
                for name in one.features:
                    for title, column in _columns(one.role, name, batch, statuses):
                        chunk = chunk.append_column(title, column)
            done += chunk.num_rows
            yield chunk
            if progress is not None:
                progress(done, rows.num_rows)


def resolve(catalogue: Catalogue, features: Sequence[str], roles: Mapping[str, Role | str]) -> list[Asked]:
    """Which views, cut down to which features. Raises: HistoryError with all unknown names."""
    named = {name: Role(view=role) if isinstance(role, str) else role for name, role in roles.items()}
    known = {**{view: Role(view=view) for view in catalogue.views}, **named}
    wanted: dict[str, list[str]] = {}
    wrong: list[str] = []
    for role, spec in known.items():
        if spec.view not in catalogue.views:
            wrong.append(_unknown(f"role '{role}': there is no view '{spec.view}'", spec.view, catalogue.views))
    for text in features:
        role, dot, name = text.rpartition(".")
        view = catalogue.views.get(known[role].view) if role in known else None
        if view is None or not dot:
            every = [
                f"{r}.{f.name}"
                for r, s in known.items()
                if s.view in catalogue.views
                for f in catalogue.views[s.view].features
            ]
            wrong.append(_unknown(f"there is no feature '{text}'", text, every))
            continue
        names = [spec.name for spec in view.features]
        if name != "*" and name not in names:
            wrong.append(_unknown(f"view '{view.name}' has no feature '{name}'", name, names))
        else:
            wanted.setdefault(role, []).extend(names if name == "*" else [name])
    if wrong or not features:
        raise HistoryError("\n".join(dict.fromkeys(wrong)) or "no feature is asked for: name them as view.feature")
    return [_asked(role, known[role], catalogue, tuple(dict.fromkeys(names)), named) for role, names in wanted.items()]


def _asked(role: str, spec: Role, catalogue: Catalogue, names: tuple[str, ...], named: Mapping[str, Role]) -> Asked:
    view = catalogue.views[spec.view]
    join_keys = view.entity.join_keys
    wrong = set(spec.keys) - set(join_keys)
    if wrong:
        raise HistoryError(f"role '{role}': entity {view.entity.name} has no key {sorted(wrong)}; it has {join_keys}")
    if role not in named:
        default = {key: key for key in join_keys}
    else:
        default = {key: role if len(join_keys) == 1 else f"{role}.{key}" for key in join_keys}
    needed = _read_by(view, names)
    cut = replace(view, features=tuple(feature for feature in view.features if feature.name in needed))
    return Asked(role=role, view=cut, features=names, keys=tuple({**default, **spec.keys}[key] for key in join_keys))


def reads_request(view: FeatureView, spec: FeatureSpec) -> bool:
    """Whether a feature's value depends on what comes with the question."""
    return bool(_read_by(view, [spec.name]) & view.request.keys())


def _read_by(view: FeatureView, names: Sequence[str]) -> set[str]:
    """The features and request fields that some features are made of, themselves included."""
    own = {feature.name: feature for feature in view.features}
    found, todo = set[str](), list(names)
    while todo:
        name = todo.pop()
        program = own[name].expr if name in own else None
        todo += [] if program is None or name in found else program.names
        found.add(name)
    return found


def _unknown(message: str, name: str, known: Any) -> str:
    hint = did_you_mean(name, known)
    return message + (f"; did you mean '{hint}'?" if hint else "")


def _key_columns(asked: Asked) -> Iterator[tuple[str, Any]]:
    yield from zip(asked.keys, asked.view.entity.keys, strict=True)


def _check_columns(rows: Frame, asked: Sequence[Asked], statuses: bool) -> None:
    """All that is wrong with the frame at once."""
    wrong = rows.check_times(AS_OF)
    for one in asked:
        for column, entity_key in _key_columns(one):
            wrong += rows.check_key(column, entity_key, f"{one.role}: entity {one.view.entity.name}")
        wrong += rows.check_requests(one.view)
        added = [f"{one.role}.{name}" for name in one.features]
        added += [f"{name}{STATUS}" for name in added] if statuses else []
        wrong += [f"the frame already has a column '{name}'" for name in added if name in rows.names]
    if wrong:
        raise HistoryError(f"{rows.what}: " + f"\n{rows.what}: ".join(dict.fromkeys(wrong)))


def _columns(role: str, name: str, batch: FeatureBatch, statuses: bool) -> Iterator[tuple[str, pa.Array]]:
    place = batch.names.index(name)
    yield f"{role}.{name}", arrow_column(batch.types[place], batch.columns[name], batch.valid[name])
    if statuses:
        codes = pa.array(batch.statuses[:, place].astype(np.int8))
        yield f"{role}.{name}{STATUS}", pa.DictionaryArray.from_arrays(codes, pa.array(_STATUS_NAMES))


def arrow_column(type_name: str, values: NDArray[Any], valid: NDArray[np.bool_]) -> pa.Array:
    """Values and where there are any, as Arrow."""
    return pa.array(values, _ARROW[type_name], mask=None if valid.all() else ~valid)
