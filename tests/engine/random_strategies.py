"""Random strategies over the small catalogue, with requests and features that reach them: for every twin of `decide`.

A strategy is text, YAML and CSV files in a folder, so that loader and compiler are part of what is tested. It has whatever
the language and the file know: tables of all kinds, lets, both models with and without `on_late`, all effects and meanings
of `on_unknown`, outputs, every explore kind, experiments, bounds, times and lists. Everything is a function of the seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from engine.loader import load_strategy
from engine.strategy import CompiledStrategy
from features.expr import Type, parse_type
from features.read_plan import ReadPlan
from features.registry import Registry
from features.rows import FeatureBatch
from features.spec import Key
from tests.engine.support import AS_OF_MS, RandomFeatures

# What both models of `support.sink_models` read is always there, under the types they know.
REQUEST = {
    "zone": "int", "hour": "int", "drop_zone": "int?", "fare_cents": "int", "note": "string?", "opened": "timestamp",
    "waited": "duration?", "tags": "list(string)",
}  # fmt: skip
CANDIDATE = {
    "eta_s": "double?", "distance_m": "double", "state": "string", "rank_no": "int", "vip": "bool?", "seen": "timestamp?",
    "skills": "list(string)", "seats": "list(int)?",
}  # fmt: skip
FEATURES = {
    "driver.offers": "int?", "driver.fare": "int?", "driver.last_type": "string?", "driver.accept_rate": "double",
    "zone.requests": "int?", "zone.avg_fare": "double?", "to.requests": "int?", "to.avg_fare": "double?",
}  # fmt: skip
PARAMS = {"params.max_eta_s": "double", "params.w": "double", "params.divisor": "int", "params.on": "bool", "params.mode": "string"}  # fmt: skip
BOUNDED = {"hour": (0, 23), "fare_cents": (0, 100_000), "eta_s": (0, 7200), "rank_no": (-50, 50)}
TEXTS = ["idle", "on_trip", "completed", "offered", "skip", "", "πέντε", "🐱", "a b"]
INTS = [0, 1, 2, 3, 5, 7, 18, 23, -1, 100, 2**31, 2**62, 2**63 - 1, -(2**63)]
DOUBLES = [0.0, -0.0, 0.5, 1.0, 3.0, -2.5, 600.0, 900.0, 1e-3, 1e300, -1e308, 5e-324]


def random_strategy(seed: int, folder: Path, registry: Registry) -> CompiledStrategy:
    """The compiled strategy of a seed. Its files are in `folder`, for who wants to look.

    Raises: Mistakes for a text that does not compile: a mistake of this generator, or of what it tests.
    """
    path = folder / f"random_{seed}.yaml"
    _Writer(random.Random(seed), path).write(seed)
    return load_strategy(path, registry.catalogue, schema_fingerprint=registry.fingerprint, name=path.name)


def random_request(rng: random.Random, compiled: CompiledStrategy, num_candidates: int) -> dict[str, Any]:
    """A body that fits the strategy, nulls and edges among its values; some of the bounded ones are outside (null then)."""
    strategy = compiled.strategy
    request = {name: _sent(rng, name, kind, tame=name in BOUNDED) for name, kind in strategy.request.items()}
    candidates: dict[str, list[Any]] = {}
    for name, kind in strategy.candidate_fields.items():
        tame = name in BOUNDED and (not kind.nullable or rng.random() < 0.7)
        candidates[name] = [_sent(rng, name, kind, tame=tame) for _ in range(num_candidates)]
    candidates[strategy.candidate_key] = [f"c-{n}" for n in rng.sample(range(10_000), num_candidates)]
    return {
        "order_id": f"o-{rng.randrange(10**6)}",
        "as_of_ms": AS_OF_MS + rng.randrange(10**9),
        "city": rng.choice(["nyc", "ath"]),
        "product": "express",
        "request": request,
        "candidates": candidates,
    }


class NanFeatures:
    """RandomFeatures with NaN among its doubles, as present as any value."""

    def __init__(self, compiled: CompiledStrategy, seed: int, *, down: bool = False) -> None:
        self.inner, self.seed = RandomFeatures(compiled, seed, down=down), seed

    def read(self, plan: ReadPlan, keys: Mapping[str, Sequence[Key]], as_of_ms: int) -> dict[str, FeatureBatch] | None:
        batches = self.inner.read(plan, keys, as_of_ms)
        rng = np.random.default_rng(self.seed)
        for batch in (batches or {}).values():
            for name, kind in zip(batch.names, batch.types, strict=True):
                if kind == "double":
                    batch.columns[name][batch.valid[name] & (rng.random(batch.num_rows) < 0.2)] = np.nan
        return batches


def _quoted(value: Any) -> str:
    """A value as YAML, which JSON is."""
    return json.dumps(value, ensure_ascii=False)


def _sent(rng: random.Random, name: str, kind: Type, *, tame: bool) -> Any:
    """A value as it is sent: times in milliseconds. `tame`: inside the declared bounds."""
    if kind.nullable and rng.random() < 0.2:
        return None
    if tame:
        low, high = BOUNDED[name]
        return rng.randint(low, high) if kind.kind == "int" else rng.choice([rng.uniform(low, high), 600.0])
    if kind.is_list:
        return [_sent(rng, name, kind.item, tame=False) for _ in range(rng.randrange(4))]
    if kind.kind in ("timestamp", "duration"):
        return (
            rng.choice([0, AS_OF_MS, AS_OF_MS - rng.randrange(10**8)])
            if kind.kind == "timestamp"
            else rng.randrange(10**7)
        )
    if kind.kind == "bool":
        return rng.random() < 0.5
    if kind.kind == "string":
        return rng.choice(["idle", "idle", *TEXTS])
    if kind.kind == "int":
        return rng.choice([*INTS, rng.randrange(30)])
    return rng.choice([*DOUBLES, rng.random() * 1500.0])


class _Writer:
    """One strategy's text. `env` are the names known so far, which later expressions read."""

    def __init__(self, rng: random.Random, path: Path) -> None:
        self.rng, self.path = rng, path
        self.env: dict[str, Type] = {}
        self.lines: list[str] = []

    def write(self, seed: int) -> None:
        rng = self.rng
        self.know({**REQUEST, **CANDIDATE, **FEATURES, **PARAMS})
        self.env |= {name: Type("string") for name in ("order_id", "city", "product")} | {"as_of": Type("timestamp")}
        self.lines += [
            f"strategy: random_{seed}",
            "version: 1",
            f"request: {{{', '.join(self.field(*item) for item in REQUEST.items())}}}",
            "candidates:",
            "  key: driver_id",
            f"  fields: {{{', '.join(self.field(*item) for item in CANDIDATE.items())}}}",
            "features: {driver: driver_stats, zone: zone_stats, to: {view: zone_stats, key: drop_zone}}",
            "params:",
            "  max_eta_s: {type: double, default: 900, min: 60, max: 3600, layer: core}",
            f"  w: {{type: double, default: {rng.choice([0.5, -1.0, 2.0])}, layer: core}}",
            f"  divisor: {{type: int, default: {rng.choice([0, 3])}, layer: odd}}",
            f"  on: {{type: bool, default: {rng.choice(['true', 'false'])}, layer: odd}}",
            "  mode: {type: string, default: idle}",
        ]
        self.section("let", [self.let(f"let_{at}") for at in range(rng.randrange(4))])
        self.section("tables", [self.table(f"table_{at}") for at in range(rng.randrange(3))])
        self.section("rules", [self.rule(at) for at in range(rng.randrange(3, 10))])
        self.models()
        self.score()

    def know(self, types: Mapping[str, str]) -> None:
        self.env |= {name: parse_type(kind) for name, kind in types.items()}

    def field(self, name: str, kind: str) -> str:
        if name not in BOUNDED:
            return f"{name}: '{kind}'"
        low, high = BOUNDED[name]
        return f"{name}: {{type: '{kind}', min: {low}, max: {high}}}"

    def section(self, name: str, entries: Sequence[str]) -> None:
        if entries:
            self.lines += [f"{name}:", *(f"  {entry}" for entry in entries)]

    def let(self, name: str) -> str:
        kind = self.rng.choice(["bool", "int", "double", "double", "string"])
        nullable = [known for known, typed in self.env.items() if typed.nullable and typed.kind == kind]
        if nullable and self.rng.random() < 0.3:
            text, typed = self.rng.choice(nullable), Type(kind, True)
        else:
            text, typed = self.expr(kind, 2), Type(kind)
        self.env[name] = typed
        return f"{name}: {_quoted(text)}"

    def table(self, name: str) -> str:
        rng = self.rng
        kinds = ("int", "double", "bool", "string")
        inputs = rng.sample([known for known, typed in self.env.items() if typed.kind in kinds], rng.randrange(1, 4))
        hit = rng.choice(["first", "first", "collect"])
        collect = rng.choice(["sum", "min", "max", "count"])
        out = rng.choice(["int", "double"] if hit == "collect" else ["int", "double", "string", "bool"])
        gap = rng.choice(
            ["error", "null", {"out": self.constant("int" if hit == "collect" and collect == "count" else out)}]
        )
        rows = [
            [*(self.cell(self.env[known]) for known in inputs), self.output(out)] for _ in range(rng.randrange(1, 7))
        ]
        (self.path.parent / f"{self.path.stem}_{name}.csv").write_text(
            "\n".join(",".join(row) for row in [[*inputs, "out.out"], *rows]) + "\n"
        )
        counts = hit == "collect" and collect == "count"
        # Declared with `?`, so that the type does not hang on which values the rows happen to have.
        self.env[f"{name}.out"] = Type("int", gap == "null") if counts else Type(out, True)
        columns = [*inputs, {"out.out": f"{out}?"}]
        parts: dict[str, Any] = {"hit": hit, "on_gap": gap, "columns": columns, "rows": f"{self.path.stem}_{name}.csv"}
        if hit == "collect":
            parts["collect"] = collect
        return f"{name}: {_quoted(parts)}"

    def cell(self, kind: Type) -> str:
        rng = self.rng
        if rng.random() < 0.3:
            return "*"
        if kind.nullable and rng.random() < 0.2:
            return "null"
        if kind.kind in ("int", "double") and rng.random() < 0.5:
            low, high = sorted(rng.sample(range(-3, 1000), 2))
            return rng.choice([f"[{low}..{high})", f"(..{high}]", f"({low}..)", f">= {low}", f"< {high}"])
        return " | ".join(dict.fromkeys(self.plain(kind.kind) for _ in range(rng.randrange(1, 3))))

    def plain(self, kind: str) -> str:
        value = self.constant(kind)
        return f"'{value}'" if kind == "string" else _quoted(value)

    def output(self, kind: str) -> str:
        return "null" if self.rng.random() < 0.15 else self.plain(kind)

    def constant(self, kind: str) -> Any:
        rng = self.rng
        if kind == "bool":
            return rng.random() < 0.5
        if kind == "string":
            return rng.choice([text for text in TEXTS if text])
        return rng.choice([0, 1, 7, 23, -5]) if kind == "int" else rng.choice([0.25, -1.5, 3.0, 600.0])

    def models(self) -> None:
        """Both models; from here on their names are known, and no drop rule may follow that reads them."""
        rng = self.rng
        self.lines.append("models:")
        for name, model in (("p_accept", "accept"), ("p_cancel", "cancel")):
            late = rng.random() < 0.5
            text = rng.choice(["driver.accept_rate / 2.0", "eta_s", "div(1, rank_no) > 0 ? 0.5 : 0.25"])
            self.lines.append(
                f"  {name}: {{uses: {model}@champion, deadline: 5s{f', on_late: {_quoted(text)}' if late else ''}}}"
            )
            self.env[name] = Type("double", not late or text == "eta_s")

    def rule(self, at: int) -> str:
        rng = self.rng
        unknown = rng.choice([None, "skip", "fire", "fail_row"])
        drop = rng.random() < 0.4
        parts: dict[str, Any] = {"id": f"rule_{at}"}
        parts["drop_when" if drop else "when"] = self.condition(nullable=unknown is not None, rare=drop)
        if not drop:
            for effect in rng.sample(["set", "add", "multiply"], rng.choice([1, 1, 2, 3])):
                parts[effect] = self.amount(nullable=unknown is not None)
        if unknown is not None:
            parts["on_unknown"] = unknown
        return f"- {_quoted(parts)}"

    def condition(self, *, nullable: bool, rare: bool) -> str:
        if nullable and self.rng.random() < 0.5:
            unsure = self.rng.choice(["vip", "!vip", f"(vip || {self.expr('bool', 1)})"])
            return f"{unsure} && {self.expr('bool', 1)}" if rare else unsure
        return f"{self.expr('bool', 2)} && rank_no > 5" if rare else self.expr("bool", 3)

    def amount(self, *, nullable: bool) -> str:
        unsure = [name for name, kind in self.env.items() if kind.nullable and kind.kind in ("int", "double")]
        if nullable and self.rng.random() < 0.4:
            return self.rng.choice(unsure)
        return self.expr(self.rng.choice(["double", "int"]), 2)

    def score(self) -> None:
        rng = self.rng
        outputs = [("score_like", "double"), ("label", "string"), ("late", "bool"), ("number", "int")]
        chosen = rng.sample(outputs, rng.randrange(len(outputs) + 1))
        self.section("outputs", [f"{name}: {_quoted(self.expr(kind, 2))}" for name, kind in chosen])
        if chosen and rng.random() < 0.5:
            self.lines += ["  when_seen: seen", "  since: as_of - opened", "  what: skills", "  maybe: eta_s"]
        tame = "params.w * driver.accept_rate + distance_m / 1000.0"
        text = rng.choice([tame, f"{tame} + {self.expr('double', 2)}", self.expr("double", 3), self.expr("int", 2)])
        explore = rng.choice(
            [
                "{kind: none}",
                f"{{kind: epsilon, epsilon: {rng.choice([0, 0.2, 1])}}}",
                f"{{kind: softmax, temperature: {rng.choice([0.01, 0.3, 50])}}}",
                f"{{kind: top_k_softmax, temperature: 0.5, top_k: {rng.choice([1, 3, 100])}}}",
            ]
        )
        self.lines += [
            f"score: {_quoted(text)}",
            f"rank: {{by: score, ties: {rng.choice(['rank_no', 'state', 'driver_id'])}, keep: {rng.choice([1, 3, 50])}}}",
            f"explore: {explore}",
            "layers: {core: {holdout: 0.1}}",
            "experiments:",
            "  wide: {layer: core, unit: order_id, exposure: 0.8, where: \"city == 'nyc'\","
            " arms: {a: {share: 0.5}, b: {share: 0.5, set: {params.w: 4.0, params.max_eta_s: 300}}}}",
            "  odd: {layer: odd, kind: switchback, region: zone, window: 30m,"
            " arms: {off: {share: 0.4, set: {params.on: false}}, five: {share: 0.6, set: {params.divisor: 5}}}}",
        ]
        self.path.write_text("\n".join(self.lines) + "\n")

    # ---------- typed expressions; `depth` is what is left ----------

    def expr(self, kind: str, depth: int) -> str:
        """An expression of that kind that is never null: nullable names are discharged."""
        rng = self.rng
        if depth <= 0 or rng.random() < 0.15:
            return self.leaf(kind)
        deeper = {"bool": self.boolean, "int": self.integer, "double": self.double, "string": self.string}[kind]
        return f"({deeper(depth - 1)})"

    def leaf(self, kind: str) -> str:
        rng = self.rng
        names = [name for name, known in self.env.items() if known.kind == kind]
        if not names or rng.random() < 0.25:
            return self.literal(kind)
        name = rng.choice(names)
        return f"({name} ?? {self.literal(kind)})" if self.env[name].nullable else name

    def literal(self, kind: str) -> str:
        rng = self.rng
        if kind == "string":
            return f"'{rng.choice(TEXTS)}'"
        if kind == "bool":
            return rng.choice(["true", "false"])
        return (
            str(rng.choice([0, 1, 2, 3, 7, 100]))
            if kind == "int"
            else rng.choice(["0.0", "0.5", "2.0", "600.0", "1e300"])
        )

    def boolean(self, depth: int) -> str:
        rng = self.rng
        nullable = [name for name, kind in self.env.items() if kind.nullable]
        kind = rng.choice(["int", "double", "string"])
        a, b = (self.expr(kind, depth) for _ in range(2))
        some = rng.choice(nullable)
        forms = [
            f"{a} {rng.choice(['<', '<=', '>', '>=', '==', '!='])} {b}",
            f"{self.expr('bool', depth)} && {self.expr('bool', depth)}",
            f"{self.expr('bool', depth)} || {self.expr('bool', depth)}",
            f"!{self.expr('bool', depth)}",
            f"{some} == null",
            f"{some} != null",
            f"{self.leaf('string')} in ['idle', 'skip', '🐱']",
            f"{self.leaf('int')} in [1, 5, 23]",
            f"{self.leaf('string')}.startsWith({self.literal('string')})",
            f"{rng.choice(['skills', 'tags'])}.exists(e, e == {self.literal('string')})",
            "size(tags) > 1",
            f"seats != null && seats.all(e, e < {self.literal('int')})",
            "seen != null && seen > opened - duration('1h')",
            "(waited ?? duration('5m')) > duration('10m')",
            f"eta_s != null && eta_s > {self.literal('double')}",
        ]
        return rng.choice(forms)

    def integer(self, depth: int) -> str:
        rng = self.rng
        a, b = (self.expr("int", depth) for _ in range(2))
        forms = [
            f"{a} {rng.choice(['+', '-', '*'])} {b}",
            f"{a} % {rng.choice(['rank_no', 'params.divisor', 'hour'])}",  # a literal 0 or 1e300 would not compile
            f"div({a}, {rng.choice(['rank_no', 'params.divisor', 'hour'])})",
            f"int(distance_m * {self.leaf('double')})",
            f"size({self.leaf('string')})",
            f"{self.expr('bool', depth)} ? {a} : {b}",
            f"max({a}, {b})",
            "as_of.getHours()",
        ]
        return rng.choice(forms)

    def double(self, depth: int) -> str:
        rng = self.rng
        a, b = (self.expr("double", depth) for _ in range(2))
        forms = [
            f"{a} {rng.choice(['+', '-', '*'])} {b}",
            f"{a} / {rng.choice(['distance_m', 'params.w', 'double(rank_no)'])}",
            f"double({self.expr('int', depth)})",
            f"min({a}, {b})",
            f"math.abs({a})",
            f"math.sqrt({a})",
            f"{self.expr('bool', depth)} ? {a} : {b}",
            f"hash01('salt', {self.leaf('string')})",
        ]
        return rng.choice(forms)

    def string(self, depth: int) -> str:
        a, b = (self.expr("string", depth) for _ in range(2))
        return self.rng.choice([f"{self.expr('bool', depth)} ? {a} : {b}", f"string({self.leaf('int')})", a])
