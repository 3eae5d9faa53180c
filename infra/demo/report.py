"""The demo's report: one tree of plain values, shown as tables or printed as JSON.

Live model figures are of the second stretch: what the engine logged that the model said of each offered driver, against
the answer that came. Both arms are scored, so the figures do not depend on who was chosen by whom.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from features.freshness import percentile_ms
from features.records import Decision
from infra.demo.checks import Check
from infra.demo.run import DemoRun
from pipelines.sample_log import count_kinds
from pipelines.sim.asking import COUPON, DISPATCH
from pipelines.sim.report import acceptance_by_arm, ceiling, difference, first_offers
from pipelines.sim.truth import TruthRecord
from pipelines.training.evaluate import auc, ece, ece_band, log_loss

EXPERIMENT = "learned_ranking"
MODEL_USE = "p_accept"


def report_of(run: DemoRun) -> dict[str, Any]:
    """Everything that the demo has to say. `ok` is whether every sum held and the model was really used."""
    checks = [*run.checks, *_use_checks(run)]
    return {
        "ok": all(check.holds for check in checks),
        "events": _events(run),
        "orders": dict(sorted(run.account.orders.items())),
        "features": _features(run),
        "decisions": _decisions(run),
        "samples": _samples(run),
        "model": _model(run),
        "acceptance": _acceptance(run),
        "checks": [{**asdict(check), "holds": check.holds} for check in checks],
        "cost": {
            "seconds": run.seconds,
            "total_s": round(sum(run.seconds.values()), 1),
            "peak_memory_gib": round(run.peak_bytes / 2**30, 2),
            "job_restarts": run.restarts,
        },
        "next": _next(run),
    }


def _events(run: DemoRun) -> dict[str, Any]:
    return {
        "rows": {
            report.file: {
                "in": report.rows_in,
                "used": report.used,
                "dead_lettered": dict(report.dead),
                "set_aside": dict(report.set_aside),
                "corrections": dict(report.corrections),
            }
            for report in run.rows
        },
        "topics": {
            fates.topic: {
                name: getattr(fates, name) for name in ("records", "used", "duplicate", "late", "future", "malformed")
            }
            for fates in run.fates
        },
        "suppressed": dict(run.account.suppressed),
    }


def _features(run: DemoRun) -> dict[str, Any]:
    """Freshness is of the hour's own events: the history before it was published as fast as possible."""
    out = {}
    for name, stats in run.stats.items():
        before = run.stats_before[name]
        hour = {
            bucket: n for bucket, count in stats.freshness.items() if (n := count - before.freshness.get(bucket, 0))
        }
        out[name] = {
            "records_used": stats.used,
            "of_them_history": before.used,
            "freshness_p50_ms": percentile_ms(hour, 0.50),
            "freshness_p99_ms": percentile_ms(hour, 0.99),
        }
    return out


def _decisions(run: DemoRun) -> dict[str, Any]:
    versions: dict[str, int] = {}
    quality: dict[str, int] = {}
    for decision in run.decisions:
        quality[decision.quality] = quality.get(decision.quality, 0) + 1
        if decision.strategy == DISPATCH:
            output = decision.model_outputs[MODEL_USE]
            scored = output.model if output.source == "model" else "rules alone"
            versions[scored] = versions.get(scored, 0) + 1
    return {
        "latency": {strategy: run.engine.latency(strategy) for strategy in (DISPATCH, COUPON)},
        "by_model": dict(sorted(versions.items())),
        "by_quality": quality,
        "errors": dict(run.account.engine_errors),
    }


def _samples(run: DemoRun) -> dict[str, Any]:
    samples = run.samples
    return {
        "total": samples.num_rows,
        "by_kind": count_kinds(samples),
        "closed": int(np.sum(samples["closed"].to_numpy(zero_copy_only=False))),
        "training": {key: run.training[key] for key in ("rows_in", "rows_used", "left_out", "splits")},
    }


def _model(run: DemoRun) -> dict[str, Any]:
    live = live_metrics(run.decisions, run.truth, run.swap_ms)
    return {
        "champion": run.champion,
        "gate": run.training["gate"],
        "offline_test": run.training["metrics"],
        "live": live,
    }


def live_metrics(decisions: list[Decision], truth: list[TruthRecord], since_ms: int) -> dict[str, Any]:
    """The model on all offers after `since_ms`, beside the base rate, the best possible and a perfect model's band."""
    by_id = {decision.decision_id: decision for decision in decisions}
    offers = [record for record in truth if record.chosen is not None and record.as_of_ms > since_ms]
    pairs = []
    for record in offers:
        output = by_id[record.decision_id].model_outputs[MODEL_USE] if record.decision_id in by_id else None
        said = None if output is None or record.chosen is None else output.values[record.chosen]
        if said is not None:
            pairs.append((said, record.answer == "accepted"))
    if not pairs or len({accepted for _, accepted in pairs}) < 2:
        return {"offers": len(pairs)}
    said_N = np.array([said for said, _ in pairs], dtype=np.float64)
    accepted_N = np.array([accepted for _, accepted in pairs], dtype=bool)
    best, band = ceiling(offers), ece_band(said_N, seed=0)
    return {
        "offers": len(pairs),
        "auc": auc(said_N, accepted_N),
        "best_auc": best.best_auc,
        "log_loss": log_loss(said_N, accepted_N),
        "base_rate_log_loss": best.base_log_loss,
        "best_log_loss": best.best_log_loss,
        "calibration_error": ece(said_N, accepted_N),
        "perfect_model_median": band.median,
        "perfect_model_p95": band.p95,
    }


def _acceptance(run: DemoRun) -> dict[str, Any]:
    """First offers of each order by arm, before and after the swap; before it both arms are the rules (an A/A)."""
    first = first_offers(run.truth)
    stretches = {
        "rules alone (A/A)": [record for record in first if record.as_of_ms <= run.swap_ms],
        "rules against model": [record for record in first if record.as_of_ms > run.swap_ms],
    }
    out: dict[str, Any] = {}
    for name, records in stretches.items():
        arms = acceptance_by_arm(records, EXPERIMENT)
        out[name] = {"arms": {arm: asdict(share) for arm, share in arms.items()}}
        if {"model", "rules"} <= arms.keys():
            out[name]["model_minus_rules"] = asdict(difference(arms["model"], arms["rules"]))
        rules = [record for record in records if record.arms.get(EXPERIMENT) == "rules"]
        if len({record.answer == "accepted" for record in rules}) == 2:
            best = ceiling(rules)
            out[name]["best_possible"] = best.oracle
    return out


def _use_checks(run: DemoRun) -> list[Check]:
    """The second model was really used: every dispatch decision after the swap was scored by the champion."""
    after = [d for d in run.decisions if d.strategy == DISPATCH and d.as_of_ms > run.swap_ms]
    scorable = [d for d in after if any(d.survivors)]
    by_champion = [
        d
        for d in scorable
        if d.model_outputs[MODEL_USE].model == run.champion and d.model_outputs[MODEL_USE].source == "model"
    ]
    late = [d for d in scorable if d.model_outputs[MODEL_USE].source != "model"]
    return [
        Check(
            name="after the swap every decision was scored by the champion, or says why not",
            left="decisions",
            right="scored or degraded",
            left_count=len(scorable),
            right_count=len(by_champion) + sum(d.quality == "degraded" for d in late),
        ),
        Check(
            name="the champion decided",
            left="1 or more",
            right="decisions of the model arm by it",
            left_count=1,
            right_count=min(1, sum(d.arms.get(EXPERIMENT) == "model" for d in by_champion)),
        ),
    ]


def _next(run: DemoRun) -> dict[str, str]:
    driver = next(
        (record.candidate_ids[record.chosen] for record in reversed(run.truth) if record.chosen is not None), "d-0001"
    )
    return {
        "engine": f"{run.engine_url}/v1/strategies",
        "metrics": f"{run.engine_url}/metrics",
        "flink": run.stack.flink_rest,
        "features of a driver": f"hailstream features get driver {driver}",
        "models": "hailstream models list",
        "samples": "hailstream samples stats",
        "freshness": "hailstream features freshness",
        "stop everything": "hailstream down",
    }
