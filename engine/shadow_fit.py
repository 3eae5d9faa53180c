"""How a shadow sees the requests of the strategy that it shadows, and whether it can."""

from __future__ import annotations

from engine.request import Request, build
from engine.strategy import CompiledStrategy, Strategy


def request_for(shadow: CompiledStrategy, request: Request) -> Request:
    """The request as the shadow sees it: its own fields, under the same decision_id. `find_misfit` says that it has them.

    Raises: RequestError when it lies outside of the shadow's scope or bounds.
    """
    fields = {name: request.fields.get(name) for name in shadow.strategy.request}
    candidates = {name: request.candidates.get(name) for name in shadow.strategy.candidate_fields}
    return build(shadow, request, fields, candidates)


def find_misfit(shadow: Strategy, of: Strategy) -> str | None:
    """Why a shadow cannot decide the requests of the strategy; None when it can.

    Every field it declares must be one of the other's, of the same type, or may be null.
    """
    if shadow.candidate_key != of.candidate_key:
        return f"its candidates' key is '{shadow.candidate_key}', that of '{of.name}' is '{of.candidate_key}'"
    for what, ours, theirs in (
        ("request", shadow.request, of.request),
        ("candidates", shadow.candidate_fields, of.candidate_fields),
    ):
        for name, kind in ours.items():
            other = theirs.get(name)
            if other is None and not kind.nullable:
                return f"{what}.{name} is not sent to '{of.name}'; declare it '{kind}?'"
            if other is not None and (other.kind != kind.kind or (other.nullable and not kind.nullable)):
                return f"{what}.{name} is {kind} here and {other} in '{of.name}'"
    return None
