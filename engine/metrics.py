"""What the engine counts, in Prometheus' words. One instance per server, with a registry of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from features.records import Decision
from features.rows import Status

_STATUS: Final = [status.name.lower() for status in Status]
_SECONDS: Final = (
    0.0001, 0.0002, 0.0003, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0
)  # fmt: skip


class Metrics:
    """Counters, histograms and gauges of one engine."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.decisions = Counter(
            "hailstream_decisions",
            "Decisions made",
            ["strategy", "strategy_version", "model", "source", "quality", "decided_by"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "hailstream_decide_seconds",
            "From the last byte of a request to its answer",
            ["strategy"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.feature_seconds = Histogram(
            "hailstream_feature_read_seconds", "One read of all roles", buckets=_SECONDS, registry=self.registry
        )
        self.feature_values = Counter(
            "hailstream_feature_values", "Feature values served, by status", ["role", "status"], registry=self.registry
        )
        self.unknown_rules = Counter(
            "hailstream_unknown_rules", "Candidates for which a rule was unknown", ["strategy"], registry=self.registry
        )
        self.killed = Counter(
            "hailstream_killed_requests",
            "Requests refused by a kill switch",
            ["strategy", "target"],
            registry=self.registry,
        )
        self.killed_rules = Counter(
            "hailstream_killed_rules",
            "Decisions made without a rule that is switched off",
            ["strategy", "rule"],
            registry=self.registry,
        )
        self.shadow_decisions = Counter(
            "hailstream_shadow_decisions",
            "Decisions of shadows; `agrees`: the same first choice as the strategy that answered",
            ["shadow", "strategy", "agrees"],
            registry=self.registry,
        )
        self.shadow_agreement = Gauge(
            "hailstream_shadow_agreement",
            "Share of a shadow's decisions with the same first choice, since its version went live",
            ["shadow"],
            registry=self.registry,
        )
        self.shadow_undecided = Counter(
            "hailstream_shadow_undecided",
            "Requests that a shadow did not decide, by reason",
            ["shadow", "reason"],
            registry=self.registry,
        )
        self.errors = Counter("hailstream_request_errors", "Requests not decided", ["code"], registry=self.registry)

    def gauge(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A number that is read when it is asked for."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def decided(self, decision: Decision, seconds: float) -> None:
        """Count one answered decision."""
        outputs = decision.model_outputs
        self.decisions.labels(
            decision.strategy,
            str(decision.strategy_version),
            ",".join(output.model for output in outputs.values()),
            ",".join(output.source for output in outputs.values()),
            decision.quality,
            decision.decided_by,
        ).inc()
        self.seconds.labels(decision.strategy).observe(seconds)
        for role, served in decision.features.items():
            counts = np.bincount(np.frombuffer(served.statuses, dtype=np.uint8), minlength=len(_STATUS))
            for status, count in zip(_STATUS, counts.tolist(), strict=False):
                if count:
                    self.feature_values.labels(role, status).inc(count)
        for rule in decision.killed:
            self.killed_rules.labels(decision.strategy, rule).inc()
        unknown = sum(map(bool, decision.unknown))
        if unknown:
            self.unknown_rules.labels(decision.strategy).inc(unknown)

    def shadowed(self, shadow: str, strategy: str, agrees: bool, agreement: float) -> None:
        """Count one decision of a shadow. Its own numbers: what was answered is counted by `decided` alone."""
        self.shadow_decisions.labels(shadow, strategy, str(agrees).lower()).inc()
        self.shadow_agreement.labels(shadow).set(agreement)

    def text(self) -> bytes:
        return generate_latest(self.registry)
