"""A strategy as written and as it runs.

`Strategy` is one YAML file with its places (`engine/loader.py` reads it); `CompiledStrategy` is immutable, checked
against the applied features, and what `engine/decide.py` runs. A request's or candidate's field is a name by itself
(`hour`, `eta_s`), a feature is `role.feature`, a parameter `params.name`, a model and a `let` are names by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import msgspec

    from engine.experiment import Bucketing
    from features.expr import Column, Program, SourceText, Type
    from features.spec import FeatureView

ENVELOPE: Final = ("order_id", "city", "product")  # texts of every request, known as names without being declared
CHAMPION: Final = "champion"
EXPLORE_KINDS: Final = ("none", "epsilon", "softmax")


class StrategyError(ValueError):
    """A strategy cannot be used; `features.expr.Mistakes` carries what is wrong in a file, place by place."""


@dataclass(frozen=True, kw_only=True)
class Param:
    """A tunable. It belongs to at most one layer, and only an experiment of that layer may set it."""

    name: str
    type: str  # "int", "double", "bool" or "string"
    default: Any
    min: float | None = None
    max: float | None = None
    layer: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelUse:
    """A model's probability under a name. `version` is `champion` or a fixed version; `on_late` stands in for it."""

    name: str
    model: str
    version: str
    deadline_ms: float
    on_late: SourceText | None = None


@dataclass(frozen=True, kw_only=True)
class Rule:
    """One named condition and its effect: drop the candidate, or add to or multiply its score."""

    id: str
    condition: SourceText
    drop: bool
    add: SourceText | None = None
    multiply: SourceText | None = None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Best score first; equal scores go by `ties` ascending, then by the candidates' key. Only the first `keep` can be chosen."""

    by: str = "score"
    ties: str = ""
    keep: int = 50


@dataclass(frozen=True, kw_only=True)
class Explore:
    """How the draw is made: `none` takes the best; `epsilon` spreads that share evenly over the kept ones and gives
    the rest to the best; `softmax` goes by exp(score / temperature)."""

    kind: str = "none"
    epsilon: float = 0.0
    temperature: float = 0.0
    salt: str = ""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One side of an experiment: its share of the layer and what it sets, `{param name: value}`."""

    name: str
    share: float
    set: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A named split of a layer by a hash of (salt, the value of `unit`)."""

    name: str
    layer: str
    unit: str
    salt: str
    arms: tuple[Arm, ...]


@dataclass(frozen=True, kw_only=True)
class Role:
    """A view under a role's name. `key` is the field that holds the entity's key; `per_candidate` says which kind."""

    name: str
    view: FeatureView
    key: str
    per_candidate: bool


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One file as written. `hash` is the SHA-256 of its text: what a Decision names."""

    name: str
    version: int
    hash: str
    file: str
    scope: Mapping[str, str]
    request: Mapping[str, Type]
    candidate_key: str
    candidate_fields: Mapping[str, Type]
    roles: tuple[Role, ...]
    params: Mapping[str, Param]
    models: Mapping[str, ModelUse]
    lets: tuple[tuple[str, SourceText], ...]
    rules: tuple[Rule, ...]
    score: SourceText
    rank: Rank
    explore: Explore
    experiments: tuple[Experiment, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class CompiledRule:
    """`bit` is its place in the `fired` and `unknown` masks of a Decision: the rule's place in the file."""

    id: str
    bit: int
    condition: Program
    drop: bool
    add: Program | None
    multiply: Program | None
    why: str


@dataclass(frozen=True, kw_only=True, eq=False)
class CompiledArms:
    """An experiment with its buckets laid out and what each arm sets as ready columns and plain values."""

    experiment: Experiment
    bucketing: Bucketing
    columns: tuple[Mapping[str, Column], ...]
    values: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class CompiledStrategy:
    """What runs. Programs are grouped by when they are needed; `names` types every name a model may use.

    `lets_before` need no model; `lets_after` do. `read_after` are the columns that anything after the drop rules reads.
    """

    strategy: Strategy
    names: Mapping[str, Type]
    decoder: msgspec.json.Decoder[Any]
    arms: tuple[CompiledArms, ...]
    param_columns: Mapping[str, Column]
    param_values: Mapping[str, Any]
    lets_before: tuple[tuple[str, Program], ...]
    lets_after: tuple[tuple[str, Program], ...]
    drops: tuple[CompiledRule, ...]
    adjusts: tuple[CompiledRule, ...]
    on_late: Mapping[str, Program]
    score: Program
    read_after: frozenset[str]
    layers_read: tuple[str, ...]
    schema_fingerprint: str

    @property
    def name(self) -> str:
        return self.strategy.name
