"""The body of a request: checked once, by a decoder made for its strategy, and turned into columns.

Shape and types are checked while the JSON is read (msgspec, at C speed), so an error names its place, `$.candidates.
eta_s[3]`. Bodies and answers are described in `engine/WIRE.md`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import msgspec

from engine.request_checks import (
    Bounds,
    Envelope,
    RequestError,
    bounds_of,
    check_bounds,
    check_candidates,
    check_scope,
)
from engine.strategy import AS_OF, ENVELOPE
from engine.wire_values import column_maker, from_wire, is_time, python_type, wire_column_maker
from features.expr import TIMESTAMP, Column, Type
from features.records import Id, TimeMs
from features.yaml_source import did_you_mean

if TYPE_CHECKING:
    from engine.strategy import CompiledStrategy, Strategy

__all__ = [
    "MAX_BODY_BYTES",
    "Envelope",
    "Request",
    "RequestError",
    "body_decoder",
    "build",
    "decode_envelope",
    "default_decision_id",
    "parse",
]

MAX_BODY_BYTES: Final = 1 << 20
_AT: Final = re.compile(r"^(?P<reason>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_NAMED_FIELD: Final = re.compile(r"(missing required|unknown) field `(?P<name>[^`]+)`")


@dataclass(frozen=True, kw_only=True, eq=False)
class Request:
    """One order and its K candidates, checked, as columns that a decision starts from.

    `fields` and `candidates` are as they were sent, which is as they are recorded: the request's fields, and one list of K
    per candidate field, the key among them. `values` has the fields and the envelope as the language sees them.
    `others` are `candidates` without the key. `columns` has all of it by name. Shapes: (1,) for what the whole request shares, (K,) for the candidates' fields.
    """

    order_id: str
    decision_id: str
    round_id: int | None
    city: str
    product: str
    as_of_ms: int
    fields: dict[str, Any]
    values: Mapping[str, Any]
    candidate_ids: list[str]
    candidates: Mapping[str, list[Any]]
    others: dict[str, list[Any]]
    columns: Mapping[str, Column]

    @property
    def num_candidates(self) -> int:
        return len(self.candidate_ids)


def body_decoder(strategy: Strategy) -> msgspec.json.Decoder[Any]:
    """A decoder that accepts exactly what the strategy declares. Names are renamed, so a field may be called `class`."""
    return msgspec.json.Decoder(_body(strategy, with_candidates=True))


def parse(compiled: CompiledStrategy, raw: bytes) -> Request:
    """The bytes of a body to a checked Request.

    Raises: RequestError, 400 for a body that does not fit the strategy, 413 for too many candidates.
    """
    body = _decoded(compiled.decoder, raw, compiled.strategy)
    candidates = {
        name: getattr(body.candidates, f"f{at}") for at, name in enumerate(compiled.strategy.candidate_fields)
    }
    return build(compiled, body, _fields_of(body, compiled.strategy), candidates)


def decode_envelope(compiled: CompiledStrategy, raw: bytes) -> tuple[Envelope, dict[str, Any]]:
    """A body without candidates, which come another way (engine/request_arrow.py): the envelope and the request's fields.

    Raises: RequestError.
    """
    body = _decoded(_envelope_decoder(compiled), raw, compiled.strategy)
    return body, _fields_of(body, compiled.strategy)


@lru_cache(maxsize=64)  # of the strategies that are live, and a few that just were
def _envelope_decoder(compiled: CompiledStrategy) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_body(compiled.strategy, with_candidates=False))


def _decoded(decoder: msgspec.json.Decoder[Any], raw: bytes, strategy: Strategy) -> Any:
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        raise _located(str(error), strategy) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(400, "malformed", f"not JSON: {error}") from None


def _fields_of(body: Any, strategy: Strategy) -> dict[str, Any]:
    return {name: getattr(body.request, f"f{at}") for at, name in enumerate(strategy.request)}


def build(
    compiled: CompiledStrategy,
    envelope: Envelope,
    fields: Mapping[str, Any],
    candidates: Mapping[str, Any],
    columns: Mapping[str, Column] | None = None,
) -> Request:
    """A Request of values whose types are checked already; here lengths, keys, scope and bounds are.

    `candidates` are lists by field, None for one that was left out. `columns` are the same where they are at hand.
    Raises: RequestError.
    """
    strategy, layout = compiled.strategy, _layout_of(compiled)
    check_scope(envelope, strategy)
    sent = _with_envelope(envelope, fields)
    lists: dict[str, list[Any]] = dict(candidates)
    ids = check_candidates(lists, strategy)
    values = {name: sent[name] for name in layout.shared}
    for name, kind in layout.times.items():
        values[name] = from_wire(values[name], kind)
    ready = {name: make((values[name],)) for name, make in layout.shared.items()}
    ready.update(columns or {name: make(lists[name]) for name, make in layout.candidates.items()})
    check_bounds(layout.bounds, sent, lists, ready)
    return Request(
        order_id=envelope.order_id,
        decision_id=envelope.decision_id or default_decision_id(envelope.order_id, envelope.round_id, strategy.name),
        round_id=envelope.round_id,
        city=envelope.city,
        product=envelope.product,
        as_of_ms=envelope.as_of_ms,
        fields={name: sent[name] for name in strategy.request},
        values=values,
        candidate_ids=ids,
        candidates=lists,
        others={name: values for name, values in lists.items() if name != strategy.candidate_key},
        columns=ready,
    )


_Maker = Callable[[Sequence[Any]], Column]


@dataclass(frozen=True, kw_only=True)
class _Layout:
    """What is the same for all requests of a strategy: how columns are made of values.

    `shared` are the names with one value a request, of values as the language sees them, `times` those of them that are sent
    in another form; `candidates` of lists as sent.
    """

    shared: Mapping[str, _Maker]
    times: Mapping[str, Type]
    candidates: Mapping[str, _Maker]
    bounds: Bounds


@lru_cache(maxsize=64)  # of the strategies that are live, and a few that just were
def _layout_of(compiled: CompiledStrategy) -> _Layout:
    strategy = compiled.strategy
    known = {**compiled.names, **strategy.request}
    sent = dict.fromkeys((*strategy.request, *ENVELOPE, AS_OF))  # in the order of `_with_envelope`
    shared = {name: known[name] for name in sent if name in known}
    return _Layout(
        shared={name: column_maker(kind) for name, kind in shared.items()},
        times={name: kind for name, kind in shared.items() if is_time(kind)},
        candidates={name: wire_column_maker(kind) for name, kind in strategy.candidate_fields.items()},
        bounds=bounds_of(strategy),
    )


def default_decision_id(order_id: str, round_id: int | None, strategy: str) -> str:
    """The id of a decision that was given none: the same order, round and strategy is the same decision."""
    text = msgspec.json.encode([order_id, round_id, strategy])
    return f"dec-{hashlib.blake2b(text, digest_size=12).hexdigest()}"


def _body(strategy: Strategy, *, with_candidates: bool) -> type[msgspec.Struct]:
    members: list[Any] = [
        ("order_id", Id),
        ("as_of_ms", python_type(TIMESTAMP)),  # years 1..9999: rules read it as a timestamp
        ("city", Id),
        ("product", Id),
        ("request", _struct("Fields", strategy.request, column=False)),
        ("decision_id", Id | None, None),
        ("round_id", TimeMs | None, None),
    ]
    if with_candidates:
        members.insert(5, ("candidates", _struct("Candidates", strategy.candidate_fields, column=True)))
    return msgspec.defstruct("Body", members, kw_only=True, forbid_unknown_fields=True)


def _struct(name: str, fields: Mapping[str, Type], *, column: bool) -> type[msgspec.Struct]:
    """A struct with one member per field: a value, or for candidates a list of values."""
    members: list[Any] = []
    for at, (field, kind) in enumerate(fields.items()):
        value: Any = list.__class_getitem__(python_type(kind)) if column else python_type(kind)
        optional = kind.nullable or (not column and field in ENVELOPE)
        members.append((f"f{at}", value | None, None) if optional else (f"f{at}", value))
    rename = {f"f{at}": field for at, field in enumerate(fields)}
    return msgspec.defstruct(name, members, rename=rename, kw_only=True, forbid_unknown_fields=True)


def _with_envelope(envelope: Envelope, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields and the envelope's values as sent. A strategy may declare what comes with the envelope, as long as the
    two agree."""
    sent = {
        "order_id": envelope.order_id,
        "city": envelope.city,
        "product": envelope.product,
        "as_of": envelope.as_of_ms,
    }
    for name, value in fields.items():
        if name in sent and value not in (None, sent[name]):
            raise RequestError(400, "conflict", f"'{name}' differs from the envelope's", path=f"$.request.{name}")
    return {**fields, **sent}


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
