"""What a strategy file looks like, section by section: the one description of its keys and of what stands under them.

`engine/loader.py` checks a file against it, `engine/schema.py` publishes it as JSON Schema, `engine/STRATEGIES.md` explains
it with examples. The words are those of `engine/shapes.py`.
"""

from __future__ import annotations

from typing import Final

from engine.shapes import Case, Choice, Either, Expression, Flag, Keys, ListOf, MapOf, Number, Scalar, Shape, Text
from engine.strategy import COLLECTS, EXPERIMENT_KINDS, EXPLORE_KINDS, HITS, OFFSETS, ON_UNKNOWN
from features.expr.types import SCALARS

PARAM_KINDS: Final = ("int", "double", "bool", "string")
RESERVED: Final = ("params", "out", "score", "true", "false", "null", "has", "in")
EFFECTS: Final = ("set", "add", "multiply")

_KINDS: Final = "|".join(SCALARS)
_TYPE: Final = Text(
    doc="A type; ? where it can be null: int, double?, list(string)",
    pattern=rf"(?:{_KINDS}|list\((?:{_KINDS})\))\??",
    message="'{text}' is not a type",
    hint=f"use {', '.join(SCALARS)} or list(…) of one of them, with ? where it can be null",
)
_UNIT: Final = Text(doc="Seconds against metres is a mistake: s, m, m/s, cents, 1")
_MIN, _MAX = Number(doc="The lowest value"), Number(doc="The highest value")
_OWNER: Final = Text(doc="Who answers for it")
_SALT: Final = Text(doc="What hashes are salted with; by default made of the names")
_LAYER_NAME: Final = Text(doc="The layer that owns it")
_SHARE: Final = Number(low=0.0, high=1.0, doc="From 0 to 1")
_IN_FOLDER: Final = r"(?!/)(?!(?:.*/)?\.\.(?:/|$))[^\x00-\x1f\x7f]+"  # a relative path without ..
STRATEGY_NAME: Final = "[A-Za-z0-9_][A-Za-z0-9_.-]*"
TABLE_PATH: Final = _IN_FOLDER + r"\.csv"

FIELD: Final = Either(
    scalar=_TYPE,
    mapping=Keys(entries={"type": _TYPE, "unit": _UNIT, "min": _MIN, "max": _MAX}, required=("type",)),
)

SCOPE: Final = Keys(
    doc="Which requests it serves",
    entries={
        "city": Text(doc="A city, or '*'"),
        "product": Text(doc="A product, or '*'"),
    },
)
CANDIDATES: Final = Keys(
    doc="What a request chooses among",
    entries={
        "key": Text(pattern=f"(?!(?:{'|'.join(RESERVED)})$)[A-Za-z_][A-Za-z0-9_]*", kind="name",
                    message="{what}: '{text}' is not a name", hint="as driver_id", doc="The field that names a candidate"),
        "fields": MapOf(value=FIELD, reserved=RESERVED, doc="What each candidate carries"),
    },
    required=("key",),
)  # fmt: skip
FEATURES: Final = MapOf(
    doc="Role: view. Features are read as role.feature",
    reserved=RESERVED,
    value=Either(
        scalar=Text(doc="A view"),
        mapping=Keys(
            entries={
                "view": Text(doc="A view"),
                "key": Either(
                    scalar=Text(doc="The field that holds its key"),
                    mapping=MapOf(value=Text(doc="A field"), doc="Column of the key: field that holds it"),
                ),
            },
            required=("view",),
        ),
    ),
)  # fmt: skip


def _no_bounds(kind: str) -> dict[str, tuple[str, str]]:
    return {bound: (f"a {kind} has no {bound}", "remove it") for bound in ("min", "max")}


PARAM: Final = Keys(
    entries={
        "type": Choice(of=PARAM_KINDS, doc="What it holds"),
        "default": Scalar(null=False, doc="Its value where no experiment sets it"),
        "unit": _UNIT,
        "min": _MIN,
        "max": _MAX,
        "layer": _LAYER_NAME,
    },
    required=("type", "default"),
    by="type",
    cases={
        "int": Case(shapes={"default": Number(whole=True)}),
        "double": Case(shapes={"default": Number()}),
        "bool": Case(shapes={"default": Flag()}, forbids=_no_bounds("bool")),
        "string": Case(shapes={"default": Text(may_be_empty=True)}, forbids=_no_bounds("string")),
    },
)
MODEL: Final = Keys(
    entries={
        "uses": Text(
            pattern=r"[A-Za-z_][A-Za-z0-9_-]*@[A-Za-z0-9_.-]+",
            kind="model",
            message="{what} must name a model and a version",
            hint="write name@champion or name@v0001",
            doc="name@champion, or name@version",
        ),
        "deadline": Text(
            pattern=r"(?=.*[1-9])[0-9]+(?:\.[0-9]+)?(?:ms|s)",
            message="{what} must be a duration above zero",
            hint="write 8ms or 0.5s",
            doc="How long it is waited for",
        ),
        "on_late": Expression(doc="What stands in for it when it is late; without it the model is null"),
    },
    required=("uses", "deadline"),
)
TABLE: Final = Keys(
    entries={
        "hit": Choice(of=HITS, doc="Which row counts: the first that fits, the only one, or all collected"),
        "collect": Choice(of=COLLECTS, doc="How rows that fit are put together"),
        "on_gap": Either(
            scalar=Choice(of=("error", "null")),
            mapping=MapOf(value=Scalar(), doc="A value for every output"),
            doc="What the outputs are where no row fits: a row error, null, or values",
        ),
        "columns": ListOf(
            item=Either(
                scalar=Text(),
                mapping=MapOf(
                    value=_TYPE,
                    pattern=r"out\.[A-Za-z_][A-Za-z0-9_]*",
                    hint="write an input as its name alone, an output as {out.bonus: double}",
                ),
            ),
            title="a column",
            hint="as [pickup_zone, tier, out.bonus]",
            doc="Names that are looked up, then outputs as out.name or {out.name: type}",
        ),
        "rows": Text(
            pattern=TABLE_PATH,
            kind="path",
            message="{what} must be a .csv file in or below the strategy's folder",
            hint="as tables/bonus.csv",
            doc="The CSV file, relative to this file",
        ),
    },
    required=("columns", "rows"),
    by="hit",
    default="first",
    cases={
        "collect": Case(needs={"collect": f"add collect: {', '.join(COLLECTS)}"}),
        **{
            hit: Case(forbids={"collect": (f"{{what}}.collect does not belong to hit: {hit}", "remove it")})
            for hit in ("first", "unique")
        },
    },
)
RULE: Final = Keys(
    entries={
        "id": Text(doc="Its name in Decisions and explanations"),
        "drop_when": Expression(doc="Drop the candidate where this holds"),
        "when": Expression(doc="Change its score where this holds"),
        "set": Expression(doc="The score becomes this"),
        "add": Expression(doc="This is added to the score"),
        "multiply": Expression(doc="The score is multiplied by this"),
        "why": Text(doc="What people are told"),
        "owner": _OWNER,
        "kill_switch": Text(
            pattern=r"[A-Za-z_][A-Za-z0-9_.-]*",
            message="{what}: '{text}' is not a name",
            hint="as ks.vip",
            doc="A name under which it can be switched off",
        ),
        "on_unknown": Choice(of=ON_UNKNOWN, doc="What null or a row error in its condition means"),
    },
    required=("id",),
    titled="id",
    title="rule",
    one_of=("drop_when", "when"),
    any_of={"when": EFFECTS},
    cases={
        "drop_when": Case(
            forbids={
                name: (f"a dropped candidate has no score to {name}", "use when instead of drop_when")
                for name in EFFECTS
            }
        )
    },
)
RANK: Final = Keys(
    doc="Best score first",
    entries={
        "by": Choice(of=("score",), doc="score"),
        "ties": Text(doc="The candidate field that orders equal scores, lowest first"),
        "keep": Number(whole=True, low=1, doc="How many can be chosen at all"),
    },
)
EXPLORE_NEEDS: Final = {
    "none": (),
    "epsilon": ("epsilon",),
    "softmax": ("temperature",),
    "top_k_softmax": ("temperature", "top_k"),
}
EXPLORE: Final = Keys(
    doc="How the draw among the kept ones is made",
    entries={
        "kind": Choice(of=EXPLORE_KINDS),
        "epsilon": Number(low=0.0, high=1.0, doc="The share that is spread evenly"),
        "temperature": Number(low=1e-6, high=1e6, doc="exp(score / temperature)"),
        "top_k": Number(whole=True, low=1, doc="Only the best of them"),
        "salt": _SALT,
    },
    required=("kind",),
    by="kind",
    cases={
        kind: Case(
            needs={name: f"explore of kind {kind} needs {name}" for name in needs},
            forbids={
                name: (f"explore.{name} does not belong to kind {kind}", "remove it")
                for name in ("epsilon", "temperature", "top_k")
                if name not in needs
            },
        )
        for kind, needs in EXPLORE_NEEDS.items()
    },
)
LAYER: Final = Keys(entries={"holdout": _SHARE, "salt": _SALT})
ARM: Final = Keys(
    entries={
        "share": _SHARE,
        "set": MapOf(value=Scalar(), pattern=r"params\.[A-Za-z_][A-Za-z0-9_]*", hint="as params.max_eta_s",
                     doc="params.name: value; only parameters of the experiment's layer"),
    },
    required=("share",),
)  # fmt: skip
_ONLY: Final = {"unit": "hash", "region": "switchback", "window": "switchback", "offset": "switchback"}
_UNIT_HINT: Final = {
    "unit": "name what is split, as unit: order_id",
    "region": "name what switches together, as region: pickup_zone",
    "window": "say how long an arm lasts, as window: 30m",
}
EXPERIMENT: Final = Keys(
    entries={
        "layer": _LAYER_NAME,
        "kind": Choice(of=EXPERIMENT_KINDS),
        "unit": Text(doc="The request field that is split"),
        "region": Text(doc="The request field whose values switch together"),
        "window": Text(
            pattern=r"(?=.*[1-9])[0-9]+(?:ms|s|m|h|d)",
            message="{what} must be a duration above zero",
            hint="write 30m, 90s or 2h",
            doc="How long an arm lasts",
        ),
        "offset": Choice(of=OFFSETS, doc="Whether regions switch at different times"),
        "where": Expression(doc="Only these requests, by request fields"),
        "exposure": _SHARE,
        "salt": _SALT,
        "arms": MapOf(value=ARM, pattern=".+", doc="Name: {share, set}"),
    },
    required=("layer", "arms"),
    by="kind",
    default="hash",
    cases={
        kind: Case(
            needs={name: _UNIT_HINT[name] for name, wanted in _ONLY.items() if wanted == kind and name in _UNIT_HINT},
            forbids={
                name: (f"{{what}}.{name} belongs to kind {wanted}, not {kind}", f"write kind: {wanted}, or remove it")
                for name, wanted in _ONLY.items()
                if wanted != kind
            },
        )
        for kind in EXPERIMENT_KINDS
    },
)


def _named(value: Shape, doc: str) -> MapOf:
    return MapOf(value=value, reserved=RESERVED, doc=doc)


STRATEGY: Final = Keys(
    entries={
        "strategy": Text(
            pattern=STRATEGY_NAME,
            kind="name",
            message="'{text}' cannot be the name of a strategy",
            hint="use letters, digits, _ . and -: it is the name of a file, and in the path of requests",
            doc="Its name, in the path of requests",
        ),
        "version": Number(whole=True, low=1, doc="What a Decision names, beside the hash"),
        "owner": _OWNER,
        "shadow_of": Text(doc="The strategy beside which this one is computed, without effect"),
        "scope": SCOPE,
        "request": _named(FIELD, "What a request carries, besides order_id, city, product and as_of"),
        "candidates": CANDIDATES,
        "features": FEATURES,
        "params": MapOf(value=PARAM, doc="What can be tuned; read as params.name"),
        "models": _named(MODEL, "Probabilities under a name"),
        "let": _named(Expression(), "Named expressions, in any order"),
        "tables": _named(TABLE, "Decision tables; read as table.output"),
        "rules": ListOf(item=RULE, title="a rule", hint="start each rule with '- '", doc="In order; drop rules run first"),
        "score": Expression(doc="A number for every candidate that is left"),
        "rank": RANK,
        "explore": EXPLORE,
        "outputs": MapOf(value=Expression(), doc="Named values of every candidate that is left"),
        "layers": MapOf(value=LAYER, pattern=".+", doc="What there is to say about a layer"),
        "experiments": MapOf(value=EXPERIMENT, pattern=".+", doc="Splits of layers into arms"),
        "tests": Text(doc="The file of its tests, relative to this file"),
    },
    required=("strategy", "version", "request", "candidates", "score"),
    prefix=False,
)  # fmt: skip
