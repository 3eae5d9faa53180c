"""`hailstream strategies test` and `strategies coverage`: what the tests of strategies say, what tests and traffic reach."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.commands.output import Json, Kafka, err, fail, kafka_or_local, out, plain_errors, print_json, print_table

if TYPE_CHECKING:
    from engine.coverage import Coverage
    from engine.strategy_test import CaseResult, Suite
    from features.records import Decision
    from features.registry import Registry

Definitions = Annotated[
    Path | None, typer.Option(help="Folder of feature definitions to check against (default: the shipped ones)")
]
What = Annotated[
    str | None,
    typer.Argument(
        help="A strategy file, a folder of them, or the name of a shipped strategy. (default: the shipped ones)"
    ),
]


def test(
    what: What = None,
    definitions: Definitions = None,
    coverage: Annotated[bool, typer.Option("--coverage", help="Show what no case reached.")] = False,
    min_coverage: Annotated[
        float,
        typer.Option(
            min=0.0, max=1.0, help="Exit code 1 where a strategy's coverage is below this share, such as 0.9."
        ),
    ] = 0.0,
    json: Json = False,
) -> None:
    """Run the tests that strategies name (`tests:`), with no store, no models and no services. Exit code 1 for a failure."""
    from engine.coverage import Coverage
    from engine.strategy_test import load_suite, run_case
    from features.expr import Mistake, Mistakes

    with plain_errors(FileNotFoundError):
        registry = _registry(definitions)
        mistakes: list[Mistake] = []
        reports: list[tuple[Suite, list[CaseResult], Coverage]] = []
        untested: list[str] = []
        for path in _paths(what):
            try:
                suite = load_suite(path, registry)
            except Mistakes as error:
                mistakes += error.items
                continue
            if suite is None:
                untested.append(str(path))
                continue
            results = [run_case(suite, case) for case in suite.cases]
            reached = Coverage(suite.compiled)
            for result in results:
                if result.decision is not None:
                    reached.add(result.decision)
            reports.append((suite, results, reached))
    below = [
        f"{suite.compiled.name}: coverage {reached.share():.1%} is below {min_coverage:.1%}"
        for suite, _, reached in reports
        if reached.share() < min_coverage
    ]
    passed = not mistakes and not below and all(result.passed for _, results, _ in reports for result in results)
    passed &= not (untested and min_coverage > 0.0)
    if json:
        print_json(_document(reports, mistakes, untested))
    else:
        _show(reports, coverage=coverage)
        for file in untested:
            out.print(
                f"no tests: {file} (name them in the strategy: 'tests: tests/NAME.yaml')", style="yellow", markup=False
            )
        for line in below:
            err.print(line if coverage else f"{line}; --coverage shows what no case reached", style="red", markup=False)
        if mistakes:
            err.print(str(Mistakes(mistakes)), style="red", markup=False)
    raise typer.Exit(0 if passed and (reports or untested) else 1)


def coverage(
    strategy: Annotated[str, typer.Argument(help="A strategy file, or the name of a shipped strategy.")],
    decisions: Annotated[int, typer.Option(help="The last N Decisions of the strategy; 0 for all there are.")] = 10_000,
    file: Annotated[
        Path | None, typer.Option(help="Decisions as lines of JSON, instead of Kafka's topic `decisions`.")
    ] = None,
    definitions: Definitions = None,
    kafka: Kafka = None,
    json: Json = False,
) -> None:
    """What logged decisions reach: rules that never fire, rules that fire untested, thresholds that no traffic comes near."""
    from collections import deque

    from engine.coverage import Coverage
    from engine.loader import load_strategy
    from engine.strategy_test import load_suite, run_case
    from engine.traffic import count_traffic

    with plain_errors(FileNotFoundError):
        paths = _paths(strategy)
        if len(paths) != 1:
            fail(f"error: name one strategy; {strategy} has {len(paths)}")
        registry = _registry(definitions)
        compiled = load_strategy(paths[0], registry.catalogue, schema_fingerprint=registry.fingerprint)
        suite = load_suite(paths[0], registry)
        tested = None
        if suite is not None:
            reached = Coverage(suite.compiled)
            for result in (run_case(suite, case) for case in suite.cases):
                if result.decision is not None:
                    reached.add(result.decision)
            tested = reached.fired_rules
        found = (one for one in _decisions(file, kafka) if one.strategy == compiled.name)
        traffic = count_traffic(compiled, deque(found, maxlen=decisions or None))
    rules = [asdict(rule) for rule in traffic.rules.values()]
    thresholds = [
        {
            "where": one.owner,
            "comparison": one.text,
            "values": one.count,
            "share_above": one.above / one.count if one.count else None,
            "lowest": one.lowest if one.count else None,
            "highest": one.highest if one.count else None,
            "far": one.is_far,
        }
        for one in traffic.thresholds
    ]
    findings = traffic.findings(tested)
    if json:
        seen = {"decisions": traffic.decisions, "candidates": traffic.candidates, "other_versions": traffic.others}
        print_json({**seen, "rules": rules, "thresholds": thresholds, "findings": findings})
        return
    out.print(
        f"{traffic.decisions} decisions of {traffic.candidates} candidates; {traffic.others} of other versions left out"
    )
    print_table(rules, title="rules", empty="the strategy has no rules")
    shown = [{name: _short(value) for name, value in one.items()} for one in thresholds]
    print_table(shown, title="thresholds (left - right of each comparison)", empty="nothing is compared with a number")
    for line in findings:
        out.print(line, style="yellow", markup=False)


def _registry(definitions: Path | None) -> Registry:
    """The features as the definitions say: a test needs no store."""
    from features.loader import SHIPPED, load_catalogue
    from features.registry import local_registry

    return local_registry(load_catalogue(definitions or SHIPPED))


def _paths(what: str | None) -> list[Path]:
    from engine.server import SHIPPED_STRATEGIES

    path = Path(what) if what is not None else SHIPPED_STRATEGIES
    if path.is_dir():
        found = sorted(path.glob("*.yaml"))
        return found or fail(f"error: no strategy file (*.yaml) in {path}")
    if path.is_file():
        return [path]
    shipped = SHIPPED_STRATEGIES / f"{what}.yaml"
    if shipped.is_file():
        return [shipped]
    names = ", ".join(sorted(one.stem for one in SHIPPED_STRATEGIES.glob("*.yaml")))
    fail(f"error: {what} is no file, no folder and no shipped strategy; shipped are {names}")


def _decisions(file: Path | None, kafka: str | None) -> Iterator[Decision]:
    from features.records import DECISIONS, Decision, decode
    from features.topics import read_all

    if file is not None:
        with file.open("rb") as lines:
            yield from (decode(line, Decision) for line in lines if line.strip())
    else:
        yield from (decode(message.value, Decision) for message in read_all(kafka_or_local(kafka), DECISIONS))


def _show(reports: list[tuple[Suite, list[CaseResult], Coverage]], *, coverage: bool) -> None:
    for _, results, _ in reports:
        for failure in (failure for result in results for failure in result.failures):
            out.print(failure.mistake.format(), style="red", markup=False)
            for line in failure.explained:
                out.print(f"    {line}", markup=False)
    if coverage:
        missing = [
            {
                "strategy": suite.compiled.name,
                "place": f"{Path(item.file).name}:{item.line}:{item.col}",
                "where": item.owner,
                "what": item.text,
                "never": ", ".join(item.missing),
            }
            for suite, _, reached in reports
            for item in reached.missing
        ]
        print_table(missing, title="not reached", empty="every rule, branch and table row is reached")
    print_table(
        [
            {
                "strategy": suite.compiled.name,
                "cases": len(results),
                "failed": sum(not result.passed for result in results),
                "ms a case": f"{1000 * sum(result.seconds for result in results) / len(results):.2f}",
                "coverage": f"{reached.share():.0%}",
                "rules": f"{reached.share('rule'):.0%}",
                "branches": f"{reached.share('branch'):.0%}",
                "table rows": f"{reached.share('table'):.0%}",
            }
            for suite, results, reached in reports
        ],
        empty="no tests were run",
    )


def _document(
    reports: list[tuple[Suite, list[CaseResult], Coverage]], mistakes: list[Any], untested: list[str]
) -> dict[str, Any]:
    return {
        "strategies": [
            {
                "strategy": suite.compiled.name,
                "file": suite.file,
                "cases": [
                    {
                        "name": result.case.name,
                        "passed": result.passed,
                        "seconds": result.seconds,
                        "failures": [asdict(failure) for failure in result.failures],
                    }
                    for result in results
                ],
                "coverage": reached.share(),
                "items": [{**asdict(item), "missing": item.missing} for item in reached.items],
            }
            for suite, results, reached in reports
        ],
        "mistakes": [mistake.as_dict() for mistake in mistakes],
        "untested": untested,
    }


def _short(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value
