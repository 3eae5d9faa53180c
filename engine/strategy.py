"""A strategy as written and as it runs.

`Strategy` is one YAML file with its places (`engine/loader.py` reads it); `CompiledStrategy` is immutable, checked
against the applied features, and what `engine/decide.py` runs. A request's or candidate's field is a name by itself
(`hour`, `eta_s`), a feature is `role.feature`, a parameter `params.name`, a model and a `let` are names by themselves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import msgspec

    from engine.experiment import Bucketing
    from engine.table import CompiledTable
    from features.expr import Column, Facts, Mistake, Program, SourceText, Type
    from features.spec import FeatureView

ENVELOPE: Final = ("order_id", "city", "product")  # texts of every request, known as names without being declared
AS_OF: Final = "as_of"  # the time of every request, a timestamp; known without being declared, too
CHAMPION: Final = "champion"
EXPLORE_KINDS: Final = ("none", "epsilon", "softmax", "top_k_softmax")
ON_UNKNOWN: Final = ("skip", "fire", "fail_row")
HITS: Final = ("first", "unique", "collect")
COLLECTS: Final = ("sum", "min", "max", "count")
EXPERIMENT_KINDS: Final = ("hash", "switchback")
OFFSETS: Final = ("none", "hashed")


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
    unit: str = ""


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
    """One named condition and its effect: drop the candidate, or change its score (`set`, then `add`, then `multiply`).

    `on_unknown` says what a condition that is null or a row error means: `skip` it, `fire` it, or `fail_row` (drop the
    candidate); None when the author did not say, which is `skip`. Either way the `unknown` bit is set. `kill_switch` is a
    name under which the rule can be switched off, besides its id.
    """

    id: str
    condition: SourceText
    drop: bool
    set: SourceText | None = None
    add: SourceText | None = None
    multiply: SourceText | None = None
    why: str = ""
    owner: str = ""
    kill_switch: str = ""
    on_unknown: str | None = None


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What one cell of a decision table accepts.

    kind: `any` (null too), `null`, `values` (one of `values`, never null), `range` (from `low` to `high`, each open or closed,
    None for no bound; never null). `text` and the place are as written, for messages.
    """

    kind: str
    values: tuple[Any, ...] = ()
    low: float | int | None = None
    high: float | int | None = None
    low_open: bool = False
    high_open: bool = False
    text: str = ""
    line: int = 0
    col: int = 0


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One line of the CSV: a cell per input, a value per output (None is null). `line` is its line in that file."""

    cells: tuple[Cell, ...]
    outputs: tuple[Any, ...]
    line: int


@dataclass(frozen=True, kw_only=True)
class Table:
    """A decision table. Its outputs are the names `table.output` of the strategy.

    `hit`: the `first` row that matches; `unique`: no two rows may match; `collect`: `collect` (sum, min, max, count) over
    all rows that match. `on_gap`, when no row matches: `error` (a row error), `null`, or the values of `gap_values`.
    """

    name: str
    hit: str
    on_gap: str  # "error", "null" or "default"
    inputs: tuple[str, ...]
    outputs: Mapping[str, Type]
    rows: tuple[TableRow, ...]
    file: str  # of the CSV
    collect: str = "sum"
    gap_values: Mapping[str, Any] = field(default_factory=dict)
    source: SourceText | None = None  # its name in the strategy file, for messages
    lines: tuple[str, ...] = field(default=(), repr=False, compare=False)  # of the CSV, for messages


@dataclass(frozen=True, kw_only=True)
class Rank:
    """Best score first; equal scores go by `ties` ascending, then by the candidates' key. Only the first `keep` can be chosen."""

    by: str = "score"
    ties: str = ""
    keep: int = 50


@dataclass(frozen=True, kw_only=True)
class Explore:
    """How the draw is made: `none` takes the best; `epsilon` spreads that share evenly over the kept ones and gives
    the rest to the best; `softmax` goes by exp(score / temperature); `top_k_softmax` is softmax over the best `top_k`."""

    kind: str = "none"
    epsilon: float = 0.0
    temperature: float = 0.0
    top_k: int = 0
    salt: str = ""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One side of an experiment: its share of the admitted units and what it sets, `{param name: value}`."""

    name: str
    share: float
    set: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A named split of a layer. `hash`: by (salt, the value of `unit`). `switchback`: by (salt, the value of `region`, the
    window of `window_ms` that the request's as_of_ms falls in).

    `exposure` is the share of units that are admitted at all, by a hash of its own, so that raising it only adds units.
    `where` admits only requests for which it is true; it reads request fields and the envelope. `offset` of a switchback:
    with `hashed` a region's windows start at a time of its own, with `none` at multiples of `window_ms`.
    """

    name: str
    layer: str
    unit: str
    salt: str
    arms: tuple[Arm, ...]
    kind: str = "hash"
    exposure: float = 1.0
    where: SourceText | None = None
    region: str = ""
    window_ms: int = 0
    offset: str = "none"
    source: SourceText | None = None


@dataclass(frozen=True, kw_only=True)
class Layer:
    """An independent hash space that owns parameters. `holdout` is the share of units that no experiment of it touches."""

    name: str
    holdout: float = 0.0
    salt: str = ""


@dataclass(frozen=True, kw_only=True)
class Role:
    """A view under a role's name. `keys` are the fields that hold the entity's key, in the entity's order.

    `per_candidate`: one of them at least is a candidate's; else all are the request's.
    """

    name: str
    view: FeatureView
    keys: tuple[str, ...]
    per_candidate: bool


@dataclass(frozen=True, kw_only=True)
class Strategy:
    """One file as written. `hash` is the SHA-256 of its text and of the tables it names: what a Decision names.

    `facts` are units and bounds by name, of every name that has any. `outputs` are named values of every survivor.
    `shadow_of` names the strategy whose requests this one also decides, off the request path and without effect.
    """

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
    layers: Mapping[str, Layer] = field(default_factory=dict)
    tables: Mapping[str, Table] = field(default_factory=dict)
    outputs: tuple[tuple[str, SourceText], ...] = ()
    facts: Mapping[str, Facts] = field(default_factory=dict)
    owner: str = ""
    shadow_of: str | None = None
    tests: str | None = None


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
    set: Program | None = None
    on_unknown: str = "skip"
    kill_switch: str = ""


@dataclass(frozen=True, kw_only=True, eq=False)
class CompiledLet:
    """A named value: a column under its name."""

    name: str
    program: Program

    @property
    def reads(self) -> frozenset[str]:
        return self.program.names

    @property
    def makes(self) -> tuple[str, ...]:
        """The names of its columns."""
        return (self.name,)


@dataclass(frozen=True, kw_only=True, eq=False)
class CompiledArms:
    """An experiment with its buckets laid out and what each arm sets as ready columns and plain values."""

    experiment: Experiment
    bucketing: Bucketing
    columns: tuple[Mapping[str, Column], ...]
    values: tuple[Mapping[str, Any], ...]
    where: Program | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class CompiledStrategy:
    """What runs. Programs are grouped by when they are needed; `names` types every name a model may use.

    `steps_before` (lets and tables in an order in which each can be computed) need no model; `steps_after` do.
    `read_after` are the columns that anything after the drop rules reads, `outputs` the programs of the named outputs.
    `warnings` are what the compiler found worth a look.
    """

    strategy: Strategy
    names: Mapping[str, Type]
    decoder: msgspec.json.Decoder[Any]
    arms: tuple[CompiledArms, ...]
    param_columns: Mapping[str, Column]
    param_values: Mapping[str, Any]
    steps_before: tuple[CompiledLet | CompiledTable, ...]
    steps_after: tuple[CompiledLet | CompiledTable, ...]
    drops: tuple[CompiledRule, ...]
    adjusts: tuple[CompiledRule, ...]
    on_late: Mapping[str, Program]
    score: Program
    read_after: frozenset[str]
    layers_read: tuple[str, ...]
    schema_fingerprint: str
    outputs: tuple[CompiledLet, ...] = ()
    warnings: tuple[Mistake, ...] = ()

    @property
    def name(self) -> str:
        return self.strategy.name

    def reached(self, names: Iterable[str]) -> set[str]:
        """These names and all that stands behind them: what lets and tables among them read, and so on."""
        reads = {made: step.reads for step in (*self.steps_before, *self.steps_after) for made in step.makes}
        found: set[str] = set()
        left = list(names)
        while left:
            name = left.pop()
            if name not in found:
                found.add(name)
                left += reads.get(name, ())
        return found
