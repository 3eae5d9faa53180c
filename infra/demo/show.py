"""The demo's report for a person: tables in the order of the loop."""

from __future__ import annotations

from typing import Any

from infra.commands.output import out, print_table


def show(report: dict[str, Any]) -> None:
    """Print the whole report."""
    _section("Trips and events")
    print_table(
        [
            {
                "file": file,
                "rows": row["in"],
                "used": row["used"],
                "dead letters": sum(row["dead_lettered"].values()),
                "set aside": sum(row["set_aside"].values()),
                "corrections": sum(row["corrections"].values()),
            }
            for file, row in report["events"]["rows"].items()
        ]
    )
    print_table([{"topic": topic, **fates} for topic, fates in report["events"]["topics"].items()])
    _section("Features, from Kafka append to readable (the hour's own events)")
    print_table(
        [
            {
                "group": group,
                "records used": row["records_used"],
                "of them history": row["of_them_history"],
                "fresh p50": _ms(row["freshness_p50_ms"]),
                "fresh p99": _ms(row["freshness_p99_ms"]),
            }
            for group, row in report["features"].items()
        ]
    )
    _section("Decisions, as the caller sees them")
    decisions = report["decisions"]
    print_table(
        [
            {"strategy": name, "decisions": row["count"], "p50": _ms(row["p50_ms"]), "p99": _ms(row["p99_ms"])}
            for name, row in decisions["latency"].items()
        ]
    )
    print_table(
        [{"express_dispatch scored by": name, "decisions": count} for name, count in decisions["by_model"].items()]
    )
    out.print(f"quality: {_counts(decisions['by_quality'])}; refused: {_counts(decisions['errors']) or 'none'}")
    _section("Orders and samples")
    out.print(f"orders: {_counts(report['orders'])}")
    samples = report["samples"]
    out.print(f"samples: {samples['total']}, of them closed {samples['closed']}; {_counts(samples['by_kind'])}")
    training = samples["training"]
    out.print(
        f"training: {training['rows_used']} of {training['rows_in']} used; left out: {_counts(training['left_out']) or 'none'}"
    )
    _show_model(report["model"])
    _show_acceptance(report["acceptance"])
    _show_checks(report["checks"])
    _section("Cost")
    cost = report["cost"]
    print_table([{"step": step, "seconds": seconds} for step, seconds in cost["seconds"].items()])
    out.print(
        f"total {cost['total_s']} s, peak memory {cost['peak_memory_gib']} GiB, job restarts: {_counts(cost['job_restarts'])}"
    )
    _section("Where to look next")
    print_table([{"what": what, "where": where} for what, where in report["next"].items()])


def _show_model(model: dict[str, Any]) -> None:
    _section(f"The model, {model['champion']}, on the offers after the swap")
    live = model["live"]
    if "auc" not in live:
        out.print(f"{live['offers']} offers: too few to measure")
        return
    rows = [
        ("AUC", live["auc"], 0.5, live["best_auc"]),
        ("log-loss", live["log_loss"], live["base_rate_log_loss"], live["best_log_loss"]),
    ]
    print_table(
        [
            {"metric": name, "model": _f(ours), "base rate": _f(base), "best possible": _f(best)}
            for name, ours, base, best in rows
        ]
    )
    out.print(
        f"calibration error {_f(live['calibration_error'])} over {live['offers']} offers; "
        f"a perfect model would show {_f(live['perfect_model_median'])}, in one case of 20 more than {_f(live['perfect_model_p95'])}"
    )


def _show_acceptance(acceptance: dict[str, Any]) -> None:
    _section("Acceptance of first offers, simulated drivers, 95 % intervals")
    rows = []
    for stretch, found in acceptance.items():
        for arm, share in found["arms"].items():
            rows.append({"stretch": stretch, "arm": arm, "offers": share["trials"], "accepted": _share(share)})
        if "model_minus_rules" in found:
            gap = found["model_minus_rules"]
            rows.append({"stretch": stretch, "arm": "model − rules", "offers": None, "accepted": _points(gap)})
        if "best_possible" in found:
            rows.append(
                {
                    "stretch": stretch,
                    "arm": "best possible",
                    "offers": None,
                    "accepted": f"{found['best_possible']:.1%}",
                }
            )
    print_table(rows)


def _show_checks(checks: list[dict[str, Any]]) -> None:
    _section("Sums that must hold")
    print_table(
        [
            {
                "sum": check["name"],
                "left": f"{check['left_count']} {check['left']}",
                "right": f"{check['right_count']} {check['right']}",
                "holds": "yes" if check["holds"] else "NO",
            }
            for check in checks
        ]
    )
    broken = [check["name"] for check in checks if not check["holds"]]
    if broken:
        out.print(f"{len(broken)} of {len(checks)} sums do not hold", style="bold red")
    else:
        out.print(f"all {len(checks)} sums hold", style="green")


def _section(title: str) -> None:
    out.print()
    out.print(title, style="bold cyan")


def _ms(value: float | None) -> str | None:
    return None if value is None else f"{value:.1f} ms"


def _f(value: float) -> str:
    return f"{value:.4f}"


def _share(share: dict[str, float]) -> str:
    return f"{share['share']:.1%}  [{share['low']:.1%}, {share['high']:.1%}]"


def _points(gap: dict[str, float]) -> str:
    return f"{100 * gap['difference']:+.1f} points  [{100 * gap['low']:+.1f}, {100 * gap['high']:+.1f}]"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items()))
