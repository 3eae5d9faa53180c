"""The body of a request: checked once, by a decoder made for its strategy, and turned into columns.

Shape and types are checked while the JSON is read (msgspec, at C speed), so an error names its place, `$.candidates.
eta_s[3]`. Bodies and answers are described in `engine/WIRE.md`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
import numpy as np
from msgspec import Meta

from engine.strategy import ENVELOPE
from features.expr import Column, Type
from features.records import Id, TimeMs
from features.yaml_source import did_you_mean

if TYPE_CHECKING:
    from engine.strategy import CompiledStrategy, Strategy

MAX_CANDIDATES: Final = 500
MAX_BODY_BYTES: Final = 1 << 20
_INT64: Final = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_TEXT: Final = Annotated[str, Meta(max_length=1000)]
_PYTHON: Final[dict[str, Any]] = {"int": _INT64, "double": float, "bool": bool, "string": _TEXT}
_AT: Final = re.compile(r"^(?P<reason>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_NAMED_FIELD: Final = re.compile(r"(missing required|unknown) field `(?P<name>[^`]+)`")


class RequestError(ValueError):
    """A request that cannot be decided. `status` is HTTP's, `code` is for programs, `path` says where."""

    def __init__(self, status: int, code: str, message: str, *, path: str = "$", hint: str = "") -> None:
        super().__init__(f"{path}: {message}")
        self.status, self.code, self.message, self.path, self.hint = status, code, message, path, hint


@dataclass(frozen=True, kw_only=True)
class Request:
    """One order and its K candidates, checked.

    `values` holds the request's fields and the envelope's; `candidates` one list of K per field, the key among them.
    """

    order_id: str
    decision_id: str
    round_id: int | None
    city: str
    product: str
    as_of_ms: int
    values: Mapping[str, Any]
    candidate_ids: list[str]
    candidates: Mapping[str, list[Any]]

    @property
    def num_candidates(self) -> int:
        return len(self.candidate_ids)


def body_decoder(strategy: Strategy) -> msgspec.json.Decoder[Any]:
    """A decoder that accepts exactly what the strategy declares. Names are renamed, so a field may be called `class`."""
    request = _struct("Fields", strategy.request, column=False)
    candidates = _struct("Candidates", strategy.candidate_fields, column=True)
    body = msgspec.defstruct(
        "Body",
        [
            ("order_id", Id),
            ("as_of_ms", TimeMs),
            ("city", Id),
            ("product", Id),
            ("request", request),
            ("candidates", candidates),
            ("decision_id", Id | None, None),
            ("round_id", TimeMs | None, None),
        ],
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return msgspec.json.Decoder(body)


def parse(compiled: CompiledStrategy, raw: bytes) -> Request:
    """The bytes of a body to a checked Request.

    Raises: RequestError, 400 for a body that does not fit the strategy, 413 for too many candidates.
    """
    strategy = compiled.strategy
    try:
        body = compiled.decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _located(str(error), strategy) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(400, "malformed", f"not JSON: {error}") from None
    _check_scope(body, strategy)
    values = {"order_id": body.order_id, "city": body.city, "product": body.product}
    for at, name in enumerate(strategy.request):
        value = getattr(body.request, f"f{at}")
        if name in values:  # declared though it comes with the envelope: allowed, as long as the two agree
            if value is not None and value != values[name]:
                raise RequestError(400, "conflict", f"'{name}' differs from $.{name}", path=f"$.request.{name}")
            continue
        values[name] = value
    candidates = {name: getattr(body.candidates, f"f{at}") for at, name in enumerate(strategy.candidate_fields)}
    ids = _check_candidates(candidates, strategy)
    return Request(
        order_id=body.order_id,
        decision_id=body.decision_id or default_decision_id(body.order_id, body.round_id, strategy.name),
        round_id=body.round_id,
        city=body.city,
        product=body.product,
        as_of_ms=body.as_of_ms,
        values=values,
        candidate_ids=ids,
        candidates=candidates,
    )


def default_decision_id(order_id: str, round_id: int | None, strategy: str) -> str:
    """The id of a decision that was given none: the same order, round and strategy is the same decision."""
    text = msgspec.json.encode([order_id, round_id, strategy])
    return f"dec-{hashlib.blake2b(text, digest_size=12).hexdigest()}"


def request_columns(compiled: CompiledStrategy, request: Request) -> dict[str, Column]:
    """Columns of the request's fields, shape (1,), and of the candidates' fields, shape (K,)."""
    columns = {
        name: to_column([request.values[name]], kind) for name, kind in compiled.names.items() if name in request.values
    }
    for name, kind in compiled.strategy.candidate_fields.items():
        columns[name] = to_column(request.candidates[name], kind)
    return columns


def to_column(values: list[Any], kind: Type) -> Column:
    """A column of plain values, None for null. A double that is not finite is null: NaN is not a value here."""
    if kind.nullable and None in values:
        valid = np.array([value is not None for value in values], dtype=bool)
        values = [_ZERO[kind.kind] if value is None else value for value in values]
    else:
        valid = np.ones(len(values), dtype=bool)
    if kind.kind == "string":
        texts = np.empty(len(values), dtype=object)
        texts[:] = values
        return Column(texts, valid)
    return Column(np.array(values, dtype=_DTYPE[kind.kind]), valid)


_ZERO: Final[dict[str, Any]] = {"int": 0, "double": 0.0, "bool": False, "string": ""}
_DTYPE: Final[dict[str, Any]] = {"int": np.int64, "double": np.float64, "bool": np.bool_}


def _struct(name: str, fields: Mapping[str, Type], *, column: bool) -> type[msgspec.Struct]:
    """A struct with one member per field: a value, or for candidates a list of values."""
    members: list[Any] = []
    for at, (field, kind) in enumerate(fields.items()):
        value: Any = _PYTHON[kind.kind]
        if column:
            value = list.__class_getitem__(value | None if kind.nullable else value)
        optional = kind.nullable or (not column and field in ENVELOPE)
        members.append((f"f{at}", value | None, None) if optional else (f"f{at}", value))
    rename = {f"f{at}": field for at, field in enumerate(fields)}
    return msgspec.defstruct(name, members, rename=rename, kw_only=True, forbid_unknown_fields=True)


def _check_scope(body: Any, strategy: Strategy) -> None:
    for name in ("city", "product"):
        wanted = strategy.scope[name]
        found = getattr(body, name)
        if wanted not in ("*", found):
            raise RequestError(
                400,
                "out_of_scope",
                f"strategy {strategy.name} serves {name} '{wanted}', not '{found}'",
                path=f"$.{name}",
                hint="send it to a strategy with that scope",
            )


def _check_candidates(candidates: dict[str, Any], strategy: Strategy) -> list[str]:
    """At least one, equal lengths, not too many, no key twice; an absent nullable column becomes all null."""
    key = strategy.candidate_key
    ids: list[str] = candidates[key]
    if len(ids) > MAX_CANDIDATES:
        raise RequestError(
            413,
            "too_many_candidates",
            f"{len(ids)} candidates; at most {MAX_CANDIDATES} are decided at once",
            path=f"$.candidates.{key}",
            hint="keep the nearest ones",
        )
    if not ids:
        raise RequestError(
            400,
            "no_candidates",
            "there is nothing to choose from",
            path=f"$.candidates.{key}",
            hint="ask again when there is a candidate; a decision without any would be no sample either",
        )
    for name, column in candidates.items():
        if column is None:
            candidates[name] = [None] * len(ids)
        elif len(column) != len(ids):
            raise RequestError(
                400,
                "length",
                f"{len(column)} values for {len(ids)} candidates",
                path=f"$.candidates.{name}",
                hint=f"candidates are columns: each list has one value per {key}",
            )
    if len(set(ids)) != len(ids):
        at = next(at for at, identifier in enumerate(ids) if identifier in ids[:at])
        raise RequestError(400, "duplicate", f"candidate '{ids[at]}' is there twice", path=f"$.candidates.{key}[{at}]")
    if "" in ids:
        raise RequestError(400, "malformed", "a candidate's key is empty", path=f"$.candidates.{key}[{ids.index('')}]")
    return ids


def _located(message: str, strategy: Strategy) -> RequestError:
    """msgspec's message to a path and a hint. It names a missing or unknown field in the text: put it in the path."""
    match = _AT.match(message)
    assert match is not None
    reason, path = match["reason"], match["path"] or "$"
    named = _NAMED_FIELD.search(reason)
    hint = ""
    if named is not None:
        known = {"$.request": strategy.request, "$.candidates": strategy.candidate_fields}.get(path, _BODY)
        near = did_you_mean(named["name"], known)
        hint = f"did you mean '{near}'?" if "unknown" in reason and near else f"known here: {', '.join(known)}"
        path = f"{path}.{named['name']}"
    return RequestError(400, "malformed", reason, path=path, hint=hint)


_BODY: Final = ("order_id", "as_of_ms", "city", "product", "request", "candidates", "decision_id", "round_id")
